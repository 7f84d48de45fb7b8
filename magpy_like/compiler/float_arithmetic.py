"""Arithmetic on floats that are known at run time only, step by step as Python computes it.

AOTAutograd traces numbers as SymPy expressions, and SymPy computes with real numbers: it reorders
sums, and ``0 * x`` is 0. Here each step is an operator on 0-d tensors of float64, or its result is
read from such a tensor: to SymPy, every float is a symbol.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import NUMBER
from magpy_like.torch_interop.symbolic_floats import computes_as_written


def compute_floats_in_tensors(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Replace arithmetic on floats in a captured graph, in place."""
    examples, numbers, steps = iter(example_inputs), set[fx.Node](), []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            is_number = isinstance(next(examples), torch.SymInt | torch.SymFloat)
        elif node.op == "call_function" and node.target in _STEPS:
            is_number = numbers.issuperset(node.all_input_nodes)
            steps += [node] if is_number else []
        else:
            is_number = _is_read(node) or bool(node.meta.get(NUMBER))
        if is_number:
            numbers.add(node)
    if not steps:
        return
    for node in filter(_is_read, gm.graph.nodes):
        node.op, node.target = "call_function", read_number
    for node in steps:
        node.args, node.target = (node.target, *node.args), compute_number
    gm.recompile()


def _is_read(node: fx.Node) -> bool:
    return bool(node.op == "call_method" and node.target == "item")


def read_number(tensor: torch.Tensor) -> Any:
    """``tensor.item()``; a symbolic float knows the tensor that has its value."""
    number = tensor.item()
    if isinstance(number, torch.SymFloat) and tensor.is_floating_point():
        # A copy: the program may write to the tensor before it computes with the number.
        _note_tensor(number, tensor.detach().reshape(()).to(torch.float64, copy=True))
    return number


def compute_number(operation: Callable[..., Any], *numbers: Any) -> Any:
    """``operation(*numbers)``, as Python computes it for all values of symbolic floats."""
    in_tensors = _STEPS[operation]
    known = [tensor for tensor in map(_tensor_of, numbers) if tensor is not None]
    if in_tensors is None or not known:
        result = operation(*numbers)
        if not isinstance(result, torch.SymFloat):
            return result
        if not known and computes_as_written(operation, numbers, result):
            return result
        if in_tensors is None:  # Python computes it, and SymPy knows no more than the result
            return _read(_as_tensor(result, _CPU))
    device = next((t.device for t in known if t.device != _CPU), _CPU)
    return _read(in_tensors(*(_as_tensor(number, device) for number in numbers)))


def _read(tensor: torch.Tensor) -> Any:
    return _note_tensor(tensor.item(), tensor)


def _as_tensor(number: Any, device: torch.device) -> torch.Tensor:
    """A number as a 0-d tensor of float64; a new one is on ``device``."""
    tensor = _tensor_of(number)
    if tensor is not None:
        return tensor
    number = number if isinstance(number, torch.SymInt | torch.SymFloat) else float(number)
    return torch.scalar_tensor(number, dtype=torch.float64, device=device)


def _tensor_of(number: Any) -> torch.Tensor | None:
    return getattr(number, _TENSOR, None) if isinstance(number, torch.SymFloat) else None


def _note_tensor(number: Any, tensor: torch.Tensor) -> Any:
    if isinstance(number, torch.SymFloat):
        setattr(number, _TENSOR, tensor)
    return number


_CPU = torch.device("cpu")

_TENSOR = "_magpy_like_tensor"
"""The attribute of a symbolic float with the 0-d tensor that has its value."""


def _larger(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``max`` of Python: the first one if they are not ordered."""
    return torch.where(other > one, other, one)


def _smaller(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``min`` of Python."""
    return torch.where(other < one, other, one)


def _modulo(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``%`` of Python: a result of 0 has the sign of the divisor."""
    remainder = torch.remainder(one, other)
    return torch.where(remainder == 0, torch.copysign(torch.zeros_like(other), other), remainder)


_STEPS: dict[Any, Callable[..., torch.Tensor] | None] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.truediv: torch.div,
    operator.neg: torch.neg,
    operator.pos: torch.positive,
    abs: torch.abs,
    operator.abs: torch.abs,
    torch.sym_max: _larger,
    torch.sym_min: _smaller,
    torch.sym_float: torch.positive,
    torch.sym_sqrt: torch.sqrt,
    operator.floordiv: torch.floor_divide,
    operator.mod: _modulo,
    operator.pow: None,
    pow: None,
    round: None,
}
"""Operations on numbers, and those on tensors that round alike; None for those that may not."""
