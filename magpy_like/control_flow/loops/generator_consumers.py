"""Native consumers of whole generators: ``tuple(f(t) for t in range(n))``, ``tuple(map(f, rows))``.

Before a generator is created, the bytecode shows the function to which it is passed. If that is a
native function that consumes all elements, and nothing else refers to the generator, the program
calls a Python polyfill of it instead, whose loop may become an operator like any other.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Collection
from types import CodeType, FunctionType
from typing import Any

from magpy_like.bytecode.instruction_facts import CALLS, keyword_names, operand_count
from magpy_like.bytecode.instruction_stream import Instruction, instructions, stack_effect
from magpy_like.bytecode.local_uses import FRAME_INSPECTORS
from magpy_like.bytecode.stack_entry_kinds import stack_kinds
from magpy_like.control_flow.loops.loop_description import Bounds
from magpy_like.monitor.call_operands import (
    CALLEE_DISTANCE,
    call_operands,
    callee_of_next,
)
from magpy_like.monitor.calls.element_consumers import (
    CONSUMERS,
    map_recipe,
    return_recipe,
)
from magpy_like.monitor.context import Context
from magpy_like.monitor.instructions.step import Step
from magpy_like.native import NULL, frame_set_operand


def replace_consumer(context: Context, step: Step, bounds: Bounds) -> bool:
    """Replace the consumer of a generator expression or ``map`` by its polyfill.

    The instruction is about to create, or to iterate over, the iterable of the generator.

    Args:
        bounds: The bounds of the loop in the generator.

    Returns:
        True if the program continues with the polyfill.
    """
    table, stack = instructions(step.code), step.stack
    producer, head, count, below = table[step.offset], iter, 1, stack[:-1]
    if producer.name == "CALL":
        count = producer.arg
        called, below = call_operands(producer.name, count, stack), stack[: -count - 2]
        head = called.function
        if called.is_method or not any(head is function for function in _HEADS):
            return False
    elif producer.name != "GET_ITER":
        return False
    if head is not map:
        begin = producer if producer.name == "GET_ITER" else table[producer.end]
        if begin.name != "GET_ITER" or not below or not _is_generator_expression(below[-1]):
            return False
        call = _call_at(table, table[begin.end])
        if call is None or call.arg:
            return False
        producer, below = call, below[:-1]
    polyfill = _polyfill(step.code, producer, below, simple=head is not range)
    if polyfill is None:
        return False
    operands, depth = stack[len(stack) - count :], len(stack) - len(below)
    if head is map:
        if _inspects_frames(operands[0]):
            return False
        frame_set_operand(step.frame, count + CALLEE_DISTANCE, map_recipe)
    else:
        elements = stack[-depth], head, bounds if head is range else operands
        frame_set_operand(step.frame, depth, functools.partial(return_recipe, elements))
        for position, value in enumerate(reversed(operands), start=1):
            if type(value) is not int:
                frame_set_operand(step.frame, position, ())  # the polyfill iterates over it
    frame_set_operand(step.frame, depth + CALLEE_DISTANCE, polyfill)
    return True


_HEADS = (range, iter, enumerate, zip, reversed, map)


def _polyfill(
    code: CodeType, producer: Instruction, below: tuple[Any, ...], simple: bool
) -> Callable[..., Any] | None:
    """The polyfill of the function to which an instruction's result is passed, if there is one.

    Args:
        below: the operands below the result.
        simple: whether the function's other arguments must be variables or constants.
    """
    consumer = callee_of_next(below)
    extra = 1 if consumer is sum else 0
    if not _is_first_argument(code, producer, extra, simple):
        return None
    return next(
        (polyfill for function, polyfill in CONSUMERS.items() if function is consumer), None
    )


def _is_generator_expression(function: object) -> bool:
    """True for the function of a generator expression whose iterations share only external
    variables: closures that they create would share the loop variables."""
    if type(function) is not FunctionType or function.__code__.co_name != "<genexpr>":
        return False
    is_generator = function.__code__.co_flags & inspect.CO_GENERATOR
    return bool(is_generator) and not (function.__code__.co_cellvars or _inspects_frames(function))


def _inspects_frames(function: object) -> bool:
    """True if a function may inspect frames, which differ under a polyfill."""
    if type(function) is not FunctionType:
        return False
    return not FRAME_INSPECTORS.isdisjoint(function.__code__.co_names)


def _is_first_argument(code: CodeType, producer: Instruction, extra: int, simple: bool) -> bool:
    """True if the result of an instruction is the first argument of a call with at most ``extra``
    other arguments. If ``simple``, the other arguments must be variables or constants:
    any other argument may have effects before the call."""
    table, kinds = instructions(code), stack_kinds(code)
    instruction = table[producer.end]
    below = len(kinds.get(instruction.offset, ())) - 3  # NULL, the callee and the result
    while instruction.name in CALLS or instruction.name in _ARGUMENT_POPS:
        name, arg = instruction.name, instruction.arg
        popped = operand_count(name, arg) if name in CALLS else _ARGUMENT_POPS[name]
        popped += arg if name == "BUILD_TUPLE" else 0
        left = len(kinds[instruction.offset]) - popped
        if name in CALLS and left == below:
            return arg - 1 <= extra and keyword_names(code, instruction) in ((), ("start",))
        if left < below + 3 or (simple and popped):
            return False
        instruction = table[instruction.end]
    return False


def _call_at(table: dict[int, Instruction], instruction: Instruction) -> Instruction | None:
    instruction = table[instruction.end] if instruction.name == "PRECALL" else instruction
    return instruction if instruction.name == "CALL" else None


_ARGUMENT_POPS = {
    "LOAD_CONST": 0, "LOAD_FAST": 0, "LOAD_FAST_CHECK": 0, "LOAD_DEREF": 0, "LOAD_GLOBAL": 0,
    "LOAD_ATTR": 1, "LOAD_METHOD": 1, "UNARY_NEGATIVE": 1, "BINARY_OP": 2, "BINARY_SUBSCR": 2,
    "PUSH_NULL": 0, "KW_NAMES": 0, "PRECALL": 0, "BUILD_TUPLE": 0, "LOAD_FAST_LOAD_FAST": 0,
}  # fmt: skip
"""Operands popped by instructions, other than calls, that compute arguments. Tuples also pop the
number of operands that their argument states."""


def is_consumed_at_once(step: Step, functions: Collection[Any]) -> bool:
    """True if the result of the call at ``step`` is at once passed to a call of one of
    ``functions``.

    The function is on the operand stack already, and the instructions in between only compute
    further arguments.
    """
    table, stack = instructions(step.code), step.stack
    instruction = table[step.offset]
    position = len(stack) - operand_count(instruction.name, instruction.arg)
    depth = position + 1
    while True:
        instruction = table[instruction.end]
        if instruction.name in ("PRECALL", "KW_NAMES"):
            continue
        name, arg = instruction.name, instruction.arg
        pops = operand_count(name, arg) if name in CALLS else _POPS.get(name)
        pops = arg if name == "BUILD_SLICE" else pops
        if pops is None:
            return False
        first = depth - pops
        if first > position:
            depth += stack_effect(instruction)
        else:
            is_call = name in CALLS and first >= 0
            consumer = callee_of_next(stack[: first + 2]) if is_call else NULL
            return any(consumer is known for known in functions)


_POPS = {
    **dict.fromkeys(
        (
            "LOAD_FAST",
            "LOAD_FAST_CHECK",
            "LOAD_FAST_LOAD_FAST",
            "LOAD_CONST",
            "LOAD_GLOBAL",
            "LOAD_DEREF",
            "PUSH_NULL",
        ),
        0,
    ),
    **dict.fromkeys(
        ("LOAD_ATTR", "LOAD_METHOD", *(n for n in dis.opmap if n.startswith("UNARY_"))), 1
    ),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR"), 2),
    "BINARY_SLICE": 3,
}
"""Operands popped by instructions without effects."""
