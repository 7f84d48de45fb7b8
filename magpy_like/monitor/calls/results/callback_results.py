"""Results of Python functions that a native call reads, such as the keys of ``sorted``.

They are read like arguments of the call. Plain numbers are specialized wherever native code
receives them; here are containers, tensors and other objects, which the call may compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magpy_like.annotation import ValueRead
from magpy_like.monitor.calls import special_methods
from magpy_like.monitor.calls.argument_kinds import describe, holds_tensor
from magpy_like.monitor.calls.results.native_results import NativeCall
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def read_result(context: Context, call: Any, value: Any) -> None:
    """Record that ``call``, if it is a native one that calls its arguments, reads ``value``.

    It also does so if native code has begun to compare what Python functions return to it, as
    ``groupby`` does while another call takes its elements.

    Raises:
        Split: it reads a tensor, or a number that a guard cannot check.
    """
    rec = context.recording
    calls = is_instance(call, NativeCall) and bool(call.annotation.calls)
    if calls and holds_tensor(value):
        name = describe(call.operation)
        raise Split(
            SplitReason.TENSOR_VALUE_READ,
            f"passes a function to {name} that returns a tensor, whose value {name} reads",
        )
    if not (calls or rec.inspections.compares_keys):
        return
    varying_reads.substitute(context, value, deep=True)
    context.lifted.specialize(value)
    special_methods.read_special_methods(rec, value)
    rec.inspections.visit(value, ValueRead.ALL)
    rec.inspections.record_comparison(value)
