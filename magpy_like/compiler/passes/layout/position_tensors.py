"""``x[i]`` with a position ``i`` that a tensor holds stays on the graph.

Python's subscript asks such a tensor (one integer, no dimensions) for its value, because eager
gives a view; no trace can. Where nobody could tell a view from a copy, the operator ``index`` does.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.graph_operators.control_operators import name_of
from magpy_like.torch_compat.operators import OpOverload


def index_by_tensors(gm: GraphModule) -> bool:
    """Have subscripts by tensors traced as operators; whether there are any."""
    found = [n for n in gm.graph.nodes if n.target is operator.getitem and _may_be_position(n)]
    if not found or not all(map(is_read_only, gm.graph.nodes)):
        return False
    found = [node for node in found if _only_read(node)]
    for node in found:
        node.target = _item
    if found:
        gm.recompile()
    return bool(found)


def _may_be_position(node: Node) -> bool:
    return isinstance(node.args[1], Node)


def _item(source: Any, position: Any) -> Any:
    tensors = isinstance(source, Tensor) and isinstance(position, Tensor)
    if tensors and position.dim() == 0 and position.dtype in _POSITIONS:
        return torch.ops.aten.index.Tensor(source, [position])
    return source[position]


_POSITIONS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _only_read(node: Node) -> bool:
    """Whether nothing that comes of a value shares its memory, beyond the graph or in a write."""
    for user in node.users:
        if user.op == "output":
            return False
        if user.target is operator.getitem and user.args[0] is node:
            if not _only_read(user):
                return False
        elif not (user.target is operator.getitem or returns_new_memory(user)):
            return False
    return True


def returns_new_memory(node: Node) -> bool:
    """Whether all overloads of an operator give memory of their own and write to none."""
    schemas = find_schemas(node)
    return bool(schemas) and not any(
        value.alias_info is not None for s in schemas for value in (*s.arguments, *s.returns)
    )


def is_read_only(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr", "output") or node.target is operator.getitem:
        return True
    schemas = [] if "out" in node.kwargs else find_schemas(node)
    return bool(schemas) and not any(
        value.alias_info is not None and value.alias_info.is_write
        for schema in schemas
        for value in schema.arguments
    )


def find_schemas(node: Node) -> list[Any]:
    """Of the ATen operator that a function or method of a captured graph is named after, or that
    of an operator of our own."""
    if isinstance(node.target, OpOverload) and node.target.namespace == "magpy_like":
        return [node.target._schema]
    name = name_of(node)
    packet = getattr(torch.ops.aten, _NAMES.get(name, name), None)
    called = node.op == "call_method" or (node.op == "call_function" and _is_torchs(node.target))
    if not called or packet is None or has_inplace_flag(node):
        return []
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return [schema for schema in schemas if not any(map(_is_out, schema.arguments))]


def _is_torchs(target: Any) -> bool:
    """Others may give their functions and operators the same names."""
    home = getattr(target, "__module__", None) or "torch"
    known = home.split(".")[0] in ("torch", "_operator")
    return known and (not home.startswith("torch.ops.") or home == "torch.ops.aten")


def has_inplace_flag(node: Node) -> bool:
    """``torch.nn.functional.relu(x, inplace=True)`` has the name of an operator that writes
    nothing."""
    code = getattr(node.target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return given.get("inplace", False) is not False


def _is_out(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info and argument.alias_info.is_write)


_NAMES = {"truediv": "div", "pos": "positive", "and_": "bitwise_and", "or_": "bitwise_or"}
