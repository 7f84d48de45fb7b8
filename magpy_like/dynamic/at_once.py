"""Generator expressions that native code goes through at once: ``tuple(f(t) for t in range(n))``.

At the head of one, before there is a generator, the bytecode tells who is given it. If that is a
function which takes all elements and has no other reference to it, the program calls what stands in
for it, in Python, and the loop there may become an operator like any other.
"""

from __future__ import annotations

import functools
import inspect
from types import CodeType, FunctionType

from magpy_like.dynamic.code_flow import Instruction, instructions
from magpy_like.monitor.consumers import OF_GENERATORS, hand_over
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.local_uses import LOOK_AROUND
from magpy_like.monitor.run import MonitorRun
from magpy_like.native import NULL, frame_set_operand


def hand_rounds_over(run: MonitorRun, step: Step, bounds: tuple[int, int, int]) -> bool:
    """Whether what is about to be made, or gone through, is for a generator expression alone, and
    the program goes on with what stands in for whoever takes all that it gives.

    ``bounds`` are those of the loop in it.
    """
    table, stack = instructions(step.code), step.stack
    at, head, count, below = table[step.offset], iter, 1, stack[:-1]
    if at.name == "CALL":
        count, at = at.arg, table[at.end]
        head, below = stack[-count - 1], stack[: -count - 2]
        if stack[-count - 2] is not NULL or not any(head is known for known in _HEADS):
            return False
    if at.name != "GET_ITER" or len(below) < 3 or below[-3] is not NULL:
        return False
    consumer, make = below[-2:]
    stand_in = next((found for f, found in OF_GENERATORS.items() if f is consumer), None)
    if stand_in is None or not _is_expression(make):
        return False
    others = 1 if consumer is sum else 0
    if not _is_given_at_once(step.code, at, others):
        return False
    args = stack[len(stack) - count :]
    if head is range:
        args = bounds
    for depth, value in enumerate(reversed(stack[len(stack) - count :]), start=1):
        if type(value) is not int:
            frame_set_operand(step.frame, depth, ())  # the stand-in goes through it
    depth = len(stack) - len(below)
    handed = functools.partial(hand_over, (make, head, args))
    frame_set_operand(step.frame, depth + 1, handed)
    frame_set_operand(step.frame, depth + 2, stand_in)
    return True


_HEADS = (range, iter, enumerate, zip, reversed)


def _is_expression(function: object) -> bool:
    """Whether a function is that of a generator expression whose rounds have no more in common
    than variables from outside: functions that they make would share theirs."""
    if type(function) is not FunctionType or function.__code__.co_name != "<genexpr>":
        return False
    code = function.__code__
    plain = code.co_flags & inspect.CO_GENERATOR and not code.co_cellvars
    return bool(plain) and LOOK_AROUND.isdisjoint(code.co_names)


def _is_given_at_once(code: CodeType, head: Instruction, most: int) -> bool:
    """Whether the generator is made behind ``head``, and is the first argument of a call then of
    which the others, ``most`` at most, are there already."""
    table = instructions(code)
    call, others = _call_at(table, table[head.end]), 0
    if call is None or call.arg:
        return False
    at = table[call.end]
    while at.name in _LOADS and not (at.name == "LOAD_GLOBAL" and at.arg & 1):
        at, others = table[at.end], others + 1
    if at.name == "KW_NAMES":
        if code.co_consts[at.arg] != ("start",):
            return False
        at = table[at.end]
    call = _call_at(table, at)
    return call is not None and call.arg == others + 1 and others <= most


def _call_at(table: dict[int, Instruction], at: Instruction) -> Instruction | None:
    at = table[at.end] if at.name == "PRECALL" else at
    return at if at.name == "CALL" else None


_LOADS = ("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_GLOBAL")
