"""Errors of torch's tracing in plain words, for messages: its own name torch's internals.

``GuardOnDataDependentSymNode: Could not guard on data-dependent expression u0 > 3`` tells a user
nothing. What it means is in the table.
"""

from __future__ import annotations

import functools


@functools.cache
def _meanings() -> tuple[tuple[type[Exception], str], ...]:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # needs sympy

    from magpy_like.torch_compat.tracing import fake_tensors

    return (
        (
            GuardOnDataDependentSymNode,
            "the program decides by a size or number that depends on the data of a tensor",
        ),
        (
            fake_tensors.DataDependentOutputException,
            "an operator reads a tensor's data to return a number ({func})",
        ),
        (
            fake_tensors.DynamicOutputShapeException,
            "the size of a result depends on a tensor's data ({func})",
        ),
        (
            fake_tensors.UnsupportedOperatorException,
            "an operator cannot run without data ({func})",
        ),
    )


def in_words(error: BaseException) -> str:
    """What an error means: the meaning of one of torch's tracing, else its type and first line."""
    for kind, meaning in _meanings():
        if isinstance(error, kind):
            return meaning.format(func=getattr(error, "func", ""))
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
