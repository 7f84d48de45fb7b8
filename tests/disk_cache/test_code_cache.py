"""The code cache: what it finds again, what it makes again, and that processes can share it."""

import ctypes
import dataclasses
import fcntl
import multiprocessing
import os
import sysconfig
import textwrap
import threading
import time

import pytest

from magpy_like.disk_cache import code_cache
from magpy_like.disk_cache.code_cache import CppSource

ADD = 'extern "C" int add(int a, int b) { return a + b; }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "cache"))
    code_cache._verified.clear()
    return tmp_path / "cache"


@pytest.fixture
def compilations(tmp_path, monkeypatch):
    """A compiler that counts its runs; the returned function says how many there were for sources
    of a name."""
    log = tmp_path / "runs"
    log.touch()
    wrapper = tmp_path / "counting-c++"
    real = code_cache.cxx().command[0]
    wrapper.write_text(
        f'#!/bin/sh\nif [ "$1" != --version ]; then echo "$*" >> {log}; fi\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    return lambda name: len([run for run in log.read_text().splitlines() if f"/{name}-" in run])


def add(path):
    return code_cache.load_library(path).add(2, 3)


def test_a_source_is_compiled_once(compilations):
    first = code_cache.compile_cpp(ADD, name="add")
    code_cache._verified.clear()
    assert code_cache.compile_cpp(ADD, name="add") == first
    assert add(first) == 5
    assert compilations("add") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"source": ADD + " "},
        {"flags": ("-O1",)},
        {"headers": {"h.h": "#define X 1"}},
        {"name": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_goes_in_changes_the_key(change):
    base, compiler = CppSource(ADD, "add"), code_cache.cxx()
    assert dataclasses.replace(base, **change).key(compiler) != base.key(compiler)


def test_another_compiler_version_changes_the_key():
    unit = CppSource(ADD, "add")
    old, new = code_cache.Compiler(("g++",), "12.2"), code_cache.Compiler(("g++",), "13.1")
    assert unit.key(old) != unit.key(new)


def test_another_torch_changes_the_key(monkeypatch):
    unit, compiler = CppSource(ADD, "add"), code_cache.cxx()
    before = unit.key(compiler)
    monkeypatch.setattr(code_cache.torch, "__version__", "0.0.0")
    code_cache.environment.cache_clear()
    try:
        assert unit.key(compiler) != before
    finally:
        monkeypatch.undo()
        code_cache.environment.cache_clear()


def test_the_digest_tells_apart_what_concatenation_would_not():
    assert code_cache.digest("ab", "c") != code_cache.digest("a", "bc")
    assert code_cache.digest("1") != code_cache.digest(1)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_object_is_compiled_again(compilations, damage):
    path = code_cache.compile_cpp(ADD, name=damage)
    data = path.read_bytes()
    middle = len(data) // 2
    bad = {
        "truncated": data[:middle],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
    }[damage]
    path.unlink()
    path.write_bytes(bad)
    code_cache._verified.clear()  # as a new process would
    assert code_cache.compile_cpp(ADD, name=damage) == path
    assert path.read_bytes() != bad
    assert add(path) == 5
    assert compilations(damage) == 2


def test_headers_are_found():
    source = '#include "deep/seven.h"\nextern "C" int add(int a, int b) { return SEVEN; }'
    headers = {"deep/seven.h": "#define SEVEN 7"}
    assert add(code_cache.compile_cpp(source, name="h", headers=headers)) == 7


def test_an_error_in_the_source_is_told_with_the_diagnostics():
    with pytest.raises(code_cache.CppCompileError, match="nonsense") as error:
        code_cache.compile_cpp("int x = nonsense;", name="broken")
    assert "broken" in str(error.value)
    assert error.value.source == "int x = nonsense;"
    assert code_cache.info().entries["cpp"] == 0


def test_many_sources_come_back_in_order(compilations):
    sources = [
        CppSource(f'extern "C" int add(int, int) {{ return {n}; }}', f"n{n}") for n in range(4)
    ]
    assert [add(path) for path in code_cache.compile_cpp_many(sources)] == [0, 1, 2, 3]
    assert [compilations(f"n{n}") for n in range(4)] == [1] * 4


def test_threads_with_one_source_compile_it_once(compilations):
    threads = [
        threading.Thread(target=code_cache.compile_cpp, args=(ADD,), kwargs={"name": "add"})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compilations("add") == 1


# Each of their processes has this one's modules and nothing of its own in the cache.
FORK = multiprocessing.get_context("fork")


def test_processes_with_one_source_compile_it_once(compilations):
    sums = FORK.Queue()
    children = [
        FORK.Process(target=lambda: sums.put(add(code_cache.compile_cpp(ADD, name="add"))))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    assert [sums.get(timeout=60) for _ in children] == [5] * 3
    for child in children:
        child.join()
    assert compilations("add") == 1


def _hold(key, held):
    with code_cache._locked(key):
        held.set()
        time.sleep(1000)


def test_a_killed_owner_of_the_lock_stops_nobody():
    key, held = CppSource(ADD, "add").key(code_cache.cxx()), FORK.Event()
    child = FORK.Process(target=_hold, args=(key, held))
    child.start()
    assert held.wait(timeout=60)
    child.kill()
    child.join()
    begin = time.monotonic()
    assert add(code_cache.compile_cpp(ADD, name="add")) == 5
    assert time.monotonic() - begin < code_cache._LOCK_PATIENCE / 5


def test_a_lock_that_is_never_released_only_delays(monkeypatch, cache):
    monkeypatch.setattr(code_cache, "_LOCK_PATIENCE", 0.05)
    key = CppSource(ADD, "add").key(code_cache.cxx())
    (cache / "lock").mkdir(parents=True)
    with open(cache / "lock" / key, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert add(code_cache.compile_cpp(ADD, name="add")) == 5


def test_an_extension_module_is_loaded():
    source = textwrap.dedent(
        """
        #include <Python.h>
        static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
        static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {}};
        static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_probe", "", -1, methods};
        PyMODINIT_FUNC PyInit__probe() { return PyModule_Create(&module); }
        """
    )
    flags = ("-I" + sysconfig.get_paths()["include"],)
    path = code_cache.compile_cpp(source, name="_probe", flags=flags)
    assert code_cache.load_extension(path, "_probe").answer() == 42


def test_libraries_may_be_named_among_the_flags():
    source = 'extern "C" int compressBound(int); extern "C" double f() { return 1; }'
    path = code_cache.compile_cpp(source, name="withlib", flags=("-lm",))
    assert isinstance(code_cache.load_library(path), ctypes.CDLL)


def test_no_compiler_is_said_in_words(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(code_cache.NoCompilerError, match="Install one.*or set CXX"):
        code_cache.compile_cpp(ADD, name="add")


def test_a_wrong_cxx_is_said_in_words(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(code_cache.NoCompilerError, match="no-such-compiler"):
        code_cache.cxx()


def test_artifacts_come_back():
    assert code_cache.get("graph") is None
    code_cache.put("graph", b"old")
    code_cache.put("graph", b"new")
    assert code_cache.get("graph") == b"new"
    assert code_cache.get("other") is None


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_a_truncated_artifact_is_not_trusted(cache, keep):
    code_cache.put("graph", b"payload" * 10)
    (path,) = (cache / "blob").glob("*/*")
    path.write_bytes(path.read_bytes()[:keep])
    assert code_cache.get("graph") is None
    assert not path.exists()


def test_an_unwritable_place_costs_the_cache_not_the_program(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be written.*MAGPY_CACHE_DIR"):
        assert add(code_cache.compile_cpp(ADD, name="add")) == 5


def test_the_place_follows_the_xdg_convention(tmp_path, monkeypatch):
    monkeypatch.delenv("MAGPY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert code_cache.cache_dir() == tmp_path / "xdg" / "magpy_like"


def test_info_counts_and_clear_removes_only_its_own(cache):
    code_cache.compile_cpp(ADD, name="add")
    code_cache.put("graph", b"x" * 1000)
    ours = code_cache.info()
    assert ours.entries == {"cpp": 1, "blob": 1}
    assert ours.size["blob"] >= 1000
    foreign = cache / "cpp" / "aa" / "main.cpp"
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text("not ours")
    assert code_cache.clear() == ours
    assert code_cache.info().entries == {"cpp": 0, "blob": 0}
    assert foreign.exists()
    assert add(code_cache.compile_cpp(ADD, name="add")) == 5


def test_leftovers_of_killed_processes_are_swept(cache):
    old = cache / "tmp" / "left"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    fresh = cache / "tmp" / "busy"
    fresh.mkdir()
    code_cache.put("graph", b"x")
    assert not old.exists()
    assert fresh.exists()
