"""Recognition of the callee among the functions that a pending instruction may call."""

from __future__ import annotations

from typing import Any

from magpy_like.bytecode.instruction_stream import instruction_list, parts_of
from magpy_like.native import NULL, lookup_in_type
from magpy_like.splitting.frame_state import FrameState, PendingInstruction

Suspended = tuple[tuple[Any, ...], PendingInstruction]
"""The operand stack below the operands of an instruction, and the pending instruction."""


def split_stack(stack: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The operand stack in two parts: below the topmost ``count`` operands, and these."""
    return stack[: len(stack) - count], stack[len(stack) - count :]


def calls_method(value: Any, name: str, callee: FrameState) -> bool:
    """True if the callee is the special method ``name`` of ``value``."""
    return lookup_in_type(type(value), name) is callee.function


def unchanged_self(callee: FrameState) -> Any:
    """The first argument of a frame; NULL if the frame may rebind it."""
    code, first = callee.code, callee.locals[0] if callee.code.co_argcount else NULL
    accesses = (part for i in instruction_list(code) for part in parts_of(i.name, i.arg))
    if any(slot == 0 and name in _REBINDS for name, slot in accesses):
        return NULL
    if code.co_varnames[:1] and code.co_varnames[0] in code.co_cellvars:
        return NULL  # an inner function may rebind it
    return first


_REBINDS = frozenset(("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
