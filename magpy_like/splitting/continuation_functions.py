"""Continuations of frames: functions that restore a frame's state and run the rest of it.

The prefix of an outer frame calls the next inner frame at the position of its own pending
instruction. So the frames are nested as in the original run, and an exception reaches the same
handlers, ``with`` blocks and ``finally`` clauses.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CellType, CodeType, FunctionType
from typing import Any

from magpy_like.bytecode.instruction_facts import CALLS, operand_count
from magpy_like.bytecode.live_locals import slot_count
from magpy_like.monitor.call_operands import with_null
from magpy_like.native import NULL, call_as_caller
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.continuation_code import Ending, Shape, build_code
from magpy_like.splitting.frame_state import (
    FrameState,
    origins,
    shift_offsets,
    unresumable_reason,
    with_current_exceptions,
)
from magpy_like.splitting.pending_instructions import get_attribute


def run_chain(states: Sequence[FrameState], raised: BaseException | None = None) -> Any:
    """Run all active frames to their end.

    The innermost frame continues at its offset. If ``states`` is a list, it is emptied once the
    functions hold the states, so that a tensor lives no longer than in the program.

    Args:
        states: innermost first, each outer one with its pending instruction (see ``suspend``).
        raised: an exception that the innermost frame's instruction raises instead of running.

    Returns:
        The result of the outermost frame. Its exceptions propagate.

    Raises:
        ValueError: ``unresumable_reason`` or ``suspend`` refuses a state; nothing has run.
    """
    for position, state in enumerate(states):
        if (state.pending is None) != (position == 0):
            raise ValueError(
                f"{state.where}: all frames but the innermost need a pending instruction"
            )
    run = build_resumption(states[0]) if raised is None else build_raising(states[0], raised)
    for state in states[1:]:
        run = _build_outer(state, run)
    if is_instance(states, list):
        states.clear()
        del state
    return call_as_caller(run, ())


def build_resumption(state: FrameState) -> FunctionType:
    """A function without arguments, for one call: the rest of the frame from ``state`` on."""
    return build_function(state, Ending("resume"), ())


def build_raising(state: FrameState, exception: BaseException) -> FunctionType:
    """As ``build_resumption``, after the frame's instruction has raised ``exception``."""
    return build_function(state, Ending("raise"), (exception,))


def build_started_generator(state: FrameState) -> FunctionType:
    """A generator function for a frame at a YIELD_VALUE.

    Its generator first yields the topmost operand, and then continues like the frame.
    """
    return build_function(state, Ending("yield"), ())


def _build_outer(state: FrameState, callee: Callable[[], Any]) -> FunctionType:
    """The rest of a frame whose pending instruction has called ``callee``."""
    pending = state.pending
    assert pending is not None
    complete = pending.complete
    if is_instance(complete, functools.partial) and complete.func is get_attribute:
        callee, complete = functools.partial(complete, callee), None
    if complete is None:
        return build_function(state, Ending("call", pending.result_use), with_null(callee))
    extra = (*with_null(complete), *with_null(callee))
    return build_function(state, Ending("call", pending.result_use, completes=True), extra)


def build_function(state: FrameState, ending: Ending, extra: tuple[Any, ...]) -> FunctionType:
    """A function that restores a frame and continues with an ``ending`` of the prefix.

    Args:
        extra: the operands that the ending needs, pushed on top of the frame's own.

    Raises:
        ValueError: the frame cannot be resumed from this state.
    """
    if reason := unresumable_reason(
        state, generator=bool(state.code.co_flags & inspect.CO_GENERATOR)
    ):
        raise ValueError(f"{state.where}: {reason}")
    code = state.code
    own = slot_count(code) - len(code.co_freevars)  # the closure holds the free variables
    is_single = ending.name == "execute"
    size = len(state.stack) + len(extra)
    bound = tuple(slot for slot in range(own) if state.locals[slot] is not NULL)
    shape = Shape(
        state.instruction.offset,
        len(state.stack),
        size,
        bound,
        tuple(slot for slot in range(_argument_count(code)) if slot not in bound),
        tuple(
            position
            for position, entry in enumerate(state.stack + extra)
            if entry is NULL and (not is_single or position == _empty_operand(state))
        ),
        ending,
    )
    resumed = build_code(code, shape)
    stack = state.stack
    if not is_single:
        # The prefix enters the handlers again, bottom first, which restores previous exceptions.
        stack = with_current_exceptions(
            replace(state, stack=shift_offsets(state, origins[resumed].shift))
        )
    values = (*(state.locals[slot] for slot in bound), *reversed(stack + extra))
    function = state.function
    out = FunctionType(
        resumed,
        function.__globals__,
        function.__name__,
        (None,) * code.co_argcount,
        (*(function.__closure__ or ()), CellType(values)),
    )
    out.__kwdefaults__ = dict.fromkeys(
        code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    )
    out.__wrapped__ = function  # type: ignore[attr-defined]
    return out


def _argument_count(code: CodeType) -> int:
    """The number of parameters, with ``*args`` and ``**kwargs``."""
    variadic = bool(code.co_flags & inspect.CO_VARARGS) + bool(
        code.co_flags & inspect.CO_VARKEYWORDS
    )
    return code.co_argcount + code.co_kwonlyargcount + variadic


def _empty_operand(state: FrameState) -> int:
    """The position on the stack of the NULL that belongs to a call; -1 for no call."""
    at = state.instruction
    if at.name not in (*CALLS, "CALL_FUNCTION_EX"):
        return -1
    below = len(state.stack) - operand_count(at.name, at.arg)
    return next((below + i for i in (0, 1) if state.stack[below + i] is NULL), -1)
