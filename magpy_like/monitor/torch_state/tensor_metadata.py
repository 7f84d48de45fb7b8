"""Metadata of tensors that the guard checks only when the program has looked at it."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.symbolic.expressions import Computed, EntryValue
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def getter(operation: Any) -> Callable[[torch.Tensor], Any]:
    """A function that looks at what a property or method of tensors looks at."""
    if is_instance(operation, types.GetSetDescriptorType | property):
        return operator.attrgetter(operation.__name__)  # type: ignore[union-attr]
    function: Callable[[torch.Tensor], Any] = operation
    return function


def guard_metadata(context: Context, get: Callable[[Any], Any], tensor: torch.Tensor) -> None:
    """What ``get`` gives for a tensor from outside must be the same again.

    Raises:
        Split: the program has changed it, or it is a matter of where another tensor lies.
    """
    rec = context.recording
    node = rec.variables.node(tensor)
    if node is not None and not rec.writes.is_written(node):
        context.lifted.guards.conditions.append((Computed(get, (EntryValue(node),)), get(tensor)))
    elif node is not None or (get is torch.Tensor.storage_offset and tensor._is_view()):
        raise Split(
            SplitReason.TENSOR_INTERNALS,
            "reads metadata of a tensor that depends on unread variables",
        )
