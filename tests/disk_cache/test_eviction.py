"""The bound on the cache's size: order, cost, clocks, and several processes."""

import fcntl
import multiprocessing
import os
import time

import pytest

from magpy_like.disk_cache import cache_entries, cache_location, cpp_compiler, eviction, maintenance
from magpy_like.disk_cache.eviction import Removed

FORK = multiprocessing.get_context("fork")
HOUR = 3600.0


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    """``limit(bytes)`` bounds the cache; entries just used may be evicted too."""
    monkeypatch.setattr(eviction, "_IN_USE", 0.0)
    return lambda size: monkeypatch.setenv("MAGPY_CACHE_SIZE", str(size))


def put(key, size=8000):
    cache_entries.put(key, bytes(size))


def age(folder, key, seconds):
    then = time.time() - seconds
    os.utime(folder("blob") / cache_entries._blob(key), (then, then))


def held(folder, *keys):
    return [key for key in keys if (folder("blob") / cache_entries._blob(key)).exists()]


def test_entries_used_least_recently_go_first(folder, limit):
    for hours, key in enumerate(("d", "c", "b", "a"), 1):
        put(key)
        age(folder, key, hours * HOUR)
    assert cache_entries.get("a") is not None  # is used
    limit(4 * 8192)
    put("new")
    assert held(folder, "a", "b", "c", "d", "new") == ["a", "d", "new"]


def test_cache_stays_within_its_bound(folder, limit):
    limit(100_000)
    for number in range(50):
        put(str(number))
        assert sum(path.stat().st_size for path in folder("blob").iterdir()) <= 100_000
    assert held(folder, *map(str, range(50)))[-1] == "49"


def test_folders_are_read_only_when_the_bound_is_reached(monkeypatch, limit):
    limit(1_000_000)
    scans = []
    real = eviction._groups
    monkeypatch.setattr(eviction, "_groups", lambda cache: scans.append(cache) or real(cache))
    for number in range(200):
        put(str(number))
    assert 1 <= len(scans) <= 25


def test_entry_written_again_is_counted_right_in_the_end(folder, limit):
    limit(50_000)
    put("other")
    for _ in range(50):
        put("same")
    assert held(folder, "other", "same") == ["other", "same"]


@pytest.mark.parametrize("spoil", ["missing", "empty", "words", "wrong"])
def test_lost_sum_is_found_again(folder, limit, spoil):
    for number in range(10):
        put(str(number))
        age(folder, str(number), HOUR)
    path = folder("usage")
    {"missing": path.unlink, "empty": lambda: path.write_text(""),
     "words": lambda: path.write_text("not a number of bytes"),
     "wrong": lambda: path.write_text("9" * 20)}[spoil]()  # fmt: skip
    path.exists() and path.chmod(0o600)
    limit(50_000)
    put("new")
    assert held(folder, "new") == ["new"]
    assert len(list(folder("blob").iterdir())) <= 6


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "link to a device"])
def test_planted_sum_neither_hangs_nor_is_followed(tmp_path, folder, kind):
    put("first")
    path = folder("usage")
    path.unlink()
    (tmp_path / "precious").write_text("words")
    make = {
        "link": lambda: path.symlink_to(tmp_path / "precious"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    put("second")
    assert held(folder, "first", "second") == ["first", "second"]
    assert (tmp_path / "precious").read_text() == "words"


def test_entry_in_use_stays(folder, limit, monkeypatch):
    monkeypatch.setattr(eviction, "_IN_USE", 60.0)
    put("old")
    age(folder, "old", HOUR)
    put("loading")
    age(folder, "loading", HOUR)
    assert cache_entries.get("loading") is not None
    limit(1)
    put("new")
    assert held(folder, "old", "loading", "new") == ["loading", "new"]


def test_entry_from_the_future_ages_from_now_on(folder, limit):
    put("future")
    age(folder, "future", -1e6)
    put("past")
    limit(8192)
    maintenance.prune()
    assert (folder("blob") / cache_entries._blob("future")).stat().st_mtime <= time.time()


@pytest.mark.parametrize("offset", [-1e8, 1e8])
def test_use_at_any_clock_is_noted(folder, offset):
    put("key")
    age(folder, "key", offset)
    cache_entries.get("key")
    found = (folder("blob") / cache_entries._blob("key")).stat().st_mtime
    assert abs(found - time.time()) < 60


def test_other_files_neither_count_nor_go(folder, limit):
    put("first")
    foreign = folder("blob") / "thesis.tex"
    foreign.write_bytes(bytes(100_000))
    (folder("cpp")).mkdir(mode=0o700)
    (folder("cpp") / ("a" * 64)).mkdir()
    os.utime(foreign, (0, 0))
    limit(1)
    put("second")
    assert foreign.exists() and (folder("cpp") / ("a" * 64)).exists()
    assert held(folder, "first", "second") == []


def test_links_among_entries_are_not_followed(tmp_path, folder, limit):
    put("first")
    (tmp_path / "precious").write_bytes(bytes(100_000))
    link = folder("blob") / f"{'0' * 64}.bin"
    link.symlink_to(tmp_path / "precious")
    assert maintenance.prune(0).entries == 1
    assert (tmp_path / "precious").exists()


def test_library_goes_with_its_source(folder):
    cpp_compiler.compile_cpp('extern "C" int one() { return 1; }', name="one")
    assert len(list(folder("cpp").iterdir())) == 2
    assert maintenance.prune(0).entries == 2  # and the name of the compiler
    assert list(folder("cpp").iterdir()) == []


def test_prune_reports_what_it_removed(folder):
    put("first")
    put("second")
    assert maintenance.prune(100_000) == Removed(0, 0)
    assert maintenance.prune(8192) == Removed(1, 8192)
    assert len(held(folder, "first", "second")) == 1


def test_unlimited_cache_grows(folder, limit):
    limit("unlimited")
    for number in range(20):
        put(str(number))
    assert len(list(folder("blob").iterdir())) == 20


def _fill(number, failures):
    try:
        for step in range(60):
            key = f"{number} {step}"
            put(key)
            found = cache_entries.get(key)
            if found is not None and found != bytes(8000):
                failures.put(key)
    except BaseException as error:
        failures.put(repr(error))


def test_concurrent_processes_share_the_bound(folder, limit):
    limit(200_000)
    put("first")
    failures = FORK.Queue()
    children = [FORK.Process(target=_fill, args=(number, failures)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert failures.empty()
    put("last")
    assert sum(path.stat().st_size for path in folder("blob").iterdir()) <= 220_000
    assert os.listdir(folder("tmp")) == []


def test_busy_sum_delays_an_entry_only_briefly(folder):
    put("first")
    with open(folder("usage")) as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        begin = time.monotonic()
        put("second")
        assert time.monotonic() - begin < 10
    assert held(folder, "second") == ["second"]
    assert cache_location.current().is_current()
