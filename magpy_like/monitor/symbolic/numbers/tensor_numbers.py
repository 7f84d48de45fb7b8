"""Lifted numbers read from tensors: elements, sizes, and metadata that follows from sizes."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.symbolic.expressions import GraphNumber
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities
from magpy_like.monitor.symbolic.numbers.number_arithmetic import NumberArithmetic
from magpy_like.monitor.symbolic.numbers.speculated_values import SpeculatedValues
from magpy_like.monitor.symbolic.numbers.symbolic_numbers import SymbolicNumbers
from magpy_like.monitor.symbolic.symbolic_twin import has_dynamic_form
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import bind
from magpy_like.split_points import Split, UnguardableRead
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

_DATA_SIZE = (SplitReason.DATA_DEPENDENT_SIZE, "reads a size that depends on a tensor's data")
_LENGTH = {len, torch.Tensor.__len__}


class TensorNumbers:
    """The numbers that one run's program reads from tensors."""

    def __init__(
        self,
        rec: Recording,
        identities: LiftedIdentities,
        symbolic: SymbolicNumbers,
        arithmetic: NumberArithmetic,
        speculated: SpeculatedValues,
    ) -> None:
        self._rec, self._identities = rec, identities
        self._symbolic, self._arithmetic = symbolic, arithmetic
        self._speculated = speculated

    def lift_item(self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """The lifted number that ``operation(*args)`` reads from the tensor ``args[0]``.

        It is a number of the operator graph, unless there is a symbolic expression for it.
        """
        symbolic = self._rec.operators.numbers.symbolic_value(args[0])
        if is_instance(symbolic, torch.SymInt) and type(value) is int:
            return self._symbolic.lift(value, symbolic)
        counted = None
        if not self._rec.operators.is_isolated:
            counted = self._rec.writes.counted_value(args[0])
        if counted is not None and type(value) is float:
            return self._identities.lift(value, counted)
        node, twin = self._rec.graph.add_item(operation, args, value)
        if type(value) is int and args[0].dtype.is_floating_point:
            self._arithmetic.compute_in_python(node, int, float(value), GraphNumber(node.args[0]))
        return self._identities.lift(value, GraphNumber(node), twin)

    def lift_items(self, operation: Any, tensor: torch.Tensor, values: Any) -> Any:
        """``values``, the nested lists of a tensor's elements, with numbers of the graph."""
        nodes = self._rec.graph.add_items(operation, tensor)

        def lifted(value: Any) -> Any:
            if type(value) is list:
                return [lifted(item) for item in value]
            return self._identities.lift(value, GraphNumber(nodes(value)))

        return lifted(values)

    def lift_metadata(
        self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any
    ) -> Any:
        """The lifted form of ``value``, sizes of a tensor or metadata that follows from them.

        ``operation(*args)`` has returned ``value``. None if it is the same at every call.

        Raises:
            Split: it depends on data, and no number of the graph represents it.
        """
        tensor, *rest = args
        if self._rec.operators.has_data_dependent_shape(tensor):
            return self._lift_data_dependent_shape(operation, tensor, rest, value)
        twin = self._rec.sizes.twin_of(tensor)
        assert self._rec.sizes.twin is not None
        if twin is None or not has_dynamic_form(twin):
            return None
        try:
            if operation in _LENGTH:
                symbolic = twin.shape[0]
            elif is_instance(operation, types.GetSetDescriptorType):
                symbolic = bind(operation, twin)
            else:
                symbolic = operation(twin, *rest)
        except Exception:  # fake tensors refuse unsupported queries by many exceptions
            self.specialize_sizes(tensor)
            return None
        return self._symbolic.lift(value, symbolic)

    def _lift_data_dependent_shape(
        self, operation: Callable[..., Any], tensor: torch.Tensor, rest: list[Any], value: Any
    ) -> Any:
        name = getattr(operation, "__name__", "")
        node = self._rec.operators.nodes.node_of(tensor)
        assert node is not None
        if name in ("shape", "size") and is_instance(value, torch.Size):
            return torch.Size(self._lift_size(node, dim, n) for dim, n in enumerate(value))
        if operation in _LENGTH:
            return self._lift_size(node, 0, value)
        if name in ("numel", "nelement") and tensor.dim() and not rest:
            return self._lift_numel(node, tensor)
        if name == "size" and len(rest) == 1 and type(rest[0]) is int:
            return self._lift_size(node, rest[0], value)
        self._speculate_on_sizes(tensor)
        return None

    def _lift_size(self, node: fx.Node, dim: int, size: int) -> Any:
        return self._identities.lift(
            size, GraphNumber(self._rec.operators.numbers.add_size(node, dim))
        )

    def _lift_numel(self, node: fx.Node, tensor: torch.Tensor) -> Any:
        count, *others = [self._lift_size(node, dim, n) for dim, n in enumerate(tensor.shape)]
        for size in others:
            count = self._arithmetic.compute(operator.mul, (count, size), count * size)
        return count

    def specialize_sizes(self, tensor: torch.Tensor) -> None:
        """Turn a tensor's sizes into constants: native code reads them, and is not recorded.

        A tensor created inside a running operator discloses the sizes of the operator's arguments.

        Raises:
            Split: they depend on data.
        """
        if self._rec.running.depth and self._rec.graph.is_created_inside(tensor):
            for argument in self._rec.running.inputs.values():
                self._specialize_sizes(argument)
        else:
            self._specialize_sizes(tensor)

    def _specialize_sizes(self, tensor: torch.Tensor) -> None:
        twin = self._rec.sizes.twin_of(tensor)
        if self._rec.operators.has_data_dependent_shape(tensor):
            self._speculate_on_sizes(tensor)
        elif twin is not None and self._rec.sizes.twin is not None:
            if not self._rec.sizes.twin.specialize(twin):
                raise UnguardableRead(*_DATA_SIZE)

    def _speculate_on_sizes(self, tensor: torch.Tensor) -> None:
        try:
            position = self._speculated.require_position(*_DATA_SIZE)
        except Split as split:
            raise UnguardableRead(*split.cause) from None
        operators = self._rec.operators
        node = operators.nodes.node_of(tensor)
        assert node is not None
        for dim, size in enumerate(tensor.shape):
            number = GraphNumber(operators.numbers.add_size(node, dim))
            self._speculated.values.append((number, size, position))
        operators.set_static_shape(node)
