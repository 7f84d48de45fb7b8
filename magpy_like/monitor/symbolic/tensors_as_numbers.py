"""Tensors as arguments where torch expects numbers, as in ``x[:n]`` and ``torch.zeros(n)``.

Torch reads their values implicitly. The operator graph reads them explicitly, because sizes of
results depend on them.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from magpy_like.monitor.calls.read_calls import inputs_of
from magpy_like.monitor.operator_graph.graph_numbers import REAL_NUMBERS
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass
from magpy_like.torch_compat.operators import (
    OpOverload,
    OpOverloadPacket,
    TensorBase,
    schemas_of_operator,
)

Read = Callable[[torch.Tensor], Any]

_SUBSCRIPTS = {
    operator.getitem,
    operator.setitem,
    torch.Tensor.__getitem__,
    torch.Tensor.__setitem__,
}


def read_number_arguments(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Read
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operator, with ``read(tensor)`` for tensors in place of numbers."""
    if not (operation in _SUBSCRIPTS or _may_have_schemas(operation)):
        return args, kwargs  # such as `list.append`: the list may be long
    if not any(map(_may_be_number, (*args, *kwargs.values()))):
        return args, kwargs
    if operation in _SUBSCRIPTS:
        target, key, *rest = args
        parts = key if type(key) is tuple else (key,)
        found = tuple(_with_bounds(part, read) for part in parts)
        if any(a is not b for a, b in zip(found, parts, strict=True)):
            key = found if type(key) is tuple else found[0]
        return (target, key, *rest), kwargs
    parameters = _parameters(operation, args, kwargs)

    def convert(key: int | str, value: Any) -> Any:
        kinds = [str(p.type) for p in parameters.get(key, ())]
        if not (kinds and _may_be_number(value)) or any("Tensor" in kind for kind in kinds):
            return value
        if is_instance(value, torch.Tensor):
            return read(value)
        return type(value)(read(v) if is_instance(v, torch.Tensor) else v for v in value)

    return (
        tuple(convert(i, value) for i, value in enumerate(args)),
        {name: convert(name, value) for name, value in kwargs.items()},
    )


def dimension_arguments(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of an operator that name dimensions: they decide the rank of its results."""
    arguments = dict(inputs_of(args, kwargs))
    parameters = _parameters(operation, args, kwargs)
    return [arguments[key] for key, found in parameters.items() if any(map(_is_dimension, found))]


def _is_dimension(parameter: Any) -> bool:
    name = parameter.name
    return "dim" in name or name in ("axis", "axis0", "axis1", "source", "destination")


def _may_be_number(value: Any) -> bool:
    if is_instance(value, torch.Tensor):
        with DisableTorchFunctionSubclass():  # uninitialized parameters would raise
            return value.numel() == 1 and value.dtype in REAL_NUMBERS and not value.requires_grad
    if type(value) in (tuple, list):
        return any(map(_may_be_number, value))
    return type(value) is slice and any(is_instance(b, torch.Tensor) for b in _bounds(value))


def _bounds(part: slice) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step


def _with_bounds(part: Any, read: Read) -> Any:
    """A slice with ``read(tensor)`` for tensors as bounds; any other index unchanged.

    Raises:
        Split: the operator graph cannot read a number from a bound of its dtype.
    """
    if type(part) is not slice:
        return part
    bounds = []
    for bound in _bounds(part):
        if is_instance(bound, torch.Tensor):
            if not (_may_be_number(bound) or bound.dtype is torch.bool):
                raise Split(
                    SplitReason.TENSOR_VALUE_READ, f"slices by a tensor of type {bound.dtype}"
                )
            bound = read(bound)
        bounds.append(bound)
    return slice(*bounds) if any(map(operator.is_not, bounds, _bounds(part))) else part


def _schemas(operation: Any) -> Sequence[Any]:
    """The schemas of an operator; none if it is not torch's own."""
    if is_instance(operation, OpOverload):
        return (operation._schema,)
    if is_instance(operation, OpOverloadPacket):
        return [getattr(operation, name)._schema for name in operation.overloads()]
    return _schemas_of(operation.__name__) if _is_of_torch(operation) else ()


def _may_have_schemas(operation: Any) -> bool:
    return is_instance(operation, OpOverload | OpOverloadPacket) or _is_of_torch(operation)


def _is_of_torch(operation: Any) -> bool:
    """True for torch's functions: TorchScript has operators with names of list methods, too."""
    if is_instance(operation, types.MethodDescriptorType):
        return issubclass(operation.__objclass__, TensorBase)
    if not is_instance(operation, types.BuiltinFunctionType):
        return False
    module = str(operation.__module__).partition(".")[0]
    return module == "torch" or is_instance(operation.__self__, torch.Tensor)


@functools.cache
def _schemas_of(name: str) -> Sequence[Any]:
    return tuple(schemas_of_operator(f"aten::{name}"))


def _parameters(
    operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int | str, list[Any]]:
    """The parameters of each argument, in all overloads that accept the arguments."""
    found: dict[int | str, list[Any]] = {}
    for schema in _schemas(operation):
        for key, parameter in _bind(schema, args, kwargs).items():
            found.setdefault(key, []).append(parameter)
    return found


def _bind(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    """The parameter of each argument; none if the schema does not accept the arguments."""
    positional = [p for p in schema.arguments if not p.kwarg_only]
    names = {p.name: p for p in schema.arguments}
    found: dict[int | str, Any] = {}
    for i, value in enumerate(args):
        if i >= len(positional) and not (positional and "List[int]" in str(positional[-1].type)):
            return {}
        found[i] = positional[
            min(i, len(positional) - 1)
        ]  # view(2, n): the numbers of a list as separate arguments
        if not _fits(str(found[i].type), value):
            return {}
    for name, value in kwargs.items():
        parameter = names.get(name) or names.get(_OTHER_NAMES.get(name, ""))
        if parameter is not None and _fits(str(parameter.type), value):
            found[name] = parameter
        elif parameter is not None or name not in _OF_CONSTRUCTORS:
            return {}
    bound = {p.name for p in found.values()}
    is_complete = all(p.has_default_value() or p.name in bound for p in schema.arguments)
    return found if is_complete else {}


_OTHER_NAMES = {"input": "self", "axis": "dim", "keepdims": "keepdim"}
"""Python's names of some parameters."""
_OF_CONSTRUCTORS = {"dtype", "device", "layout", "requires_grad", "pin_memory", "out", "generator"}


def _fits(kind: str, value: Any) -> bool:
    if is_instance(value, torch.Tensor):
        return any(word in kind for word in ("Tensor", "number", "int", "float"))
    if type(value) in (int, float):
        return "Tensor" not in kind
    if type(value) in (tuple, list, torch.Size):
        tensors = all(is_instance(v, torch.Tensor) for v in value)
        return "List" in kind and ("Tensor" not in kind or tensors)
    return True
