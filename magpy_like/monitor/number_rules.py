"""What instructions do to lifted numbers: compute with them, or settle what they are."""

from __future__ import annotations

import dis
import opcode
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor import operators
from magpy_like.monitor.lifted import ARITHMETIC, Computed, is_number, known_at_entry
from magpy_like.monitor.native_calls import finish_computed

if TYPE_CHECKING:
    from magpy_like.monitor.instructions import Step
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any] | None


def _compute(run: MonitorRun, operation: Any, operands: tuple[Any, ...]) -> Token:
    if not run.lifted.any(operands):
        return None
    if operation in ARITHMETIC and all(is_number(operand) for operand in operands):
        return finish_computed, (operation, operands)
    if any(isinstance(operand, torch.Tensor) for operand in operands):
        return None  # an input of the operator graph
    run.lifted.settle(operands)
    return None


def _compute_binary(run: MonitorRun, step: Step) -> Token:
    return _compute(run, operators.BINARY[step.oparg], step.stack[-2:])


def _compute_unary(run: MonitorRun, step: Step) -> Token:
    return _compute(run, operators.UNARY[opcode.opname[step.opcode]], step.stack[-1:])


def _settle_operands(count: int) -> Callable[[MonitorRun, Step], Token]:
    """The rule that the topmost ``count`` operands must not differ."""

    def settle(run: MonitorRun, step: Step) -> Token:
        target = _INDEXED.get(opcode.opname[step.opcode])
        if target is not None and isinstance(step.stack[target], torch.Tensor):
            return None  # indices of a tensor are inputs of the operator graph
        for value in step.stack[-count:]:
            if is_number(value) or isinstance(value, slice):
                run.lifted.settle(value)
        return None

    return settle


def _compare(run: MonitorRun, step: Step) -> Token:
    """What is not known at entry is foretold as what the comparison gives, not as a number."""
    operands = step.stack[-2:]
    parts = tuple(run.lifted.expression(operand) or operand for operand in operands)
    if all(is_number(operand) for operand in operands) and not all(map(known_at_entry, parts)):
        index = step.oparg >> 4 if sys.version_info >= (3, 12) else step.oparg
        operation = operators.OPERATORS[dis.cmp_op[index]]
        run.lifted.foretell(Computed(operation, parts), operation(*operands))
        return None
    return _settle_operands(2)(run, step)


def _branch(run: MonitorRun, step: Step) -> Token:
    expression = run.lifted.expression(step.stack[-1])
    if expression is None or known_at_entry(expression):
        return _settle_operands(1)(run, step)
    run.lifted.foretell(Computed(operator.truth, (expression,)), bool(step.stack[-1]))
    return None


_INDEXED = {"BINARY_SUBSCR": -2, "STORE_SUBSCR": -2, "BINARY_SLICE": -3, "STORE_SLICE": -3}
"""Where on the stack the operand is that these look into."""


def _settled_by() -> dict[int, Callable[[MonitorRun, Step], Token]]:
    """What instructions do with lifted numbers on the stack, where it is more than moving them."""
    one, two, three = _settle_operands(1), _settle_operands(2), _settle_operands(3)
    table: dict[str, Callable[[MonitorRun, Step], Token]] = {
        "BINARY_OP": _compute_binary,
        "UNARY_POSITIVE": _compute_unary,
        "UNARY_NEGATIVE": _compute_unary,
        "UNARY_INVERT": _compute_unary,
        "STORE_SUBSCR": one,
        "STORE_SLICE": two,
        "BINARY_SLICE": two,
        "MATCH_CLASS": three,
    }
    for name in ("CONTAINS_OP", "IS_OP", "BINARY_SUBSCR", "DELETE_SUBSCR",
                 "FORMAT_VALUE", "MATCH_KEYS"):  # fmt: skip
        table[name] = two
    for name in opcode.opmap:
        if ("JUMP" in name and "_IF_" in name) or name == "UNARY_NOT":
            table[name] = _branch
        elif name in ("LOAD_ATTR", "LOAD_METHOD", "GET_LEN"):
            table[name] = one
    table["COMPARE_OP"] = _compare
    return {
        opcode.opmap[name]: rule
        for name, rule in table.items()
        if opcode.opmap.get(name, 256) < 256
    }


SETTLED_BY = _settled_by()
