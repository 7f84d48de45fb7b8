"""Dynamo: its exceptions, its registry of backends.

``magpy_like`` does not use Dynamo's tracer or Inductor. Compiled functions and ``backend="magpy"``
run in programs under ``torch.compile``, and ``magpy_like.compile`` accepts the registered backends.
Importing this module imports Dynamo (1 s).
"""

from __future__ import annotations

from torch._dynamo import list_backends, lookup_backend
from torch._dynamo import reset as reset_dynamo
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import counters as dynamo_counters

__all__ = [
    "RestartAnalysis",
    "dynamo_counters",
    "list_backends",
    "lookup_backend",
    "reset_dynamo",
]

# `RestartAnalysis` is the exception with which AOTAutograd asks Dynamo to trace again, so a backend
# must let it pass.
