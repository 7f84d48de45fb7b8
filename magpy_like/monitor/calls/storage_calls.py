"""Calls that depend on where tensors lie in their storages: ``as_strided`` and ``resize_``.

A graph sees the elements of an argument. It does not see the storage around them, and a compiled
graph knows an argument's storage offset only where the guard checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from magpy_like.monitor.calls.results.native_results import NativeCall
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Computed, EntryValue
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import storage_of
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.functorch import get_unwrapped, is_wrapped_tensor
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

_RESIZING_OPERATORS = {torch.Tensor.resize_, torch.Tensor.resize_as_, torch.resize_as_}
_WINDOWS = {
    "as_strided": ("size", "stride", "storage_offset"),
    "as_strided_": ("size", "stride", "storage_offset"),
    "as_strided_copy": ("size", "stride", "storage_offset"),
    "as_strided_scatter": ("src", "size", "stride", "storage_offset"),
}
"""Operators that address a storage by offset and strides: their arguments after the first one."""


def check_resize(context: Context, call: NativeCall) -> Any:
    """Check a call that may replace a tensor's storage.

    Raises:
        Split: the tensor is external, or shares its memory with an external one.
    """
    if call.operation in _RESIZING_OPERATORS and _owners(context.recording, call.args[0]):
        raise Split(SplitReason.TENSOR_INTERNALS, "changes the storage of an external tensor")
    return NotImplemented


def check_window(context: Context, call: NativeCall) -> Any:
    """Check a call that addresses a tensor's storage.

    A window on an external tensor has to be within the tensor's own elements, without gaps. If the
    call names an offset into the storage, the guard checks the tensor's own offset.

    Raises:
        Split: the window covers other memory, or the call changes the external tensor.
    """
    name = getattr(call.operation, "__name__", "").partition(".")[0]
    if name not in _WINDOWS or not call.annotation.as_op_node:
        return NotImplemented
    rec = context.recording
    tensor, given = _arguments(name, call)
    if not is_instance(tensor, torch.Tensor):
        return NotImplemented
    owners = _owners(rec, tensor)
    if rec.running.depth:
        if owners:
            rec.running.keep_as_is("addresses the storage of an argument inside an operator")
        return NotImplemented
    if is_instance(tensor, FakeTensor) or is_wrapped_tensor(tensor) or len(owners) > 1:
        raise Split(SplitReason.TENSOR_INTERNALS, "addresses a storage that others may share")
    if owners and name == "as_strided_":
        raise Split(SplitReason.TENSOR_INTERNALS, "changes the layout of an external tensor")
    try:
        (_check_external if owners else _check_own)(context, call, tensor, given, *owners)
    except GuardOnDataDependentSymNode as error:
        detail = "addresses memory by sizes that depend on a tensor's data"
        raise Split(SplitReason.DATA_DEPENDENT_SIZE, detail) from error
    return NotImplemented


def _arguments(name: str, call: NativeCall) -> tuple[Any, dict[str, Any]]:
    """The tensor, and the other arguments by name."""
    given = dict(zip(("input", *_WINDOWS[name]), call.args, strict=False)) | call.kwargs
    tensor = given.pop("input", None)
    return given.pop("self", tensor), given


def _owners(rec: Recording, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The external tensors in the memory of a tensor, among them the tensor itself."""
    if rec.variables.node(tensor) is not None:
        found = {id(tensor): tensor}
    else:
        found = {}
    while is_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    memory = storage_of(tensor)
    inputs = (
        rec.refs.get_node_by_id(i).variable
        for _, i in rec.operators.nodes.inputs
        if is_instance(i, int)
    )
    for other in (*inputs, *rec.running.inputs.values()):
        if is_instance(other, torch.Tensor) and rec.variables.node(other) is not None:
            if storage_of(other) == memory:
                found[id(other)] = other
    return list(found.values())


def _check_external(
    context: Context,
    call: NativeCall,
    tensor: torch.Tensor,
    given: dict[str, Any],
    owner: torch.Tensor,
) -> None:
    """Check a window on an external tensor.

    Raises:
        Split: it covers other memory, or the offset differs from those that a graph can express.
    """
    rec = context.recording
    node = rec.variables.node(owner)
    assert node is not None
    size, stride, offset = _numbers(context, given)
    own, base = (rec.sizes.twin_of(t) for t in (tensor, owner))
    if node.node_id in rec.writes.data_replaced or (
        own is None and base is not None and tensor is not owner
    ):
        raise Split(SplitReason.TENSOR_INTERNALS, _OUTSIDE)
    own, base = (tensor if own is None else own), (owner if base is None else base)
    start = own.storage_offset() - base.storage_offset()
    if offset is not None:
        at = owner.storage_offset()  # a twin of varying sizes begins at 0
        context.lifted.guards.conditions.append(
            (Computed(torch.Tensor.storage_offset, (EntryValue(node),)), at)
        )
        if at:
            if not bool(start == offset - at):
                raise Split(SplitReason.TENSOR_INTERNALS, _OUTSIDE)
            given = {name: value for name, value in given.items() if name != "storage_offset"}
            call.args, call.kwargs = (tensor,), given
        start = offset - at
    if 0 in size:
        return
    extent = _reach(base.shape, base.stride()) + 1
    is_within = bool(start >= 0) and bool(start + _reach(size, stride) < extent)
    if not (is_within and bool(base.numel() == extent)):
        raise Split(SplitReason.TENSOR_INTERNALS, _OUTSIDE)


_OUTSIDE = "addresses memory next to the elements of an external tensor"


def _check_own(
    context: Context, call: NativeCall, tensor: torch.Tensor, given: dict[str, Any]
) -> None:
    """Guard that a window on memory of the graph is within it."""
    own = context.recording.sizes.twin_of(tensor)
    if own is None:
        return
    size, stride, offset = _numbers(context, given)
    if 0 in size:
        return
    start = own.storage_offset() if offset is None else offset
    end = (start + _reach(size, stride) + 1) * own.itemsize
    if not bool(end <= own.untyped_storage().nbytes()):
        raise Split(SplitReason.TENSOR_INTERNALS, "addresses memory outside of a tensor")


def _numbers(context: Context, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The size, the stride and the offset of a window, with symbols for lifted numbers."""
    size, stride = (tuple(given.get(name, ())) for name in ("size", "stride"))
    window = size, stride, given.get("storage_offset")
    symbolic: tuple[Any, Any, Any] | None = context.lifted.identities.twins_of(window)
    if symbolic is None:
        context.lifted.specialize(window)
        return window
    return symbolic


def _reach(size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """The distance from the first element to the last."""
    return sum((n - 1) * step for n, step in zip(size, stride, strict=True))
