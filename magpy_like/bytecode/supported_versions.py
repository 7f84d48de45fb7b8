"""Supported interpreters: those whose frames the monitor can read."""

from __future__ import annotations

import platform
import sys

SUPPORTED = ((3, 11), (3, 12))


def obstacle() -> str | None:
    """Why the monitor cannot run on this interpreter, with the remedy; None if it can."""
    implementation = platform.python_implementation()
    if implementation == "CPython" and sys.version_info[:2] in SUPPORTED:
        return None
    versions = " or ".join(".".join(map(str, version)) for version in SUPPORTED)
    own = ".".join(map(str, sys.version_info[:3]))
    return (
        f"magpy_like reads the interpreter's own frames and does not know those of "
        f"{implementation} {own}. Use CPython {versions}, or a newer magpy_like."
    )
