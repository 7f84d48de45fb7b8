"""The C++ compiler: finding it, compiling sources into sealed entries, loading the results."""

from __future__ import annotations

import collections
import ctypes
import functools
import importlib.machinery
import importlib.util
import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from magpy_like.disk_cache import (
    cache_entries,
    cache_location,
    claims,
    eviction,
    process_runner,
    user_settings,
)
from magpy_like.disk_cache.cache_entries import digest, environment
from magpy_like.disk_cache.cache_folder import CacheFolder, folder_path
from magpy_like.disk_cache.process_runner import Stopped, TimedOut
from magpy_like.disk_cache.safe_folder import SafeFolder
from magpy_like.errors import CompileError

BASE_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC")

_VERSION_TIMEOUT = 30.0  # seconds
_SPACE = 1 << 20  # bytes: a disk without them is full


class NoCompilerError(CompileError):
    """No working C++ compiler was found; the message states where, and the remedy."""


class CppCompileError(CompileError):
    """The C++ compiler rejected a source; has ``command``, ``diagnostics`` and ``source``."""

    def __init__(self, name: str, command: Sequence[str], diagnostics: str, source: str) -> None:
        self.command, self.diagnostics, self.source = tuple(command), diagnostics, source
        head = "\n".join(diagnostics.strip().splitlines()[:20])
        super().__init__(f"compiling {name} failed: {shlex.join(command)}\n{head}")

    @property
    def summary(self) -> str:
        """One line: the first error."""
        errors = [line for line in self.diagnostics.splitlines() if "error" in line]
        first = errors[0] if errors else self.diagnostics
        return f"the C++ compiler refused its kernels: {first}"


class CompilerTimeoutError(CppCompileError):
    """The C++ compiler was stopped at its time limit, with all processes that it had started."""

    @property
    def summary(self) -> str:
        return f"the C++ compiler was stopped: {self.diagnostics}"


# --- the compiler and its sources --------------------------------------------------------------


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the words of its command, and the output of ``--version``.

    ``missing`` states why it cannot be run: then it only names the entries that it once made.
    """

    command: tuple[str, ...]
    version: str
    missing: str = ""


def cxx() -> Compiler:
    """The C++ compiler: ``$CXX``, else ``g++``, else ``clang++``, the first that runs.

    If none runs, the missing one that the cache's entries were made with last.
    Raises NoCompilerError when there is neither.
    """
    return _find_compiler(os.environ.get("CXX", "").strip(), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(wanted: str, path: str) -> Compiler:
    tried = []
    for candidate in [wanted] if wanted else ["g++", "clang++"]:
        try:
            program, *options = shlex.split(candidate)
        except ValueError as error:
            tried.append(f"CXX={candidate!r} is not a command ({error})")
            continue
        found = shutil.which(program, path=path)
        if found is None:
            tried.append(f"{program} is not on PATH")
            continue
        # Absolute, because it runs in a folder of its own.
        answer = _version((os.path.abspath(found), *options))
        if isinstance(answer, Compiler):
            return answer
        tried.append(answer)
    of = f"CXX={wanted!r} does not run: " if wanted else ""
    missing = (
        f"no C++ compiler: {of}{'; '.join(tried)}. Install one (Debian/Ubuntu: apt install g++), "
        "or set CXX."
    )
    known = cache_entries.get(_LAST_COMPILER)
    if known is None:
        raise NoCompilerError(missing)
    *command, version = json.loads(known)
    return Compiler(tuple(command), version, missing)


_LAST_COMPILER = "the compiler that made the entries last"


def _remember(compiler: Compiler) -> None:
    """Have processes without a compiler find the entries of this one."""
    text = json.dumps([*compiler.command, compiler.version]).encode()
    if cache_entries.get(_LAST_COMPILER) != text:
        cache_entries.put(_LAST_COMPILER, text)


def _version(command: tuple[str, ...]) -> Compiler | str:
    """The compiler of a command, or why it does not run."""
    if command in _hanging:
        return _hanging[command]
    seconds = min(_VERSION_TIMEOUT, user_settings.compiler_timeout())
    try:
        answer = process_runner.run([*command, "--version"], seconds=seconds)
    except OSError as error:
        return f"{command[0]} cannot be started ({error.strerror})"
    except TimedOut as error:
        return _hanging.setdefault(command, str(error))
    if answer.status != 0:
        return f"`{shlex.join(command)} --version` failed (exit status {answer.status})"
    return Compiler(command, answer.output)


_hanging: dict[tuple[str, ...], str] = {}
"""Compilers that are not started again, as each start would wait: command -> what happened."""
_finished: set[tuple[str, ...]] = set()
"""Compilers that finished a compilation in this process."""


@dataclass(frozen=True)
class CppSource:
    """One translation unit: text, name, extra flags, and headers for its ``#include "..."``."""

    source: str
    name: str
    flags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    """What the library depends on in place of the compiler, so that it is found without one."""

    def key(self, compiler: Compiler) -> str:
        headers = sorted(self.headers.items())
        made_by = self.identity or (compiler.command, compiler.version)
        flags = (*BASE_FLAGS, *self.flags)
        return digest(self.source, self.name, flags, headers, made_by, environment())


def compile_cpp(
    source: str,
    *,
    name: str,
    flags: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Path:
    """Compile one C++ source to a shared object, unless there is an entry; the ``.so``'s path.

    ``flags`` follow ``BASE_FLAGS`` and so override them. ``headers`` maps file names to texts
    that the source may include. ``name`` appears in file names, debuggers and profilers.

    Raises NoCompilerError, or CppCompileError with the compiler's diagnostics.
    """
    return _compile(CppSource(source, name, tuple(flags), dict(headers or {})), cxx())


def compile_cpp_many(
    sources: Sequence[CppSource],
    *,
    finished: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
) -> list[Path]:
    """Compile several sources at the same time, one compiler process per processor. Returns the
    paths in order.

    ``finished`` is called after each one, in any thread. ``stop`` ends the compilers when it is
    set.

    Raises as :func:`compile_cpp`, for the first source in order that fails, and ``Stopped``.
    """
    compiler = cxx()
    if len(sources) <= 1:
        return [_compile(source, compiler) for source in sources]
    stop = stop or threading.Event()
    compilations = _Compilations(sources, compiler, stop, finished)
    try:
        while wait(compilations.results, process_runner.ATTENTION).not_done:
            process_runner.attend()
    except BaseException:  # of a signal's handler
        stop.set()
        wait(compilations.results)
        raise
    return [result.result() for result in compilations.results]


class _Compilations:
    """Compilations in threads of their own. The threads do not delay the end of the process."""

    def __init__(
        self,
        sources: Sequence[CppSource],
        compiler: Compiler,
        stop: threading.Event,
        finished: Callable[[], None],
    ) -> None:
        self.results: list[Future[Path]] = [Future() for _ in sources]
        self._compiler, self._stop, self._finished = compiler, stop, finished
        self._waiting = collections.deque(zip(sources, self.results, strict=True))
        for _ in range(min(len(sources), len(os.sched_getaffinity(0)))):
            threading.Thread(target=self._work, name="magpy-cxx", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                source, result = self._waiting.popleft()
            except IndexError:
                return
            try:
                path = _compile(source, self._compiler, self._stop)
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(path)
            self._finished()


def _compile(unit: CppSource, compiler: Compiler, stop: threading.Event | None = None) -> Path:
    key = unit.key(compiler)
    name = _entry_name(unit, key)

    def build_once(cache: CacheFolder) -> Path:
        if stop is not None and stop.is_set():
            raise Stopped
        seconds = user_settings.compiler_timeout()
        with claims.locked(cache.folder("lock", create=True), key, seconds):
            return _find(name) or _build(unit, compiler, cache, name, stop)

    return _find(name) or cache_location.current().write(build_once)


def find_compiled(source: CppSource) -> Path | None:
    """The library of a source that has an ``identity``, if the cache has it; needs no compiler."""
    return _find(_entry_name(source, source.key(Compiler((), ""))))


def _entry_name(source: CppSource, key: str) -> str:
    stem = re.sub(r"\W+", "_", source.name, flags=re.ASCII)[:60]
    return f"{stem}-{key}.so"


def _find(name: str) -> Path | None:
    """The path of a compiled library, verified and safe to load; None if there is none."""
    location = cache_location.current()
    for cache in location.readable():
        library = cache_entries.read(cache, "cpp", name)
        if library is None:
            continue
        # Others may change the file between this check and the loading: a copy is loaded.
        return (
            cache.path_to_load(name)
            if cache.is_private
            else location.write(
                lambda private, payload=library: _store(private, name, payload)  # type: ignore[misc]
            )
        )
    return None


def _store(cache: CacheFolder, name: str, library: bytes) -> Path:
    cache_entries.write(cache, "cpp", name, library)
    return cache.path_to_load(name)


def _build(
    unit: CppSource,
    compiler: Compiler,
    cache: CacheFolder,
    name: str,
    stop: threading.Event | None,
) -> Path:
    if compiler.missing:
        raise NoCompilerError(compiler.missing)
    text = f"{name.removesuffix('.so')}.cpp"
    with claims.workspace_folder(cache.workspaces()) as work:
        path = Path(folder_path(work))
        (path / text).write_text(unit.source)
        for header, content in unit.headers.items():
            (path / header).parent.mkdir(parents=True, exist_ok=True)
            (path / header).write_text(content)
        # Libraries must follow the objects that need them.
        libraries = [flag for flag in unit.flags if flag.startswith("-l")]
        others = [flag for flag in unit.flags if not flag.startswith("-l")]
        files = ["-I.", f"./{text}", "-o", f"./{name}"]
        command = [*compiler.command, *BASE_FLAGS, *others, *files, *libraries]
        _run(unit, command, compiler, work, str(work.path) if cache.is_anchored else ".", stop)
        try:
            library = (path / name).read_bytes()
        except FileNotFoundError:
            message = "the compiler wrote no shared object"
            raise CppCompileError(unit.name, command, message, unit.source) from None
        # The source is for debuggers, profilers and people.
        cache.folder("cpp", create=True).receive(work, text, text)
    eviction.account(cache, len(unit.source))
    _remember(compiler)
    return _store(cache, name, library)


def _run(
    unit: CppSource,
    command: list[str],
    compiler: Compiler,
    work: SafeFolder,
    temporary: str,
    stop: threading.Event | None,
) -> None:
    """Run the compiler in ``work``, its temporary files in the folder ``temporary``.

    Raises NoCompilerError, CppCompileError, or OSError where the disk is full.
    """
    if compiler.command in _hanging:
        raise CompilerTimeoutError(unit.name, command, _hanging[compiler.command], unit.source)
    try:
        answer = process_runner.run(
            command, seconds=user_settings.compiler_timeout(), folder=folder_path(work),
            environment={"TMPDIR": temporary}, stop=stop,
        )  # fmt: skip
    except OSError as error:
        raise NoCompilerError(
            f"no C++ compiler: {command[0]} cannot be started ({error.strerror}). Set CXX to "
            "another one."
        ) from error
    except TimedOut as error:
        message = (
            f"{shlex.join(compiler.command)} did not end within {error.seconds:g} s. If it only "
            "needs longer, set MAGPY_COMPILER_TIMEOUT (seconds); if it hangs, set CXX to another."
        )
        if compiler.command not in _finished:
            _hanging[compiler.command] = message
        raise CompilerTimeoutError(unit.name, command, message, unit.source) from error
    if answer.status != 0:
        _check_space(work)
        raise CppCompileError(unit.name, command, answer.errors, unit.source)
    _finished.add(compiler.command)


def _check_space(work: SafeFolder) -> None:
    """Raises OSError if the disk is full: that a compilation failed has this reason then."""
    with work.opened("space", os.O_WRONLY | os.O_CREAT) as (descriptor, _):
        os.posix_fallocate(descriptor, 0, _SPACE)


# --- loading -----------------------------------------------------------------------------------


def load_extension(path: Path, name: str) -> ModuleType:
    """Import the CPython extension module ``name`` (as in its ``PyInit_`` function) from ``path``.

    The module is not added to ``sys.modules``. Raises ImportError.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_library(path: Path) -> ctypes.CDLL:
    """Load a shared object for good. Raises OSError."""
    return ctypes.CDLL(str(path))


_unload = ctypes.CDLL(None).dlclose
_unload.argtypes = [ctypes.c_void_p]


class _Library:
    """A shared object, unloaded when nothing refers to it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __del__(self, unload: Callable[[int], Any] = _unload) -> None:
        unload(self._handle)


def load_functions(path: Path, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The entry points of a translation unit as Python functions, by CPython's stable interface.

    They are its symbol ``magpy_kernels``, an array of ``PyMethodDef`` in the order of ``names``. A
    call costs as much as one of a built-in function. The functions keep the library loaded: each is
    bound to it, which the entry points ignore. Raises OSError.
    """
    loaded = load_library(path)
    library = _Library(loaded._handle)
    table = ctypes.addressof(ctypes.c_char.in_dll(loaded, "magpy_kernels"))
    size = 4 * ctypes.sizeof(ctypes.c_void_p)  # a PyMethodDef
    return {name: _make_function(table + k * size, library) for k, name in enumerate(names)}


def _make_function(definition: int, library: _Library) -> Callable[..., Any]:
    """The function of a ``PyMethodDef`` in a library.

    Garbage collection must not track it: of a cycle, it finalizes all objects before it frees any,
    and would unload the library of functions that are still called or freed.
    """
    function: Callable[..., Any] = _bind(definition, library, None)
    _untrack(function)
    return function


_bind = ctypes.pythonapi.PyCFunction_NewEx
_bind.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
_bind.restype = ctypes.py_object
_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes, _untrack.restype = [ctypes.py_object], None
