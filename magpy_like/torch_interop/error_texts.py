"""Errors of torch's tracing in plain words, for messages: its own name torch's internals.

``GuardOnDataDependentSymNode: Could not guard on data-dependent expression u0 > 3`` tells a user
nothing. What it means is in the table.
"""

from __future__ import annotations

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from magpy_like.torch_compat.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

_MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (
        GuardOnDataDependentSymNode,
        "the program decides by a size or number that depends on the data of a tensor",
    ),
    (DataDependentOutputException, "an operator reads a tensor's data to return a number ({func})"),
    (DynamicOutputShapeException, "the size of a result depends on a tensor's data ({func})"),
    (UnsupportedOperatorException, "an operator cannot run without data ({func})"),
)


def in_words(error: BaseException) -> str:
    """What an error means: the meaning of one of torch's tracing, else its type and first line."""
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return meaning.format(func=getattr(error, "func", ""))
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
