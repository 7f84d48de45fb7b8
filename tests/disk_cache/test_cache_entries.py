"""Entries of the disk cache: keys, damaged entries, and files that are no entries."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from magpy_like.disk_cache import cache_entries, user_settings


@pytest.fixture
def path(folder):
    """The file of the entry ``graph``, which is there."""
    cache_entries.put("graph", b"payload" * 10)
    return folder("blob") / cache_entries._blob("graph")


def test_digest_separates_its_parts():
    assert cache_entries.digest("ab", "c") != cache_entries.digest("a", "bc")
    assert cache_entries.digest("1") != cache_entries.digest(1)


@pytest.mark.parametrize("data", [b"", b"new", bytes(3_000_000)], ids=len)
def test_entries_are_found(data):
    assert cache_entries.get("graph") is None
    cache_entries.put("graph", b"old")
    cache_entries.put("graph", data)
    assert cache_entries.get("graph") == data
    assert cache_entries.get("other") is None


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_truncated_entry_is_removed(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    assert cache_entries.get("graph") is None
    assert not path.exists()


@pytest.mark.parametrize("place", [0, 69, 75, 80, 90, 110])
def test_changed_entry_is_not_read(path, place):
    """A byte of the payload, or of the seal's magic number, length and digest."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert cache_entries.get("graph") is None


def test_signature_does_not_count_in_an_own_folder(path):
    """Continuous integration may keep the cache and not the key."""
    data = path.read_bytes()
    path.write_bytes(data[:-32] + bytes(32))
    assert cache_entries.get("graph") == b"payload" * 10


def test_entry_under_another_name_is_not_read(path):
    path.rename(path.parent / cache_entries._blob("other"))
    assert cache_entries.get("other") is None


def test_cache_directory_follows_the_xdg_convention(tmp_path, monkeypatch):
    monkeypatch.delenv("MAGPY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_settings.cache_root() == tmp_path / "xdg" / "magpy_like"
    cache_entries.put("graph", b"x")
    assert (tmp_path / "xdg" / "magpy_like" / "magpy-v2" / "blob").is_dir()


# --- files that are no entries -------------------------------------------------------------------


def link_to_a_copy(path):
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    return lambda name: os.symlink(copy, name)


KINDS = {
    "pipe": lambda path: os.mkfifo,
    "folder": lambda path: os.mkdir,
    "socket": lambda path: lambda name: socket.socket(socket.AF_UNIX).bind(str(name)),
    "link to a good entry": link_to_a_copy,
    "link to nothing": lambda path: lambda name: os.symlink("nothing", name),
    "link to a device": lambda path: lambda name: os.symlink("/dev/zero", name),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_replaced(path, kind, monkeypatch):
    make = KINDS[kind](path)
    path.unlink()
    monkeypatch.chdir(path.parent)  # the name of a socket may have 100 characters
    name = "n" if kind == "socket" else path.name
    make(name)
    Path(name).rename(path)
    assert cache_entries.get("graph") is None
    cache_entries.put("graph", b"new")
    assert cache_entries.get("graph") == b"new"
    assert stat.S_ISREG(path.lstat().st_mode)


def test_target_of_a_linked_entry_is_not_written(tmp_path, path):
    (tmp_path / "precious").write_text("words")
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    cache_entries.put("graph", b"new")
    assert (tmp_path / "precious").read_text() == "words"


def test_folder_with_files_under_an_entrys_name_stays(path):
    path.unlink()
    path.mkdir()
    (path / "words").touch()
    with pytest.warns(UserWarning, match="cannot be written"):
        cache_entries.put("graph", b"new")
    assert cache_entries.get("graph") == b"new"
    assert (path / "words").exists()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_entry_that_others_can_write_is_replaced(path, mode):
    path.chmod(mode)
    assert cache_entries.get("graph") is None
    cache_entries.put("graph", b"new")
    assert cache_entries.get("graph") == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_entry_of_another_user_is_not_read(path, someone_else):
    someone_else(path)
    assert cache_entries.get("graph") is None


def test_threads_read_and_write_one_entry():
    found, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            found.add(cache_entries.get("graph"))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(100):
        cache_entries.put("graph", bytes([number]) * 5000)
    stop.set()
    for reader in readers:
        reader.join()
    assert found <= {None, *(bytes([number]) * 5000 for number in range(100))}
