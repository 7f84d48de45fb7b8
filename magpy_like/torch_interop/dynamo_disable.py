"""What Dynamo does not trace, because it is the compiler's own.

Autograd calls backward passes and hooks in the middle of a program. If that runs under Dynamo's
eye, such as a program with ``loss.backward()`` in it, Dynamo would compile the Python of what it is
itself to call, frame by frame, and that of the compiler, where it compiles a pass lazily.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from magpy_like.torch_compat.dynamo import FrameAction, FrameExecStrategy, set_code_exec_strategy

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """``function``, which Dynamo traces neither itself nor what it calls.

    Its code is marked, which costs a call nothing. *Measured*: `torch.compiler.disable` costs each
    0.3 µs.
    """
    skipped = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skipped)
    return function
