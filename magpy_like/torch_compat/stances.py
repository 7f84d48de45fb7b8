"""The stance of ``torch.compiler.set_stance``, read where it is kept, without importing Dynamo.

*Seen* on torch 2.13: a global variable of ``torch._dynamo.eval_frame``, replaced when it is set.
``native/dynamo_stance.h`` reads it at every call.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["current_stance"]


def current_stance() -> str:
    """The name of the stance in effect. A program that has set one has imported Dynamo."""
    module: Any = sys.modules.get("torch._dynamo.eval_frame")
    stance = getattr(module, "_stance", None)
    return "default" if stance is None else str(stance.stance)
