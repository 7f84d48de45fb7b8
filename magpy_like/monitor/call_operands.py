"""The operands of calls: their order on the stack differs between versions of Python.

A call takes a callable, the object of a method or NULL, and the arguments. Up to Python 3.12, NULL
lies below the callable; from 3.13 on, above it. A method's object always lies above the method.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from magpy_like.bytecode.instruction_facts import operand_count
from magpy_like.native import NULL

NULL_IS_BELOW = sys.version_info < (3, 13)
"""Whether NULL lies below a callable that is no method, and not above it."""
CALLEE_DISTANCE = 1 if NULL_IS_BELOW else 2
"""How far below its first argument a callable lies that is no method."""


@dataclass(frozen=True, slots=True)
class CallOperands:
    """The operands of a call with its arguments on the stack."""

    function: Any
    depth: int
    """The depth of the callable on the stack; 1 is the top."""
    args: tuple[Any, ...]
    """The arguments, those of keywords last; the object of a method first."""
    is_method: bool
    """Whether the first argument is the object of a method."""


def call_operands(name: str, arg: int, stack: tuple[Any, ...]) -> CallOperands:
    """The operands of one of ``CALLS``, which is about to run."""
    count = operand_count(name, arg)
    lower, upper = stack[-count], stack[1 - count]
    args = stack[len(stack) - count + 2 : len(stack) - (name == "CALL_KW")]
    if (lower if NULL_IS_BELOW else upper) is not NULL:
        return CallOperands(lower, count, (upper, *args), True)
    if NULL_IS_BELOW:
        return CallOperands(upper, count - 1, args, False)
    return CallOperands(lower, count, args, False)


def spread_callee_depth(arg: int) -> int:
    """The depth of the callable of CALL_FUNCTION_EX."""
    return 1 + (arg & 1) + CALLEE_DISTANCE


def callee_of_next(stack: tuple[Any, ...] | list[Any]) -> Any:
    """The callable of which the next value that is pushed is the first argument; NULL if there is
    none."""
    if len(stack) < 2 or stack[-2 if NULL_IS_BELOW else -1] is not NULL:
        return NULL
    return stack[-CALLEE_DISTANCE]


def with_null(function: Any) -> tuple[Any, Any]:
    """The two entries of the stack for a callable that is no method."""
    return (NULL, function) if NULL_IS_BELOW else (function, NULL)


def without_null(entries: tuple[Any, ...]) -> Any:
    """The callable in two entries of the stack; NULL if they hold a method and its object."""
    null, function = entries if NULL_IS_BELOW else reversed(entries)
    return function if null is NULL else NULL
