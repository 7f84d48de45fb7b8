"""Entries of the disk cache: keys, damaged entries, and the cache directory."""

import os

import pytest

from magpy_like.disk_cache import cache_entries


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "cache"))
    cache_entries._verified.clear()
    return tmp_path / "cache"


def test_digest_separates_its_parts():
    assert cache_entries.digest("ab", "c") != cache_entries.digest("a", "bc")
    assert cache_entries.digest("1") != cache_entries.digest(1)


def test_entries_are_found():
    assert cache_entries.get("graph") is None
    cache_entries.put("graph", b"old")
    cache_entries.put("graph", b"new")
    assert cache_entries.get("graph") == b"new"
    assert cache_entries.get("other") is None


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_truncated_entry_is_removed(cache, keep):
    cache_entries.put("graph", b"payload" * 10)
    (path,) = (cache / "blob").glob("*/*")
    path.write_bytes(path.read_bytes()[:keep])
    assert cache_entries.get("graph") is None
    assert not path.exists()


def test_cache_directory_follows_the_xdg_convention(tmp_path, monkeypatch):
    monkeypatch.delenv("MAGPY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_entries.cache_dir() == tmp_path / "xdg" / "magpy_like"


def test_temporary_files_of_killed_processes_are_removed(cache):
    old = cache / "tmp" / "left"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    fresh = cache / "tmp" / "busy"
    fresh.mkdir()
    cache_entries.put("graph", b"x")
    assert not old.exists()
    assert fresh.exists()
