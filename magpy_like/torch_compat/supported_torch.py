"""The versions of torch that this version of magpy_like is tested with."""

from __future__ import annotations

import torch

__all__ = ["NEWEST", "OLDEST", "RANGE", "difference", "installed"]

OLDEST, NEWEST = (2, 11), (2, 14)
RANGE = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))


def installed() -> tuple[int, ...]:
    """The major and minor version of the installed torch."""
    return tuple(map(int, torch.__version__.split(".")[:2]))


def difference() -> str:
    """How the installed torch differs from the tested ones, with the remedy; empty if it is one."""
    version = installed()
    if OLDEST <= version <= NEWEST:
        return ""
    age = "older" if version < OLDEST else "newer"
    other = "" if version < OLDEST else ", or a newer magpy_like"
    return (
        f"torch {torch.__version__} is {age} than the versions that this magpy_like is tested "
        f"with. Install torch {RANGE}{other}"
    )
