"""Dynamo: frames that it must skip, its exceptions, its registry of backends.

This package is no client of Dynamo's tracer. Compiled functions and backends have to get along with
it, since a program under `torch.compile` may call them. Importing this module imports Dynamo (1 s).
"""

from __future__ import annotations

from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo import list_backends, lookup_backend
from torch._dynamo import reset as reset_dynamo
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.types import FrameAction, FrameExecStrategy
from torch._dynamo.utils import counters as dynamo_counters

__all__ = [
    "FrameAction",
    "FrameExecStrategy",
    "RestartAnalysis",
    "dynamo_counters",
    "list_backends",
    "lookup_backend",
    "reset_dynamo",
    "set_code_exec_strategy",
]

# `set_code_exec_strategy(code, strategy)` marks a code object; `RestartAnalysis` is the exception
# with which AOTAutograd asks Dynamo to trace again, so a backend must let it pass.
