"""The C++ helper. Built with the system's compiler on first use, and kept in the code cache by
Python version and source.

``monitor.cpp``: trace hook, operand stacks and frames.
``stack_depth.h``: the depth of the operand stack at an instruction.
``guards.cpp``: checks of guards on tensors, attributes and watched dictionaries.
``interrupts.cpp``, ``interrupts.h``: signals that arrive during own work wait for its end.
``container_keys.cpp``: order and stored hashes of dictionaries and sets.
``operator_count.cpp``: the count of operators that torch dispatches.
``instance_checks``: an ``isinstance`` that runs no code of the program.
"""

from __future__ import annotations

import functools
import os
import sysconfig
import threading
from pathlib import Path
from types import ModuleType

import torch

from magpy_like.disk_cache.cpp_compiler import compile_cpp, load_extension

_HERE = Path(__file__).parent
_TORCH = Path(torch.__file__).parent


def build(name: str, source: str, *flags: str) -> ModuleType:
    """Build and load the extension module ``_magpy_<name>`` from C++ source text."""
    include = f"-I{sysconfig.get_paths()['include']}"
    headers = {header.name: header.read_text() for header in _HERE.glob("*.h")}
    path = compile_cpp(
        source, flags=("-O2", "-std=c++20", include, *flags), name=name, headers=headers
    )
    return load_extension(path, f"_magpy_{name}")


def source_of(name: str) -> str:
    """The text of one of this package's C++ files."""
    return (_HERE / f"{name}.cpp").read_text()


WITH_TORCH = (
    f"-I{_TORCH / 'include'}",
    f"-L{_TORCH / 'lib'}",
    f"-Wl,-rpath,{_TORCH / 'lib'}",
    "-ltorch_cpu",
    "-lc10",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)
"""Compiler flags of a module that uses torch's headers."""


_interrupts = build("interrupts", source_of("interrupts"))
_interrupts.note_main_thread(threading.main_thread().ident)
os.register_at_fork(
    after_in_child=lambda: _interrupts.note_main_thread(threading.main_thread().ident)
)

check_interrupts = _interrupts.check
own_work = _interrupts.OwnWork()
"""Context in which handlers of signals wait: see :mod:`magpy_like.interruption`."""

_monitor = build("monitor", source_of("monitor"))
_monitor.use_interrupts(_interrupts.address())

NULL = _monitor.NULL
Monitor = _monitor.Monitor
frame_stack = _monitor.frame_stack
frame_operands = _monitor.frame_operands
frame_locals = _monitor.frame_locals
frame_function = _monitor.frame_function
frame_set_local = _monitor.frame_set_local
frame_set_operand = _monitor.frame_set_operand
replace_references = _monitor.replace_references
tuple_set = _monitor.tuple_set
fresh_plain = _monitor.fresh_plain
lookup_in_type = _monitor.lookup_in_type
instance_dict = _monitor.instance_dict
is_of = _monitor.is_of
OWN_FOLDER = f"{_HERE.parent}{os.sep}"
"""The folder whose frames ``call_as_caller`` hides from the function that it calls."""
call_as_caller = functools.partial(_monitor.call_as_caller, OWN_FOLDER)

_guards = build("guards", source_of("guards"), *WITH_TORCH)

ABSENT = _guards.ABSENT
Watch = _guards.Watch
TensorCheck = _guards.TensorCheck
StateCheck = _guards.StateCheck
attribute = _guards.attribute
lacks = _guards.lacks

_keys = build("keys", source_of("container_keys"))

ordered_keys = _keys.ordered_keys
stored_hashes = _keys.stored_hashes
dict_of = _keys.dict_of

_dispatch = build("dispatch", source_of("operator_count"), *WITH_TORCH)

start_counting = _dispatch.start
stop_counting = _dispatch.stop
dispatch_counter = _dispatch.counter

_probe = torch.empty(0)
if not _guards.calibrate(_probe, _probe._cdata):
    raise ImportError(
        "magpy_like does not know the memory layout of tensors in this build of torch"
    )
