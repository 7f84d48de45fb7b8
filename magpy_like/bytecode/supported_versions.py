"""Supported interpreters: importing this module fails where the monitor cannot read frames."""

from __future__ import annotations

import platform
import sys

SUPPORTED = ((3, 11), (3, 12))

if platform.python_implementation() != "CPython" or sys.version_info[:2] not in SUPPORTED:
    raise ImportError(
        "magpy_like needs CPython 3.11 or 3.12, for it reads the interpreter's own frames; this is "
        f"{platform.python_implementation()} {'.'.join(map(str, sys.version_info[:3]))}"
    )
