"""The operator graph: a ``torch.fx`` graph of the program's tensor operators (MagPy, section 4.3).

An operator becomes a node when it has run, with arguments as ``torch.fx`` writes them. An argument
that is not on the graph and could be another object at the next call splits the program.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.annotation.data_dependent_sizes import depends_on_data
from magpy_like.annotation.operator_facts import Results, operator_facts
from magpy_like.annotation.schema import DataShape
from magpy_like.graph_operators.node_metadata import TWIN, WRITTEN_SHAPE
from magpy_like.monitor.calls.operator_closures import expand_closures
from magpy_like.monitor.operator_graph.function_nodes import graph_function
from magpy_like.monitor.operator_graph.graph_nodes import GraphNodes
from magpy_like.monitor.operator_graph.graph_numbers import IN_PLACE, GraphNumbers
from magpy_like.monitor.operator_graph.operator_arguments import (
    BOUNDS,
    INFERS_DTYPE,
    WRITTEN_AS_LITERALS,
    holds_array_scalar,
    holds_tensor,
    is_made_of_arrays,
    may_vary,
    nodes_in,
    scalar_tensor_kwargs,
    without_size_argument,
)
from magpy_like.monitor.operator_graph.subgraphs import GraphControl
from magpy_like.monitor.symbolic.expressions import is_array_number, is_liftable, is_number
from magpy_like.monitor.symbolic.lists.graph_lists import CarriedList, GraphList, LiftedRange
from magpy_like.monitor.symbolic.symbolic_forms import (
    SUBSCRIPTS,
    SYMBOLIC_FORMS,
    getitem,
    is_basic_key,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.dispatch import disable_current_modes
from magpy_like.torch_compat.operators import TensorBase
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_SUBSCRIPT_READS = (operator.getitem, torch.Tensor.__getitem__, getitem)
_CREATE_SAME_SCALAR = (torch.tensor, torch.as_tensor)
"""Functions that create the same tensor of one number."""


class OperatorGraph:
    """Tensor operators in the order in which the program ran them."""

    def __init__(self) -> None:
        self.nodes = GraphNodes()
        self.numbers = GraphNumbers(self.nodes)
        self.control = GraphControl(self.nodes, self.numbers)
        self.lists: dict[int, CarriedList | GraphList | LiftedRange] = {}
        """By id, lists whose length depends on a loop's trip count, and lifted ranges."""
        self.is_isolated = False
        """Whether an isolated run adds the operators."""
        self._data_shapes: set[fx.Node] = set()
        """Nodes whose sizes may depend on the data of tensors."""
        self.shared_arrays: list[tuple[Any, Any]] = []
        """NumPy arrays that tensors share memory with, and copies of their earlier contents."""
        self.sets_modes = False
        """Whether an operator switches modes that `Modes` does not know."""
        self.drawn_from: list[torch.Generator] = []
        """Torch's own generators that operators have drawn from, or that received a seed."""

    def add_operator(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        resolve: Callable[[torch.Tensor], fx.Node],
        shape: DataShape = DataShape.NEVER,
        repeatable: bool = True,
    ) -> fx.Node:
        """Record that ``operation(*args, **kwargs)`` returned ``result``.

        Args:
            resolve: returns the node of a tensor.
            shape: when the result's sizes depend on data.
            repeatable: whether a second call has no further effects.

        Raises:
            Split: the operator cannot be part of a graph with these arguments.
        """
        if is_instance(operation, types.ClassMethodDescriptorType):
            operation, args = operation.__get__(None, args[0]), args[1:]
        if is_made_of_arrays(args, kwargs, result):
            return self._add_array(operation, args, kwargs, result)
        args = without_size_argument(operation, args)
        if operation in _CREATE_SAME_SCALAR and len(args) == 1 and is_number(args[0]):
            if self.numbers.number_node(args[0]) is not None:
                operation, kwargs = torch.scalar_tensor, scalar_tensor_kwargs(args[0], kwargs)
        operation, args, kwargs = expand_closures(operation, args, kwargs)
        joined = self.lists.get(id(args[0])) if args else None
        if is_instance(joined, GraphList):
            return self._add_join(operation, joined, args[1:], kwargs, result)
        operation, args, kwargs = self._symbolic_form(operation, args, kwargs, result)
        name = getattr(operation, "__name__", "")  # a traced function has none
        fx_args = tuple(self._argument(arg, resolve) for arg in args)
        fx_kwargs = {name: self._argument(arg, resolve) for name, arg in kwargs.items()}
        if name in IN_PLACE and not is_instance(fx_args[0], fx.Node):
            operation = IN_PLACE[name]  # 2.0 += t creates a new tensor
        node = self._add_call(operation, name, fx_args, fx_kwargs)
        self.nodes.operator_count += 1
        if name == "setitem" and is_instance(args[2], torch.Tensor):
            node.meta[WRITTEN_SHAPE] = args[2].shape
        self._run_on_twins(
            node, operation, name, result, repeatable, depends_on_data(shape, args, kwargs)
        )
        self._register(node, result)
        self.numbers.note_value(node, operation, args, result)
        return node

    def _symbolic_form(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """The call in a form that does not query the values of lifted numbers."""
        if operation in SUBSCRIPTS and self._has_lifted_index(args[1]):
            operation = SUBSCRIPTS[operation]  # the value of an index would be queried
        if self.nodes.twin is not None:
            operation = SYMBOLIC_FORMS.get(operation, operation)
        if operation in INFERS_DTYPE and holds_array_scalar(args):
            # Python numbers replace NumPy scalars in the graph, and have no element type.
            kwargs = {**kwargs, "dtype": result.dtype}
        if getattr(operation, "__name__", "") in BOUNDS:
            bounds = [*args[1:], *kwargs.values()]
            if any(map(is_number, bounds)):  # then torch reads the number of the other bound, too
                args = (*args[:1], *map(self.numbers.bound, args[1:]))
                kwargs = {name: self.numbers.bound(bound) for name, bound in kwargs.items()}
        return operation, args, kwargs

    def _add_call(
        self,
        operation: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> fx.Node:
        """Add the node of a call, with arguments as ``torch.fx`` writes them."""
        if is_instance(operation, types.GetSetDescriptorType):
            return self.nodes.graph.call_function(getattr, (args[0], name))
        if is_instance(operation, _METHODS) and issubclass(operation.__objclass__, TensorBase):
            return self.nodes.graph.call_method(name, args, kwargs)
        return self.nodes.graph.call_function(graph_function(operation, args), args, kwargs)

    def _run_on_twins(
        self,
        node: fx.Node,
        operation: Callable[..., Any],
        name: str,
        result: Any,
        repeatable: bool,
        has_data_shape: bool,
    ) -> None:
        """Run the node on twins, and note if its sizes may depend on data.

        Raises:
            Split: the number of results depends on data.
        """
        from_data = any(source in self._data_shapes for source in node.all_input_nodes) or (
            self.numbers.takes_unknown(node) and not self._keeps_shape(operation, name, node.args)
        )
        results = operator_facts(name).results
        if from_data and type(result) in (tuple, list) and results is not Results.FIXED:
            # torch does not declare if the length of a plain sequence follows from a size.
            raise _depends_on_data()
        has_twin = self.nodes.twin is not None and self.nodes.twin.run_node(
            node, self.nodes.constants, result, repeatable, has_data_shape
        )
        is_unknown = not has_twin and (has_data_shape or self.nodes.twin is not None)
        if results is Results.BY_SIZE and is_unknown:
            raise _depends_on_data()
        self.numbers.reads_data |= from_data or has_data_shape
        if from_data or is_unknown:
            self._data_shapes.add(node)

    def _argument(self, value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
        """An argument as ``torch.fx`` writes it: nodes for tensors, containers rebuilt."""
        if is_instance(value, torch.Tensor):
            return resolve(value)
        if is_instance(value, fx.Node):
            return value
        kind = type(value)
        if id(value) in self.nodes.objects:
            return self.nodes.objects[id(value)]
        if kind is int or kind is float:
            return self.numbers.number_node(value) or value
        if kind in WRITTEN_AS_LITERALS:
            return value
        if kind is torch.Size or kind is tuple:
            return tuple(self._argument(item, resolve) for item in value)
        if kind is list:
            return [self._argument(item, resolve) for item in value]
        if is_instance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self._argument(item, resolve) for item in value))
        if kind is dict:
            return {key: self._argument(item, resolve) for key, item in value.items()}
        if kind is slice:
            parts = (self.numbers.bound(part) for part in (value.start, value.stop, value.step))
            return slice(
                *(
                    part if is_instance(part, fx.Node) else self._argument(part, resolve)
                    for part in parts
                )
            )
        if is_instance(value, np.generic):
            if (number := self.numbers.array_number_node(value)) is not None:
                return number
            return value.item() if _equals_number(value) else self.nodes.add_constant(value)
        if is_instance(value, np.ndarray):
            value = value.copy(order="K")
        elif not is_plain(value) and not is_identity(value) and may_vary(value):
            raise Split(
                SplitReason.UNSUPPORTED_OPERAND,
                f"passes a {kind.__qualname__} to a tensor operator",
            )
        if is_instance(value, Iterator):
            raise Split(
                SplitReason.UNSUPPORTED_OPERAND,
                f"passes a {type(value).__qualname__} to a tensor operator",
            )
        return self.nodes.add_constant(value)

    def _register(self, node: fx.Node, result: Any) -> None:
        """Map the tensors of an operator's result to nodes; a tensor that has a node keeps it."""
        if is_instance(result, torch.Tensor):
            if self.nodes.node_of(result) is None:
                self.nodes.set_node(result, node)
        elif is_instance(result, tuple | list):
            for i, item in enumerate(result):
                if holds_tensor(item):
                    part = self.nodes.graph.call_function(operator.getitem, (node, i))
                    if TWIN in node.meta and self.nodes.twin is not None:
                        part.meta[TWIN] = node.meta[TWIN][i]
                        self.nodes.twin.note_sources(part, part.meta[TWIN])
                    if node in self._data_shapes:
                        self._data_shapes.add(part)
                    self._register(part, item)

    def _add_array(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> fx.Node:
        """A tensor created from a NumPy array: a constant, as the array is, cloned in each run."""
        self.nodes.operator_count += 1
        self.shared_arrays += [(arg, arg.copy()) for arg in args if is_instance(arg, np.ndarray)]
        with disable_current_modes():  # those of a branch create tensors without data
            data = operation(*args, **kwargs) if is_instance(result, FakeTensor) else result
            constant = data.detach().clone()
        node = self.nodes.graph.call_method("clone", (self.nodes.add_constant(constant),))
        self.nodes.set_node(result, node)
        return node

    def _add_join(
        self,
        operation: Callable[..., Any],
        joined: GraphList,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> fx.Node:
        """``torch.stack`` or ``torch.cat`` of a list whose length is a loop's trip count."""
        node = self.nodes.graph.call_function(operation, (joined.node, *args), dict(kwargs))
        self.nodes.operator_count += 1
        is_lifted = self.numbers.expression(joined.count) is not None
        count = self.numbers.number_node(joined.count) if is_lifted else joined.count
        count = count.meta.get(TWIN) if is_instance(count, fx.Node) else count
        has_twin = self.nodes.twin is not None and self.nodes.twin.run_join(
            node, operation, joined.twin, count, args, kwargs, result
        )
        if not has_twin and is_lifted:
            self.numbers.reads_data = True
            self._data_shapes.add(node)
        self._register(node, result)
        return node

    def inspect_list(self, value: Any) -> None:
        """Specialize ``value`` if it is a list of the graph: unrecorded code inspects it.

        Raises:
            Split: its length depends on data.
        """
        found = self.lists.get(id(value))
        if found is not None:
            found.inspect(self)

    def inspect_all_lists(self) -> None:
        """Before a split, replace lists by their elements; the continuation receives a list whose
        length depends on data as a whole."""
        for found in list(self.lists.values()):
            if is_instance(found, GraphList) and found.has_data_dependent_length:
                found.outlives_recording = True
            found.inspect(self)

    def _keeps_shape(self, operation: Callable[..., Any], name: str, args: Sequence[Any]) -> bool:
        """True if the result's sizes do not depend on the numbers among the arguments."""
        if operation is torch.select:
            return args[1] not in self.numbers.unknown
        if operation is torch.narrow and len(args) == 4:
            return args[1] not in self.numbers.unknown and args[3] not in self.numbers.unknown
        if operation in _SUBSCRIPT_READS:
            index = args[1] if is_instance(args[1], tuple) else (args[1],)
            parts = [part for part in index if not is_instance(part, fx.Node)]
            return not any(n in self.numbers.unknown for part in parts for n in nodes_in(part))
        return not operator_facts(name).shape_from_numbers

    def _has_lifted_index(self, key: Any) -> bool:
        """True if a key has lifted numbers as indices."""
        parts = key if type(key) is tuple else (key,)
        return is_basic_key(key) and any(
            is_liftable(p) and self.numbers.expression(p) for p in parts
        )

    def has_data_dependent_shape(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's sizes may depend on the data of other tensors."""
        node = self.nodes.node_of(tensor)
        return node is not None and node in self._data_shapes

    def set_static_shape(self, node: fx.Node) -> None:
        """The sizes of a node are guarded from here on, although they depend on data."""
        self._data_shapes.discard(node)


def _depends_on_data() -> Split:
    detail = "creates a number of tensors that depends on data"
    return Split(SplitReason.DATA_DEPENDENT_SIZE, detail)


def _equals_number(scalar: np.generic) -> bool:
    """True if torch treats a NumPy scalar as the Python number that it equals. It converts others,
    such as a flag, to ``float``."""
    return is_array_number(scalar) or is_instance(scalar, complex)
