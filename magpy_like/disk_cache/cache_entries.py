"""Sealed entries on disk: compiled C++ and other generated artifacts, named by their content.

One file per entry, named by the digest of all its inputs (source, headers, flags, compiler, Python,
torch, processor). An entry is its payload followed by a *seal*, a fixed-size trailer: the payload's
length, the digest of name and payload, and a signature of that digest. ELF loaders ignore bytes
after the image, so a shared object and other artifacts are stored the same way, and no entry can be
taken for another. Entries are written in a workspace of the cache and renamed into place. An entry
that does not match its seal is deleted and made again.

The digest finds damage; it does not keep anybody out. That only this user can have written an entry
follows from the folder (``safe_folder``), or else from the signature (``signing_key``).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import re
import sys
from pathlib import Path

import torch

from magpy_like.disk_cache import cache_location, claims, eviction, signing_key
from magpy_like.disk_cache.cache_folder import FORMAT, CacheFolder
from magpy_like.disk_cache.safe_folder import read_all, write_all
from magpy_like.errors import CompileError

_SEAL_MAGIC = b"magpy\x00v2"
_LENGTH_END = len(_SEAL_MAGIC) + 8
_DIGEST_END = _LENGTH_END + 32
_SEAL_SIZE = _DIGEST_END + signing_key.SIZE

# --- sealed files ------------------------------------------------------------------------------


def seal(name: str, payload: bytes) -> bytes:
    """The trailer of the entry ``name``."""
    found = _digest(name, payload)
    return _SEAL_MAGIC + len(payload).to_bytes(8, "little") + found + signing_key.sign(found)


def _digest(name: str, payload: bytes | memoryview) -> bytes:
    state = hashlib.sha256(name.encode() + b"\0")
    state.update(payload)
    return state.digest()


def payload_size(name: str, data: bytes, *, is_private: bool) -> int | None:
    """The length of the payload if ``data`` is the entry ``name``, whole and unchanged, and if not
    from a private folder, signed by this user; else None."""
    size = len(data) - _SEAL_SIZE
    if size < 0:
        return None
    trailer, payload = data[size:], memoryview(data)[:size]
    found = trailer[_LENGTH_END:_DIGEST_END]
    is_whole = (
        trailer[:_LENGTH_END] == _SEAL_MAGIC + size.to_bytes(8, "little")
        and found == _digest(name, payload)
    )  # fmt: skip
    if not is_whole:
        return None
    return size if is_private or signing_key.is_signed(found, trailer[_DIGEST_END:]) else None


def read(cache: CacheFolder, kind: str, name: str) -> bytes | None:
    """The payload of an entry; None if it is missing, unsafe or damaged.

    A damaged entry is deleted.
    """
    try:
        folder = cache.folder(kind)
        with folder.opened(name) as (descriptor, found):
            data = read_all(descriptor, found.st_size)
            size = payload_size(name, data, is_private=cache.is_private)
            if size is not None and cache.is_private:
                eviction.touch(descriptor, found)
    except OSError:
        return None
    if size is not None:
        return data[:size]
    if cache.is_private:
        with contextlib.suppress(OSError):
            folder.remove(name)
    return None


def write(cache: CacheFolder, kind: str, name: str, payload: bytes) -> None:
    """Add an entry. Raises OSError."""
    data, workspaces = payload + seal(name, payload), cache.workspaces()
    with claims.workspace_file(workspaces) as (draft, descriptor):
        write_all(descriptor, data)
        cache.folder(kind, create=True).receive(workspaces, draft, name)
    eviction.account(cache, len(data))


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


# --- artifacts ---------------------------------------------------------------------------------


def get(key: str) -> bytes | None:
    """The bytes stored under ``key`` in this :func:`environment`; None if missing or damaged."""
    name = _blob(key)
    for cache in cache_location.current().readable():
        data = read(cache, "blob", name)
        if data is not None:
            return data
    return None


def put(key: str, data: bytes) -> None:
    """Store ``data`` under ``key``. The last writer wins; a reader sees all of it or nothing.

    Where no folder takes it, the entry is lost, without an error.
    """
    name = _blob(key)
    with contextlib.suppress(CompileError):
        cache_location.current().write(lambda cache: write(cache, "blob", name, data))


def _blob(key: str) -> str:
    return f"{digest(key, environment())}.bin"
