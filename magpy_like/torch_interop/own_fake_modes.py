"""Fake tensor modes of own work, which refer to no tensor of the program when the work has ended.

A mode refers weakly to each tensor that it has made a fake one of, and lives as long as a graph
with its fake tensors does. ``torch.utils.swap_tensors``, and with it the conversion of modules
under ``torch.__future__.set_swap_module_params_on_conversion``, refuses tensors with weak
references.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from magpy_like.torch_compat.tracing.fake_tensors import FakeTensorMode, forget_described

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class _OwnWork(threading.local):
    describers: list[Any] | None = None
    """Of the modes that the innermost work of this thread has made."""


_work = _OwnWork()


@contextlib.contextmanager
def transient_fake_modes() -> Iterator[None]:
    """Have the modes that :func:`new_fake_mode` makes in this thread forget the program's tensors
    at the end."""
    outer, made = _work.describers, list[Any]()
    _work.describers = made
    try:
        yield
    finally:
        _work.describers = outer
        for describer in made:
            forget_described(describer)


def new_fake_mode(shape_env: ShapeEnv | None = None) -> FakeTensorMode:
    """A mode that also takes real tensors as operands."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    if _work.describers is not None:
        _work.describers.append(mode.fake_tensor_converter.meta_converter.describer)
    return mode
