"""State of ``torch._dynamo.eval_frame``, read where it is kept, without importing Dynamo.

The stance of ``torch.compiler.set_stance``: *seen* on torch 2.13, a global variable, replaced when
it is set. ``native/dynamo_stance.h`` reads it at every call. And the backends that torch resets.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["current_stance", "forced_backend", "known_backends", "skips_guards"]


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
