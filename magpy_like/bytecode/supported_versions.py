"""Refuses, on import, an interpreter whose frames the monitor does not know how to read."""

from __future__ import annotations

import platform
import sys

KNOWN = ((3, 11), (3, 12))

if platform.python_implementation() != "CPython" or sys.version_info[:2] not in KNOWN:
    raise ImportError(
        "magpy_like needs CPython 3.11 or 3.12, for it reads the interpreter's own frames; this is "
        f"{platform.python_implementation()} {'.'.join(map(str, sys.version_info[:3]))}"
    )
