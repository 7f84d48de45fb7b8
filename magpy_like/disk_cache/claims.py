"""What running processes hold in the cache: locks of keys, and workspaces.

A holder keeps a file locked (``flock``); the kernel drops the lock of a process that dies. So what
a dead process left is recognised by its free lock, never by a clock.

A workspace is a locked file, and for a compilation also a folder beside it. Machines may share the
cache on a file system that keeps locks to each machine, so a process removes unasked only what its
own machine left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator

from magpy_like.disk_cache import process_runner
from magpy_like.disk_cache.safe_folder import SafeFolder

_NAME = re.compile(r"([0-9a-f]{8})-[0-9a-f]{32}(\.d)?")
_KEY = re.compile(r"[0-9a-f]{64}")
_ATTEMPTS = 100
_LOCK = os.O_RDWR | os.O_CREAT

# --- workspaces ----------------------------------------------------------------------------------


@contextlib.contextmanager
def workspace_file(folder: SafeFolder) -> Iterator[tuple[str, int]]:
    """A new file in ``folder``: its name and its descriptor. It is removed at the end, unless the
    caller has renamed it. Raises OSError."""
    name, descriptor = _claim(folder)
    try:
        yield name, descriptor
    finally:
        with contextlib.suppress(OSError):
            folder.remove(name)
        os.close(descriptor)


@contextlib.contextmanager
def workspace_folder(folder: SafeFolder) -> Iterator[SafeFolder]:
    """A new folder in ``folder``, removed at the end. Raises OSError."""
    with workspace_file(folder) as (name, _):
        work = folder.below(f"{name}.d", create=True)
        try:
            yield work
        finally:
            _remove_folder(folder, f"{name}.d")


def _claim(folder: SafeFolder) -> tuple[str, int]:
    """Create a locked file. Another process may take its lock first, to remove it as abandoned."""
    for _ in range(_ATTEMPTS):
        name = f"{_machine()}-{secrets.token_hex(16)}"
        flags = _LOCK | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder.descriptor)
        is_ours = _try_lock(descriptor) is not False
        if is_ours and os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)
    raise OSError("other processes hold the locks of new files")


def sweep(folder: SafeFolder, *, all_machines: bool = False) -> int:
    """Remove the workspaces of processes that have died. Returns their number."""
    swept = 0
    for name in sorted(folder.names()):  # a file comes before the folder beside it
        found = _NAME.fullmatch(name)
        if not found or not (all_machines or found[1] == _machine()):
            continue
        with contextlib.suppress(OSError):
            if found[2]:
                # A process makes the file before the folder and removes it after the folder.
                if folder.has(name) and not folder.has(name.removesuffix(".d")):
                    _remove_folder(folder, name)
                    swept += 1
                continue
            with folder.opened(name, os.O_RDWR) as (descriptor, _):
                if _try_lock(descriptor):
                    _remove_folder(folder, f"{name}.d")
                    folder.remove(name)
                    swept += 1
    return swept


def _remove_folder(folder: SafeFolder, name: str) -> None:
    shutil.rmtree(name, ignore_errors=True, dir_fd=folder.descriptor)


def _machine() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


# --- locks of keys -------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: SafeFolder, key: str, seconds: float) -> Iterator[None]:
    """Hold the lock of ``key``. After ``seconds`` the caller continues without it.

    The lock only saves work: two processes that compile the same source both end with a good
    entry. So one that cannot be had (a file system without ``flock``, an owner that hangs) delays
    and never blocks.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor, _ = stack.enter_context(folder.opened(key, _LOCK))
            has_lock = wait_for_lock(descriptor, seconds)
        except OSError:
            has_lock = False
        try:
            yield
        finally:
            if has_lock:  # A process that waits on the removed file then finds the entry.
                with contextlib.suppress(OSError):
                    folder.remove(key)


def remove_free_locks(folder: SafeFolder) -> None:
    """Remove the lock files of processes that have died."""
    for name in folder.names():
        if _KEY.fullmatch(name):
            with contextlib.suppress(OSError), folder.opened(name, os.O_RDWR) as (descriptor, _):
                if _try_lock(descriptor):
                    folder.remove(name)


def wait_for_lock(descriptor: int, seconds: float) -> bool:
    """Wait for an exclusive lock; False after ``seconds``, or if there are no locks here."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not (is_locked := _try_lock(descriptor)):
        if is_locked is None or time.monotonic() >= deadline:
            return False
        process_runner.attend()
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


def _try_lock(descriptor: int) -> bool | None:
    """Take a file's lock without waiting; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
