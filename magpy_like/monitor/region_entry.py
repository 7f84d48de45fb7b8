"""Entry of a compiled region: a traceable entry function, and ``is_compiling`` queries."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.recognized_functions import is_compiling_of_utils

COMPILING_QUERIES = (torch.compiler.is_compiling, is_compiling_of_utils)
"""Functions that return whether the program is being compiled."""


def needs_eager_answer(frame: types.FrameType) -> bool:
    """True for code that must receive eager mode's answer, since it computes differently otherwise.

    torch's optimizers do: their steps are then tensors of low precision, not Python numbers.
    """
    return is_code_of_torch(frame, "torch.optim.")


def is_code_of_torch(frame: types.FrameType | None, package: str = "torch.") -> bool:
    """True for code of a module of torch, or of one of its packages."""
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(package)


def traceable_entry(target: Callable[..., Any]) -> Callable[..., Any]:
    """``target``, or a Python function that calls it, so that the call can be traced."""
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
