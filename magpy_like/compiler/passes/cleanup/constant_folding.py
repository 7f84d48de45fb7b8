"""Constant folding: values that depend only on tensors which the graph itself creates.

Tensors created by the graph (``full``, ``arange``, ...) are the same at every call, and so are
literals of the program, of which the graph takes a copy (``lift_fresh_copy``). A parameter, a
buffer, or a tensor from outside can be modified in place between two calls, in ways that no version
counter shows (``p.data``), so the graph reads it at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.cleanup.uniform_tensors import FILLING, uniform_value
from magpy_like.compiler.passes.graph_queries import (
    aten,
    insert,
    is_interchangeable,
    is_literal,
    is_pure,
    is_view,
    tensor,
)
from magpy_like.graph_operators.node_metadata import FOLDED
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.tracing.fake_tensors import unset_fake_temporarily

MAX_FOLDED_ELEMENTS = 1 << 20  # elements; beyond, the compile time is not worth it
MAX_CONSTANT_BYTES = 1 << 14  # bytes of a constant; a larger one costs more to read than to compute


_FACTORIES = (
    {aten.full.default, aten.zeros.default, aten.ones.default, aten.scalar_tensor.default}
    | {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.eye.default}
    | {aten.eye.m, aten.linspace.default, aten.tril_indices.default, aten.triu_indices.default}
)


def fold_constants(gm: GraphModule) -> bool:
    """Replace constant subgraphs by ``full`` or by a constant of the graph; True if any was.

    A tensor of equal elements becomes a ``full``, which a kernel needs not read; any other becomes
    a constant if it is small. No result, and no tensor with a view among the results, becomes a
    constant: the caller could write to it.
    """
    changed = _fill_by_numbers(gm)
    constant = _constant_nodes(gm)
    aliases = Aliases(gm.graph)
    evaluate = _evaluator(gm)
    for node in reversed(list(gm.graph.nodes)):
        if node not in constant or node.target in _FACTORIES or node.op != "call_function":
            continue
        if all(user in constant for user in node.users):
            continue  # its users are folded themselves
        new = _folded(gm, node, evaluate, aliases)
        if new is None:
            constant.discard(node)  # the values that it is computed from may be small enough
        else:
            node.replace_all_uses_with(new)
            changed = True
    return changed


def _folded(
    gm: GraphModule, node: Node, evaluate: Callable[[Node], Any], aliases: Aliases
) -> Node | None:
    try:
        with unset_fake_temporarily(), torch.no_grad():
            result = evaluate(node)
    except Exception:
        return None  # an error of the program: raised at run time, as in eager
    new = _as_constant(gm, node, result, aliases)
    return new if new is not None and is_interchangeable(node, new) else None


def _fill_by_numbers(gm: GraphModule) -> bool:
    """Replace copies of one number, which may be in a tensor of another device, by ``full``."""
    changed = False
    for node in gm.graph.nodes:
        if node.target in FILLING and (number := uniform_value(node)) is not None:
            new = insert(gm.graph, aten.full_like.default, node.args[0], number, like=node)
            node.replace_all_uses_with(new)
            changed = True
    return changed


def _constant_nodes(gm: GraphModule) -> set[Node]:
    found: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            held = _attribute(gm, node)
            if FOLDED in node.meta or (isinstance(held, torch.Tensor) and is_literal(node, held)):
                found.add(node)
        elif is_pure(node) and _is_small(node):
            inputs = node.all_input_nodes
            depends_on_none = all(arg in found for arg in inputs)
            if depends_on_none and (inputs or node.target in _FACTORIES):
                found.add(node)
            elif uniform_value(node) is not None:
                found.add(node)  # an input gives its sizes alone
    written = {arg for node in gm.graph.nodes if not is_pure(node) for arg in node.all_input_nodes}
    return {n for n in found if n not in written or all(u.op == "output" for u in n.users)}


def _attribute(gm: GraphModule, node: Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), gm)


def _is_small(node: Node) -> bool:
    val = tensor(node)
    return (
        val is not None
        and val.device.type in ("cpu", "cuda")
        and all(type(size) is int for size in val.shape)
        and val.numel() <= MAX_FOLDED_ELEMENTS
    )


def _evaluator(gm: GraphModule) -> Callable[[Node], Any]:
    @functools.cache
    def evaluate(node: Node) -> Any:
        if node.op == "get_attr":
            return _attribute(gm, node)
        number, val = uniform_value(node), tensor(node)
        if number is not None and val is not None:
            return torch.full(val.shape, number, dtype=val.dtype, device=val.device)
        args, kwargs = pytree.tree_map_only(Node, evaluate, (node.args, node.kwargs))
        return node.target(*args, **kwargs)

    return evaluate


def _as_constant(
    gm: GraphModule, node: Node, result: torch.Tensor, aliases: Aliases
) -> Node | None:
    fill = _uniform_element(result)
    if fill is not None and result.is_contiguous() and not aliases.is_written(node):
        if is_view(node) and any(user.op == "output" for user in node.users):
            return None
        return insert(
            gm.graph,
            aten.full.default,
            list(result.shape),
            fill,
            dtype=result.dtype,
            device=result.device,
            pin_memory=False,
            like=node,
        )
    if aliases.is_returned(node) or aliases.is_written(node):
        return None
    if any(is_view(user) or not is_pure(user) for user in node.users):
        return None
    if result.numel() * result.element_size() > MAX_CONSTANT_BYTES:
        return None
    name = next(n for i in range(1 << 30) if not hasattr(gm, n := f"_folded_{i}"))
    gm.register_buffer(name, result.detach().clone(memory_format=torch.preserve_format), False)
    with gm.graph.inserting_before(node):
        new = gm.graph.get_attr(name)
    new.meta |= {"val": node.meta["val"], FOLDED: True}
    return new


def _uniform_element(result: torch.Tensor) -> Any:
    """The number that all elements equal, bit for bit; None if they differ, or if the tensor is
    empty or complex."""
    if result.numel() == 0 or result.is_complex():
        return None
    flat = result.reshape(-1)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    raw = flat.view(bits[flat.element_size()])
    return flat[0].item() if bool((raw == raw[0]).all()) else None
