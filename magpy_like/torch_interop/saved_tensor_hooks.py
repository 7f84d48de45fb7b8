"""Hooks on saved tensors, such as those of `torch.utils.checkpoint`, which counts what it is given.

They are the program's: what is run to compile, or to find something out, is nothing to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from magpy_like.torch_compat.autograd import set_saved_tensor_hooks_tracing


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Hooks on saved tensors are given none of what runs here, in this thread."""
    before = set_saved_tensor_hooks_tracing(True)
    try:
        yield
    finally:
        set_saved_tensor_hooks_tracing(before)
