"""The layout of the cache: ``<root>/magpy-v2`` and the folders in it.

``cpp``, ``blob``: entries, by name; ``lock``: locks of keys; ``tmp``: workspaces; ``usage``: how
much the entries take. The root may hold anything else, such as a home directory: nothing outside
``magpy-v2`` is ever touched.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from magpy_like.disk_cache import claims
from magpy_like.disk_cache.safe_folder import SafeFolder, is_anchored

# A change of the layout, or of an entry's, changes the folder and every key.
FORMAT = 2

KINDS = ("cpp", "blob")
"""The folders of entries: shared objects with their sources, and other artifacts."""
_NAME = re.compile(r"(\w{0,60}-)?[0-9a-f]{64}\.(so|cpp|bin)")


def is_entry_name(name: str) -> bool:
    """True for the names that the cache gives to entries; others are never removed."""
    return _NAME.fullmatch(name) is not None


class CacheFolder:
    """An open cache folder.

    ``is_private`` is False if others may change it: only signed entries are read, and nothing is
    written.
    """

    def __init__(self, root: Path, *, create: bool, is_private: bool = True) -> None:
        """Raises OSError; RefusedError if others can change the folder or the root."""
        self.root, self.is_private = root, is_private
        self._root = SafeFolder.open(root, create=create, is_private=is_private)
        self.top = self._root.below(f"magpy-v{FORMAT}", create=create)
        self._folders: dict[str, SafeFolder] = {}
        self._has_swept = False

    def is_there(self) -> bool:
        """True unless the folder was deleted. Raises RefusedError if others can change it now."""
        return self._root.is_there() and self.top.is_there()

    def is_writable(self) -> bool:
        """True if entries can be added."""
        return self.is_private and self.top.is_writable()

    def can_load(self) -> bool:
        """False on a file system from which nothing may be loaded as code (``noexec``)."""
        return not os.fstatvfs(self.top.descriptor).f_flag & os.ST_NOEXEC

    def folder(self, name: str, *, create: bool = False) -> SafeFolder:
        """The folder ``name``: a kind of entries, ``lock`` or ``tmp``. Raises OSError."""
        folder = self._folders.get(name)
        if folder is None or not folder.is_there():
            folder = self._folders[name] = self.top.below(name, create=create)
        return folder

    def workspaces(self) -> SafeFolder:
        """The folder ``tmp``, the first time without what dead processes left. Raises OSError."""
        folder = self.folder("tmp", create=True)
        if not self._has_swept:
            self._has_swept = True
            claims.sweep(folder)
        return folder

    def path_to_load(self, name: str) -> Path:
        """The path from which the loader of shared objects opens an entry of kind ``cpp``.

        The plain path, unless others could replace a folder on the way to the cache after the
        entry was verified; then through the open descriptor.
        """
        folder = self.folder("cpp")
        if self.is_anchored:
            return folder.path / name
        return Path(folder_path(folder)) / name

    @functools.cached_property
    def is_anchored(self) -> bool:
        """True if no other user can replace a folder on the path to the cache."""
        try:
            return is_anchored(self.top.path)
        except OSError:
            return False


def folder_path(folder: SafeFolder) -> str:
    """A path that leads to the open folder whatever happens to its name, in this process and, until
    it starts its program, in a child."""
    path = f"/proc/self/fd/{folder.descriptor}"
    return path if os.path.isdir(path) else str(folder.path)
