"""Programs that each rely on one condition, and calls between which only that condition changes."""

from tests.synthesis.guard.guarded import (
    arguments,
    attributes,
    numbers,
    objects,
    parameters,
    process,
    tensors,
)
from tests.synthesis.guard.guarded.registry import PROGRAMS, Program

__all__ = [
    "PROGRAMS",
    "Program",
    "arguments",
    "attributes",
    "numbers",
    "objects",
    "parameters",
    "process",
    "tensors",
]
