"""Operators that may raise for inputs with the types and sizes of the recorded run.

Operators that never do, whatever their inputs' data, are listed; any other one may: for an index
out of bounds, a matrix without an inverse, a custom operator.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from magpy_like.annotation.operator_facts import Narrows, Raises, operator_facts
from magpy_like.graph_operators.node_metadata import NUMBER, ON_GPU
from magpy_like.graph_operators.wrapped_functions import operation_of
from magpy_like.monitor.torch_state.torch_modes import SETTERS
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.operators import OpOverload, OpOverloadPacket

_SUBSCRIPTS = frozenset(("getitem", "setitem"))


def largest_safe_float(nodes: Iterable[fx.Node], inputs: Iterable[Any]) -> float:
    """The largest number that all dtypes in a graph can represent, pessimistically."""
    types_found = {torch.float32, *(t.dtype for t in inputs if is_instance(t, torch.Tensor))}
    for node in nodes:
        named = [*node.args, *node.kwargs.values()]
        types_found.update(value for value in named if is_instance(value, torch.dtype))
        narrows = operator_facts(str(getattr(node.target, "__name__", node.target))).narrows
        if node.target in _SETTERS_OF_TYPES or narrows is Narrows.FLOAT16:
            types_found.add(torch.float16)
        elif narrows is Narrows.BFLOAT16:
            types_found.add(torch.bfloat16)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        types_found.add(torch.float16)
    return min(torch.finfo(found).max for found in types_found if found.is_floating_point)


_SETTERS_OF_TYPES = SETTERS - {set_grad_enabled}


def check_float_range(most: float, *numbers: float) -> None:
    """
    Raises:
        OverflowError: operators may raise for one of these numbers.
    """
    if any(abs(number) > most and not math.isinf(number) for number in numbers):
        raise OverflowError("an operator's number may be too large")


def may_fail(node: fx.Node, floats: Collection[fx.Node] = ()) -> bool:
    """True if an operator may raise for inputs with the types and sizes of the recorded run.

    ``floats`` are the inputs of the graph that are numbers of type ``float``, within range.
    """
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    name = _name_in_torch(node)
    if name is None:
        return True
    if name in _SUBSCRIPTS:
        given = any(is_instance(index, fx.Node) for index in node.all_input_nodes[1:])
        return given and not _is_on_gpu(node)
    if name == "detach":
        return _is_in_place(node)  # for a view
    facts = operator_facts(name)
    numbers = [source for source in node.all_input_nodes if source.meta.get(NUMBER)]
    if numbers:
        return not (facts.float_scalars and all(number in floats for number in numbers))
    match facts.raises:
        case Raises.NEVER:
            return False
        case Raises.ROUNDING:
            return len(node.args) > 2 or bool(node.kwargs)
        case Raises.GIVEN_TENSORS:
            return bool(node.all_input_nodes)
        case Raises.BOUNDS:
            return not _is_on_gpu(node)
        case Raises.MAYBE:
            return True


def _is_in_place(node: fx.Node) -> bool:
    return str(getattr(node.target, "__name__", node.target)).endswith("_")


def _is_on_gpu(node: fx.Node) -> bool:
    """True if all inputs of an operator are tensors on a GPU. There it raises nothing that depends
    on elements: a failed check on the device ends the process."""
    return all(source.meta.get(ON_GPU) for source in node.all_input_nodes)


def _name_in_torch(node: fx.Node) -> str | None:
    """The name of one of torch's operators without the mark of in-place ones; None for others."""
    if node.op == "call_method":
        return str(node.target).strip("_")
    operation = operation_of(node)
    if is_instance(operation, OpOverload):
        operation = operation.overloadpacket
    if is_instance(operation, OpOverloadPacket):
        own = operation._qualified_op_name.startswith("aten::")
    elif is_instance(operation, types.FunctionType):
        own = str(operation.__module__).startswith(("torch.", "magpy_like."))
    else:
        own = is_instance(operation, _NATIVE) and _module_of(operation) in _MODULES
    return _FAMILY.sub("", str(operation.__name__).strip("_")) if own else None


_FAMILY = re.compile("^(foreach|fft|linalg|special)_")
"""Prefixes of operator names that are modules in Python."""


def _module_of(operation: Any) -> str:
    module = str(getattr(operation, "__module__", None) or "torch")
    return module.partition(".")[0]


_MODULES = {"torch", "_operator", "builtins"}
_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
)
