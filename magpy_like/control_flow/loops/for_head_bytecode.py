"""Heads of ``for`` loops, found in the bytecode after the call that creates the iterator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from magpy_like.bytecode.instruction_facts import CALLS, operand_count
from magpy_like.bytecode.instruction_stream import Instruction, instruction_list, instructions
from magpy_like.control_flow.loops.counting_loops import for_loop_offsets
from magpy_like.control_flow.loops.loop_description import Bounds, LoopHead
from magpy_like.control_flow.paths.captured_frames import capture_state, check_resumable, shift_of
from magpy_like.monitor.call_operands import callee_of_next
from magpy_like.monitor.context import Context
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.symbolic.lists.loop_ranges import Element, compute_lifted, reversed_bounds
from magpy_like.native import NULL
from magpy_like.splitting.frame_state import FrameState


def find_head(context: Context, step: Step) -> LoopHead | None:
    """The head of the loop over the object that an instruction is about to create or to iterate
    over; None if the object is not iterated over at once.

    Raises:
        Split: no continuation can start at the head.
    """
    found = _find_get_iter(step)
    if found is None:
        return None
    instruction, operand_count, wraps = found
    state, shift = capture_state(context, step), shift_of(step.frame)
    iterator = iter(range(1))  # never advanced
    state = replace(state, stack=(*state.stack[:operand_count], iterator))
    return _find_for_iter(step, state, instruction, shift, wraps)


def _find_get_iter(step: Step) -> tuple[Instruction, int, Any] | None:
    """The GET_ITER that takes the object that an instruction creates or iterates over.

    Returns:
        The GET_ITER, the number of operands below the object, and the built-in to which the object
        is passed before, if any. None if the object is used in another way.
    """
    table, stack = instructions(step.code), step.stack
    instruction, wraps = table[step.offset], None
    if instruction.name in (*CALLS, "CALL_FUNCTION_EX"):
        is_spread = instruction.name == "CALL_FUNCTION_EX"
        stack = stack[: -operand_count(instruction.name, instruction.arg)]
        instruction = table[instruction.end]
        after = table[instruction.end] if instruction.name == "PRECALL" else instruction
        if after.name == "CALL" and after.arg == 1 and not is_spread:
            wraps = next((known for known in _WRAPPERS if known is callee_of_next(stack)), None)
            if wraps is not None:
                stack, instruction = stack[:-2], table[after.end]
    else:
        stack = stack[:-1]
    return (instruction, len(stack), wraps) if instruction.name == "GET_ITER" else None


def _find_for_iter(
    step: Step, state: FrameState, instruction: Instruction, shift: int, wraps: Any
) -> LoopHead | None:
    """The head of the loop whose iterator the instruction ``instruction`` pushes.

    Args:
        state: the frame with the iterator on its stack.
        shift: the offset in the frame's code minus that in ``state.code``.
    """
    table, iterator = instructions(step.code), state.stack[-1]
    new_list: list[Any] | None = None
    slots, stack = list(state.locals), list(state.stack)
    instruction = table[instruction.end]
    while (
        instruction.name in _OF_COMPREHENSIONS
    ):  # Python 3.12 compiles them into the function itself
        if instruction.name == "SWAP":
            stack[-1], stack[-instruction.arg] = stack[-instruction.arg], stack[-1]
        elif instruction.name == "LOAD_FAST_AND_CLEAR":
            stack.append(slots[instruction.arg])
            slots[instruction.arg] = NULL
        elif instruction.arg == 0 and new_list is None:
            new_list = []
            stack.append(new_list)
        else:
            return None
        instruction = table[instruction.end]
    if new_list is None and len(stack) > 1 and "CALL" in instruction.name:
        return _find_in_comprehension(step, stack[-2], instruction, iterator, wraps)
    if instruction.name != "FOR_ITER":
        return None
    instruction = instructions(state.code)[instruction.offset - shift]
    state = replace(state, offset=instruction.offset, locals=tuple(slots), stack=tuple(stack))
    check_resumable(state)
    operand = None if new_list is None else next(i for i, v in enumerate(stack) if v is new_list)
    return LoopHead(
        state, instruction.exhaustion_target + shift, for_loop_offsets(instruction), wraps, operand
    )


def _find_in_comprehension(
    step: Step, function: Any, call: Instruction, iterator: Any, wraps: Any
) -> LoopHead | None:
    """The head of the loop in the function to which Python 3.11 compiles a list comprehension."""
    table = instructions(step.code)
    call = table[call.end] if call.name == "PRECALL" else call
    if type(function) is not FunctionType or function.__code__.co_name != "<listcomp>":
        return None
    code = function.__code__
    inside = [i for i in instruction_list(code) if i.name not in ("RESUME", "COPY_FREE_VARS")]
    begin, load, head, *_ = inside
    names = (begin.name, load.name, head.name)
    if call.arg or code.co_cellvars or names != ("BUILD_LIST", "LOAD_FAST", "FOR_ITER"):
        return None
    slots = (iterator, *[NULL] * (code.co_nlocals - 1), *(function.__closure__ or ()))
    state = FrameState(function, code, head.offset, slots, ([], iterator), None)
    check_resumable(state)
    return LoopHead(state, call.end, for_loop_offsets(head), wraps, 0, in_comprehension=True)


_OF_COMPREHENSIONS = ("LOAD_FAST_AND_CLEAR", "SWAP", "BUILD_LIST")


def _reversed(context: Context, bounds: Bounds, element: Element) -> tuple[Bounds, Element]:
    return reversed_bounds(context, bounds), element


def _enumerated(context: Context, bounds: Bounds, element: Element) -> tuple[Bounds, Element]:
    def pair(index: Any, rows: list[torch.Tensor]) -> Any:
        return compute_lifted(context, operator.sub, index, bounds[0]), element(index, rows)

    return bounds, pair


_WRAPPERS: dict[Any, Callable[..., tuple[Bounds, Element]]] = {
    reversed: _reversed,
    enumerate: _enumerated,
}
"""The built-ins to which a ``range`` of step 1 may be passed: from its bounds and elements to those
of their result."""


def unwrap_range(
    context: Context, wraps: Any, bounds: Bounds, element: Element
) -> tuple[Bounds, Element]:
    """The bounds and elements of ``wraps(range(*bounds))``."""
    return _WRAPPERS[wraps](context, bounds, element)
