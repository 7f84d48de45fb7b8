"""Hooks on saved tensors, such as those of `torch.utils.checkpoint`, which counts their calls.

They belong to the program. Operators that run while a graph is compiled, or on fake tensors, must
not call them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from magpy_like.torch_compat.autograd import set_saved_tensor_hooks_tracing


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Call no hooks on saved tensors in this thread."""
    before = set_saved_tensor_hooks_tracing(True)
    try:
        yield
    finally:
        set_saved_tensor_hooks_tracing(before)
