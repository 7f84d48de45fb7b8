"""Programs that each rely on something, and calls between which just that changes."""

from tests.synthesis.guard.guarded import arguments, attributes, numbers, objects, process, tensors
from tests.synthesis.guard.guarded.registry import PROGRAMS, Program

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
