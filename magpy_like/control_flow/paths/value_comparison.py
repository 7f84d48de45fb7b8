"""Comparison of the final values of a branch's paths or a loop's iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import LoopNotMergeable


def is_unchanged(before: Any, after: Any, rec: Recording) -> bool:
    """True for the same object, and for equal plain values other than numbers. Not for those that
    hold lifted numbers, as sizes may: the ones of an isolated run are not known after it."""
    if before is after:
        return True
    plain = is_plain(before) and is_plain(after) and not is_number(before)
    if not (plain and type(before) is type(after) and repr(before) == repr(after)):
        return False
    return not rec.lifted.identities.holds_lifted((before, after))


def is_same_constant(left: Any, right: Any, rec: Recording) -> bool:
    """True if two plain values are equal and neither holds a lifted number, as ``x.shape`` may."""
    if rec.lifted is not None and rec.lifted.identities.holds_lifted((left, right)):
        return False
    return type(left) is type(right) and repr(left) == repr(right)


def check_carried(before: Any, after: Any) -> None:
    """Check that the next iteration, started with ``after``, records the same graph.

    Raises:
        Split: it may not.
    """
    if is_number(before):
        if type(before) is not type(after):
            raise LoopNotMergeable("a number changes its type between iterations")
    else:
        check_like(after, before)


def check_like(left: Any, right: torch.Tensor, but: str = "") -> None:
    """Check that two tensors agree in all that the program can observe except their data: the code
    after the operator is recorded once, for either.

    Args:
        but: the property that may differ, a key of ``_OBSERVED``.

    Raises:
        Split: they differ in another property.
    """
    for name, observe in _OBSERVED.items():
        if name == but:
            continue
        one = observe(left) if is_instance(left, torch.Tensor) else None
        other = observe(right)
        if one != other:
            raise LoopNotMergeable(
                f"the {name} of a tensor differs between branches or iterations: {one} and {other}"
            )


_OBSERVED: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "shape": lambda tensor: tuple(tensor.shape),
    "layout": lambda tensor: tensor.layout,
    "strides": lambda tensor: tensor.stride(),
    "part in gradients": lambda tensor: tensor.requires_grad,
    "conjugation": lambda tensor: (tensor.is_conj(), tensor.is_neg()),
}


def describe(value: Any) -> str:
    """A value in an error message."""
    if value is NULL:
        return "nothing"
    return repr(value) if is_plain(value) else f"a {type(value).__qualname__}"
