"""What people do with the cache: count, verify, prune and clear it (the command ``magpy cache``).

Only files with names that the cache gives are ever removed, and only in its own folders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from magpy_like.disk_cache import cache_entries, cache_location, claims, eviction, user_settings
from magpy_like.disk_cache.cache_folder import KINDS, CacheFolder, is_entry_name
from magpy_like.disk_cache.eviction import Removed
from magpy_like.disk_cache.safe_folder import RefusedError, SafeFolder, read_all


@dataclass(frozen=True)
class CacheInfo:
    """Contents of the cache: ``entries[kind]`` and ``size[kind]`` (bytes) for each kind."""

    path: Path
    entries: dict[str, int]
    size: dict[str, int]


@dataclass(frozen=True)
class Fault:
    """An entry that is not loaded: a sentence that names it; ``is_removed`` if it was deleted."""

    description: str
    is_removed: bool


def info() -> CacheInfo:
    """Count the entries on disk (shared objects under ``cpp``, artifacts under ``blob``).

    Raises OSError; RefusedError if the cache folder is not used.
    """
    entries, size = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    with contextlib.suppress(FileNotFoundError):
        cache = _cache()
        for kind, folder in _folders(cache):
            for name, found in folder.files():
                if is_entry_name(name):
                    size[kind] += found.st_size
                    entries[kind] += not name.endswith(".cpp")
    return CacheInfo(user_settings.cache_root(), entries, size)


def clear() -> CacheInfo:
    """Delete all entries, and what dead processes left. Returns the contents before.

    Running processes keep the code that they have loaded; a compilation under way still stores its
    result. Raises as :func:`info`.
    """
    before = info()
    with contextlib.suppress(FileNotFoundError):
        cache = _written()
        for _, folder in _folders(cache):
            for name in filter(is_entry_name, folder.names()):
                with contextlib.suppress(OSError):
                    folder.remove(name)
        cache.top.remove(eviction.USAGE)
        _remove_leftovers(cache)
    return before


def prune(limit: float | None = None) -> Removed:
    """Delete the entries used least recently, until ``limit`` bytes are left (default: the bound
    on the cache's size), and what dead processes left. Raises as :func:`info`."""
    with contextlib.suppress(FileNotFoundError):
        cache = _written()
        _remove_leftovers(cache)
        return eviction.prune(cache, user_settings.size_limit() if limit is None else limit)
    return Removed()


def verify(*, remove: bool = False) -> Iterator[Fault]:
    """The entries that would not be loaded. Raises as :func:`info`."""
    with contextlib.suppress(FileNotFoundError):
        for _, folder in _folders(_written() if remove else _cache()):
            for name in sorted(filter(is_entry_name, folder.names())):
                description = _fault(folder, name)
                if description:
                    yield Fault(description, remove and _is_removed(folder, name))


# --- parts ---------------------------------------------------------------------------------------


def _cache() -> CacheFolder:
    return cache_location.open_chosen(user_settings.cache_root())


def _written() -> CacheFolder:
    if user_settings.is_read_only():
        raise RefusedError("MAGPY_CACHE_READONLY is set: nothing is deleted")
    return _cache()


def _folders(cache: CacheFolder) -> Iterator[tuple[str, SafeFolder]]:
    for kind in KINDS:
        with contextlib.suppress(FileNotFoundError):
            yield kind, cache.folder(kind)


def _remove_leftovers(cache: CacheFolder) -> None:
    with contextlib.suppress(FileNotFoundError):
        claims.sweep(cache.folder("tmp"), all_machines=True)
    with contextlib.suppress(FileNotFoundError):
        claims.remove_free_locks(cache.folder("lock"))


def _fault(folder: SafeFolder, name: str) -> str:
    """Why an entry is not loaded; empty for a good one, and for a source, which never is."""
    if name.endswith(".cpp"):
        return ""
    try:
        with folder.opened(name) as (descriptor, found):
            data = read_all(descriptor, found.st_size)
    except FileNotFoundError:
        return ""  # evicted meanwhile
    except RefusedError as error:
        return str(error)
    except OSError as error:
        return f"{folder.path / name} cannot be opened ({error.strerror})"
    whole = cache_entries.payload_size(name, data, is_private=True) is not None
    return "" if whole else f"{folder.path / name} does not match its seal"


def _is_removed(folder: SafeFolder, name: str) -> bool:
    try:
        folder.remove(name)
    except OSError:
        return False
    return True
