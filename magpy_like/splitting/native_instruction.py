"""Native execution of the one instruction that a frame is about to execute."""

from __future__ import annotations

import dis
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from magpy_like.bytecode.instruction_facts import FORMATS
from magpy_like.bytecode.tested_jumps import CONDITIONAL_JUMPS
from magpy_like.native import NULL, call_as_caller
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.continuation_code import Ending
from magpy_like.splitting.continuation_functions import build_function
from magpy_like.splitting.frame_state import FrameState, push_result, pushes_two_entries


@dataclass(frozen=True, slots=True)
class Raised:
    """The outcome of an instruction that has raised an exception."""

    exception: BaseException


def execute_instruction(state: FrameState) -> FrameState | Raised:
    """Execute the next instruction of the innermost frame natively.

    The instruction sees the frame's locals, but runs in a frame of its own.

    Returns:
        The state after it, or the exception that it raised.

    Raises:
        ValueError: the instruction is not one of ``EXECUTABLE_INSTRUCTIONS``.
    """
    at, stack = state.instruction, state.stack
    if at.name in CONDITIONAL_JUMPS:
        outcome = _attempt(state.handled_exception, lambda: bool(stack[-1]))
        if is_instance(outcome, Raised):
            return outcome
        assert at.target is not None
        jumps = outcome is ("IF_TRUE" in at.name)
        rest = stack if jumps and at.name.endswith("_OR_POP") else stack[:-1]
        return replace(state, offset=at.target if jumps else at.end, stack=rest)
    if at.name == "FOR_ITER":
        outcome = _attempt(state.handled_exception, lambda: next(stack[-1], NULL))
        if is_instance(outcome, Raised):
            return outcome
        if outcome is NULL:
            return replace(state, offset=at.exhaustion_target, stack=stack[:-1])
        return push_result(state, outcome)
    if at.name == "LOAD_METHOD" or (at.name == "LOAD_ATTR" and pushes_two_entries(at)):
        # The instruction may push a method and its object; NULL and a bound method are equivalent.
        name = state.code.co_names[at.arg if at.name == "LOAD_METHOD" else at.arg >> 1]
        outcome = _attempt(state.handled_exception, lambda: getattr(stack[-1], name))
        return outcome if is_instance(outcome, Raised) else push_result(state, outcome)
    if at.name not in EXECUTABLE_INSTRUCTIONS:
        raise ValueError(f"{state.where}: {at.name} is not an operation on its operands")
    outcome = _attempt(state.handled_exception, build_function(state, Ending("execute"), ()))
    if is_instance(outcome, Raised):
        return outcome
    return replace(state, offset=at.end, stack=outcome)


def instruction_code(state: FrameState) -> CodeType:
    """The code that executes the next instruction of a frame.

    It takes the bound local variables, then the operand stack, top first, from one extra free
    variable, and returns the operand stack after the instruction.
    """
    return build_function(state, Ending("execute"), ()).__code__


# Instructions that only pop operands and push results, with all BUILD_, MATCH_ and UNARY_ ones.
_ON_OPERANDS = """
    CALL CALL_KW CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2
    BINARY_OP COMPARE_OP CONTAINS_OP IS_OP GET_ITER GET_LEN
    BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE
    LOAD_ATTR STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL
    LIST_APPEND LIST_EXTEND LIST_TO_TUPLE SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE
    UNPACK_SEQUENCE UNPACK_EX TO_BOOL IMPORT_NAME IMPORT_FROM
    BEFORE_WITH WITH_EXCEPT_START CHECK_EXC_MATCH RAISE_VARARGS
"""
OPERAND_INSTRUCTIONS = frozenset(
    name
    for name in dis.opmap
    if name in (*FORMATS, *_ON_OPERANDS.split()) or name.startswith(("BUILD_", "MATCH_", "UNARY_"))
)

EXECUTABLE_INSTRUCTIONS = OPERAND_INSTRUCTIONS | CONDITIONAL_JUMPS | {"FOR_ITER", "LOAD_METHOD"}
"""The instructions that :func:`execute_instruction` can execute."""


def _attempt(handled_exception: BaseException | None, operation: Callable[[], Any]) -> Any:
    """The result of ``operation``, called while ``handled_exception`` is handled; or Raised."""
    try:
        if handled_exception is None:
            return call_as_caller(operation, ())
        traceback, context = handled_exception.__traceback__, handled_exception.__context__
        try:
            raise handled_exception
        except BaseException:
            handled_exception.__traceback__, handled_exception.__context__ = traceback, context
            return call_as_caller(operation, ())
    except BaseException as exception:
        # Drop the frames of this function and the operation: the continuation adds the program's
        # frame.
        own = exception.__traceback__
        callees = own and own.tb_next and own.tb_next.tb_next
        return Raised(exception.with_traceback(callees))
