"""Content-addressed cache on disk: compiled C++ and any other generated artifact.

One file per entry, named by the digest of everything that went into it (source, headers, flags,
compiler, Python, torch, processor). An entry is its payload followed by a *seal*, a fixed-size
trailer with the payload's length and checksum. ELF loaders ignore bytes after the image, so a
shared object and a pickled graph are stored the same way, and the checksum can never be
separated from what it vouches for. Entries are written beside their place and renamed into it;
an entry that does not match its seal is deleted and made again, never trusted.

The lock taken while compiling only saves work. Two processes that compile the same source both
end with a good entry, so a lock that cannot be had (a file system without ``flock``, an owner
that hangs) delays and never blocks. The kernel drops the lock of a process that was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from magpy_like.errors import CompileError

# Changing the layout of an entry changes every key, so old entries are simply never found.
FORMAT = 1
BASE_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC")

_SEAL_MAGIC = b"magpy\x00v1"
_SEAL_SIZE = len(_SEAL_MAGIC) + 8 + 32
_KINDS = ("cpp", "blob")
_LOCK_PATIENCE = 300.0  # seconds; longer than any honest compile of generated code
_STALE_AFTER = 6 * 3600.0  # seconds; a working directory older than this lost its owner


class NoCompilerError(CompileError):
    """No working C++ compiler: says where it was looked for and what to do."""


class CppCompileError(CompileError):
    """The C++ compiler refused a source; carries ``command``, ``diagnostics`` and ``source``."""

    def __init__(self, name: str, command: Sequence[str], diagnostics: str, source: str) -> None:
        self.command, self.diagnostics, self.source = tuple(command), diagnostics, source
        head = "\n".join(diagnostics.strip().splitlines()[:20])
        super().__init__(f"compiling {name} failed: {shlex.join(command)}\n{head}")


# --- where -------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The cache's root: ``MAGPY_CACHE_DIR``, else ``magpy_like`` in the user's cache directory.

    When that place cannot be written, a private directory that lives as long as the process.
    """
    chosen = os.environ.get("MAGPY_CACHE_DIR")
    if chosen:
        return _writable(Path(chosen).expanduser())
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _writable(Path(base).expanduser() / "magpy_like")


@functools.cache
def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            pass
        return root
    except OSError as error:
        warnings.warn(
            f"magpy: the cache directory {root} cannot be written ({error.strerror}); nothing "
            "compiled now will be kept. Set MAGPY_CACHE_DIR to a writable directory.",
            stacklevel=3,
        )
        return Path(_private_dir().name)


@functools.cache
def _private_dir() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="magpy-")


def _entry(kind: str, stem: str, key: str, suffix: str) -> Path:
    return cache_dir() / kind / key[:2] / f"{stem}{key}{suffix}"


@contextlib.contextmanager
def _workspace() -> Iterator[Path]:
    """A fresh directory on the cache's own file system, so that a rename out of it is atomic."""
    root = cache_dir() / "tmp"
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root, _STALE_AFTER)
    with tempfile.TemporaryDirectory(dir=root, ignore_cleanup_errors=True) as path:
        yield Path(path)


def _sweep(root: Path, age: float) -> None:
    """Remove what killed processes left in ``root``, judged by ``age`` in seconds."""
    horizon = time.time() - age
    for path in root.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < horizon:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


# --- sealed files ------------------------------------------------------------------------------


def _seal(payload: bytes) -> bytes:
    return _SEAL_MAGIC + len(payload).to_bytes(8, "little") + hashlib.sha256(payload).digest()


def _read_sealed(path: Path) -> bytes | None:
    """The payload of an entry; None when there is none or it is damaged (then it is removed)."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    payload = data[:-_SEAL_SIZE]
    if len(data) >= _SEAL_SIZE and data[-_SEAL_SIZE:] == _seal(payload):
        return payload
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _publish(source: Path, target: Path) -> None:
    """Rename into place; the directory may vanish under us when another process clears."""
    for attempt in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(source, target)
            return
        except FileNotFoundError:
            if attempt == 2 or not source.exists():
                raise


@contextlib.contextmanager
def _locked(key: str) -> Iterator[None]:
    """Hold the lock of ``key``; gives up, and lets the caller go on, after ``_LOCK_PATIENCE``."""
    path = cache_dir() / "lock" / key
    handle = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "w")  # noqa: SIM115 (closed below, on every path)
        deadline = time.monotonic() + _LOCK_PATIENCE
        pause = 0.001
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
    except OSError:
        pass
    try:
        yield
    finally:
        # Whoever waits on the unlinked file finds the entry made when its turn comes.
        with contextlib.suppress(OSError):
            path.unlink()
        if handle is not None:
            handle.close()


# --- keys --------------------------------------------------------------------------------------


def digest(*parts: object) -> str:
    """Hex digest of ``parts`` (str, bytes, or anything with a faithful ``repr``), in order."""
    state = hashlib.sha256()
    for part in parts:
        text = part if isinstance(part, str) else repr(part)
        data = part if isinstance(part, bytes) else text.encode()
        state.update(type(part).__name__.encode() + len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


@functools.cache
def environment() -> tuple[str, ...]:
    """What an artifact depends on beside its inputs: format, Python, torch, machine, processor.

    The processor counts because ``-march=native`` makes code only its own kind can run, and home
    directories are shared between machines.
    """
    return (
        str(FORMAT),
        sys.implementation.cache_tag,
        str(sys.version_info[:3]),
        torch.__version__,
        platform.machine(),
        digest(processor()),
    )


@functools.cache
def processor() -> str:
    """Who made the processor, which one it is and what it can do, as the system says."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    wanted = re.findall(
        r"^(?:vendor_id|model name|flags|Features|CPU part)\s*:.*$", text, re.MULTILINE
    )
    return "\n".join(sorted(set(wanted)))


# --- the compiler ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the words of its command, and what ``--version`` said."""

    command: tuple[str, ...]
    version: str


def cxx() -> Compiler:
    """The C++ compiler: ``$CXX``, else ``g++``, else ``clang++``, the first that runs.

    Raises NoCompilerError when there is none.
    """
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(wanted: str, path: str) -> Compiler:
    candidates = [wanted] if wanted else ["g++", "clang++"]
    for candidate in candidates:
        words = shlex.split(candidate)
        program = shutil.which(words[0], path=path)
        if program is None:
            continue
        command = (program, *words[1:])
        try:
            answer = subprocess.run([*command, "--version"], capture_output=True, text=True)
        except OSError:
            continue
        if answer.returncode == 0:
            return Compiler(command, answer.stdout)
    looked = f"CXX={wanted!r} does not run" if wanted else "neither g++ nor clang++ is on PATH"
    raise NoCompilerError(
        f"no C++ compiler: {looked}. Install one (Debian/Ubuntu: apt install g++), or set CXX."
    )


@dataclass(frozen=True)
class CppSource:
    """One translation unit: text, extra flags, headers it may ``#include "..."``, and a name."""

    source: str
    name: str
    flags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def key(self, compiler: Compiler) -> str:
        headers = sorted(self.headers.items())
        command, version = compiler.command, compiler.version
        flags = (*BASE_FLAGS, *self.flags)
        return digest(self.source, self.name, flags, headers, command, version, environment())


def compile_cpp(
    source: str,
    *,
    name: str,
    flags: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Path:
    """Compile one C++ source to a shared object, or find it compiled; the path of the ``.so``.

    ``flags`` follow ``BASE_FLAGS`` and so override them. ``headers`` maps file names to texts
    that the source may include. ``name`` shows in file names, debuggers and profilers.

    Raises NoCompilerError, or CppCompileError with the compiler's diagnostics.
    """
    return _compile(CppSource(source, name, tuple(flags), dict(headers or {})), cxx())


def compile_cpp_many(sources: Sequence[CppSource]) -> list[Path]:
    """Compile several sources at the same time, one compiler process per processor; in order.

    Raises as :func:`compile_cpp`, for the first source in order that fails.
    """
    compiler = cxx()
    if len(sources) <= 1:
        return [_compile(source, compiler) for source in sources]
    workers = min(len(sources), len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers, thread_name_prefix="magpy-cxx") as pool:
        return list(pool.map(lambda source: _compile(source, compiler), sources))


_verified: set[Path] = set()  # entries this process has checked: their bytes are not read twice


def _compile(unit: CppSource, compiler: Compiler) -> Path:
    key = unit.key(compiler)
    stem = re.sub(r"\W+", "_", unit.name)[:60] + "-"
    target = _entry("cpp", stem, key, ".so")
    if _good(target):
        return target
    with _locked(key):
        if not _good(target):
            _build(unit, compiler, target)
            _verified.add(target)
    return target


def _good(target: Path) -> bool:
    if target in _verified and target.exists():
        return True
    if _read_sealed(target) is None:
        return False
    _verified.add(target)
    return True


def _build(unit: CppSource, compiler: Compiler, target: Path) -> None:
    with _workspace() as work:
        text = work / (target.stem + ".cpp")
        text.write_text(unit.source)
        for header, content in unit.headers.items():
            (work / header).parent.mkdir(parents=True, exist_ok=True)
            (work / header).write_text(content)
        product = work / target.name
        inputs = ["-I", str(work), str(text), "-o", str(product)]
        # Libraries must follow the objects that need them.
        libraries = [flag for flag in unit.flags if flag.startswith("-l")]
        others = [flag for flag in unit.flags if not flag.startswith("-l")]
        command = [*compiler.command, *BASE_FLAGS, *others, *inputs, *libraries]
        answer = subprocess.run(command, capture_output=True, text=True, cwd=work)
        if answer.returncode != 0:
            raise CppCompileError(unit.name, command, answer.stderr, unit.source)
        seal = _seal(product.read_bytes())
        with product.open("ab") as out:
            out.write(seal)
        _publish(text, target.with_suffix(".cpp"))  # for the reader, debugger and profiler
        _publish(product, target)


def load_extension(path: Path, name: str) -> ModuleType:
    """Import the CPython extension module ``name`` (its ``PyInit_`` function's) from ``path``.

    The module is not entered in ``sys.modules``. Raises ImportError.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@functools.cache
def load_library(path: Path) -> ctypes.CDLL:
    """Load a shared object through ctypes, once per process. Raises OSError."""
    return ctypes.CDLL(str(path))


def load_functions(path: Path, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The entries of a translation unit as Python functions, through CPython's stable interface:
    calling one costs what calling a built-in costs."""
    library = load_library(path)
    table = ctypes.addressof(ctypes.c_char.in_dll(library, "magpy_kernels"))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    make.restype = ctypes.py_object
    size = 4 * ctypes.sizeof(ctypes.c_void_p)  # a PyMethodDef
    return {name: make(table + k * size, None, None) for k, name in enumerate(names)}


# --- artifacts ---------------------------------------------------------------------------------


def get(key: str) -> bytes | None:
    """The bytes stored under ``key`` in this :func:`environment`; None when missing or damaged."""
    return _read_sealed(_blob(key))


def put(key: str, data: bytes) -> None:
    """Store ``data`` under ``key``; the last writer wins, a reader sees all of it or nothing.

    A full or read-only disk loses the entry, not the program.
    """
    with contextlib.suppress(OSError), _workspace() as work:
        product = work / "blob"
        product.write_bytes(data + _seal(data))
        _publish(product, _blob(key))


def _blob(key: str) -> Path:
    return _entry("blob", "", digest(key, environment()), ".bin")


# --- looking in, and emptying ------------------------------------------------------------------


@dataclass(frozen=True)
class CacheInfo:
    """What the cache holds: ``entries[kind]`` and ``size[kind]`` (bytes) for each kind."""

    path: Path
    entries: dict[str, int]
    size: dict[str, int]


def info() -> CacheInfo:
    """Count the entries on disk (shared objects under ``cpp``, artifacts under ``blob``)."""
    root = cache_dir()
    entries, size = dict.fromkeys(_KINDS, 0), dict.fromkeys(_KINDS, 0)
    for path in _files(root):
        with contextlib.suppress(FileNotFoundError):
            kind = path.parent.parent.name
            size[kind] += path.stat().st_size
            entries[kind] += path.suffix in (".so", ".bin")
    return CacheInfo(root, entries, size)


def clear() -> CacheInfo:
    """Delete all entries, and nothing the cache did not make; what was there before.

    Running processes keep what they loaded; a compile under way puts its result back.
    """
    before = info()
    for path in _files(before.path):
        with contextlib.suppress(OSError):
            path.unlink()
    _verified.clear()
    if (before.path / "tmp").is_dir():
        _sweep(before.path / "tmp", _STALE_AFTER)
    return before


def _files(root: Path) -> Iterator[Path]:
    """The files of all entries, known by their names: the directory may be shared with others."""
    for kind in _KINDS:
        for path in (root / kind).glob("??/*"):
            if re.search(r"(^|-)[0-9a-f]{64}\.(so|cpp|bin)$", path.name):
                yield path
