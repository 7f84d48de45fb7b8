"""Operator instructions such as ``a + b``, and the comparison of identities."""

from __future__ import annotations

import collections
import opcode
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import ValueRead, lookup
from magpy_like.monitor.calls.argument_kinds import holds_tensor, uses_special_methods
from magpy_like.monitor.calls.native_calls import begin_native_call, record_change
from magpy_like.monitor.calls.results.native_results import finish_followed, recorded_call
from magpy_like.monitor.calls.special_methods import (
    read_special_methods,
    read_special_methods_of_class,
)
from magpy_like.monitor.calls.unreported_native_reads import guard_numpy_error_state
from magpy_like.monitor.objects import object_addresses
from magpy_like.monitor.objects.containers import CONTAINERS
from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact
from magpy_like.refgraph.plain_values import is_mutable_class, is_plain, is_same_value
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


OPERATORS: dict[str, Any] = {
    "+": operator.add,
    "&": operator.and_,
    "//": operator.floordiv,
    "<<": operator.lshift,
    "@": operator.matmul,
    "*": operator.mul,
    "%": operator.mod,
    "|": operator.or_,
    "**": operator.pow,
    ">>": operator.rshift,
    "-": operator.sub,
    "/": operator.truediv,
    "^": operator.xor,
    "+=": operator.iadd,
    "&=": operator.iand,
    "//=": operator.ifloordiv,
    "<<=": operator.ilshift,
    "@=": operator.imatmul,
    "*=": operator.imul,
    "%=": operator.imod,
    "|=": operator.ior,
    "**=": operator.ipow,
    ">>=": operator.irshift,
    "-=": operator.isub,
    "/=": operator.itruediv,
    "^=": operator.ixor,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
"""The function of ``operator`` for the symbol that ``dis`` shows for an instruction."""

BINARY = {i: OPERATORS[symbol] for i, (_, symbol) in enumerate(opcode._nb_ops)}  # type: ignore[attr-defined]

UNARY = {
    "UNARY_POSITIVE": operator.pos,
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_INVERT": operator.invert,
}


def operate(context: Context, operation: Any, args: tuple[Any, ...]) -> Token | None:
    """Record an operator instruction, such as ``a + b``, that is about to run.

    On tensors it becomes a node of the graph. The monitor follows special methods in Python.

    Raises:
        Split: it reads a tensor's value.
    """
    rec = context.recording
    on_tensors = any(is_instance(value, torch.Tensor) for value in args)
    in_python = uses_special_methods(operation, args)
    if operation in FORMATS and is_instance(args[0], str | bytes | bytearray):
        if holds_tensor(args[1]):
            raise Split(SplitReason.TENSOR_VALUE_READ, "formats a tensor as text")
        read_special_methods(rec, args[1])
    if on_tensors and not in_python:
        annotation = lookup(operation)
        if annotation is None:
            raise Split(SplitReason.TENSOR_VALUE_READ, f"applies {operation.__name__} to a tensor")
        return begin_native_call(context, annotation, operation, args, {})
    if any(is_instance(value, np.ndarray) for value in args):
        guard_numpy_error_state(rec)
    in_place = operation.__name__ in IN_PLACE
    for position, value in enumerate(args):
        if is_plain(value):
            continue
        node = rec.variables.node(value)
        if position == 0 and operation is operator.iadd and type(value) is list:
            if node is not None:
                record_change(rec, list.extend, value, args, {})
            continue  # nothing reads its elements, which may be many
        if position == 0 and in_place and node is not None and is_instance(value, _CHANGE_IN_PLACE):
            if is_instance(value, list) and operation is operator.iadd:
                record_change(rec, list.extend, value, args, {})
            else:
                rec.mutations.rewrite(node)
        elif is_instance(value, CONTAINERS):
            rec.inspections.visit(value, ValueRead.ALL)
            if holds_tensor(value) and operation in _COMPARISONS:
                raise Split(
                    SplitReason.TENSOR_VALUE_READ,
                    "compares containers that hold tensors by their values",
                )
        elif is_instance(value, BaseException) or (
            node is not None and not is_mutable_class(type(value))
        ):
            rec.inspections.visit(value, ValueRead.ALL)
        if operation in _COMPARISONS or not is_instance(value, _SEQUENCES):
            rec.inspections.record_comparison(value)
        read_special_methods_of_class(rec, type(value))
    if operation in FORMATS and is_instance(args[0], str | bytes) and not is_plain(args[1]):
        return object_addresses.finish_text, None
    if in_python:
        return finish_followed, None
    return recorded_call(operation, args, {})


FORMATS = (operator.mod, operator.imod)
"""Operators that format a string."""
_CHANGE_IN_PLACE = (list, set, dict, collections.deque, np.ndarray)

IN_PLACE = {
    f.__name__
    for symbol, f in OPERATORS.items()
    if symbol.endswith("=") and symbol not in ("<=", "==", "!=", ">=")
}

_SEQUENCES = (list, tuple, collections.deque)
"""Containers whose operators but comparisons compare no elements."""
_COMPARISONS = {operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge}


def record_identity_test(rec: Recording, left: Any, right: Any) -> None:
    """``left is right``: distinct external variables must be distinct in later calls."""
    if is_plain(left) or is_plain(right):
        if is_same_value(left, right):
            rec.inspections.rely_on_identity(left, right)
        return
    if left is right:
        return
    a, b = rec.variables.node(left), rec.variables.node(right)
    if a is not None and b is not None and not {Fact.IDENTITY} & a.facts & b.facts:
        rec.inspections.distinct.add((min(a.node_id, b.node_id), max(a.node_id, b.node_id)))
