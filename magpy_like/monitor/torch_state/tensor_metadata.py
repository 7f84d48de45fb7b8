"""Metadata of tensors that the guard checks only if the program has read it."""

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
    """A function that returns a property, or the result of a method, of a tensor."""
    if is_instance(operation, types.GetSetDescriptorType | property):
        return operator.attrgetter(operation.__name__)  # type: ignore[union-attr]
    function: Callable[[torch.Tensor], Any] = operation
    return function


def guard_metadata(context: Context, get: Callable[[Any], Any], tensor: torch.Tensor) -> None:
    """Guard ``get(tensor)`` for an external tensor.

    Raises:
        Split: the program has changed it, or it depends on the memory of another tensor.
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
    else:
        rec.inspections.check_no_alias(tensor, "reads metadata of")
