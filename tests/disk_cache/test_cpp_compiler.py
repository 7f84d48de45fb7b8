"""Compiled C++ in the disk cache: hits, keys, damaged libraries, concurrency, compiler errors."""

import ctypes
import dataclasses
import errno
import fcntl
import gc
import multiprocessing
import os
import sysconfig
import textwrap
import threading
import time
from pathlib import Path

import pytest

from magpy_like.disk_cache import (
    cache_entries,
    cache_location,
    claims,
    cpp_compiler,
    maintenance,
    user_settings,
)
from magpy_like.disk_cache.cpp_compiler import CompilerTimeoutError, CppSource

ADD = 'extern "C" int add(int a, int b) { return a + b; }'


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
    assert cpp_compiler.compile_cpp(ADD, name=damage) == path
    assert path.read_bytes() != damaged
    assert add(path) == 5
    assert compilations(damage) == 2


@pytest.mark.parametrize("name", ["å" * 100, "../../up", "a b;c", "n" * 300, "", "-o"])
def test_any_name_makes_a_file_in_the_cache(folder, name):
    path = cpp_compiler.compile_cpp(ADD, name=name)
    assert path.parent == folder("cpp") and add(path) == 5
    assert maintenance.info().entries["cpp"] == 1


def test_headers_are_found():
    source = '#include "deep/seven.h"\nextern "C" int add(int a, int b) { return SEVEN; }'
    headers = {"deep/seven.h": "#define SEVEN 7"}
    assert add(cpp_compiler.compile_cpp(source, name="h", headers=headers)) == 7


def test_compile_error_has_the_diagnostics():
    with pytest.raises(cpp_compiler.CppCompileError, match="nonsense") as error:
        cpp_compiler.compile_cpp("int x = nonsense;", name="broken")
    assert "broken" in str(error.value)
    assert error.value.source == "int x = nonsense;"
    assert maintenance.info().entries["cpp"] == 0


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
    with claims.locked(cache_location.current().chosen.folder("lock", create=True), key, 300):
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
    assert time.monotonic() - begin < user_settings.DEFAULT_TIMEOUT / 5


def test_unreleased_lock_times_out(monkeypatch, folder):
    key = CppSource(ADD, "add").key(cpp_compiler.cxx())
    cache_location.current().chosen.folder("lock", create=True)
    wait = claims.wait_for_lock
    monkeypatch.setattr(claims, "wait_for_lock", lambda descriptor, _: wait(descriptor, 0.05))
    with open(folder("lock") / key, "w") as held:
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


def load_answer(number):
    """A function that returns ``number``, and a function that tells if its library is loaded."""
    source = f"""
        #include <Python.h>
        static PyObject* answer(PyObject*, PyObject* const*, long) {{
            return PyLong_FromLong({number});
        }}
        PyMethodDef magpy_kernels[] = {{{{"answer", (PyCFunction)answer, METH_FASTCALL, nullptr}}}};
        """
    flags = ("-I" + sysconfig.get_paths()["include"],)
    path = cpp_compiler.compile_cpp(source, name="answer", flags=flags)
    function = cpp_compiler.load_functions(path, ["answer"])["answer"]
    return function, lambda: str(path) in Path("/proc/self/maps").read_text()


def test_library_is_unloaded_with_its_last_function():
    function, is_loaded = load_answer(1)
    again, _ = load_answer(1)
    assert function() == 1
    del function
    assert is_loaded()
    assert again() == 1
    del again
    assert not is_loaded()


def test_function_in_a_garbage_cycle_can_be_called_until_it_is_freed():
    answers = []

    class Last:
        def __del__(self):
            answers.append(self.function())

    cycle = Last()
    cycle.itself = cycle
    cycle.function, is_loaded = load_answer(2)
    del cycle
    gc.collect()
    assert answers == [2]
    assert not is_loaded()


def test_missing_compiler_error_has_the_remedy(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(cpp_compiler.NoCompilerError, match="Install one.*or set CXX"):
        cpp_compiler.compile_cpp(ADD, name="add")


def test_error_of_invalid_cxx_names_it(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(cpp_compiler.NoCompilerError, match="no-such-compiler"):
        cpp_compiler.cxx()


@pytest.mark.parametrize("text", ["'unclosed", "g++ 'x", "/no/such/compiler -O2", "/etc/hostname"])
def test_cxx_that_is_no_command_is_an_error(monkeypatch, text):
    monkeypatch.setenv("CXX", text)
    with pytest.raises(cpp_compiler.NoCompilerError, match="or set CXX"):
        cpp_compiler.cxx()


def test_blank_cxx_is_no_choice(monkeypatch):
    monkeypatch.setenv("CXX", "  ")
    assert "++" in cpp_compiler.cxx().command[0]


def test_compiler_on_a_relative_path_is_found(monkeypatch, tmp_path):
    real = cpp_compiler.cxx().command[0]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "g++").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"bin:{os.environ['PATH']}")
    assert add(cpp_compiler.compile_cpp(ADD, name="relative")) == 5
    assert cpp_compiler.cxx().command[0] == str(tmp_path / "bin" / "g++")


def test_unwritable_directory_is_replaced_by_a_private_one(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be written.*MAGPY_CACHE_DIR"):
        assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """``compiler(script)``: a compiler that does what the shell script says when it compiles, and
    ``version`` when it is asked for its version."""
    real = cpp_compiler.cxx().command[0]

    def install(script, version="echo 1.0"):
        path = tmp_path / "scripted-c++"
        path.write_text(
            f'#!/bin/sh\nREAL={real}\nif [ "$1" = --version ]; then {version}\nelse {script}\nfi\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        cpp_compiler._find_compiler.cache_clear()

    yield install
    cpp_compiler._find_compiler.cache_clear()


# --- time limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["sleep 1000", "sleep 1000 & wait", "kill -STOP $$"])
def test_hanging_compiler_is_stopped_once_and_named(compiler, monkeypatch, script, folder):
    monkeypatch.setenv("MAGPY_COMPILER_TIMEOUT", "0.5")
    compiler(script)
    begin = time.monotonic()
    with pytest.raises(CompilerTimeoutError) as error:
        cpp_compiler.compile_cpp(ADD, name="add")
    for part in ("scripted-c++", "0.5 s", "MAGPY_COMPILER_TIMEOUT", "CXX"):
        assert part in str(error.value) and part in error.value.summary
    for number in range(20):  # without a wait for each
        with pytest.raises(CompilerTimeoutError):
            cpp_compiler.compile_cpp(ADD, name=f"other{number}")
    assert time.monotonic() - begin < 8
    assert os.listdir(folder("tmp")) == []


def test_slow_source_does_not_condemn_a_compiler_that_works(compiler, monkeypatch):
    monkeypatch.setenv("MAGPY_COMPILER_TIMEOUT", "10")
    compiler('case "$*" in *slow*) sleep 1000;; esac; exec $REAL "$@"')
    assert add(cpp_compiler.compile_cpp(ADD, name="first")) == 5
    monkeypatch.setenv("MAGPY_COMPILER_TIMEOUT", "0.2")
    with pytest.raises(CompilerTimeoutError):
        cpp_compiler.compile_cpp(ADD, name="slow")
    monkeypatch.setenv("MAGPY_COMPILER_TIMEOUT", "60")
    assert add(cpp_compiler.compile_cpp(ADD, name="second")) == 5


def test_compiler_that_leaves_a_child_behind_is_done(compiler, monkeypatch):
    compiler('sleep 1000 & exec $REAL "$@"')
    begin = time.monotonic()
    assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
    assert time.monotonic() - begin < 60


def test_hanging_version_is_no_compiler_and_waits_once(compiler, monkeypatch):
    monkeypatch.setenv("MAGPY_COMPILER_TIMEOUT", "0.5")
    compiler("exit 1", version="sleep 1000")
    begin = time.monotonic()
    for _ in range(20):
        with pytest.raises(cpp_compiler.NoCompilerError, match=r"--version` did not end within"):
            cpp_compiler.cxx()
    assert time.monotonic() - begin < 8


def test_failing_version_is_no_compiler(compiler):
    compiler("exit 1", version="exit 7")
    with pytest.raises(cpp_compiler.NoCompilerError, match="exit status 7"):
        cpp_compiler.cxx()


def test_compiler_that_writes_nothing_is_an_error(compiler):
    compiler("exit 0")
    with pytest.raises(cpp_compiler.CppCompileError, match="wrote no shared object"):
        cpp_compiler.compile_cpp(ADD, name="add")


def test_compiler_that_disappears_is_an_error(compiler, tmp_path):
    compiler("exit 0")
    cpp_compiler.cxx()
    (tmp_path / "scripted-c++").unlink()
    with pytest.raises(cpp_compiler.NoCompilerError, match="cannot be started"):
        cpp_compiler.compile_cpp(ADD, name="add")


def test_temporary_files_of_the_compiler_end_with_it(compiler, folder, monkeypatch, tmp_path):
    compiler(f'echo "$TMPDIR" > {tmp_path}/seen; : > "$TMPDIR/ccXYZ.s"; exec $REAL "$@"')
    cpp_compiler.compile_cpp(ADD, name="add")
    assert (tmp_path / "seen").read_text().startswith((str(folder("tmp")), "."))
    assert os.listdir(folder("tmp")) == []


def test_object_that_the_compiler_shares_is_not_changed(compiler, tmp_path):
    """A compiler cache may answer with a link to its own file."""
    compiler(f'$REAL "$@" && cp *.so {tmp_path}/kept && ln -f {tmp_path}/kept *.so')
    path = cpp_compiler.compile_cpp(ADD, name="add")
    assert add(path) == 5
    assert (tmp_path / "kept").stat().st_size < path.stat().st_size


# --- folders and disks ---------------------------------------------------------------------------


def test_full_disk_that_the_compiler_meets_moves_it_to_a_private_folder(
    compiler, folder, monkeypatch
):
    compiler(
        f'case "$PWD" in {folder()}*) echo "No space left" >&2; exit 1;; esac; exec $REAL "$@"'
    )
    real = os.posix_fallocate

    def allocate(descriptor, *arguments):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder())):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.warns(UserWarning, match="No space left on device"):
        path = cpp_compiler.compile_cpp(ADD, name="add")
    assert add(path) == 5
    assert not str(path).startswith(str(folder()))


@pytest.mark.parametrize("name", ["tmp", "cpp", "lock"])
def test_unusable_sub_folder_warns_once_and_compiles(folder, name):
    cache_location.current()
    folder(name).touch()
    with pytest.warns(UserWarning, match="cannot be written") as caught:
        assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
        assert add(cpp_compiler.compile_cpp(ADD, name="other")) == 5
    assert len(caught) == 1


def test_relative_cache_folder_compiles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAGPY_CACHE_DIR", "relative")
    assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
    assert len(list((tmp_path / "relative/magpy-v2/cpp").iterdir())) == 2


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "writable by others"])
def test_planted_library_is_compiled_again(compilations, tmp_path, kind):
    path = cpp_compiler.compile_cpp(ADD, name="add")
    planted = tmp_path / "planted.so"
    planted.write_bytes(path.read_bytes())
    if kind == "writable by others":
        path.chmod(0o666)
    else:
        path.unlink()
        {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda p: p.symlink_to(planted)}[kind](path)
    assert cpp_compiler.compile_cpp(ADD, name="add") == path
    assert path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    assert compilations("add") == 2


def test_library_is_loaded_from_the_verified_folder(cache, compilations):
    """Others can replace the folder's parent: the plain path may lead to their file."""
    cache.parent.chmod(0o777)
    path = cpp_compiler.compile_cpp(ADD, name="add")
    cache.rename(cache.parent / "moved")
    planted = cache / "magpy-v2" / "cpp" / path.name
    planted.parent.mkdir(parents=True)
    planted.write_bytes(b"planted")
    assert add(path) == 5
    cache.parent.chmod(0o700)


def test_signed_library_of_a_shared_folder_is_loaded_as_a_copy(
    cache, folder, monkeypatch, new_process, compilations
):
    original = cpp_compiler.compile_cpp(ADD, name="add")
    for path in (cache, folder(), folder("cpp")):
        path.chmod(0o777)
    monkeypatch.setenv("MAGPY_CACHE_READONLY", "1")
    new_process()
    copy = cpp_compiler.compile_cpp(ADD, name="add")
    assert compilations("add") == 1
    assert copy != original
    original.write_bytes(b"changed between the check and the loading")
    assert add(copy) == 5


def test_unsigned_library_of_a_shared_folder_is_compiled(
    cache, folder, monkeypatch, new_process, compilations, tmp_path
):
    cpp_compiler.compile_cpp(ADD, name="add")
    cache.chmod(0o777)
    monkeypatch.setenv("MAGPY_CACHE_READONLY", "1")
    (tmp_path / "state/magpy_like/cache.key").write_bytes(b"k" * 32)
    new_process()
    assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
    assert compilations("add") == 2


def test_info_and_clear_ignore_foreign_files(folder):
    cpp_compiler.compile_cpp(ADD, name="add")
    cache_entries.put("graph", b"x" * 1000)
    info = maintenance.info()
    assert info.entries == {"cpp": 1, "blob": 2}  # and the name of the compiler
    assert info.size["blob"] >= 1000
    foreign = folder("cpp") / "main.cpp"
    foreign.write_text("not ours")
    assert maintenance.clear() == info
    assert maintenance.info().entries == {"cpp": 0, "blob": 0}
    assert foreign.exists()
    assert add(cpp_compiler.compile_cpp(ADD, name="add")) == 5
