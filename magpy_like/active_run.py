"""The monitor run of the current thread."""

from __future__ import annotations

import threading

active = threading.local()
"""Its attribute ``run`` is the monitor run of the current thread, if there is one."""


def is_monitoring() -> bool:
    """True if this thread is inside a monitor run."""
    return getattr(active, "run", None) is not None
