"""TorchScript functions that are operators: a line of tensor operators without effects."""

from __future__ import annotations

import torch

from magpy_like.monitor.split import Split
from magpy_like.native.kinds import isinstance

_MOVES = {
    f"prim::{kind}"
    for kind in ("Constant", "ListConstruct", "TupleConstruct", "ListUnpack", "TupleUnpack")
}
_TELLS_METADATA = {"aten::size", "aten::dim", "aten::len", "prim::dtype", "prim::device"}
_NO_OPERATOR = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.maybe_aliasing_or_mutating,
    torch.Tag.nondeterministic_seeded,
}


def check_script(function: torch._C.ScriptFunction) -> None:
    """Raises:
    Split: the function is more than its tensor operators: it branches, changes something, draws
        random numbers, reads values, calls Python, or its results are not all tensors.
    """
    reason = _more_than_operators(function)
    if reason:
        raise Split(f"calls a TorchScript function that {reason}")


def _more_than_operators(function: torch._C.ScriptFunction) -> str:
    if not all(map(_is_tensors, (value.type for value in function.schema.returns))):
        return "returns more than tensors"
    for node in function.inlined_graph.nodes():
        kind = node.kind()
        if next(node.blocks(), None) is not None:
            return "branches or loops"
        if kind not in _MOVES | _TELLS_METADATA and not _is_functional(node):
            return f"runs {kind}"
    return ""


def _is_tensors(kind: torch._C.JitType) -> bool:
    if isinstance(kind, torch._C.TupleType):
        return all(map(_is_tensors, kind.elements()))
    if isinstance(kind, torch._C.ListType):
        kind = kind.getElementType()
    return isinstance(kind, torch._C.TensorType)


def _is_functional(node: torch._C.Node) -> bool:
    """Whether a node computes tensors from what it is given, in a shape that no value decides."""
    namespace, _, name = node.kind().partition("::")
    if namespace != "aten" or "!" in node.schema():
        return False
    overload = node.schema().partition("(")[0].partition(".")[2] or "default"
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    return (
        operator is not None
        and not _NO_OPERATOR.intersection(operator.tags)
        and all(_is_tensors(output.type()) for output in node.outputs())
    )
