"""Dynamo's frame evaluation, without importing Dynamo: marks on code objects, and its state.

The stance of ``torch.compiler.set_stance``: *seen* on torch 2.13, a global variable, replaced when
it is set. ``native/dynamo_stance.h`` reads it at every call. And the backends that torch resets.
"""

from __future__ import annotations

import sys
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._C._dynamo.eval_frame import set_code_exec_strategy

__all__ = [
    "FrameAction",
    "FrameExecStrategy",
    "current_stance",
    "forced_backend",
    "known_backends",
    "set_code_exec_strategy",
    "skips_guards",
]

# `set_code_exec_strategy(code, strategy)` marks a code object: Dynamo skips its frames.


def current_stance() -> str:
    """The name of the stance in effect. A program that has set one has imported Dynamo."""
    return str(getattr(_stance(), "stance", "default"))


def forced_backend() -> Any:
    """The argument ``force_backend`` of the stance in effect, or None."""
    return getattr(_stance(), "backend", None)


def skips_guards() -> bool:
    """The argument ``skip_guard_eval_unsafe`` of the stance in effect."""
    return bool(getattr(_stance(), "skip_guard_eval_unsafe", False))


def known_backends() -> dict[int, Any] | None:
    """The backends whose ``reset`` torch calls when it is reset, by ``id``; None if there is no
    Dynamo in this process yet."""
    found: dict[int, Any] | None = getattr(_module(), "cached_backends", None)
    return found


def _stance() -> Any:
    return getattr(_module(), "_stance", None)


def _module() -> Any:
    return sys.modules.get("torch._dynamo.eval_frame")
