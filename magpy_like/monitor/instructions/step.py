"""An instruction that is about to run, and the token by which its rule handles the result."""

from __future__ import annotations

import opcode
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

Token = tuple[Callable[..., None], Any] | None
"""The handler of an instruction's result and its payload; None if the result needs none."""

_NEW_LOAD_ATTR = sys.version_info >= (3, 12)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that is about to run: MagPy's ExecutionState (section 5.1)."""

    frame: types.FrameType
    opcode: int
    oparg: int
    offset: int
    stack: tuple[Any, ...]
    comparison: Step | None = None
    """For the test of a comparison's result by the comparison itself (Python 3.13): that one."""

    @property
    def code(self) -> types.CodeType:
        return self.frame.f_code

    @property
    def name(self) -> str:
        """The entry of ``co_names`` that the instruction refers to."""
        arg = self.oparg
        op = opcode.opname[self.opcode]
        if op == "LOAD_GLOBAL" or (op == "LOAD_ATTR" and _NEW_LOAD_ATTR):
            arg >>= 1
        elif op == "LOAD_SUPER_ATTR":
            arg >>= 2
        return self.code.co_names[arg]


def finish_without_result(context: Context, token: Any, top: Any) -> None:
    """Handle an instruction without a result: the top of the stack is another value."""
    finish, payload = token
    finish(context, payload, None)
