"""Folders that only this user can change, held open.

Everything below such a folder is reached through its descriptor, so a folder that is renamed or
replaced meanwhile is never followed. No symbolic link is followed below the path that the user
chose, and only regular files are opened: opening a pipe would wait for its other end.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RefusedError(OSError):
    """A file or folder that is not used; the message has the reason and the remedy."""


def check_private(found: os.stat_result, folder: Path, name: str = "") -> None:
    """Raises RefusedError unless this user owns the file or folder and nobody else can write it."""
    user = os.geteuid()
    if found.st_uid == user and not found.st_mode & _OTHERS_WRITE:
        return
    path = folder / name
    quoted, own = shlex.quote(str(path)), "Set MAGPY_CACHE_DIR to a folder of your own"
    if found.st_uid != user:
        raise RefusedError(
            f"{path} belongs to {_user(found.st_uid)}. {own}; if this one is meant to be yours, "
            f"have `chown -R {_user(user)} {quoted}` run"
        )
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & stat.S_ISVTX:
        raise RefusedError(f"everybody can write to {path} (mode {mode}). {own}")
    raise RefusedError(
        f"others can write to {path} (mode {mode}). Run `chmod go-w {quoted}` after looking at "
        f"what is in it. Or: {own}"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


class SafeFolder:
    """An open folder. ``is_private`` is False for one that others may change: it is only read."""

    def __init__(self, descriptor: int, path: Path, *, is_private: bool = True) -> None:
        self.path, self.is_private = path, is_private
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self._identity = found.st_dev, found.st_ino
        self.check()

    def __del__(self) -> None:
        if self.is_open():
            os.close(self._descriptor)

    # --- opening ---------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, *, create: bool, is_private: bool = True) -> SafeFolder:
        """Open the folder at ``path``; the path itself may lead through symbolic links.

        Raises OSError; RefusedError if others can change the folder.
        """
        path = Path(os.path.realpath(path))
        if create:
            make_private(path)
        return cls(os.open(path, _FOLDER), path, is_private=is_private)

    def below(self, name: str, *, create: bool) -> SafeFolder:
        """The folder ``name`` in this one. Raises as :meth:`open`."""
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.descriptor)
        descriptor = os.open(name, _FOLDER, dir_fd=self.descriptor)
        return SafeFolder(descriptor, self.path / name, is_private=self.is_private)

    # --- state -----------------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        """Raises OSError if the descriptor was closed by others, as daemons do."""
        if not self.is_open():
            raise OSError(f"the descriptor of {self.path} was closed")
        return self._descriptor

    def is_open(self) -> bool:
        """True unless somebody closed the descriptor, and perhaps opened another file as it."""
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def is_there(self) -> bool:
        """True unless the folder was deleted. Raises RefusedError if others can change it now."""
        return self.is_open() and self.check().st_nlink > 0

    def check(self) -> os.stat_result:
        """Raises RefusedError if others can change the folder."""
        found = os.fstat(self._descriptor)
        if self.is_private:
            check_private(found, self.path)
        return found

    def is_writable(self) -> bool:
        """True if the permissions and the file system allow new files."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self.descriptor, effective_ids=True)

    # --- files -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[tuple[int, os.stat_result]]:
        """Open a regular file of this user; a new one is private. Yields (descriptor, status).

        Raises OSError: links, pipes, devices and folders are refused, and RefusedError the files
        that others own or can write to.
        """
        descriptor = os.open(name, flags | _FILE, 0o600, dir_fd=self.descriptor)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise RefusedError(f"{self.path / name} is not a regular file")
            if self.is_private:
                check_private(found, self.path, name)
            yield descriptor, found
        finally:
            os.close(descriptor)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """(name, status) of each regular file; links are not followed."""
        with contextlib.suppress(OSError), os.scandir(self.descriptor) as listing:
            for entry in listing:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield entry.name, found

    def names(self) -> list[str]:
        """The names of all files and folders."""
        return os.listdir(self.descriptor)

    def has(self, name: str) -> bool:
        """True if there is anything of this name, if only a link to nothing."""
        try:
            os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself; nothing if it is gone. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def receive(self, source: SafeFolder, name: str, new_name: str) -> None:
        """Rename a file of another folder into this one, over what has the name here.

        Raises OSError: a folder that is not empty stays.
        """
        folders = {"src_dir_fd": source.descriptor, "dst_dir_fd": self.descriptor}
        try:
            os.replace(name, new_name, **folders)
        except IsADirectoryError:
            os.rmdir(new_name, dir_fd=self.descriptor)
            os.replace(name, new_name, **folders)


def make_private(path: Path) -> None:
    """Make a folder and its missing parents, each for this user only. Raises OSError."""
    for folder in (*reversed(path.parents), path):
        if not os.path.lexists(folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)


def is_anchored(path: Path) -> bool:
    """True if nobody but this user and the administrator can replace a folder on the path."""
    trusted = (0, os.geteuid())
    for folder in path.parents:
        found = os.stat(folder)
        if found.st_uid not in trusted:
            return False
        if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            return False
    return True


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_all(descriptor: int, size: int) -> bytes:
    """The contents of a file of ``size`` bytes, or what there is of it. Raises OSError."""
    data = os.read(descriptor, size)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)
