"""Events of instructions, as the versions of Python deliver them to the native monitor.

Python 3.12 delivers them only after some frame has requested them. From 3.13 on a trace function
loses them when another thread runs the same code; the monitor has them as a tool of
``sys.monitoring`` (``native/instruction_events.h``).
"""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

from magpy_like import native

_NAME = "magpy_like"
_TOOLS = (4, 3)
"""The tools without a purpose of their own; the others are a debugger's, a profiler's and so on."""
_lock = threading.Lock()


def enable() -> str | None:
    """Enable the events of instructions; the reason if that is not possible."""
    if sys.version_info >= (3, 13):
        with _lock:
            return _claim_tool(sys.monitoring)
    if sys.version_info >= (3, 12):
        _request_once()
        # If a tool was registered since, code traced before has lost these events.
        if any(other_tools()):
            sys.monitoring.restart_events()
    return None


def other_tools() -> tuple[Any, ...]:
    """The names of the tools of ``sys.monitoring``, without the monitor's own."""
    if sys.version_info < (3, 12):
        return ()
    names = map(sys.monitoring.get_tool, range(6))
    return tuple(None if name is _NAME else name for name in names)


def _claim_tool(monitoring: Any) -> str | None:
    if any(monitoring.get_tool(number) is _NAME for number in _TOOLS):
        return None
    free = next((number for number in _TOOLS if monitoring.get_tool(number) is None), None)
    if free is None:
        names = " and ".join(str(monitoring.get_tool(number)) for number in _TOOLS)
        return f"{names} use both tools of sys.monitoring that are free for other purposes"
    event = monitoring.events.INSTRUCTION
    monitoring.use_tool_id(free, _NAME)
    monitoring.register_callback(free, event, native.on_instruction_event)
    native.use_instruction_tool(free, monitoring.set_local_events, event)
    return None


def _request_once() -> None:
    """A frame that never runs requests them: another thread's tracing would call back one that
    did."""
    frame: types.FrameType = (_ for _ in ()).gi_frame  # type: ignore[attr-defined]
    frame.f_trace_opcodes = True
    frame.f_trace_opcodes = False
