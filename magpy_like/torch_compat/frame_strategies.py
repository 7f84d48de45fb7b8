"""Marks on code objects, by which Dynamo skips frames: C++ types, without Dynamo itself."""

from __future__ import annotations

from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._C._dynamo.eval_frame import set_code_exec_strategy

__all__ = ["FrameAction", "FrameExecStrategy", "set_code_exec_strategy"]

# `set_code_exec_strategy(code, strategy)` marks a code object.
