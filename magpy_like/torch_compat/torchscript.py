"""TorchScript: functions, nodes of their graphs, types."""

from __future__ import annotations

import torch

__all__ = [
    "JitType",
    "ListType",
    "OptionalType",
    "ScriptFunction",
    "ScriptNode",
    "TensorType",
    "TupleType",
]

ScriptFunction = torch._C.ScriptFunction
"""Result of ``torch.jit.script`` for a function."""
ScriptNode = torch._C.Node
"""One operation of a function's ``inlined_graph``."""
JitType = torch._C.Type
"""Base class of types; the others are types of arguments, results and constants."""
ListType = torch._C.ListType
OptionalType = torch._C.OptionalType
TensorType = torch._C.TensorType
TupleType = torch._C.TupleType
