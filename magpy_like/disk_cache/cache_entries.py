"""Sealed entries on disk: compiled C++ and other generated artifacts, named by their content.

One file per entry, named by the digest of all its inputs (source, headers, flags, compiler, Python,
torch, processor). An entry is its payload followed by a *seal*, a fixed-size trailer with the
payload's length and checksum. ELF loaders ignore bytes after the image, so a shared object and a
pickled graph are stored the same way, and the checksum cannot be separated from its payload.
Entries are written in a temporary directory of the cache and renamed into place. An entry that does
not match its seal is deleted and made again.

The lock taken while compiling only saves work. Two processes that compile the same source both
end with a good entry, so a lock that cannot be had (a file system without ``flock``, an owner
that hangs) delays and never blocks. The kernel drops the lock of a process that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

# A change of an entry's layout changes every key, so old entries are never found.
FORMAT = 1

_SEAL_MAGIC = b"magpy\x00v1"
_SEAL_SIZE = len(_SEAL_MAGIC) + 8 + 32
_KINDS = ("cpp", "blob")
_LOCK_TIMEOUT = 300.0  # seconds; longer than any compilation of generated code
_STALE_AFTER = 6 * 3600.0  # seconds; a working directory older than this has lost its owner

# --- directories -------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The cache's root: ``MAGPY_CACHE_DIR``, else ``magpy_like`` in the user's cache directory.

    If that directory cannot be written, a private one is used until the process ends; warns once.
    """
    chosen = os.environ.get("MAGPY_CACHE_DIR")
    if chosen:
        return _writable(Path(chosen).expanduser())
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _writable(Path(base).expanduser() / "magpy_like")


@functools.cache
def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            pass
        return root
    except OSError as error:
        warnings.warn(
            f"magpy: the cache directory {root} cannot be written ({error.strerror}); compiled "
            "code is not kept. Set MAGPY_CACHE_DIR to a writable directory.",
            stacklevel=3,
        )
        return Path(_private_dir().name)


@functools.cache
def _private_dir() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="magpy-")


def entry_path(kind: str, stem: str, key: str, suffix: str) -> Path:
    """The file of an entry; ``kind`` is ``cpp`` or ``blob``."""
    return cache_dir() / kind / key[:2] / f"{stem}{key}{suffix}"


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A fresh directory on the cache's own file system, so that a rename out of it is atomic."""
    root = cache_dir() / "tmp"
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root, _STALE_AFTER)
    with tempfile.TemporaryDirectory(dir=root, ignore_cleanup_errors=True) as path:
        yield Path(path)


def _sweep(root: Path, age: float) -> None:
    """Remove files older than ``age`` seconds, which killed processes left in ``root``."""
    horizon = time.time() - age
    for path in root.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < horizon:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


# --- sealed files ------------------------------------------------------------------------------


def seal(payload: bytes) -> bytes:
    """The trailer of an entry."""
    return _SEAL_MAGIC + len(payload).to_bytes(8, "little") + hashlib.sha256(payload).digest()


def _read_sealed(path: Path) -> bytes | None:
    """The payload of an entry, or None if it is missing or damaged; a damaged one is deleted."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    payload = data[:-_SEAL_SIZE]
    if len(data) >= _SEAL_SIZE and data[-_SEAL_SIZE:] == seal(payload):
        return payload
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def publish(source: Path, target: Path) -> None:
    """Rename into place. A process that clears the cache may delete the directory."""
    for attempt in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(source, target)
            return
        except FileNotFoundError:
            if attempt == 2 or not source.exists():
                raise


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """Hold the lock of ``key``. After ``_LOCK_TIMEOUT`` the caller continues without it."""
    path = cache_dir() / "lock" / key
    handle = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "w")  # noqa: SIM115 (closed below, on every path)
        deadline = time.monotonic() + _LOCK_TIMEOUT
        pause = 0.001
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
    except OSError:
        pass
    try:
        yield
    finally:
        # A process that waits on the unlinked file then finds the entry.
        with contextlib.suppress(OSError):
            path.unlink()
        if handle is not None:
            handle.close()


# --- keys --------------------------------------------------------------------------------------


def digest(*parts: object) -> str:
    """Hex digest of ``parts`` (str, bytes, or anything with a faithful ``repr``), in order."""
    state = hashlib.sha256()
    for part in parts:
        text = part if isinstance(part, str) else repr(part)
        data = part if isinstance(part, bytes) else text.encode()
        state.update(type(part).__name__.encode() + len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


@functools.cache
def environment() -> tuple[str, ...]:
    """Dependencies of an artifact besides its inputs: format, Python, torch, machine, processor.

    The processor counts because code of ``-march=native`` runs only on its own kind, and home
    directories are shared between machines.
    """
    return (
        str(FORMAT),
        sys.implementation.cache_tag,
        str(sys.version_info[:3]),
        torch.__version__,
        platform.machine(),
        digest(processor()),
    )


@functools.cache
def processor() -> str:
    """Vendor, model and instruction sets of the processor, as the system reports them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    wanted = re.findall(
        r"^(?:vendor_id|model name|flags|Features|CPU part)\s*:.*$", text, re.MULTILINE
    )
    return "\n".join(sorted(set(wanted)))


# --- entries checked by this process ---------------------------------------------------------

_verified: set[Path] = set()  # entries that this process has checked: they are not read twice


def is_intact(target: Path) -> bool:
    """True if an entry is there and matches its seal; a damaged one is deleted."""
    if target in _verified and target.exists():
        return True
    if _read_sealed(target) is None:
        return False
    _verified.add(target)
    return True


def mark_intact(target: Path) -> None:
    """Note that this process has written the entry."""
    _verified.add(target)


# --- artifacts ---------------------------------------------------------------------------------


def get(key: str) -> bytes | None:
    """The bytes stored under ``key`` in this :func:`environment`; None if missing or damaged."""
    return _read_sealed(_blob(key))


def put(key: str, data: bytes) -> None:
    """Store ``data`` under ``key``. The last writer wins; a reader sees all of it or nothing.

    On a full or read-only disk the entry is lost, without an error.
    """
    with contextlib.suppress(OSError), workspace() as work:
        product = work / "blob"
        product.write_bytes(data + seal(data))
        publish(product, _blob(key))


def _blob(key: str) -> Path:
    return entry_path("blob", "", digest(key, environment()), ".bin")


# --- contents and deletion ----------------------------------------------------------------------


@dataclass(frozen=True)
class CacheInfo:
    """Contents of the cache: ``entries[kind]`` and ``size[kind]`` (bytes) for each kind."""

    path: Path
    entries: dict[str, int]
    size: dict[str, int]


def info() -> CacheInfo:
    """Count the entries on disk (shared objects under ``cpp``, artifacts under ``blob``)."""
    root = cache_dir()
    entries, size = dict.fromkeys(_KINDS, 0), dict.fromkeys(_KINDS, 0)
    for path in _files(root):
        with contextlib.suppress(FileNotFoundError):
            kind = path.parent.parent.name
            size[kind] += path.stat().st_size
            entries[kind] += path.suffix in (".so", ".bin")
    return CacheInfo(root, entries, size)


def clear() -> CacheInfo:
    """Delete all entries, and no file of others. Returns the contents before.

    Running processes keep the code that they have loaded; a compilation under way still stores its
    result.
    """
    before = info()
    for path in _files(before.path):
        with contextlib.suppress(OSError):
            path.unlink()
    _verified.clear()
    if (before.path / "tmp").is_dir():
        _sweep(before.path / "tmp", _STALE_AFTER)
    return before


def _files(root: Path) -> Iterator[Path]:
    """The files of all entries, recognised by name: the directory may hold files of others."""
    for kind in _KINDS:
        for path in (root / kind).glob("??/*"):
            if re.search(r"(^|-)[0-9a-f]{64}\.(so|cpp|bin)$", path.name):
                yield path
