"""Entry of a compiled region: a traceable entry function, and ``is_compiling`` queries."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.recognized_functions import is_compiling_of_utils

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

COMPILING_QUERIES = (torch.compiler.is_compiling, is_compiling_of_utils)
"""Functions that return whether the program is being compiled."""


_UNLIKE_EAGER = ("torch.optim.", "torch.nn.modules.transformer")
"""Code of torch's that has other results when it is compiled: an optimizer's steps are tensors of
low precision, not Python numbers, and an encoder's results at padded positions are not zero."""


def needs_eager_answer(context: Context) -> bool:
    """True for code that must receive eager mode's answer, since it differs or raises otherwise.

    Code that torch hides from its compiler, such as the hooks of ``fully_shard``, never receives
    another.
    """
    if any(is_code_of_torch(context.frame, package) for package in _UNLIKE_EAGER):
        return True
    frame = context.frame if context.hidden_code else None
    while frame is not None and frame is not context.root_frame:
        if frame.f_code in context.hidden_code:
            return True
        frame = frame.f_back
    return False


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
