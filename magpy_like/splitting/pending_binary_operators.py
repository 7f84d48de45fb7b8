"""Pending operators with two operands, whose methods Python calls one after the other."""

from __future__ import annotations

import functools
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from magpy_like.bytecode.instruction_stream import Instruction
from magpy_like.bytecode.tested_jumps import comparison, tests_result
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.callee_matching import (
    Suspended,
    calls_method,
    split_stack,
    unchanged_self,
)
from magpy_like.splitting.frame_state import FrameState, PendingInstruction, ResultUse

_BINARY = (
    ("add", "+"),
    ("and", "&"),
    ("floordiv", "//"),
    ("lshift", "<<"),
    ("matmul", "@"),
    ("mul", "*"),
    ("mod", "%"),
    ("or", "|"),
    ("pow", "** or pow()"),
    ("rshift", ">>"),
    ("sub", "-"),
    ("truediv", "/"),
    ("xor", "^"),
)
"""Names and symbols, by the argument of BINARY_OP; the in-place operators follow."""
_SEQUENCES = (str, bytes, bytearray, list, tuple, deque, array)

_COMPARE = {
    "<": ("lt", "gt"),
    "<=": ("le", "ge"),
    "==": ("eq", "eq"),
    "!=": ("ne", "ne"),
    ">": ("gt", "lt"),
    ">=": ("ge", "le"),
}

Candidate = tuple[Any, str, Any]
"""A value, its special method, and the argument."""


def pending_binary(
    state: FrameState, instruction: Instruction, callee: FrameState
) -> Suspended | None:
    below, (left, right) = split_stack(state.stack, 2)
    inplace = instruction.arg >= len(_BINARY)
    name, symbol = _BINARY[instruction.arg % len(_BINARY)]
    if name in ("add", "mul") and is_instance(left, _SEQUENCES) | is_instance(right, _SEQUENCES):
        return None  # sequences are joined and repeated by other rules after NotImplemented
    forward, reflected = f"__{name}__", f"__r{name}__"
    candidates: list[Candidate] = [(left, forward, right)]
    if type(left) is not type(right):
        mirrored = (right, reflected, left)
        overrides = issubclass(type(right), type(left)) and lookup_in_type(
            type(right), reflected
        ) is not lookup_in_type(type(left), reflected)
        candidates.insert(0 if overrides else 1, mirrored)
    if inplace:
        candidates.insert(0, (left, f"__i{name}__", right))
        symbol = "**=" if name == "pow" else f"{symbol}="
    message = (
        f"unsupported operand type(s) for {symbol}: "
        f"'{type(left).__name__}' and '{type(right).__name__}'"
    )
    return _match_candidate(below, candidates, functools.partial(_unsupported, message), callee)


def pending_comparison(
    state: FrameState, instruction: Instruction, callee: FrameState
) -> Suspended | None:
    below, (left, right) = split_stack(state.stack, 2)
    symbol = comparison(instruction.arg)
    name, mirror = _COMPARE[symbol]
    candidates: list[Candidate] = [
        (left, f"__{name}__", right),
        (right, f"__{mirror}__", left),
    ]
    if type(left) is not type(right) and issubclass(type(right), type(left)):
        candidates.reverse()
    if symbol in ("==", "!="):
        last = functools.partial(_identical, left, right, symbol == "==")
    else:
        last = functools.partial(
            _unsupported,
            f"'{symbol}' not supported between instances of "
            f"'{type(left).__name__}' and '{type(right).__name__}'",
        )
    found = _match_candidate(below, candidates, last, callee)
    if found is None or not tests_result(instruction.name, instruction.arg):
        return found
    complete = found[1].complete
    assert complete is not None
    return below, PendingInstruction(ResultUse.PUSH, functools.partial(_truth_of, complete))


def _truth_of(complete: Callable[[Any], Any], result: Any) -> bool:
    return bool(complete(result))


def _match_candidate(
    below: tuple[Any, ...],
    candidates: list[Candidate],
    last: Callable[[], Any],
    callee: FrameState,
) -> Suspended | None:
    """The pending operator if the callee is one of the candidates' methods.

    Args:
        last: called if all of them return NotImplemented.
    """
    for number, (value, method, argument) in enumerate(candidates):
        if not calls_method(value, method, callee):
            continue
        # `a == b` of one type calls the same function twice: the first argument distinguishes the
        # calls.
        same = [c for c in candidates if calls_method(c[0], c[1], callee)]
        if len(same) > 1 and (value is argument or unchanged_self(callee) is NULL):
            return None
        if len(same) > 1 and unchanged_self(callee) is not value:
            continue
        rest = candidates[number + 1 :]
        return below, PendingInstruction(ResultUse.PUSH, functools.partial(_try_rest, rest, last))
    return None


def _try_rest(rest: list[Candidate], last: Callable[[], Any], result: Any) -> Any:
    """The result of an operator: the first result that is not NotImplemented."""
    for value, method, argument in rest:
        if result is not NotImplemented:
            return result
        found = lookup_in_type(type(value), method)
        if found is not NULL:
            bind = getattr(found, "__get__", None)
            result = bind(value, type(value))(argument) if bind else found(argument)
    return last() if result is NotImplemented else result


def _unsupported(message: str) -> Any:
    raise TypeError(message)


def _identical(left: Any, right: Any, equal: bool) -> bool:
    return (left is right) is equal
