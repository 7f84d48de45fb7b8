"""Locks and workspaces: what a live process holds is never removed, what a dead one left is."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import platform
import signal
import time

import pytest

from magpy_like.disk_cache import cache_entries, cache_location, claims
from magpy_like.disk_cache.safe_folder import SafeFolder

FORK = multiprocessing.get_context("fork")
KEY = "a" * 64


@pytest.fixture
def top(tmp_path):
    return SafeFolder.open(tmp_path / "top", create=True)


def _hold_workspace(top, held):
    with claims.workspace_folder(top) as work:
        (work.path / "deep").mkdir()
        (work.path / "deep" / "source.cpp").touch()
        held.set()
        time.sleep(1000)


def _hold_file(top, held):
    with claims.workspace_file(top):
        held.set()
        time.sleep(1000)


@contextlib.contextmanager
def holder(hold, *arguments):
    held = FORK.Event()
    child = FORK.Process(target=hold, args=(*arguments, held))
    child.start()
    assert held.wait(60)
    try:
        yield child
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("hold", [_hold_workspace, _hold_file])
def test_workspace_of_a_live_process_stays_and_of_a_dead_one_goes(top, hold):
    with holder(hold, top) as child:
        before = sorted(top.names())
        for path in top.path.rglob("*"):
            os.utime(path, (0, 0))
        assert claims.sweep(top) == 0
        os.kill(child.pid, signal.SIGSTOP)
        assert claims.sweep(top, all_machines=True) == 0
        assert sorted(top.names()) == before
        os.kill(child.pid, signal.SIGCONT)
    assert claims.sweep(top) == 1
    assert top.names() == []


@pytest.mark.parametrize("offset", [-1e9, 1e9])
def test_clock_decides_nothing(top, monkeypatch, offset):
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + offset)
    with claims.workspace_folder(top) as work:
        claims.sweep(top)
        assert work.is_there()


def test_workspaces_of_dead_processes_are_removed_on_first_use(folder):
    """Whatever time their files bear."""
    cache_entries.put("first", b"x")
    tmp = SafeFolder.open(folder("tmp"), create=False)
    with holder(_hold_workspace, tmp):
        pass
    (left,) = [path for path in folder("tmp").iterdir() if path.is_dir()]
    os.utime(left, (4e9, 4e9))
    cache_location._current = None
    cache_entries.put("second", b"x")
    assert os.listdir(folder("tmp")) == []


def test_leftover_of_another_machine_waits_for_it_or_for_people(top, monkeypatch):
    with holder(_hold_workspace, top):
        pass
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert claims.sweep(top) == 0
    assert claims.sweep(top, all_machines=True) == 1


def test_folder_whose_file_is_gone_is_removed(top):
    with claims.workspace_folder(top) as work:
        name = work.path.name
    (top.path / name).mkdir()
    assert claims.sweep(top) == 1


@pytest.mark.parametrize("kind", ["file", "folder", "link", "pipe"])
@pytest.mark.parametrize("name", ["thesis", "tmpabc123", "0" * 41, "0" * 8 + "-" + "0" * 31, ".d"])
def test_other_names_stay(top, name, kind):
    path = top.path / name
    {"file": path.touch, "folder": path.mkdir, "link": lambda: path.symlink_to("/etc"),
     "pipe": lambda: os.mkfifo(path)}[kind]()  # fmt: skip
    os.utime(path, (0, 0), follow_symlinks=False)
    claims.sweep(top, all_machines=True)
    claims.remove_free_locks(top)
    assert top.names() == [name]


@pytest.mark.parametrize("kind", ["link", "pipe", "linked folder"])
def test_sweep_neither_follows_nor_waits(tmp_path, top, kind):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "words").touch()
    path = top.path / f"{claims._machine()}-{'0' * 32}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "precious" / "words")
    else:
        path.with_name(path.name + ".d").symlink_to(tmp_path / "precious")
    claims.sweep(top, all_machines=True)
    assert (tmp_path / "precious" / "words").exists()


def test_links_in_a_workspace_are_removed_and_not_followed(tmp_path, top):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "words").touch()
    with claims.workspace_folder(top) as work:
        (work.path / "link").symlink_to(tmp_path / "precious")
    assert top.names() == []
    assert (tmp_path / "precious" / "words").exists()


def test_workspace_is_removed_after_an_error(top):
    with pytest.raises(ValueError):
        with claims.workspace_folder(top) as work:
            (work.path / "file").touch()
            raise ValueError
    assert top.names() == []


@pytest.fixture
def without_locks(monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_nothing_is_swept_where_there_are_no_locks(top, without_locks):
    with claims.workspace_folder(top) as work:
        assert claims.sweep(top) == 0
        assert work.is_there()


def test_workspace_that_a_sweep_takes_at_once_is_made_again(top, monkeypatch):
    taken = []
    real = fcntl.flock

    def flock(descriptor, operation):
        if not taken:
            taken.append(descriptor)
            raise BlockingIOError
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claims.workspace_file(top) as (name, _):
        assert top.has(name)
    assert taken


def test_workspace_that_a_sweep_removes_at_once_is_made_again(top, monkeypatch):
    removed = []
    real = fcntl.flock

    def flock(descriptor, operation):
        if not removed:
            removed.extend(top.names())
            top.remove(removed[0])
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claims.workspace_file(top) as (name, _):
        assert top.names() == [name] != removed
    assert removed


def test_file_system_whose_locks_are_never_free_is_an_error(top, monkeypatch):
    def flock(*_):
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="locks of new files"):
        with claims.workspace_file(top):
            pass


# --- locks of keys -------------------------------------------------------------------------------


def _hold_lock(top, held):
    with claims.locked(top, KEY, 60):
        held.set()
        time.sleep(1000)


def test_lock_excludes_and_dies_with_its_process(top):
    with holder(_hold_lock, top):
        begin = time.monotonic()
        with claims.locked(top, KEY, 0.2):
            assert time.monotonic() - begin >= 0.2
        assert top.names() == [KEY]  # the one who did not get it leaves it
    with claims.locked(top, KEY, 60):
        assert time.monotonic() - begin < 30
    assert top.names() == []


def test_missing_locks_do_not_delay(top, without_locks):
    begin = time.monotonic()
    with claims.locked(top, KEY, 60):
        pass
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "link to a device"])
def test_planted_lock_file_neither_hangs_nor_is_followed(tmp_path, top, kind):
    (tmp_path / "precious").write_text("words")
    path = top.path / KEY
    make = {
        "link": lambda: path.symlink_to(tmp_path / "precious"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    ran = []
    with claims.locked(top, KEY, 60):
        ran.append(kind)
    claims.remove_free_locks(top)
    assert ran and (tmp_path / "precious").read_text() == "words"


def test_free_locks_are_removed_and_held_ones_stay(top):
    (top.path / ("b" * 64)).touch(mode=0o600)
    with holder(_hold_lock, top):
        claims.remove_free_locks(top)
        assert top.names() == [KEY]


def test_error_in_the_block_is_not_swallowed(top):
    with pytest.raises(OSError, match="mine"):
        with claims.locked(top, KEY, 60):
            raise OSError("mine")
