"""Compiled C++ in the disk cache: hits, keys, damaged libraries, concurrency, compiler errors."""

import ctypes
import dataclasses
import fcntl
import multiprocessing
import sysconfig
import textwrap
import threading
import time

import pytest

from magpy_like.disk_cache import cache_entries, cpp_compiler
from magpy_like.disk_cache.cpp_compiler import CppSource

ADD = 'extern "C" int add(int a, int b) { return a + b; }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "cache"))
    cache_entries._verified.clear()
    return tmp_path / "cache"


@pytest.fixture
def compilations(tmp_path, monkeypatch):
    """Installs a compiler that counts its runs. Returns a function from the name of a source to
    its number of compilations."""
    log = tmp_path / "runs"
    log.touch()
    wrapper = tmp_path / "counting-c++"
    real = cpp_compiler.cxx().command[0]
    wrapper.write_text(
        f'#!/bin/sh\nif [ "$1" != --version ]; then echo "$*" >> {log}; fi\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    return lambda name: len([run for run in log.read_text().splitlines() if f"/{name}-" in run])


def add(path):
    return cpp_compiler.load_library(path).add(2, 3)


def test_source_is_compiled_once(compilations):
    first = cpp_compiler.compile_cpp(ADD, name="add")
    cache_entries._verified.clear()
    assert cpp_compiler.compile_cpp(ADD, name="add") == first
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
def test_every_input_is_part_of_the_key(change):
    base, compiler = CppSource(ADD, "add"), cpp_compiler.cxx()
    assert dataclasses.replace(base, **change).key(compiler) != base.key(compiler)


def test_compiler_version_is_part_of_the_key():
    unit = CppSource(ADD, "add")
    old, new = cpp_compiler.Compiler(("g++",), "12.2"), cpp_compiler.Compiler(("g++",), "13.1")
    assert unit.key(old) != unit.key(new)


def test_torch_version_is_part_of_the_key(monkeypatch):
    unit, compiler = CppSource(ADD, "add"), cpp_compiler.cxx()
    before = unit.key(compiler)
    monkeypatch.setattr(cache_entries.torch, "__version__", "0.0.0")
    cache_entries.environment.cache_clear()
    try:
        assert unit.key(compiler) != before
    finally:
        monkeypatch.undo()
        cache_entries.environment.cache_clear()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_library_is_compiled_again(compilations, damage):
    path = cpp_compiler.compile_cpp(ADD, name=damage)
    data = path.read_bytes()
    middle = len(data) // 2
    damaged = {
        "truncated": data[:middle],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
    }[damage]
    path.unlink()
    path.write_bytes(damaged)
    cache_entries._verified.clear()  # as in a new process
    assert cpp_compiler.compile_cpp(ADD, name=damage) == path
    assert path.read_bytes() != damaged
    assert add(path) == 5
    assert compilations(damage) == 2


def test_headers_are_found():
    source = '#include "deep/seven.h"\nextern "C" int add(int a, int b) { return SEVEN; }'
    headers = {"deep/seven.h": "#define SEVEN 7"}
    assert add(cpp_compiler.compile_cpp(source, name="h", headers=headers)) == 7


def test_compile_error_has_the_diagnostics():
    with pytest.raises(cpp_compiler.CppCompileError, match="nonsense") as error:
        cpp_compiler.compile_cpp("int x = nonsense;", name="broken")
    assert "broken" in str(error.value)
    assert error.value.source == "int x = nonsense;"
    assert cache_entries.info().entries["cpp"] == 0


def test_libraries_are_returned_in_the_order_of_sources(compilations):
    sources = [
        CppSource(f'extern "C" int add(int, int) {{ return {n}; }}', f"n{n}") for n in range(4)
    ]
    assert [add(path) for path in cpp_compiler.compile_cpp_many(sources)] == [0, 1, 2, 3]
    assert [compilations(f"n{n}") for n in range(4)] == [1] * 4


def test_concurrent_threads_compile_a_source_once(compilations):
    threads = [
        threading.Thread(target=cpp_compiler.compile_cpp, args=(ADD,), kwargs={"name": "add"})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compilations("add") == 1


# Forked processes inherit the loaded modules, and the cache is empty.
FORK = multiprocessing.get_context("fork")


def test_concurrent_processes_compile_a_source_once(compilations):
    sums = FORK.Queue()
    children = [
        FORK.Process(target=lambda: sums.put(add(cpp_compiler.compile_cpp(ADD, name="add"))))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    assert [sums.get(timeout=60) for _ in children] == [5] * 3
    for child in children:
        child.join()
    assert compilations("add") == 1


def _hold(key, held):
    with cache_entries.locked(key):
        held.set()
        time.sleep(1000)


def test_lock_of_a_killed_process_is_released():
    key, held = CppSource(ADD, "add").key(cpp_compiler.cxx()), FORK.Event()
    child = FORK.Process(target=_hold, args=(key, held))
    child.start()
    assert held.wait(timeout=60)
    child.kill()
    child.join()
    begin = time.monotonic()
    assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
    assert time.monotonic() - begin < cache_entries._LOCK_TIMEOUT / 5


def test_unreleased_lock_times_out(monkeypatch, cache):
    monkeypatch.setattr(cache_entries, "_LOCK_TIMEOUT", 0.05)
    key = CppSource(ADD, "add").key(cpp_compiler.cxx())
    (cache / "lock").mkdir(parents=True)
    with open(cache / "lock" / key, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5


def test_extension_module_is_loaded():
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
    path = cpp_compiler.compile_cpp(source, name="_probe", flags=flags)
    assert cpp_compiler.load_extension(path, "_probe").answer() == 42


def test_linker_flags_are_accepted():
    source = 'extern "C" int compressBound(int); extern "C" double f() { return 1; }'
    path = cpp_compiler.compile_cpp(source, name="withlib", flags=("-lm",))
    assert isinstance(cpp_compiler.load_library(path), ctypes.CDLL)


def test_missing_compiler_error_has_the_remedy(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(cpp_compiler.NoCompilerError, match="Install one.*or set CXX"):
        cpp_compiler.compile_cpp(ADD, name="add")


def test_error_of_invalid_cxx_names_it(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(cpp_compiler.NoCompilerError, match="no-such-compiler"):
        cpp_compiler.cxx()


def test_unwritable_directory_is_replaced_by_a_private_one(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be written.*MAGPY_CACHE_DIR"):
        assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5


def test_info_and_clear_ignore_foreign_files(cache):
    cpp_compiler.compile_cpp(ADD, name="add")
    cache_entries.put("graph", b"x" * 1000)
    info = cache_entries.info()
    assert info.entries == {"cpp": 1, "blob": 1}
    assert info.size["blob"] >= 1000
    foreign = cache / "cpp" / "aa" / "main.cpp"
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text("not ours")
    assert cache_entries.clear() == info
    assert cache_entries.info().entries == {"cpp": 0, "blob": 0}
    assert foreign.exists()
    assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
