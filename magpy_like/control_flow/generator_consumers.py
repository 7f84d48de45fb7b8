"""Generator expressions that native code goes through at once: ``tuple(f(t) for t in range(n))``,
and ``tuple(map(f, rows))``.

At the head of one, before there is a generator, the bytecode tells who is given it. If that is a
function which takes all elements and has no other reference to it, the program calls what stands in
for it, in Python, and the loop there may become an operator like any other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from magpy_like.bytecode.data_flow import Instruction, instructions, stack_kinds
from magpy_like.bytecode.local_uses import FRAME_INSPECTORS
from magpy_like.monitor.calls.element_consumers import (
    CONSUMERS,
    map_recipe,
    return_recipe,
)
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.run import MonitorRun
from magpy_like.native import NULL, frame_set_operand


def hand_rounds_over(run: MonitorRun, step: Step, bounds: tuple[int, int, int]) -> bool:
    """Whether what is about to be made, or gone through, is for a generator expression or a ``map``
    alone, and the program goes on with what stands in for whoever takes all that this gives.

    ``bounds`` are those of the loop in it.
    """
    table, stack = instructions(step.code), step.stack
    made_by, head, count, below = table[step.offset], iter, 1, stack[:-1]
    if made_by.name == "CALL":
        count = made_by.arg
        head, below = stack[-count - 1], stack[: -count - 2]
        if stack[-count - 2] is not NULL or not any(head is known for known in _HEADS):
            return False
    elif made_by.name != "GET_ITER":
        return False
    if head is not map:
        begin = made_by if made_by.name == "GET_ITER" else table[made_by.end]
        if begin.name != "GET_ITER" or not below or not _is_expression(below[-1]):
            return False
        call = _call_at(table, table[begin.end])
        if call is None or call.arg:
            return False
        made_by, below = call, below[:-1]
    stand_in = _stand_in(step.code, made_by, below, simple=head is not range)
    if stand_in is None:
        return False
    operands, depth = stack[len(stack) - count :], len(stack) - len(below)
    if head is map:
        if _looks_around(operands[0]):
            return False
        frame_set_operand(step.frame, count + 1, map_recipe)
    else:
        rounds = stack[-depth], head, bounds if head is range else operands
        frame_set_operand(step.frame, depth, functools.partial(return_recipe, rounds))
        for place, value in enumerate(reversed(operands), start=1):
            if type(value) is not int:
                frame_set_operand(step.frame, place, ())  # the stand-in goes through it
    frame_set_operand(step.frame, depth + 1, stand_in)
    return True


_HEADS = (range, iter, enumerate, zip, reversed, map)


def _stand_in(
    code: CodeType, made_by: Instruction, below: tuple[Any, ...], simple: bool
) -> Callable[..., Any] | None:
    """That of the function that what is ``made_by`` an instruction is given to; None if there is
    none. ``below`` are the operands below it, and other arguments may have to be ``simple``."""
    if len(below) < 2 or below[-2] is not NULL:
        return None
    consumer = below[-1]
    most = 1 if consumer is sum else 0
    if not _is_given_at_once(code, made_by, most, simple):
        return None
    return next((found for known, found in CONSUMERS.items() if known is consumer), None)


def _is_expression(function: object) -> bool:
    """Whether a function is that of a generator expression whose rounds have no more in common
    than variables from outside: functions that they make would share theirs."""
    if type(function) is not FunctionType or function.__code__.co_name != "<genexpr>":
        return False
    is_generator = function.__code__.co_flags & inspect.CO_GENERATOR
    return bool(is_generator) and not (function.__code__.co_cellvars or _looks_around(function))


def _looks_around(function: object) -> bool:
    """Whether a function looks at frames, of which there are others than in the program."""
    if type(function) is not FunctionType:
        return False
    return not FRAME_INSPECTORS.isdisjoint(function.__code__.co_names)


def _is_given_at_once(code: CodeType, made_by: Instruction, most: int, simple: bool) -> bool:
    """Whether what an instruction makes is the first argument of a call, which has ``most`` others
    at most. Only where those are not as ``simple`` as a variable, something happens before."""
    table, kinds = instructions(code), stack_kinds(code)
    at, names = table[made_by.end], ()
    below = len(kinds.get(at.offset, ())) - 3  # an empty slot, what is called, and what is made
    while at.name in _TAKES:
        taken = _TAKES[at.name] + (at.arg if at.name in ("CALL", "BUILD_TUPLE") else 0)
        left = len(kinds[at.offset]) - taken
        if at.name == "CALL" and left == below:
            return at.arg - 1 <= most and names in ((), ("start",))
        if left < below + 3 or (simple and taken):
            return False
        if at.name in ("KW_NAMES", "CALL"):
            names = code.co_consts[at.arg] if at.name == "KW_NAMES" else ()
        at = table[at.end]
    return False


def _call_at(table: dict[int, Instruction], at: Instruction) -> Instruction | None:
    at = table[at.end] if at.name == "PRECALL" else at
    return at if at.name == "CALL" else None


_TAKES = {
    "LOAD_CONST": 0, "LOAD_FAST": 0, "LOAD_FAST_CHECK": 0, "LOAD_DEREF": 0, "LOAD_GLOBAL": 0,
    "LOAD_ATTR": 1, "LOAD_METHOD": 1, "UNARY_NEGATIVE": 1, "BINARY_OP": 2, "BINARY_SUBSCR": 2,
    "PUSH_NULL": 0, "KW_NAMES": 0, "PRECALL": 0, "CALL": 2, "BUILD_TUPLE": 0,
}  # fmt: skip
"""How many operands instructions take; calls and tuples take as many more as they say."""
