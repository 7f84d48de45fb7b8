"""Instructions that need no rule of their own, and those that split the program at once."""

from __future__ import annotations

import opcode
from typing import TYPE_CHECKING

from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def move_references(context: Context, step: Step) -> Token:
    """Record nothing: only references move. Rules for lifted numbers still apply."""
    return None


def unsupported(context: Context, step: Step) -> Token:
    """An instruction that only occurs outside functions."""
    raise Split(
        SplitReason.UNSUPPORTED_INSTRUCTION,
        f"executes the instruction {opcode.opname[step.opcode]}",
    )


def asynchronous(context: Context, step: Step) -> Token:
    """``await``, ``async for`` and ``async with``."""
    raise Split(SplitReason.ASYNC, "awaits a coroutine")
