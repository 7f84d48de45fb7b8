"""Supported interpreters: those whose frames the monitor can read."""

from __future__ import annotations

import platform
import sys

SUPPORTED = ((3, 11), (3, 12), (3, 13))


def obstacle() -> str | None:
    """Why the monitor cannot run on this interpreter, with the remedy; None if it can."""
    implementation = platform.python_implementation()
    is_free_threaded = "t" in getattr(sys, "abiflags", "")
    if implementation == "CPython" and not is_free_threaded and sys.version_info[:2] in SUPPORTED:
        return None
    *others, newest = (".".join(map(str, version)) for version in SUPPORTED)
    versions = " or ".join([*filter(None, [", ".join(others)]), newest])
    own = ".".join(map(str, sys.version_info[:3])) + " (free-threaded)" * is_free_threaded
    return (
        f"magpy_like reads the interpreter's own frames and does not know those of "
        f"{implementation} {own}. Use CPython {versions}, or a newer magpy_like."
    )
