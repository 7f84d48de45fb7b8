"""Masks of attention that every call computes alike, and that say nothing or what a flag says.

A program that has a mask only for the sake of one form makes one that is true everywhere, or the
triangle of a causal model, from sizes alone. Without the mask the library's fastest kernels are
open to it, and on a GPU a mask that is expanded along its rows would leave none that does without
all of the scores in memory. This runs on the graph as captured, before autograd asks which kernel.

Kernels lay their results out in memory in ways of their own, and draw what they drop in ways of
their own: a mask stays where the program could see either.

What is not finite may differ: the library adds -inf to the scores beneath a mask of truths, and so
a NaN in a key that is masked goes to all queries, but with the flag, whether it computes, replaces
or adds to these scores depends on the kernel that it takes, in eager as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.attention.attention_rewrite import (
    is_mask,
    layout_is_hidden,
    values,
)
from magpy_like.compiler.passes.attention.filled_attention import FILLED_ATTENTION
from magpy_like.compiler.passes.graph_queries import argument
from magpy_like.compiler.passes.layout.position_tensors import (
    find_schemas,
    is_read_only,
    returns_new_memory,
)
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.logs import topic
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.dispatch import disable_current_modes

_log = topic("fusion")

LARGEST = 2**24  # elements of a mask that is worth looking at
_ATTENTION = (torch.nn.functional.scaled_dot_product_attention,)
_MASK, _DROPOUT, _CAUSAL = 3, 4, 5  # places among the arguments
_KEEP, _BIAS = 3, 4  # and among those of attention that is filled


def drop_constant_masks(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Leave out constant masks, in place; whether any was."""
    changed = False
    vals: dict[Node, Any] | None = None
    for node in gm.graph.nodes:
        if node.target is FILLED_ATTENTION and _meaning(node.args[_KEEP]) == "causal":
            node.update_arg(_KEEP, None)
            node.update_arg(_BIAS, None)
            changed = True
        mask = argument(node, _MASK, "attn_mask")
        if node.op != "call_function" or node.target not in _ATTENTION:
            continue
        if not isinstance(mask, Node) or argument(node, _CAUSAL, "is_causal"):
            continue
        if argument(node, _DROPOUT, "dropout_p") not in (None, 0) or not layout_is_hidden(node):
            continue
        meaning = _meaning(mask)
        if meaning is None:
            continue
        vals = values(gm, example_inputs) if vals is None else vals
        if vals is None or not _broadcasts(mask, node, vals):
            continue
        if len(node.args) > _MASK:
            node.update_arg(_MASK, None)
        else:
            node.update_kwarg("attn_mask", None)
        if meaning == "causal":
            if len(node.args) > _CAUSAL:
                node.update_arg(_CAUSAL, True)
            else:
                node.update_kwarg("is_causal", True)
        changed = True
    if changed:
        gm.recompile()
    return changed


def _broadcasts(mask: Node, attention: Node, vals: dict[Node, Any]) -> bool:
    """Whether all scores have the mask's sizes, which eager checks, or gives the result."""
    q, k = (vals.get(argument(attention, i, name)) for i, name in enumerate(("query", "key")))
    if not isinstance(q, torch.Tensor) or not isinstance(k, torch.Tensor):
        return False
    return is_mask(vals.get(mask), [*q.shape[:-1], k.shape[-2]])


def _meaning(mask: Any) -> str | None:
    """ "nothing" for a mask that keeps all, "causal" for one that keeps what is not later."""
    steps = _steps(mask) if isinstance(mask, Node) else None
    if steps is None or not all(map(_stays, steps)):
        return None
    try:
        with disable_current_modes(), torch.no_grad():
            value = _run(mask.graph.owning_module, steps)
            if not isinstance(value, torch.Tensor) or value.numel() > LARGEST:
                return None
            return _of_values(value)
    except Exception as error:  # what fails here fails in the program, too, with its own message
        _log.debug("a mask is left alone: %s: %s", type(error).__name__, error)
        return None


def _of_values(mask: torch.Tensor) -> str | None:
    if mask.dtype == torch.bool:
        if mask.all():
            return "nothing"
        rows, columns = mask.shape[-2:] if mask.dim() > 1 else (1, mask.shape[-1])
        triangle = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
        return "causal" if rows == columns and (mask == triangle).all() else None
    return "nothing" if mask.is_floating_point() and not mask.any() else None


def _steps(mask: Node) -> list[Node] | None:
    """The nodes that compute the mask, in order, if nothing from outside has a part in it."""
    found: set[Node] = set()
    pending = [mask]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        if not _is_constant(node):
            return None
        found.add(node)
        pending += node.all_input_nodes
    return [node for node in mask.graph.nodes if node in found]


def _is_constant(node: Node) -> bool:
    """Does an operator give the same at every call with the same arguments?"""
    if node.op not in ("call_function", "call_method") or not is_read_only(node):
        return False
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(a, symbolic) for a in pytree.tree_leaves((node.args, node.kwargs))):
        return False
    name = name_of(node)
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if find_schemas(node) and packet is not None else []
    random = torch.Tag.nondeterministic_seeded
    return not name.startswith(("rand", "empty", "new_empty", "bernoulli")) and not any(
        random in getattr(packet, overload).tags for overload in overloads
    )


def _stays(node: Node) -> bool:
    """Does nothing in the graph write to the node's memory?"""
    for user in node.users:
        if user.op == "output":
            continue
        if not is_read_only(user) or not (returns_new_memory(user) or _stays(user)):
            return False
    return True


def _run(gm: GraphModule, steps: list[Node]) -> Any:
    interpreter = torch.fx.Interpreter(gm)
    for node in steps:
        interpreter.env[node] = interpreter.run_node(node)
    return interpreter.env[steps[-1]]
