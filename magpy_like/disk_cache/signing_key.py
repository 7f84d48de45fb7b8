"""The key by which this user's entries are signed, in a file that only the user can read.

A folder that only the user can change needs no signatures. They allow to read entries from one
that others can change (``MAGPY_CACHE_READONLY``).
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import secrets
import stat

from magpy_like.disk_cache import user_settings
from magpy_like.disk_cache.safe_folder import RefusedError, SafeFolder, read_all, write_all

FILE = "cache.key"
SIZE = 32  # bytes, of the key and of a tag
UNSIGNED = bytes(SIZE)


def sign(digest: bytes) -> bytes:
    """The HMAC-SHA256 tag of an entry's digest; zeros if there is no key."""
    key = signing_key()
    return UNSIGNED if key is None else hmac.digest(key, digest, "sha256")


def is_signed(digest: bytes, tag: bytes) -> bool:
    """True if this user's key made ``tag``."""
    key = signing_key()
    return key is not None and hmac.compare_digest(hmac.digest(key, digest, "sha256"), tag)


@functools.cache
def signing_key() -> bytes | None:
    """This user's key, made on first use; None if no folder can hold it safely."""
    try:
        folder = SafeFolder.open(user_settings.state_dir(), create=True)
        if not folder.has(FILE):
            _make(folder)
        with folder.opened(FILE) as (descriptor, found):
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise RefusedError(f"others can read {folder.path / FILE}")
            key = read_all(descriptor, SIZE)
    except (OSError, RuntimeError):
        return None
    return key if len(key) == SIZE else None


def _make(folder: SafeFolder) -> None:
    """Write a new key, whole from the start: the first of several processes wins."""
    draft = f"{FILE}.{secrets.token_hex(8)}"
    try:
        with folder.opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as (descriptor, _):
            write_all(descriptor, secrets.token_bytes(SIZE))
        with contextlib.suppress(FileExistsError):
            at = folder.descriptor
            os.link(draft, FILE, src_dir_fd=at, dst_dir_fd=at)
    finally:
        folder.remove(draft)
