"""The operator graph: a ``torch.fx`` graph and the tensors it knows (section 4.3).

An operator becomes a node when it has run, with arguments as ``torch.fx`` writes them; what could
be another object at the next call, and is not on the graph, cannot be one.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.annotation.operator_facts import Results, operator_facts
from magpy_like.annotation.schema import DataShape
from magpy_like.graph_operators.node_metadata import TWIN, WRITTEN_SHAPE
from magpy_like.monitor.calls.operator_closures import expand_closures
from magpy_like.monitor.operator_graph.data_dependent_sizes import depends_on_data
from magpy_like.monitor.operator_graph.function_nodes import graph_function
from magpy_like.monitor.operator_graph.graph_numbers import IN_PLACE
from magpy_like.monitor.operator_graph.subgraphs import GraphControl
from magpy_like.monitor.symbolic.expressions import is_liftable, is_number
from magpy_like.monitor.symbolic.gathered_lists import CarriedList, GraphList, LiftedRange
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
from magpy_like.torch_compat.operators import TensorBase

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class OperatorGraph(GraphControl):
    """Tensor operators in the order in which the program ran them."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[int, CarriedList | GraphList | LiftedRange] = {}
        """By id, lists of tensors whose length is a loop's number of rounds, and such ranges."""
        self.is_isolated = False
        """Whether what is recorded is that of a run beside the program."""
        self._data_shapes: set[fx.Node] = set()
        self.shared_arrays: list[tuple[Any, Any]] = []
        """NumPy arrays that tensors share memory with, and copies of what they held."""
        self.sets_modes = False
        """Whether an operator switches modes that `Modes` does not know."""
        self.drawn_from: list[torch.Generator] = []
        """Those of torch's own generators that operators have drawn from, or that got a seed."""

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
        """Record that ``operation(*args, **kwargs)`` gave ``result``.

        ``repeatable`` says that to run it once more does no more than to compute.

        Raises:
            Split: it cannot be part of a graph, with these arguments.
        """
        if is_instance(operation, types.ClassMethodDescriptorType):
            operation, args = operation.__get__(None, args[0]), args[1:]
        if any(is_instance(arg, np.ndarray) for arg in args) and is_instance(result, torch.Tensor):
            if not any(is_instance(arg, torch.Tensor) for arg in (*args, *kwargs.values())):
                return self._adopt_array(args, result)
        if args and type(args[-1]) is torch.Size and _is_constructor_of_old(operation):
            if not args[-1]:
                raise Split(
                    SplitReason.UNSUPPORTED_OPERAND,
                    "creates a tensor without dimensions by a legacy constructor",
                )
            args = (*args[:-1], *args[-1])  # they take a tuple for the elements, not the size
        if operation in _OF_NUMBER and len(args) == 1 and is_number(args[0]):
            if self._number(args[0]) is not None:
                operation, kwargs = torch.scalar_tensor, _scalar_tensor_kwargs(args[0], kwargs)
        operation, args, kwargs = expand_closures(operation, args, kwargs)
        given = self.lists.get(id(args[0])) if args else None
        if is_instance(given, GraphList):
            return self._join(operation, given, args[1:], kwargs, result)
        if operation in SUBSCRIPTS and self._varies_in(args[1]):
            operation = SUBSCRIPTS[operation]  # a number as an index would be read
        if self.twin is not None:
            operation = SYMBOLIC_FORMS.get(operation, operation)
        if operation in _INFERS_DTYPE and _holds_array_scalar(args):
            # Python's numbers stand for NumPy's in the graph, and have no type of their own.
            kwargs = {**kwargs, "dtype": result.dtype}
        name = getattr(operation, "__name__", "")  # a traced function has none
        if name in _BOUNDED:
            bounds = [*args[1:], *kwargs.values()]
            if any(map(is_number, bounds)):  # then torch takes the number out of the other one too
                args = (*args[:1], *map(self._bound, args[1:]))
                kwargs = {name: self._bound(bound) for name, bound in kwargs.items()}
        fx_args = tuple(self._argument(arg, resolve) for arg in args)
        fx_kwargs = {name: self._argument(arg, resolve) for name, arg in kwargs.items()}
        if is_instance(operation, types.GetSetDescriptorType):
            node = self.graph.call_function(getattr, (fx_args[0], name))
        elif is_instance(operation, _METHODS) and issubclass(operation.__objclass__, TensorBase):
            node = self.graph.call_method(name, fx_args, fx_kwargs)
        else:
            if name in IN_PLACE and not is_instance(fx_args[0], fx.Node):
                operation = IN_PLACE[name]  # 2.0 += t makes a new tensor
            function = graph_function(operation, fx_args)
            node = self.graph.call_function(function, fx_args, fx_kwargs)
        self.operator_count += 1
        if name == "setitem" and is_instance(args[2], torch.Tensor):
            node.meta[WRITTEN_SHAPE] = args[2].shape
        from_data = any(source in self._data_shapes for source in node.all_input_nodes) or (
            self._takes_number(node) and not self._keeps_shape(operation, name, fx_args)
        )
        results = operator_facts(name).results
        if from_data and type(result) in (tuple, list) and results is not Results.FIXED:
            # torch does not say whether the length of a plain sequence comes from a size.
            raise Split(
                SplitReason.DATA_DEPENDENT_SIZE, "creates a number of tensors that depends on data"
            )
        of_data = depends_on_data(shape, args, kwargs)
        known = self.twin is not None and self.twin.run_node(
            node, self._constants, result, repeatable, of_data
        )
        if results is Results.BY_SIZE and not known and (of_data or self.twin is not None):
            raise Split(
                SplitReason.DATA_DEPENDENT_SIZE, "creates a number of tensors that depends on data"
            )
        self.reads_data |= from_data or of_data
        if from_data or (not known and (self.twin is not None or of_data)):
            self._data_shapes.add(node)
        self._adopt(node, result)
        self._note_value(node, operation, args, result)
        return node

    def _argument(self, value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
        """An argument as ``torch.fx`` writes it: tensors become nodes, containers are rebuilt."""
        if is_instance(value, torch.Tensor):
            return resolve(value)
        if is_instance(value, fx.Node):
            return value
        kind = type(value)
        if id(value) in self._objects:
            return self._objects[id(value)]
        if kind is int or kind is float:
            return self._number(value) or value
        if kind in _WRITTEN_AS_THEY_ARE:
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
            parts = (self._bound(part) for part in (value.start, value.stop, value.step))
            return slice(
                *(
                    part if is_instance(part, fx.Node) else self._argument(part, resolve)
                    for part in parts
                )
            )
        if is_instance(value, np.generic):
            return self._array_number(value) or value.item()
        if is_instance(value, np.ndarray):
            value = value.copy(order="K")
        elif not is_plain(value) and not is_identity(value) and _may_change(value):
            raise Split(
                SplitReason.UNSUPPORTED_OPERAND,
                f"passes a {kind.__qualname__} to a tensor operator",
            )
        if is_instance(value, Iterator):
            raise Split(
                SplitReason.UNSUPPORTED_OPERAND,
                f"passes a {type(value).__qualname__} to a tensor operator",
            )
        return self._constant(value)

    def _adopt(self, node: fx.Node, result: Any) -> None:
        """Learn which tensors an operator has made. One that is known already stays what it was."""
        if is_instance(result, torch.Tensor):
            if self.node_of(result) is None:
                self.set_node(result, node)
        elif is_instance(result, tuple | list):
            for i, item in enumerate(result):
                if _has_tensor(item):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    if TWIN in node.meta and self.twin is not None:
                        part.meta[TWIN] = node.meta[TWIN][i]
                        self.twin.note_sources(part, part.meta[TWIN])
                    if node in self._data_shapes:
                        self._data_shapes.add(part)
                    self._adopt(part, item)

    def _adopt_array(self, args: Sequence[Any], result: torch.Tensor) -> fx.Node:
        """A tensor made from a NumPy array is a constant as the array is; each run gets its own."""
        self.operator_count += 1
        self.shared_arrays += [(arg, arg.copy()) for arg in args if is_instance(arg, np.ndarray)]
        node = self.graph.call_method("clone", (self._constant(result.detach().clone()),))
        self.set_node(result, node)
        return node

    def _join(
        self,
        operation: Callable[..., Any],
        given: GraphList,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> fx.Node:
        """``torch.stack`` or ``torch.cat`` of a list of which a loop says how long it is."""
        node = self.graph.call_function(operation, (given.node, *args), dict(kwargs))
        self.operator_count += 1
        count = given.count if self.expression(given.count) is None else self._number(given.count)
        count = count.meta.get(TWIN) if is_instance(count, fx.Node) else count
        known = self.twin is not None and self.twin.run_join(
            node, operation, given.twin, count, args, kwargs, result
        )
        if not known and self.expression(given.count) is not None:
            self.reads_data = True
            self._data_shapes.add(node)
        self._adopt(node, result)
        return node

    def inspect_list(self, value: Any) -> None:
        """Somebody looks into ``value`` in a way that is not recorded, should it be a loop's list.

        Raises:
            Split: its length depends on data.
        """
        found = self.lists.get(id(value))
        if found is not None:
            found.inspect(self)

    def inspect_all_lists(self) -> None:
        """What follows a split is given the elements of lists; where data decides how many there
        are, it is given the list."""
        for found in list(self.lists.values()):
            if is_instance(found, GraphList) and found.has_data_dependent_length:
                found.outlives_recording = True
            found.inspect(self)

    def _keeps_shape(self, operation: Callable[..., Any], name: str, args: Sequence[Any]) -> bool:
        """Whether the result has the same sizes whatever the numbers in the arguments are."""
        if operation is torch.select:
            return args[1] not in self._scalars
        if operation is torch.narrow and len(args) == 4:
            return args[1] not in self._scalars and args[3] not in self._scalars
        if operation in _READS_ITEM:
            index = args[1] if is_instance(args[1], tuple) else (args[1],)
            parts = [part for part in index if not is_instance(part, fx.Node)]
            return not any(n in self._scalars for part in parts for n in _nodes_in(part))
        return not operator_facts(name).shape_from_numbers

    def _varies_in(self, key: Any) -> bool:
        """Whether a key has lifted numbers as indices."""
        parts = key if type(key) is tuple else (key,)
        return is_basic_key(key) and any(is_liftable(p) and self.expression(p) for p in parts)

    def has_data_dependent_shape(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's sizes may depend on the data of other tensors, who knows how."""
        node = self.node_of(tensor)
        return node is not None and node in self._data_shapes

    def set_static_shape(self, node: fx.Node) -> None:
        """The sizes of what an operator has made are known, although they depend on data."""
        self._data_shapes.discard(node)


def _nodes_in(argument: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(argument, found.append)
    return found


def _may_change(value: Any) -> bool:
    """Whether an argument could be something else at the next call, or lead to tensors.

    Not a ``Sequential``: what is given a module calls it, as it is at that time.
    """
    if is_instance(value, torch.nn.Module):
        return False
    return is_instance(value, set | frozenset) or hasattr(type(value), "__iter__")


_WRITTEN_AS_THEY_ARE = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype,
        torch.device, torch.layout, torch.memory_format,
    }
)  # fmt: skip


def _scalar_tensor_kwargs(number: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``torch.tensor`` finds the type by the number, ``torch.scalar_tensor`` does not."""
    kind = torch.int64 if type(number) is int else torch.get_default_dtype()
    given = kwargs.get("dtype")
    return {**kwargs, "dtype": kind if given is None else given}


_READS_ITEM = (operator.getitem, torch.Tensor.__getitem__, getitem)


_BOUNDED = frozenset({"clamp", "clamp_", "clip", "clip_"})


def _is_constructor_of_old(operation: Any) -> bool:
    """``torch.Tensor(…)``, ``torch.FloatTensor(…)`` and ``tensor.new(…)``."""
    if operation is torch.Tensor or operation is torch.Tensor.new:
        return True
    return type(operation) is type(torch.FloatTensor)


_OF_NUMBER = (torch.tensor, torch.as_tensor)
"""Functions that make the same tensor of one."""
_INFERS_DTYPE = {torch.tensor, torch.as_tensor, torch.asarray}


def _holds_array_scalar(value: Any) -> bool:
    if is_instance(value, list | tuple):
        return any(map(_holds_array_scalar, value))
    return is_instance(value, np.generic)


def _has_tensor(value: Any) -> bool:
    if is_instance(value, torch.Tensor):
        return True
    return is_instance(value, tuple | list) and any(map(_has_tensor, value))
