"""Pending instructions: the instructions that called an inner frame, and their use of its result.

Besides calls, these are attributes, operators, subscripts, loops and ``with`` statements, for which
Python calls special methods. Each instruction has one function in ``_PENDING``. It recognises the
callee among the functions that the instruction may call, so that a function called by native code
in between (``map``, ``sorted``, an import) is never mistaken for a direct callee.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

from magpy_like.active_run import active
from magpy_like.bytecode.instruction_stream import (
    Instruction,
)
from magpy_like.bytecode.tested_jumps import TESTS
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.callee_matching import Suspended, calls_method, split_stack
from magpy_like.splitting.frame_state import (
    FrameState,
    PendingInstruction,
    ResultUse,
    pushes_two_entries,
    unresumable_reason,
)
from magpy_like.splitting.pending_binary_operators import pending_binary, pending_comparison
from magpy_like.splitting.pending_calls import pending_call, pending_call_function_ex


def suspend(states: Sequence[FrameState]) -> list[FrameState] | str:
    """The chain of active frames, each outer one with its pending instruction.

    Args:
        states: innermost first, with the operand stacks from before each frame's instruction; the
            innermost with ``handled_exception`` set to ``sys.exception()``.

    Returns:
        The chain, or the reason why one of the frames cannot be resumed.
    """
    chain: list[FrameState] = []
    handled_exception = states[0].handled_exception
    for state in states:
        state = replace(state, handled_exception=handled_exception)
        if reason := unresumable_reason(state):
            return reason
        if chain and state.pending is None:
            pending = _with_pending(state, chain[-1])
            if is_instance(pending, str):
                return pending
            state = pending
        chain.append(state)
        handled_exception = state.exception_at_entry
    return chain


def _with_pending(state: FrameState, callee: FrameState) -> FrameState | str:
    instruction = state.instruction
    match = _PENDING.get(instruction.name)
    found = match(state, instruction, callee) if match else None
    if found is None:
        return (
            f"{instruction.name} at {state.where} cannot continue with the result of "
            f"{callee.code.co_qualname}: native code lies between them"
        )
    stack, pending = found
    return replace(state, stack=stack, pending=pending)


def _special(
    name: str,
    operands: int,
    of: int = 0,
    then: ResultUse = ResultUse.PUSH,
    complete: Callable[[Any], Any] | None = None,
) -> Callable[[FrameState, Instruction, FrameState], Suspended | None]:
    """The matcher of an instruction that calls the method ``name`` of one of its operands.

    Args:
        operands: the number of operands.
        of: the index of the operand.
        then: how the instruction uses the result.
        complete: computes the instruction's result from the method's.
    """

    def match(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
        below, values = split_stack(state.stack, operands)
        return (
            (below, PendingInstruction(then, complete))
            if calls_method(values[of], name, callee)
            else None
        )

    return match


def _intrinsic(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    if instruction.arg != _INTRINSIC_UNARY_POSITIVE:
        return None
    return _special("__pos__", 1)(state, instruction, callee)


_INTRINSIC_UNARY_POSITIVE = 5  # Python 3.12


def _attribute(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (value,) = split_stack(state.stack, 1)
    names = state.code.co_names
    name = names[instruction.arg >> 1 if _SHIFTED_NAMES else instruction.arg]
    pending = PendingInstruction(
        ResultUse.PUSH_UNBOUND if pushes_two_entries(instruction) else ResultUse.PUSH
    )
    if calls_method(value, "__getattr__", callee):
        return below, pending
    if lookup_in_type(type(value), "__getattr__") is not NULL:
        # It is called next if the callee raises AttributeError.
        found = lookup_in_type(type(value), name)
        if not is_instance(found, property) or found.fget is not callee.function:
            return None
        return below, replace(pending, complete=functools.partial(get_attribute, value, name))
    if calls_method(value, "__getattribute__", callee):
        return below, pending
    return (below, pending) if _gets(lookup_in_type(type(value), name), callee) else None


def get_attribute(value: Any, name: str, getter: Callable[[], Any]) -> Any:
    """The value of an attribute whose getter was active at a split; ``getter`` runs its rest."""
    try:
        return getter()
    except AttributeError:
        pass
    run = active.run
    if run is not None:
        detail = f"the getter of {name} fails after a split, and __getattr__ takes its place"
        run.end_recording(SplitReason.EXCEPTION_STATE, detail)
    return lookup_in_type(type(value), "__getattr__")(value, name)


_SHIFTED_NAMES = sys.version_info >= (3, 12)
"""The lowest bit of LOAD_ATTR's argument requests a method."""


def _gets(descriptor: Any, callee: FrameState) -> bool:
    if is_instance(descriptor, property):
        return descriptor.fget is callee.function
    return descriptor is not NULL and calls_method(descriptor, "__get__", callee)


def _changed_attribute(special: str, accessor: str, descriptor_method: str, operands: int) -> Any:
    def match(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
        below, values = split_stack(state.stack, operands)
        found = lookup_in_type(type(values[-1]), state.code.co_names[instruction.arg])
        is_callee = calls_method(values[-1], special, callee)
        if is_instance(found, property):
            is_callee = is_callee or getattr(found, accessor) is callee.function
        elif found is not NULL:
            is_callee = is_callee or calls_method(found, descriptor_method, callee)
        return (below, PendingInstruction(ResultUse.DROP)) if is_callee else None

    return match


def _truth(result: Any) -> bool:
    if not is_instance(result, bool):
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def _not(result: Any) -> bool:
    return not _truth(result)


def _test(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (value,) = split_stack(state.stack, 1)
    if not calls_method(value, "__bool__", callee):
        return None
    if instruction.name.endswith("_OR_POP"):
        return state.stack, PendingInstruction(ResultUse.TEST_AND_KEEP, _truth)
    return below, PendingInstruction(ResultUse.TEST, _truth)


def _contains(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (_, container) = split_stack(state.stack, 2)
    complete = _lacks if instruction.arg else bool
    return (
        (below, PendingInstruction(ResultUse.PUSH, complete))
        if calls_method(container, "__contains__", callee)
        else None
    )


def _lacks(contained: Any) -> bool:
    return not contained


def _iterator(result: Any) -> Any:
    if lookup_in_type(type(result), "__next__") is NULL:
        raise TypeError(f"iter() returned non-iterator of type '{type(result).__name__}'")
    return result


def _next(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
    found = calls_method(state.stack[-1], "__next__", callee)
    return (state.stack, PendingInstruction(ResultUse.ITERATE)) if found else None


def _enter(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
    below, (manager,) = split_stack(state.stack, 1)
    leave = lookup_in_type(type(manager), "__exit__")
    if not calls_method(manager, "__enter__", callee) or type(leave) is not FunctionType:
        return None
    return (*below, MethodType(leave, manager)), PendingInstruction(ResultUse.PUSH)


def _leave(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
    # [exit, offset, previous exception, exception]: all stay
    leave = state.stack[-4]
    if getattr(leave, "__func__", leave) is not callee.function:
        return None
    return state.stack, PendingInstruction(ResultUse.PUSH)


_PENDING: dict[str, Callable[[FrameState, Instruction, FrameState], Suspended | None]] = {
    "CALL": pending_call,
    "CALL_KW": pending_call,
    "CALL_FUNCTION_EX": pending_call_function_ex,
    "LOAD_ATTR": _attribute,
    "LOAD_METHOD": _attribute,
    "STORE_ATTR": _changed_attribute("__setattr__", "fset", "__set__", 2),
    "DELETE_ATTR": _changed_attribute("__delattr__", "fdel", "__delete__", 1),
    "BINARY_SUBSCR": _special("__getitem__", 2),
    "BINARY_SLICE": _special("__getitem__", 3),
    "STORE_SUBSCR": _special("__setitem__", 3, of=1, then=ResultUse.DROP),
    "STORE_SLICE": _special("__setitem__", 4, of=1, then=ResultUse.DROP),
    "DELETE_SUBSCR": _special("__delitem__", 2, then=ResultUse.DROP),
    "UNARY_NEGATIVE": _special("__neg__", 1),
    "UNARY_POSITIVE": _special("__pos__", 1),
    "CALL_INTRINSIC_1": _intrinsic,
    "UNARY_INVERT": _special("__invert__", 1),
    "UNARY_NOT": _special("__bool__", 1, complete=_not),
    "GET_ITER": _special("__iter__", 1, complete=_iterator),
    "FOR_ITER": _next,
    "CONTAINS_OP": _contains,
    "BEFORE_WITH": _enter,
    "WITH_EXCEPT_START": _leave,
    "BINARY_OP": pending_binary,
    "COMPARE_OP": pending_comparison,
    **dict.fromkeys(TESTS, _test),
}
