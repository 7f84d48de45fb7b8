"""Constant attention masks: masks that keep every score, or equal ``is_causal=True``.

A program that always passes a mask computes one that is true everywhere, or the triangle of a
causal model, from sizes alone. Without the mask the library may choose its fastest kernels; on a
GPU, with a mask that is expanded along its rows, every kernel would hold all scores in memory. The
pass runs on the captured graph, before autograd chooses the kernel.

Kernels differ in the memory layout of their results and in their random draws for dropout: a mask
stays where the program could observe either.

Non-finite values may differ. The library adds -inf to the scores under a boolean mask, so a NaN in
a masked key reaches all queries; with the flag, whether it computes, replaces or adds to these
scores depends on the chosen kernel, in eager too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.attention.attention_rewrite import (
    compute_fake_values,
    is_layout_hidden,
    is_mask,
)
from magpy_like.compiler.passes.attention.filled_attention import FILLED_ATTENTION
from magpy_like.compiler.passes.graph_queries import argument
from magpy_like.compiler.passes.mutations.tensor_subscripts import (
    find_schemas,
    is_read_only,
    returns_new_memory,
)
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.logs import topic
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.dispatch import disable_current_modes
from magpy_like.torch_compat.operators import find_packet

_log = topic("fusion")

MAX_MASK_ELEMENTS = 2**24
"""Elements of a mask; a larger one is not evaluated at compile time."""
_ATTENTION = (torch.nn.functional.scaled_dot_product_attention,)
_MASK, _DROPOUT, _CAUSAL = 3, 4, 5  # argument indices
_FILLED_KEEP, _FILLED_BIAS = 3, 4  # argument indices of FILLED_ATTENTION


def drop_constant_masks(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Remove constant masks from attention calls, in place; True if any was."""
    changed = False
    vals: dict[Node, Any] | None = None
    for node in gm.graph.nodes:
        if node.target is FILLED_ATTENTION and _classify_mask(node.args[_FILLED_KEEP]) == "causal":
            node.update_arg(_FILLED_KEEP, None)
            node.update_arg(_FILLED_BIAS, None)
            changed = True
        mask = argument(node, _MASK, "attn_mask")
        if node.op != "call_function" or node.target not in _ATTENTION:
            continue
        if not isinstance(mask, Node) or argument(node, _CAUSAL, "is_causal"):
            continue
        if argument(node, _DROPOUT, "dropout_p") not in (None, 0) or not is_layout_hidden(node):
            continue
        kind = _classify_mask(mask)
        if kind is None:
            continue
        vals = compute_fake_values(gm, example_inputs) if vals is None else vals
        if vals is None or not _is_expandable(mask, node, vals):
            continue
        if len(node.args) > _MASK:
            node.update_arg(_MASK, None)
        else:
            node.update_kwarg("attn_mask", None)
        if kind == "causal":
            if len(node.args) > _CAUSAL:
                node.update_arg(_CAUSAL, True)
            else:
                node.update_kwarg("is_causal", True)
        changed = True
    if changed:
        gm.recompile()
    return changed


def _is_expandable(mask: Node, attention: Node, vals: dict[Node, Any]) -> bool:
    """True if the mask expands to the scores' sizes; eager raises, or broadcasts the result, if it
    does not."""
    q, k = (vals.get(argument(attention, i, name)) for i, name in enumerate(("query", "key")))
    if not isinstance(q, torch.Tensor) or not isinstance(k, torch.Tensor):
        return False
    return is_mask(vals.get(mask), [*q.shape[:-1], k.shape[-2]])


def _classify_mask(mask: Any) -> str | None:
    """ "nothing" for a mask that masks nothing, "causal" for one that masks later positions."""
    steps = _mask_nodes(mask) if isinstance(mask, Node) else None
    if steps is None or not all(map(_is_never_written, steps)):
        return None
    try:
        with disable_current_modes(), torch.no_grad():
            value = _evaluate(mask.graph.owning_module, steps)
            if not isinstance(value, torch.Tensor) or value.numel() > MAX_MASK_ELEMENTS:
                return None
            return _classify_values(value)
    except Exception as error:  # the program raises it too, with its own traceback
        _log.debug("an attention mask is kept: %s: %s", type(error).__name__, error)
        return None


def _classify_values(mask: torch.Tensor) -> str | None:
    if mask.dtype == torch.bool:
        if mask.all():
            return "nothing"
        rows, columns = mask.shape[-2:] if mask.dim() > 1 else (1, mask.shape[-1])
        triangle = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
        return "causal" if rows == columns and (mask == triangle).all() else None
    return "nothing" if mask.is_floating_point() and not mask.any() else None


def _mask_nodes(mask: Node) -> list[Node] | None:
    """The nodes that compute the mask, in order, if it depends on nothing from outside."""
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
    """True if an operator returns the same at every call with the same arguments."""
    if node.op not in ("call_function", "call_method") or not is_read_only(node):
        return False
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(a, symbolic) for a in pytree.tree_leaves((node.args, node.kwargs))):
        return False
    name = name_of(node)
    packet = find_packet(name)
    overloads = packet.overloads() if find_schemas(node) and packet is not None else []
    random = torch.Tag.nondeterministic_seeded
    return not name.startswith(("rand", "empty", "new_empty", "bernoulli")) and not any(
        random in getattr(packet, overload).tags for overload in overloads
    )


def _is_never_written(node: Node) -> bool:
    """True if no node of the graph writes to the node's memory."""
    for user in node.users:
        if user.op == "output":
            continue
        if not is_read_only(user) or not (returns_new_memory(user) or _is_never_written(user)):
            return False
    return True


def _evaluate(gm: GraphModule, steps: list[Node]) -> Any:
    interpreter = torch.fx.Interpreter(gm)
    for node in steps:
        interpreter.env[node] = interpreter.run_node(node)
    return interpreter.env[steps[-1]]
