"""The C++ compiler: finding it, compiling sources into sealed entries, loading the results."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from magpy_like.disk_cache.cache_entries import (
    digest,
    entry_path,
    environment,
    is_intact,
    locked,
    mark_intact,
    publish,
    seal,
    workspace,
)
from magpy_like.errors import CompileError

BASE_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC")


class NoCompilerError(CompileError):
    """No working C++ compiler was found; the message states where, and the remedy."""


class CppCompileError(CompileError):
    """The C++ compiler rejected a source; has ``command``, ``diagnostics`` and ``source``."""

    def __init__(self, name: str, command: Sequence[str], diagnostics: str, source: str) -> None:
        self.command, self.diagnostics, self.source = tuple(command), diagnostics, source
        head = "\n".join(diagnostics.strip().splitlines()[:20])
        super().__init__(f"compiling {name} failed: {shlex.join(command)}\n{head}")


# --- the compiler and its sources --------------------------------------------------------------


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the words of its command, and the output of ``--version``."""

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
    """One translation unit: text, name, extra flags, and headers for its ``#include "..."``."""

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
    """Compile one C++ source to a shared object, unless there is an entry; the ``.so``'s path.

    ``flags`` follow ``BASE_FLAGS`` and so override them. ``headers`` maps file names to texts
    that the source may include. ``name`` appears in file names, debuggers and profilers.

    Raises NoCompilerError, or CppCompileError with the compiler's diagnostics.
    """
    return _compile(CppSource(source, name, tuple(flags), dict(headers or {})), cxx())


def compile_cpp_many(sources: Sequence[CppSource]) -> list[Path]:
    """Compile several sources at the same time, one compiler process per processor. Returns the
    paths in order.

    Raises as :func:`compile_cpp`, for the first source in order that fails.
    """
    compiler = cxx()
    if len(sources) <= 1:
        return [_compile(source, compiler) for source in sources]
    workers = min(len(sources), len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers, thread_name_prefix="magpy-cxx") as pool:
        return list(pool.map(lambda source: _compile(source, compiler), sources))


def _compile(unit: CppSource, compiler: Compiler) -> Path:
    key = unit.key(compiler)
    stem = re.sub(r"\W+", "_", unit.name)[:60] + "-"
    target = entry_path("cpp", stem, key, ".so")
    if is_intact(target):
        return target
    with locked(key):
        if not is_intact(target):
            _build(unit, compiler, target)
            mark_intact(target)
    return target


def _build(unit: CppSource, compiler: Compiler, target: Path) -> None:
    with workspace() as work:
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
        trailer = seal(product.read_bytes())
        with product.open("ab") as out:
            out.write(trailer)
        publish(text, target.with_suffix(".cpp"))  # for debuggers, profilers and people
        publish(product, target)


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


@functools.cache
def load_library(path: Path) -> ctypes.CDLL:
    """Load a shared object through ctypes, once per process. Raises OSError."""
    return ctypes.CDLL(str(path))


def load_functions(path: Path, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The entry points of a translation unit as Python functions, by CPython's stable interface.

    They are its symbol ``magpy_kernels``, an array of ``PyMethodDef`` in the order of ``names``. A
    call costs as much as one of a built-in function.
    """
    library = load_library(path)
    table = ctypes.addressof(ctypes.c_char.in_dll(library, "magpy_kernels"))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    make.restype = ctypes.py_object
    size = 4 * ctypes.sizeof(ctypes.c_void_p)  # a PyMethodDef
    return {name: make(table + k * size, None, None) for k, name in enumerate(names)}
