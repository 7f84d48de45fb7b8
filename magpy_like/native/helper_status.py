"""Whether this process has the helper; if not, the reason and the remedy.

On import the helper is loaded if a binary is at hand. Else it is compiled in the background from
the first program that is compiled on, and the first use of it waits.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

from magpy_like.bytecode import supported_versions
from magpy_like.disk_cache.cpp_compiler import CppCompileError, NoCompilerError
from magpy_like.errors import NativeHelperError
from magpy_like.native import helper_loading
from magpy_like.native.helper_build import HelperBuild

_NAMES = {
    "interrupts": (
        "check_interrupts", "interrupts_address", "is_at_own_work", "is_sent", "own_work",
    ),
    "monitor": (
        "NULL", "Monitor", "call_as_caller", "frame_function", "frame_locals", "frame_operands",
        "frame_set_local", "frame_set_operand", "frame_stack", "fresh_plain", "instance_dict",
        "is_of", "lookup_in_type", "on_instruction_event", "replace_references", "tuple_set",
        "use_instruction_tool",
    ),
    "guards": (
        "ABSENT", "ANY_VALUE", "PartialCall", "StateCheck", "TensorCheck", "Watch", "attribute",
        "eager_is_forced", "is_unusual", "lacks", "memory_of",
    ),
    "keys": ("dict_of", "ordered_keys", "stored_hashes"),
    "dispatch": ("dispatch_counter", "start_counting", "stop_counting"),
    "loans": ("Lender", "is_lent", "same_addresses"),
    "launch": ("KernelLaunch", "driver_context", "open_driver"),
}  # fmt: skip
_MODULE_OF_NAME = {name: module for module, names in _NAMES.items() for name in names}
"""The C++ module that defines a name."""
_NAMES_IN_MODULE = {
    "check_interrupts": "check",
    "interrupts_address": "address",
    "dispatch_counter": "counter",
    "start_counting": "start",
    "stop_counting": "stop",
}
"""Names that differ in the C++ module."""

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_lock = threading.RLock()
_helper: helper_loading.Helper | None = None
_build: HelperBuild | None = None
_obstacle: str | None = supported_versions.obstacle()
"""Why the helper cannot be used, in a sentence with the remedy, once that is known."""

if _obstacle is None:
    _helper = helper_loading.find()


def is_loaded() -> bool:
    """True if the helper is loaded; compiles nothing."""
    return _helper is not None


def is_decided() -> bool:
    """True if the helper is loaded, or known to be unusable."""
    return _helper is not None or _obstacle is not None


def start_build() -> HelperBuild:
    """Have the helper compiled and loaded in the background, once."""
    global _build
    with _lock:
        if _build is None:
            _build = HelperBuild(helper_loading.build_helper, len(helper_loading.MODULES))
    return _build


def obstacle() -> str | None:
    """Why this process cannot use the helper, with the remedy; None if it can.

    Compiles the helper, once, if it is not loaded, and waits for it. An exception of a signal's
    handler ends the wait, and the next call goes on with it.
    """
    global _helper, _obstacle
    with _lock:
        if not is_decided():
            build = start_build()
            build.wait()  # what a signal's handler raises meanwhile is the program's
            try:
                _helper = build.result()
            except Exception as error:  # whatever fails, programs can run uncompiled
                _obstacle = _describe(error)
    return _obstacle


def _begin_anew_in_child() -> None:
    """A forked process has no thread that builds, and locks stay as they were."""
    global _lock, _build
    _lock, _build = threading.RLock(), None


os.register_at_fork(after_in_child=_begin_anew_in_child)


def require(name: str) -> Any:
    """A function, class or constant of the helper.

    Raises:
        AttributeError: the helper has no such name.
        NativeHelperError: the helper cannot be used.
    """
    module = _MODULE_OF_NAME.get(name)
    if module is None:
        raise AttributeError(f"module 'magpy_like.native' has no attribute {name!r}")
    reason = obstacle()
    if _helper is None:
        raise NativeHelperError(str(reason))
    found = getattr(_helper[module], _NAMES_IN_MODULE.get(name, name))
    if name == "call_as_caller":
        return functools.partial(found, OWN_FOLDER)
    return found


def _describe(error: Exception) -> str:
    """What failed, and what to do."""
    if isinstance(error, NoCompilerError):
        return str(error)  # names the remedy
    if isinstance(error, CppCompileError):
        remedy = "Use a compiler of C++20 (CXX): g++ 11 or newer, or clang++ 13 or newer"
    elif isinstance(error, ImportError):
        remedy = (
            "The compiled helper does not load: check that CXX compiles for this Python and torch "
            "(magpy_like supports the versions in its metadata)"
        )
    elif isinstance(error, OSError):
        remedy = "Set MAGPY_CACHE_DIR to a writable directory with free space"
    else:
        remedy = "Please report it"
    return f"{type(error).__name__}: {str(error).rstrip('.')}. {remedy}."
