"""Arguments that are given another form: ``x.unsqueeze_(0)``, ``torch.sum(a, out=x)``.

AOTAutograd gives an argument its new sizes and strides after the call. Those of one that was
written to as well are the ones of what was computed, which need not lie where the argument lies;
and what is put into ``out`` it spreads over the sizes that were there before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.compiler_errors import Unsupported

_DRAWS = torch.Tag.nondeterministic_seeded
_STATEMENTS = frozenset(
    (
        "setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
        "irshift", "isub", "itruediv", "ixor",
    )
)  # fmt: skip


def reject_metadata_mutations(gm: GraphModule) -> None:
    """Raise Unsupported where an argument is given another form and something is written to; look
    at the sizes of what is put into ``out``."""
    written = [node for node in gm.graph.nodes if is_mutating(node)]
    reshaped = [node for node in written if torch.Tag.inplace_view in _tags(node)]
    if len(written) > len(reshaped) and any(map(_is_of_argument, reshaped)):
        raise Unsupported("a graph", "an argument of another form is written to")
    for node in written:
        if node.op == "call_function" and isinstance(node.kwargs.get("out"), Node):
            if _DRAWS not in _tags(node):
                node.target = _put(node.target)
                gm.recompile()


def is_mutating(node: Node) -> bool:
    if not node.op.startswith("call"):
        return False
    name = _name(node)
    has_inplace_flag = name.endswith("_") and not name.endswith("__")
    return has_inplace_flag or name.strip("_") in _STATEMENTS or "out" in node.kwargs


def find_returned_object(node: Node) -> Node:
    """The node whose tensor this one returns: methods that write return what they write to."""
    while True:
        out = node.kwargs.get("out")
        if node.op == "call_function" and isinstance(out, Node):
            node = out
        elif node.op == "call_method" and is_mutating(node) and isinstance(node.args[0], Node):
            node = node.args[0]
        else:
            return node


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _tags(node: Node) -> set[Any]:
    packet = getattr(torch.ops.aten, _name(node), None)
    overloads = packet.overloads() if packet is not None else ()
    return {tag for overload in overloads for tag in getattr(packet, overload).tags}


def _is_of_argument(node: Node) -> bool:
    """Whether a method that returns its own tensor has that from outside."""
    while is_mutating(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node.op in ("placeholder", "get_attr")


def _put(function: Any) -> Any:
    def put(*args: Any, out: Tensor, **kwargs: Any) -> Any:
        if function(*args, **kwargs).shape != out.shape:
            raise Unsupported("a graph", "a result is put into a tensor of another size")
        return function(*args, out=out, **kwargs)

    return put
