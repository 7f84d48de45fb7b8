"""Programs that each rely on something, and calls between which just that changes."""

from tests.dynamic.guarded import arguments, attributes, numbers, objects, process, tensors
from tests.dynamic.guarded.registry import PROGRAMS, Program

__all__ = [
    "PROGRAMS",
    "Program",
    "arguments",
    "attributes",
    "numbers",
    "objects",
    "process",
    "tensors",
]
