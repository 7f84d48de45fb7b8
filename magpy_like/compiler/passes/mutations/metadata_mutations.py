"""Metadata mutations of arguments: ``x.unsqueeze_(0)``, ``torch.sum(a, out=x)``.

AOTAutograd sets an argument's new sizes and strides after the call. If the argument was written to
as well, they are those of the computed value, which may not fit the argument's memory; and a value
written to ``out=`` it broadcasts to the old sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.torch_compat.operators import OpOverload, find_packet

_DRAWS = torch.Tag.nondeterministic_seeded
_MUTATING_OPERATORS = frozenset(
    (
        "setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
        "irshift", "isub", "itruediv", "ixor",
    )
)  # fmt: skip


def reject_metadata_mutations(gm: GraphModule) -> None:
    """Leave metadata mutations to eager where AOTAutograd's functional form would differ.

    Calls with ``out=`` are replaced, in place, by ones that check the sizes when they are traced.

    Raises:
        Unsupported: an argument's metadata is mutated, and a tensor is written to.
    """
    written = [node for node in gm.graph.nodes if is_mutating(node)]
    reshaped = [node for node in written if _is_inplace_view(node)]
    if len(written) > len(reshaped) and any(map(_is_external, reshaped)):
        raise Unsupported(
            "a graph", "it resizes or transposes an argument in place, and writes to a tensor"
        )
    for node in written:
        if node.op == "call_function" and isinstance(node.kwargs.get("out"), Node):
            if _DRAWS not in _tags(node):
                node.target = _with_checked_out(node.target)
                gm.recompile()


def is_mutating(node: Node) -> bool:
    """True for calls that write to an argument, by their name or an ``out=`` argument."""
    if not node.op.startswith("call"):
        return False
    name = _name(node)
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name.strip("_") in _MUTATING_OPERATORS or "out" in node.kwargs


def may_change_metadata(node: Node) -> bool:
    """True if a node that writes to a tensor may change its sizes, strides or storage, judged by
    the operator's name: so may unknown functions.

    Calls with ``out=`` do not: see :func:`reject_metadata_mutations`."""
    known = isinstance(node.target, OpOverload) or _name(node).strip("_") in _MUTATING_OPERATORS
    return _is_inplace_view(node) or not (known or _tags(node))


def _is_inplace_view(node: Node) -> bool:
    return torch.Tag.inplace_view in _tags(node)


def find_returned_object(node: Node) -> Node:
    """The node whose tensor this one returns: in-place methods return the tensor they write to."""
    while True:
        out = node.kwargs.get("out")
        if node.op == "call_function" and isinstance(out, Node):
            node = out
        elif node.op == "call_method" and is_mutating(node) and isinstance(node.args[0], Node):
            node = node.args[0]
        else:
            return node


def _name(node: Node) -> str:
    target = node.target
    packet = target.overloadpacket if isinstance(target, OpOverload) else target
    return str(getattr(packet, "__name__", packet))


def _tags(node: Node) -> set[Any]:
    if isinstance(node.target, OpOverload):
        return set(node.target.tags)
    packet = find_packet(_name(node))
    overloads = packet.overloads() if packet is not None else ()
    return {tag for overload in overloads for tag in getattr(packet, overload).tags}


def _is_external(node: Node) -> bool:
    """True if an in-place method returns an input or attribute of the graph."""
    while is_mutating(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node.op in ("placeholder", "get_attr")


def _with_checked_out(function: Any) -> Any:
    """``function``; raises Unsupported if its ``out=`` tensor has another size than the result.

    The result is copied, so that the functional graph keeps the layout of the tensor.
    """

    def checked(*args: Any, out: Tensor, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if result.shape != out.shape:
            raise Unsupported("a graph", "an `out=` tensor has another size than the result")
        if (result.dtype, result.device) == (out.dtype, out.device):
            return out.copy_(result)
        return function(*args, out=out, **kwargs)

    return checked
