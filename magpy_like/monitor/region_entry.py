"""How a region is entered: what it must find, and what torch and Python must know of it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.recognized_functions import is_compiling_of_utils

COMPILING_QUERIES = (torch.compiler.is_compiling, is_compiling_of_utils)
"""Functions that tell a program so."""


def needs_eager_answer(frame: types.FrameType) -> bool:
    """Whether code asks that would calculate otherwise, if it heard that it is compiled.

    torch's optimizers would: with steps as tensors of low precision instead of Python's numbers.
    """
    return str(frame.f_globals.get("__name__")).startswith("torch.optim.")


def enable_instruction_events() -> None:
    """Python 3.12 delivers instruction events only if some frame has asked for them before.

    A frame that never runs asks: one that did would be called back by another thread's tracing.
    """
    frame: types.FrameType = (_ for _ in ()).gi_frame  # type: ignore[attr-defined]
    frame.f_trace_opcodes = True
    frame.f_trace_opcodes = False
    # Where a tool has come since, code that was traced before has none of these events any more.
    if sys.version_info >= (3, 12) and any(map(sys.monitoring.get_tool, range(6))):
        sys.monitoring.restart_events()


def traceable_entry(target: Callable[..., Any]) -> Callable[..., Any]:
    """``target`` itself, or a Python function that calls it, so that the call can be watched."""
    called = target.__func__ if is_instance(target, types.MethodType) else target
    if not is_instance(called, types.FunctionType):
        called = lookup_in_type(type(target), "__call__")
    if is_instance(called, types.FunctionType):
        return target
    namespace: dict[str, Any] = {}
    exec(_ENTRY, namespace)
    entry: Callable[..., Any] = namespace["enter"](target)
    return entry


_ENTRY = compile(
    "def enter(target):\n    return lambda *args, **kwargs: target(*args, **kwargs)",
    "<magpy_like entry>",
    "exec",
)
