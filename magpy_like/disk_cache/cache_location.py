"""Which cache folders this process uses: the user's, or a private one where that cannot be trusted
or written.

Entries are written to the user's folder if it takes them, else to the private one, and looked up
in both. Whatever is wrong with the user's folder leads to one warning and to the private folder,
which is removed at the end of the process; only if no folder at all can be written is that an
error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from magpy_like.disk_cache import signing_key, user_settings
from magpy_like.disk_cache.cache_folder import CacheFolder
from magpy_like.disk_cache.safe_folder import RefusedError
from magpy_like.disk_cache.user_settings import warn_once
from magpy_like.errors import CompileError

T = TypeVar("T")
_VARIABLES = ("MAGPY_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "MAGPY_CACHE_READONLY")
_REMEDY = "Set MAGPY_CACHE_DIR to a folder of your own with free space."
_lock = threading.RLock()


class CacheError(CompileError):
    """No folder takes compiled code; the message states what was tried, and the remedy."""


class CacheLocation:
    """The folders for one choice of the user. ``chosen`` is None if it cannot be used."""

    def __init__(self) -> None:
        self.chosen: CacheFolder | None = None
        self._reason = ""  # why nothing is written to the chosen folder, and the remedy
        try:
            root = user_settings.cache_root()
        except (OSError, RuntimeError) as error:
            self._reason = f"there is no folder for the cache ({_text(error)}). {_REMEDY}"
            return
        try:
            if user_settings.is_read_only():
                self.chosen = _open_read_only(root)
                self._reason = "MAGPY_CACHE_READONLY is set"
                return
            self.chosen = open_chosen(root, create=True)
        except OSError as error:
            self._reason = _reason(root, error)
        else:
            if not self.chosen.is_writable():
                self._reason = _reason(root, OSError("it is read-only"))

    def is_current(self) -> bool:
        """True unless the chosen folder was deleted, or became unsafe."""
        try:
            return self.chosen is None or self.chosen.is_there()
        except OSError:
            return False

    def readable(self) -> list[CacheFolder]:
        """The folders in which entries are looked up, in order: what this process had to write to
        the private one is the newest."""
        return [folder for folder in (_private, self.chosen) if folder is not None]

    def write(self, action: Callable[[CacheFolder], T]) -> T:
        """The result of ``action`` on the folder for new entries; on the private one if it fails.

        Raises CacheError if no folder takes the entry, and any other error of ``action``.
        """
        if self.chosen is not None and not self._reason:
            try:
                return action(self.chosen)
            except OSError as error:
                self._reason = _reason(self.chosen.root, error)
        if not user_settings.is_read_only():
            warn_once(f"magpy: compiled code is not kept: {self._reason}")
        try:
            return action(_private_folder())
        except OSError as error:
            raise CacheError(
                f"compiled code has no place: a temporary folder cannot be written "
                f"({_text(error)}); {self._reason}"
            ) from error


def current() -> CacheLocation:
    """The folders that the environment chooses now."""
    global _current
    wanted = tuple(map(os.environ.get, _VARIABLES))
    known = _current
    if known is not None and known[0] == wanted and known[1].is_current():
        return known[1]
    with _lock:
        if _current is known:
            _current = wanted, CacheLocation()
        assert _current is not None
        return _current[1]


_current: tuple[tuple[str | None, ...], CacheLocation] | None = None


def open_chosen(root: Path, *, create: bool = False) -> CacheFolder:
    """The cache folder in ``root``.

    Raises OSError; RefusedError if others can change it, or no code may be loaded from it.
    """
    folder = CacheFolder(root, create=create)
    if not folder.can_load():
        raise RefusedError(f"the file system of {root} is mounted with noexec")
    return folder


def _open_read_only(root: Path) -> CacheFolder | None:
    try:
        return open_chosen(root)
    except RefusedError as error:
        if signing_key.signing_key() is None:
            warn_once(f"magpy: {error}. There is no key to check its entries: it is not read.")
            return None
        return CacheFolder(root, create=False, is_private=False)
    except OSError as error:
        warn_once(f"magpy: the cache folder {root} cannot be read ({_text(error)}).")
        return None


def _reason(root: Path, error: OSError) -> str:
    if isinstance(error, RefusedError):
        return f"the cache folder {root} is not used: {error}."
    return f"the cache folder {root} cannot be written ({_text(error)}). {_REMEDY}"


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# --- the private folder --------------------------------------------------------------------------

_private: CacheFolder | None = None


def _private_folder() -> CacheFolder:
    """A folder of this process. Raises OSError."""
    global _private
    with _lock:
        if _private is None or not _private.is_there():
            path = tempfile.mkdtemp(prefix="magpy-")
            try:
                _private = open_chosen(Path(path), create=True)
            except OSError:
                _remove(path, os.getpid())
                raise
            weakref.finalize(_private, _remove, path, os.getpid())
        return _private


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a child that inherited it
        shutil.rmtree(path, ignore_errors=True)
