"""The bound on the cache's size: the entries used least recently go first.

The file ``usage`` has the sum of all sizes. Each new entry adds to it, and only where it exceeds
the limit are the folders read. An entry's modification time is the time of its last use. An error
of the sum (a killed process, an entry written twice) lasts until the next look at the folders.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from magpy_like.disk_cache import claims, user_settings
from magpy_like.disk_cache.cache_folder import KINDS, CacheFolder, is_entry_name
from magpy_like.disk_cache.safe_folder import SafeFolder

_BLOCK = 4096  # bytes: what a file takes on disk is a multiple
_FILLED = 0.9  # of the limit is kept, so that the next entries find room
_IN_USE = 60.0  # seconds: an entry may still be about to be loaded, and is kept
_LOCK_TIMEOUT = 0.2  # seconds; then the entry is not counted
USAGE = "usage"
_DIGITS = 20


@dataclass(frozen=True)
class Removed:
    """What was removed: entries, and their bytes."""

    entries: int = 0
    size: int = 0


def touch(descriptor: int, found: os.stat_result) -> None:
    """Note that an entry is used."""
    now = time.time()
    if not 0 <= now - found.st_mtime < _IN_USE / 2:
        with contextlib.suppress(OSError):
            os.utime(descriptor, (now, now))  # by this machine's clock, not by a file server's


def account(cache: CacheFolder, size: int) -> None:
    """Count a new entry of ``size`` bytes, and evict others if the cache is too large."""
    limit = user_settings.size_limit()
    with contextlib.suppress(OSError), _usage(cache) as usage:
        total = usage.read()
        total = (
            sum(group.size for group in _groups(cache)) if total is None else total + _on_disk(size)
        )
        if total > limit:
            total, _ = _evict(cache, _FILLED * limit)
        usage.write(total)


def prune(cache: CacheFolder, limit: float) -> Removed:
    """Evict until at most ``limit`` bytes are left, except what was used in the last minute.

    Raises OSError.
    """
    with _usage(cache) as usage:
        total, removed = _evict(cache, limit)
        usage.write(total)
    return removed


# --- the sum of sizes ----------------------------------------------------------------------------


class _Usage:
    """The open, locked file with the sum, in a fixed number of digits: a file that is truncated and
    written again is flushed to the disk by some file systems."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> int | None:
        text = os.pread(self._descriptor, _DIGITS, 0)
        return int(text) if text.isdigit() else None

    def write(self, total: int) -> None:
        os.pwrite(self._descriptor, b"%0*d" % (_DIGITS, total), 0)


@contextlib.contextmanager
def _usage(cache: CacheFolder) -> Iterator[_Usage]:
    with cache.top.opened(USAGE, os.O_RDWR | os.O_CREAT) as (descriptor, _):
        if not claims.wait_for_lock(descriptor, _LOCK_TIMEOUT):
            raise OSError("another process removes entries")
        yield _Usage(descriptor)


# --- entries by use ------------------------------------------------------------------------------


@dataclass
class _Group:
    """The files of one entry: a shared object and its source."""

    folder: SafeFolder
    names: list[str] = field(default_factory=list)
    used: float = 0.0
    size: int = 0


def _evict(cache: CacheFolder, limit: float) -> tuple[int, Removed]:
    """Remove entries, the longest unused first; returns the bytes left too."""
    groups = sorted(_groups(cache), key=lambda group: group.used)
    total = sum(group.size for group in groups)
    now = time.time()
    entries = size = 0
    for group in groups:
        if total <= limit or group.used > now - _IN_USE:
            break
        with contextlib.suppress(OSError):
            for name in group.names:
                group.folder.remove(name)
            total -= group.size
            entries += 1
            size += group.size
    return total, Removed(entries, size)


def _groups(cache: CacheFolder) -> list[_Group]:
    groups: dict[tuple[str, str], _Group] = {}
    now = time.time()
    for kind in KINDS:
        try:
            folder = cache.folder(kind)
        except FileNotFoundError:
            continue
        for name, found in folder.files():
            if is_entry_name(name):
                group = groups.setdefault((kind, name.rpartition(".")[0]), _Group(folder))
                group.names.append(name)
                group.used = max(group.used, _time_of_use(folder, name, found, now))
                group.size += _on_disk(found.st_size)
    return list(groups.values())


def _time_of_use(folder: SafeFolder, name: str, found: os.stat_result, now: float) -> float:
    """An entry from the future, of a clock that was wrong, would never be evicted: it ages from
    now on."""
    if found.st_mtime > now + _IN_USE:
        with contextlib.suppress(OSError):
            times = (now, now)
            os.utime(name, times, dir_fd=folder.descriptor, follow_symlinks=False)
        return now
    return found.st_mtime


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
