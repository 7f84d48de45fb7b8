"""Folders that only this user can change: what is refused, and what is never followed."""

import os
import socket
import stat

import pytest

from magpy_like.disk_cache import safe_folder
from magpy_like.disk_cache.safe_folder import RefusedError, SafeFolder


@pytest.fixture
def top(tmp_path):
    return SafeFolder.open(tmp_path / "top", create=True)


def read(folder, name):
    with folder.opened(name) as (descriptor, found):
        return safe_folder.read_all(descriptor, found.st_size)


def write(folder, name, data):
    with folder.opened(name, os.O_WRONLY | os.O_CREAT) as (descriptor, _):
        safe_folder.write_all(descriptor, data)


def test_new_folders_and_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        folder = SafeFolder.open(tmp_path / "a" / "b", create=True).below("c", create=True)
        write(folder, "file", b"x")
    finally:
        os.umask(old)
    for path in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a/b/c/file").stat().st_mode) == 0o600
    assert read(folder, "file") == b"x"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_folder_that_others_can_write_is_refused(tmp_path, top, mode):
    (tmp_path / "top").chmod(mode)
    with pytest.raises(RefusedError, match="chmod go-w .*top"):
        SafeFolder.open(tmp_path / "top", create=True)
    with pytest.raises(RefusedError):
        top.check()


@pytest.mark.parametrize("mode", [0o755, 0o500, 0o711])
def test_folder_that_others_can_only_read_is_used(tmp_path, top, mode):
    (tmp_path / "top").chmod(mode)
    SafeFolder.open(tmp_path / "top", create=True)
    (tmp_path / "top").chmod(0o700)


def test_remedy_for_everybodys_folder_is_another_folder(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(RefusedError) as refusal:
        SafeFolder.open(tmp_path, create=False)
    assert "chmod" not in str(refusal.value)
    assert "MAGPY_CACHE_DIR" in str(refusal.value)


def test_folder_of_another_user_is_refused(tmp_path, top, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(RefusedError, match=r"belongs to .*chown -R 4242"):
        SafeFolder.open(tmp_path / "top", create=False)
    with pytest.raises(RefusedError):
        top.is_there()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_can_write_is_refused(tmp_path, top, mode):
    write(top, "file", b"x")
    (tmp_path / "top" / "file").chmod(mode)
    with pytest.raises(RefusedError, match="chmod go-w .*file"):
        read(top, "file")


def test_file_of_another_user_is_refused(tmp_path, top, someone_else):
    write(top, "file", b"x")
    someone_else(tmp_path / "top" / "file")
    with pytest.raises(RefusedError, match="belongs to"):
        read(top, "file")


def make_socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


KINDS = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "socket": make_socket,
    "link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT], ids=["read", "write"])
def test_only_regular_files_are_opened(tmp_path, top, kind, flags, monkeypatch):
    monkeypatch.chdir(tmp_path / "top")  # the name of a socket may have 100 characters
    KINDS[kind](type(tmp_path)("file"))
    with pytest.raises(OSError):
        with top.opened("file", flags):
            pass


def test_device_is_not_opened(tmp_path, top):
    try:
        os.mknod(tmp_path / "top" / "file", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices can be made by root only")
    with pytest.raises(OSError):
        read(top, "file")


def test_link_is_not_truncated(tmp_path, top):
    (tmp_path / "precious").write_text("words")
    (tmp_path / "top" / "file").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        write(top, "file", b"x")
    assert (tmp_path / "precious").read_text() == "words"


def test_linked_folder_is_not_entered(tmp_path, top):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "top" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        top.below("sub", create=True)


def test_chosen_path_may_be_a_link(tmp_path, top):
    write(top, "file", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "top")
    assert read(SafeFolder.open(tmp_path / "link", create=True), "file") == b"x"


def test_link_to_a_folder_of_others_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(RefusedError):
        SafeFolder.open(tmp_path / "link", create=True)


def test_replaced_folder_is_not_followed(tmp_path, top):
    write(top, "file", b"own")
    (tmp_path / "top").rename(tmp_path / "moved")
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "file").write_bytes(b"planted")
    assert read(top, "file") == b"own"


def test_closed_descriptor_is_noticed(tmp_path, top):
    """As by a program that becomes a daemon; the number then names another file."""
    write(top, "file", b"x")
    os.close(top._descriptor)
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        assert not top.is_there()
        with pytest.raises(OSError, match="closed"):
            read(top, "file")
        del top
        os.fstat(other)  # is not closed with it
    finally:
        os.close(other)


def test_deleted_folder_is_noticed(tmp_path, top):
    assert top.is_there()
    (tmp_path / "top").rmdir()
    assert not top.is_there()


def test_descriptors_are_closed(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        SafeFolder.open(tmp_path, create=False).below("x", create=True)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", [*KINDS, "file"])
def test_received_file_replaces_what_has_its_name(tmp_path, top, kind, monkeypatch):
    monkeypatch.chdir(tmp_path / "top")
    {**KINDS, "file": lambda path: path.write_text("old")}[kind](type(tmp_path)("file"))
    source = SafeFolder.open(tmp_path / "source", create=True)
    write(source, "draft", b"new")
    top.receive(source, "draft", "file")
    assert read(top, "file") == b"new"
    assert source.names() == []


def test_full_folder_is_not_replaced(tmp_path, top):
    (tmp_path / "top" / "file").mkdir()
    (tmp_path / "top" / "file" / "precious").touch()
    write(top, "draft", b"new")
    with pytest.raises(OSError):
        top.receive(top, "draft", "file")
    assert (tmp_path / "top" / "file" / "precious").exists()


def test_removal_removes_the_link_itself(tmp_path, top):
    (tmp_path / "precious").touch()
    (tmp_path / "top" / "file").symlink_to(tmp_path / "precious")
    top.remove("file")
    top.remove("file")
    assert top.names() == []
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o700, True), (0o755, True), (0o1777, True), (0o777, False), (0o770, False)],
)
def test_path_is_anchored_unless_others_can_replace_its_folders(tmp_path, mode, expected):
    (tmp_path / "above" / "own").mkdir(parents=True)
    (tmp_path / "above").chmod(mode)
    assert safe_folder.is_anchored(tmp_path / "above" / "own") is expected


def test_path_below_another_users_folder_is_not_anchored(tmp_path, monkeypatch):
    real = os.stat

    def stat_of(path, *args, **options):
        found = real(path, *args, **options)
        if str(path) == str(tmp_path):
            return os.stat_result((*found[:4], 4242, *found[5:]))
        return found

    monkeypatch.setattr(os, "stat", stat_of)
    assert not safe_folder.is_anchored(tmp_path / "own")
