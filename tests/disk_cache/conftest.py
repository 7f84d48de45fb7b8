"""An empty cache, and a signing key of the test's own."""

import functools
import os

import pytest

from magpy_like.disk_cache import cache_location, cpp_compiler, signing_key, user_settings

_ENVIRONMENT = dict(os.environ)


@pytest.fixture
def outer_environment():
    """The environment of the tests, in whose cache an import finds the native helper."""
    return _ENVIRONMENT


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder that the cache is to make."""
    for variable in ("MAGPY_CACHE_READONLY", "MAGPY_CACHE_SIZE", "MAGPY_COMPILER_TIMEOUT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(user_settings, "_reported", set())
    monkeypatch.setattr(cache_location, "_private", None)
    for remembered in (cpp_compiler._hanging, cpp_compiler._finished):
        remembered.clear()
    forget_process()
    yield tmp_path / "cache"
    forget_process()


def forget_process():
    """Forget what this process knows of the cache, as a new one does not know it."""
    cache_location._current = None
    signing_key.signing_key.cache_clear()


@pytest.fixture
def new_process():
    return forget_process


@pytest.fixture
def folder(cache):
    """``folder(name)``: a folder of the cache, such as ``cpp``; ``folder()``: the one of all."""
    return functools.partial(cache.joinpath, "magpy-v2")


@pytest.fixture
def someone_else(monkeypatch):
    """``someone_else(path)``: from then on the file at ``path`` belongs to another user."""
    real, theirs = os.fstat, set()

    def fstat(descriptor):
        found = real(descriptor)
        if (found.st_dev, found.st_ino) in theirs:
            return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))
        return found

    def give(path):
        found = os.stat(path)
        theirs.add((found.st_dev, found.st_ino))

    monkeypatch.setattr(os, "fstat", fstat)
    return give
