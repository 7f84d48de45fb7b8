"""Pending calls: the Python function that a call runs, and the completion of the call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from magpy_like.bytecode.instruction_facts import keyword_names, operand_count
from magpy_like.bytecode.instruction_stream import Instruction
from magpy_like.monitor.call_operands import call_operands, spread_callee_depth
from magpy_like.monitor.calls import compiled_callees
from magpy_like.monitor.calls.polyfills import polyfill
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.callee_matching import (
    Suspended,
    calls_method,
    split_stack,
    unchanged_self,
)
from magpy_like.splitting.frame_state import FrameState, PendingInstruction, ResultUse


def pending_call(
    state: FrameState, instruction: Instruction, callee: FrameState
) -> Suspended | None:
    name, arg = instruction.name, instruction.arg
    below, _ = split_stack(state.stack, operand_count(name, arg))
    operands = call_operands(name, arg, state.stack)
    names = keyword_names(state.code, instruction)
    cut = len(operands.args) - len(names)
    keywords = dict(zip(names, operands.args[cut:], strict=True))
    return _match_callee(below, operands.function, operands.args[:cut], keywords, callee)


def pending_call_function_ex(
    state: FrameState, instruction: Instruction, callee: FrameState
) -> Suspended | None:
    below, operands = split_stack(state.stack, operand_count(instruction.name, instruction.arg))
    args, keywords = operands[2], operands[3] if instruction.arg & 1 else {}
    function = operands[-spread_callee_depth(instruction.arg)]
    if type(args) not in (tuple, list) or type(keywords) is not dict:
        return None  # the instruction iterates over them
    return _match_callee(below, function, tuple(args), keywords, callee)


def _match_callee(
    below: tuple[Any, ...],
    function: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    callee: FrameState,
) -> Suspended | None:
    """Follow ``function`` through methods, partials, constructors and callable instances to the
    callee. Returns None if native code calls it."""
    while True:
        function = compiled_callees.unwrap(function)
        if function is callee.function:
            return below, PendingInstruction(ResultUse.PUSH)
        kind = type(function)
        if kind is MethodType:
            args = (function.__self__, *args)
            function = function.__func__
        elif kind is functools.partial:
            args, keywords = (*function.args, *args), function.keywords | keywords
            function = function.func
        elif kind in (staticmethod, classmethod):
            return None
        elif (
            is_instance(function, type)
            and lookup_in_type(kind, "__call__") is _TYPE_CALL
            and polyfill(function, args, keywords) is None
        ):
            complete = _match_constructor(function, args, keywords, callee)
            return complete and (below, PendingInstruction(ResultUse.PUSH, complete))
        else:
            replacement = polyfill(function, args, keywords)
            if replacement is not None and replacement.__code__ is callee.code:
                return below, PendingInstruction(ResultUse.PUSH)
            found = lookup_in_type(kind, "__call__")
            if type(found) is not FunctionType:
                return None
            function, args = found, (function, *args)


_TYPE_CALL = lookup_in_type(type, "__call__")


def _match_constructor(
    cls: type, args: tuple[Any, ...], keywords: dict[str, Any], callee: FrameState
) -> Callable[[Any], Any] | None:
    new = lookup_in_type(cls, "__new__")
    if is_instance(new, staticmethod) and new.__func__ is callee.function:
        return functools.partial(_initialise, cls, args, keywords)
    instance = unchanged_self(callee)
    if is_instance(instance, cls) and calls_method(instance, "__init__", callee):
        return functools.partial(_initialised, instance)
    return None


def _initialised(instance: Any, result: Any) -> Any:
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return instance


def _initialise(cls: type, args: tuple[Any, ...], keywords: dict[str, Any], new: Any) -> Any:
    if is_instance(new, cls):
        _initialised(new, type(new).__init__(new, *args, **keywords))
    return new
