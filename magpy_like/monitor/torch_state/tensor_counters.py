"""Counters that a program keeps in tensors, as optimizers keep their steps.

An external tensor with one element is incremented, and then its value is read as a number. That
number is computable before the operator graph runs: the element at entry, plus the increments. So a
guard can check it, and Python computes with it as in eager mode.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.constant_tensors import ConstantTensors
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.symbolic.expressions import Computed, EntryValue, is_number
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import storage_of, tensor_version
from magpy_like.torch_compat.operators import foreach_add_

_ADDS = (operator.iadd, torch.Tensor.add_, torch.Tensor.__iadd__, foreach_add_)


def _add_singly(value: float, amount: float) -> float:
    """The sum of two numbers in ``float32``; ``value`` is exact in that type."""
    return ctypes.c_float(value + ctypes.c_float(amount).value).value


_SUMS: dict[torch.dtype, Callable[[float, float], float]] = {
    torch.float32: _add_singly,
    torch.float64: operator.add,
}


class TensorCounters:
    """The values of external one-element tensors to which only constants were added."""

    def __init__(
        self, variables: Variables, constants: ConstantTensors, operators: OperatorGraph
    ) -> None:
        self._variables, self._constants, self._operators = variables, constants, operators
        self._writes: dict[int, int] = {}
        """Number of writes by operators, by storage."""
        self._sums: dict[int, tuple[int, int, Computed]] = {}
        """By ShadowNode id: torch's version counter, the number of writes, and the sum."""

    def note_write(self, memory: int) -> None:
        self._writes[memory] = self._writes.get(memory, 0) + 1

    def note(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        data_replaced: Container[int],
        versions: Mapping[int, int],
    ) -> None:
        """Note an operator that has run.

        Args:
            data_replaced: Nodes of tensors whose data the program replaced.
            versions: torch's version counters of external tensors at entry, by node.
        """
        if operation not in _ADDS or len(args) != 2 or kwargs.get("alpha", 1) != 1:
            return
        amount = args[1]
        if is_instance(amount, torch.Tensor) and amount.dim() == 0:
            if self._constants.hold(amount):
                amount = amount.item()
        if not is_number(amount) or self._operators.numbers.expression(amount) is not None:
            return
        for tensor in args[0] if is_instance(args[0], list | tuple) else args[:1]:
            node = self._variables.node(tensor)
            replaced = node is None or node.node_id in data_replaced
            if node is not None and not replaced and _is_counter(tensor):
                self._add(node, tensor, amount, versions[node.node_id])

    def _add(self, node: ShadowNode, tensor: torch.Tensor, amount: float, first: int) -> None:
        version, writes = tensor_version(tensor), self._writes.get(storage_of(tensor), 0)
        entered = Computed(torch.Tensor.item, (EntryValue(node),))
        known = self._sums.get(node.node_id, (first, 0, entered))
        if known[:2] == (version - 1, writes - 1):
            sum_of = _SUMS[tensor.dtype]
            self._sums[node.node_id] = version, writes, Computed(sum_of, (known[2], amount))

    def value(self, tensor: torch.Tensor, data_replaced: Container[int]) -> Computed | None:
        """The value of a tensor that was incremented, and changed in no other way."""
        node = self._variables.node(tensor) if self._sums else None
        if node is None or node.node_id not in self._sums or node.node_id in data_replaced:
            return None
        *known, expression = self._sums[node.node_id]
        now = [tensor_version(tensor), self._writes[storage_of(tensor)]]
        return expression if known == now else None


def _is_counter(tensor: Any) -> bool:
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.is_inference():
        return False
    return tensor.dtype in _SUMS and tensor.layout is torch.strided and tensor.numel() == 1
