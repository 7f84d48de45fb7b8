"""The monitor run of the current thread."""

from __future__ import annotations

import threading
from typing import Any


class ActiveRun(threading.local):
    """The monitor run of each thread."""

    run: Any = None
    """The monitor run of the current thread, or None."""


active = ActiveRun()


def is_monitoring() -> bool:
    """True if this thread is inside a monitor run."""
    return active.run is not None
