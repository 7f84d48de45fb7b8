"""Running statistics: writes of batch norms, which no version counter of eager mode counts.

Autograd refuses a backward pass whose saved tensors have other versions than in the forward pass.
The kernels of batch norms update statistics without a new version. A compiled graph writes them as
it writes any input, so its call restores the versions.

The backward pass of a batch norm in evaluation reads the statistics. On a CPU it reads what they
are by then; on a GPU the forward pass keeps a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.autograd.overwritten_saved_values import Effect, memory_effect
from magpy_like.graph_operators.checkpoint_batch_norm import update_on_recompute
from magpy_like.graph_operators.control_operators import is_control, name_of
from magpy_like.torch_compat.autograd import set_version

_OPERATORS = {"batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
_POSITIONS, _POSITIONS_IN_PYTHON = (3, 4), (1, 2)
_KEYWORDS = ("running_mean", "running_var")
_TRAINING = 5


def find_uncounted(gm: fx.GraphModule) -> list[int]:
    """The indices of inputs that a captured graph writes to as running statistics only, by
    themselves or through tensors that share their memory."""
    statistics = [n for node in gm.graph.nodes for n in _statistics(node)]
    sources = _find_sources(statistics)
    return [
        k
        for k, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if node in sources and all(_counts_no_write(user, node) for user in node.users)
    ]


def _find_sources(tensors: list[fx.Node]) -> set[fx.Node]:
    """These nodes, and all whose memory they may share."""
    reached, found = [*tensors], {*tensors}
    for node in reached:
        is_call = node.op in ("call_function", "call_method")
        if is_call and memory_effect(node) not in (Effect.NEW, Effect.COPY):
            further = [each for each in node.all_input_nodes if each not in found]
            reached += further
            found.update(further)
    return found


def updated_statistics(node: fx.Node) -> list[fx.Node]:
    """The inputs of a node that it updates as running statistics: none in evaluation."""
    statistics = _statistics(node)
    return statistics if statistics and _is_training(node) else []


def _statistics(node: fx.Node) -> list[fx.Node]:
    """The running statistics of a node: those that it updates, or in evaluation reads."""
    if node.op != "call_function" or name_of(node).partition(".")[0] not in _OPERATORS:
        return []
    in_python = node.target is torch.nn.functional.batch_norm
    positions = _POSITIONS_IN_PYTHON if in_python else _POSITIONS
    found = [node.args[k] for k in positions if k < len(node.args)]
    found += [node.kwargs[name] for name in _KEYWORDS if name in node.kwargs]
    return [each for each in found if isinstance(each, fx.Node)]


def _counts_no_write(user: fx.Node, node: fx.Node) -> bool:
    """True if a use of ``node``, and of what shares its memory, counts no new version of it."""
    if user.op == "output" or user.target is update_on_recompute or node in _statistics(user):
        return True
    if user.op not in ("call_function", "call_method") or is_control(user):
        return False
    effect = memory_effect(user)
    if effect in (Effect.NEW, Effect.COPY):
        return True
    return effect is not Effect.WRITES and all(_counts_no_write(n, user) for n in user.users)


def copy_for_evaluation(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Copy statistics on a GPU for each batch norm in evaluation that a later one updates."""
    for node, example in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False):
        if not (isinstance(example, torch.Tensor) and example.is_cuda):
            continue
        users = sorted(user for user in node.users if node in _statistics(user))
        last_update = max((k for k, user in enumerate(users) if _is_training(user)), default=0)
        for user in users[:last_update]:
            if not _is_training(user):
                with gm.graph.inserting_before(user):
                    copied = gm.graph.call_function(torch.clone, (node,))
                copied.meta |= node.meta
                user.replace_input_with(node, copied)


def _is_training(batch_norm: fx.Node) -> bool:
    given = batch_norm.args[_TRAINING:] or (batch_norm.kwargs.get("training", False),)
    return given[0] is not False


def keep_versions(call: Callable[..., Any], inputs: list[int]) -> Callable[..., Any]:
    """``call``, after which these inputs have the versions that they had before."""
    if not inputs:
        return call

    def run(*args: Any) -> Any:
        tensors = [args[k] for k in inputs]
        try:
            versions = [tensor._version for tensor in tensors]
        except RuntimeError:  # inference tensors have no version counter
            tensors = [tensor for tensor in tensors if not tensor.is_inference()]
            versions = [tensor._version for tensor in tensors]
        results = call(*args)
        set_version(tensors, versions)
        return results

    return run
