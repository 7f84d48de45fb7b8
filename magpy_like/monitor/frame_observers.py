"""Trace and profile functions that a program sets: they observe its frames, so it runs natively.

Those that are set before the call observe no frames of the program once it is compiled.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from magpy_like.monitor.instruction_events import other_tools

OBSERVES_ITSELF = "it sets a trace or profile function, which must see all of its frames"


def frame_observers() -> tuple[Any, ...]:
    """What observes this thread's frames, without the monitor: the trace function, the profile
    function, and the tools of ``sys.monitoring``."""
    return sys.gettrace(), sys.getprofile(), *other_tools()


def are_replaced(earlier: tuple[Any, ...]) -> bool:
    """True if this thread has other observers than ``earlier``."""
    return any(now is not then for now, then in zip(frame_observers(), earlier, strict=True))


def unmark(frame: FrameType | None, root: FrameType | None) -> None:
    """Undo the monitor's marks on the active frames from ``frame`` to the program's own, ``root``,
    for the trace functions that observe them next: debuggers need line events."""
    outer = root.f_back if root is not None else frame
    while frame is not None and frame is not outer:
        frame.f_trace_opcodes, frame.f_trace_lines = False, True
        frame = frame.f_back
