"""Tensor indices: ``x[i]`` with a 0-d integer tensor ``i``, and the schemas of captured calls.

Python's subscript reads the value of such a tensor, because eager returns a view; a trace cannot.
Where a copy cannot be distinguished from a view, the operator ``index`` replaces the subscript.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.graph_operators.control_operators import name_of
from magpy_like.torch_compat.operators import OpOverload, find_packet


def index_by_tensors(gm: GraphModule) -> bool:
    """Replace subscripts by tensors by the operator ``index``, in place; True if there are any."""
    found = [n for n in gm.graph.nodes if n.target is operator.getitem and _has_node_index(n)]
    if not found or not all(map(is_read_only, gm.graph.nodes)):
        return False
    found = [node for node in found if _is_only_read(node)]
    for node in found:
        node.target = _index
    if found:
        gm.recompile()
    return bool(found)


def _has_node_index(node: Node) -> bool:
    return isinstance(node.args[1], Node)


def _index(source: Any, position: Any) -> Any:
    tensors = isinstance(source, Tensor) and isinstance(position, Tensor)
    if tensors and position.dim() == 0 and position.dtype in _INTEGERS:
        return torch.ops.aten.index.Tensor(source, [position])
    return source[position]


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_only_read(node: Node) -> bool:
    """True if no value that may share the node's memory is returned or written to."""
    for user in node.users:
        if user.op == "output":
            return False
        if user.target is operator.getitem and user.args[0] is node:
            if not _is_only_read(user):
                return False
        elif not (user.target is operator.getitem or returns_new_memory(user)):
            return False
    return True


def returns_new_memory(node: Node) -> bool:
    """True if all overloads of an operator return new memory and write to no argument."""
    schemas = find_schemas(node)
    return bool(schemas) and not any(
        value.alias_info is not None for s in schemas for value in (*s.arguments, *s.returns)
    )


def is_read_only(node: Node) -> bool:
    """True if no overload of the operator writes to an argument."""
    if node.op in ("placeholder", "get_attr", "output") or node.target is operator.getitem:
        return True
    schemas = [] if "out" in node.kwargs else find_schemas(node)
    return bool(schemas) and not any(
        value.alias_info is not None and value.alias_info.is_write
        for schema in schemas
        for value in schema.arguments
    )


def find_schemas(node: Node) -> list[Any]:
    """The schemas of the ATen operator with the name of a captured function or method.

    Also of this project's own operators. Empty for unknown functions, and for in-place variants.
    """
    if isinstance(node.target, OpOverload) and node.target.namespace == "magpy_like":
        return [node.target._schema]
    name = name_of(node)
    packet = find_packet(_ATEN_NAMES.get(name, name))
    called = node.op == "call_method" or (
        node.op == "call_function" and _is_torch_function(node.target)
    )
    if not called or packet is None or has_inplace_flag(node):
        return []
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return [schema for schema in schemas if not any(map(_is_out_argument, schema.arguments))]


def _is_torch_function(target: Any) -> bool:
    """True for torch's functions and operators: others may have the same names."""
    home = getattr(target, "__module__", None) or "torch"
    known = home.split(".")[0] in ("torch", "_operator")
    return known and (not home.startswith("torch.ops.") or home == "torch.ops.aten")


def has_inplace_flag(node: Node) -> bool:
    """True for ``torch.nn.functional.relu(x, inplace=True)``: the operator of that name is
    read-only."""
    code = getattr(node.target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    return arguments.get("inplace", False) is not False


def _is_out_argument(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info and argument.alias_info.is_write)


_ATEN_NAMES = {"truediv": "div", "pos": "positive", "and_": "bitwise_and", "or_": "bitwise_or"}
