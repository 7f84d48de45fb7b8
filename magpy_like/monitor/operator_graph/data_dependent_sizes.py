"""Operators whose results' sizes depend on their inputs' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from magpy_like.annotation import Annotation, lookup
from magpy_like.annotation.schema import DataShape
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.operators import NN_FUNCTIONS, OpOverload, OpOverloadPacket


def declared_shape(annotation: Annotation, operation: Any) -> DataShape:
    """When sizes of an operator's results depend on data.

    An operator of ``torch.ops`` may be another name of an annotated function.
    """
    if not is_instance(operation, OpOverload | OpOverloadPacket):
        return annotation.output.shape_from_data
    overloads = [operation]
    if is_instance(operation, OpOverloadPacket):
        overloads = [getattr(operation, name) for name in operation.overloads()]
    space, _, name = overloads[0]._schema.name.partition("::")
    if space == "aten" and name in ("index", "_unsafe_index"):
        return DataShape.MASK_INDEX
    for home in (torch, NN_FUNCTIONS) if space == "aten" else ():
        known = lookup(getattr(home, name, None))
        if known is not None and known.output.shape_from_data is not DataShape.NEVER:
            return known.output.shape_from_data
    tagged = any(torch.Tag.dynamic_output_shape in overload.tags for overload in overloads)
    return DataShape.ALWAYS if tagged else DataShape.NEVER


def depends_on_data(shape: DataShape, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if this call's result has sizes that depend on data."""
    if shape is DataShape.NEVER:
        return False
    if shape is DataShape.ALWAYS:
        return True
    if shape is DataShape.MASK_INDEX:
        index = args[1] if len(args) > 1 else None
        parts = index if is_instance(index, tuple | list) else (index,)
        return any(
            is_instance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)
            for part in parts
        )
    others = [*args, *kwargs.values()][1:]
    if shape is DataShape.ONE_ARGUMENT:
        return not others
    if shape is DataShape.SIZE_NOT_GIVEN:
        return not others or (type(others[0]) is int and others[0] == -1)
    return not others or any(is_instance(value, torch.Tensor) for value in others)
