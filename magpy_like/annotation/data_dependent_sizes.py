"""Operators whose results' sizes depend on their inputs' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from magpy_like.annotation.lookup import lookup
from magpy_like.annotation.schema import Annotation, DataShape
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
    """True if guards on the inputs' sizes do not determine the sizes of this call's result.

    For example ``x[mask]``, ``nonzero``, ``repeat_interleave``: a tensor's data determines the
    number of elements. ``args`` begins with the receiver.
    """
    others = [*args, *kwargs.values()][1:]
    match shape:
        case DataShape.NEVER:
            return False
        case DataShape.ALWAYS:
            return True
        case DataShape.ONE_ARGUMENT:
            return not others
        case DataShape.SIZE_NOT_GIVEN:
            return not others or any(type(size) is int and size < 0 for size in others)
        case DataShape.TENSOR_ARGUMENT:
            if kwargs.get("output_size") is not None:
                return False
            return not others or any(is_instance(value, torch.Tensor) for value in others)
        case DataShape.MASK_INDEX:
            return len(args) > 1 and is_instance(args[0], torch.Tensor) and _has_mask(args[1])


def _has_mask(index: Any) -> bool:
    if is_instance(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    # A lone True or False adds a dimension of known size; lists of them are masks of known values.
    return is_instance(index, tuple | list) and any(map(_has_mask, index))
