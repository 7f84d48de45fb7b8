"""Loading the helper: from the wheel, from the disk cache, or compiled now.

A binary is used only if its name or its folder states the :func:`identity` of this process, and if
it finds the values of a frame and of a tensor where it expects them.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import logging
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from magpy_like.disk_cache.cpp_compiler import (
    CppSource,
    compile_cpp_many,
    find_compiled,
    load_extension,
)
from magpy_like.native.helper_sources import (
    FLAGS,
    FOLDER,
    INCLUDES,
    MODULES,
    TORCH_DEFINES,
    TORCH_INCLUDES,
    TORCH_LIBRARIES,
    TORCH_LIBRARY_FOLDER,
    headers,
    identity,
    prebuilt_folder,
    source_of,
)

_log = logging.getLogger(__name__)

Helper = Mapping[str, ModuleType]
"""The extension modules by name."""

WITH_TORCH = (
    *(f"-I{folder}" for folder in TORCH_INCLUDES),
    f"-L{TORCH_LIBRARY_FOLDER}",
    *(f"-l{library}" for library in TORCH_LIBRARIES),
    *(f"-D{name}={value}" for name, value in TORCH_DEFINES),
)
"""Compiler flags of a module that uses torch's headers."""


def find() -> Helper | None:
    """The helper of the wheel or of the disk cache; None if neither has one that works here."""
    for place in (_prebuilt, _cached):
        try:
            paths = place()
            if paths is not None:
                return _load(paths)
        except Exception as error:  # it is built instead
            _log.info("helper not loaded from %s: %s", place.__name__.strip("_"), error)
    return None


def build_helper(**callbacks: Any) -> Helper:
    """Compile and load the helper; compile it anew if it does not load. The disk cache keeps it,
    for processes without a compiler too.

    ``callbacks`` are those of :func:`compile_cpp_many`.

    Raises:
        Exception: any; the compiler, the disk and the loader all may fail.
    """
    try:
        return _load(_compiled(_units(), **callbacks))
    except ImportError:  # an entry of another system
        return _load(_compiled([dataclasses.replace(unit, identity="") for unit in _units()]))


def _compiled(units: Sequence[CppSource], **callbacks: Any) -> dict[str, Path]:
    paths = compile_cpp_many(units, **callbacks)
    return dict(zip((unit.name for unit in units), paths, strict=True))


def build(name: str, source: str, *flags: str) -> ModuleType:
    """Compile and load the extension module ``_magpy_<name>`` from C++ source text."""
    (path,) = compile_cpp_many([_unit(name, source, *flags)])
    return load_extension(path, f"_magpy_{name}")


def _units() -> list[CppSource]:
    return [
        _unit(module.name, source_of(module.source), *(WITH_TORCH if module.uses_torch else ()))
        for module in MODULES
    ]


def _unit(name: str, source: str, *flags: str) -> CppSource:
    includes = [f"-I{folder}" for folder in INCLUDES]
    all_flags = (*FLAGS, *includes, *flags)
    return CppSource(source, name, all_flags, headers(), identity=identity())


def _load(paths: Mapping[str, Path]) -> Helper:
    helper = {name: load_extension(path, f"_magpy_{name}") for name, path in paths.items()}
    probe = torch.empty(0)
    for name in ("guards", "loans", "launch"):
        if not helper[name].calibrate(probe, probe._cdata):
            raise ImportError("the memory layout of tensors in this build of torch is unknown")
    if not _reads_frames(helper["monitor"]):
        raise ImportError("the memory layout of frames in this build of Python is unknown")
    note_main_thread = helper["interrupts"].note_main_thread
    note_main_thread(threading.main_thread().ident)
    os.register_at_fork(after_in_child=lambda: note_main_thread(threading.main_thread().ident))
    helper["monitor"].use_interrupts(helper["interrupts"].address())
    return helper


def _reads_frames(monitor: ModuleType) -> bool:
    """True if the helper finds the function, local variables and operands of a frame."""
    first, second = object(), object()

    def suspended(a: object, b: object) -> Generator[None, None, object]:
        return [b, (a, (yield))]

    running: Any = suspended(first, second)
    next(running)
    frame = running.gi_frame
    return (
        monitor.frame_function(frame) is suspended
        and monitor.frame_locals(frame) == (first, second)
        and monitor.frame_operands(frame, 2) == (second, first)
    )


# --- places ---------------------------------------------------------------------------------------


def _prebuilt() -> dict[str, Path] | None:
    folder = FOLDER / prebuilt_folder()
    if not folder.is_dir():
        return None
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    return {module.name: folder / f"_magpy_{module.name}{suffix}" for module in MODULES}


def _cached() -> dict[str, Path] | None:
    found = {unit.name: find_compiled(unit) for unit in _units()}
    paths = {name: path for name, path in found.items() if path is not None}
    return paths if len(paths) == len(found) else None
