"""What the user sets in the environment: where the cache is, how large, and how long compilers run.

Variables, not fields of :mod:`magpy_like.config`: the native helper is compiled during the import.
A value that cannot be read is reported once, and the default applies.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

DEFAULT_SIZE = 10 * 10**9  # bytes
DEFAULT_TIMEOUT = 300.0  # seconds; longer than any compilation of generated code

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_WITHOUT_LIMIT = ("unlimited", "none", "inf")


def cache_root() -> Path:
    """``MAGPY_CACHE_DIR``, else ``magpy_like`` in the user's cache directory; an absolute path.

    Raises:
        RuntimeError: the user has no home directory.
        FileNotFoundError: the path is relative, and the working directory was removed.
    """
    chosen = os.environ.get("MAGPY_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "magpy_like"


def state_dir() -> Path:
    """The folder of this user's signing key. Raises as :func:`cache_root`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "magpy_like"


def is_read_only() -> bool:
    """``MAGPY_CACHE_READONLY``: entries are read and never written."""
    return os.environ.get("MAGPY_CACHE_READONLY", "").lower() not in ("", "0", "false", "no")


def size_limit() -> float:
    """``MAGPY_CACHE_SIZE``: the bytes that the cache may hold."""
    return _limit("MAGPY_CACHE_SIZE", parse_size, DEFAULT_SIZE, "10GB")


def compiler_timeout() -> float:
    """``MAGPY_COMPILER_TIMEOUT``: the seconds that one run of the compiler may take."""
    return _limit("MAGPY_COMPILER_TIMEOUT", parse_seconds, DEFAULT_TIMEOUT, "300")


def _limit(variable: str, parse: Callable[[str], float], default: float, example: str) -> float:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        return parse(text)
    except ValueError:
        warn_once(
            f"magpy: {variable}={text!r} is neither a limit such as {example} nor 'unlimited'; "
            f"{example} applies."
        )
        return default


def parse_seconds(text: str) -> float:
    """A positive number, or ``unlimited``. Raises ValueError."""
    seconds = float("inf") if text.strip().lower() in _WITHOUT_LIMIT else float(text)
    if not seconds > 0:
        raise ValueError(f"{text!r} is not a time")
    return seconds


@functools.cache
def parse_size(text: str) -> float:
    """A number with an optional unit (``500MB``, ``2GiB``, ``1e9``), or ``unlimited``.

    Raises ValueError.
    """
    if text.strip().lower() in _WITHOUT_LIMIT:
        return float("inf")
    found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgt]?i?)b?\s*", text, re.IGNORECASE)
    unit = (_UNITS | _BINARY_UNITS).get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a size")
    return float(found[1]) * unit


# --- reports -------------------------------------------------------------------------------------

_reported: set[str] = set()
_reporting = threading.Lock()


def warn_once(message: str) -> None:
    """A UserWarning, the first time in this process."""
    with _reporting:
        if message in _reported:
            return
        _reported.add(message)
    warnings.warn(message, stacklevel=3)
