"""The operator graph: a ``torch.fx`` graph and the tensors it knows (section 4.3)."""

from __future__ import annotations

import math
import operator
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.annotation.schema import DataShape
from magpy_like.monitor.data_shapes import depends_on_data
from magpy_like.monitor.expressions import (
    AsPython,
    Computed,
    Expression,
    InGraph,
    Untranslatable,
    as_number,
    choose,
    is_liftable,
    is_number,
    is_of_tensor,
    known_before_graph,
)
from magpy_like.monitor.gathered import Gathered, Growing
from magpy_like.monitor.symbolic_forms import SUBSCRIPTS, SYMBOLIC_FORMS, getitem, is_basic_key
from magpy_like.monitor.twin import TWIN, Twin, hint
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph.values import OwnReference, is_identity, is_plain, tensor_version

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)

NUMBER = "number"
"""The key by which ``torch.fx`` keeps about a node whether it is a number, not a tensor."""
LIST = "list"
"""The same for a list of tensors that a loop has gathered."""
WRITTEN_FORM = "written_form"
"""The key of the sizes of what ``tensor[key] = …`` writes."""
AS_IS = "as_is"
"""The key of the reason why no backend may be given a node: it runs as it was recorded."""


REPLAYED = "replayed"
"""The attribute by which a function of the graph tells which operation it runs."""


def _symbol() -> Any:
    raise AssertionError("a symbol is replaced before its graph runs")


class UnknownTensor(Exception):
    """An input of an operator is neither another's result nor was it read from outside."""


class OperatorGraph:
    """Tensor operators in the order in which the program ran them."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._known: dict[int, tuple[OwnReference, fx.Node]] = {}
        self.inputs: list[tuple[fx.Node, Any]] = []
        """Placeholders, each with the id of a tensor's or object's ShadowNode, or an expression."""
        self.samples: dict[Any, Any] = {}
        """What expressions among the inputs were in this run that are none of lifted numbers."""
        self.expression: Callable[[Any], Any] = lambda value: None
        """Gives the expression of a lifted number, None for any other value."""
        self.value_of: Callable[[Any], Any] = lambda expression: None
        """Gives what an expression was in this run."""
        self.lists: dict[int, Growing | Gathered] = {}
        """By id, lists of tensors whose length is a loop's number of rounds."""
        self.twin: Twin | None = None
        """Runs each operator on symbolic sizes too, while there are dynamic dimensions."""
        self._numbers: dict[int, tuple[Any, fx.Node]] = {}
        self._values: dict[fx.Node, tuple[Any, int]] = {}
        """Of integers in tensors: symbolic numbers, and the tensor's version at which they hold."""
        self._objects: dict[int, fx.Node] = {}
        """By id, the placeholders of objects that stand for themselves, such as a configuration."""
        self._data_shapes: set[fx.Node] = set()
        self._twins: dict[fx.Node, Any] = {}
        """Those of a finished graph, for what follows a split: nobody else is to see them."""
        self._scalars: set[fx.Node] = set()
        self._constants: dict[str, Any] = {}
        self.arrays: list[tuple[Any, Any]] = []
        """NumPy arrays that tensors share memory with, and copies of what they held."""
        self.operators = 0
        self.reads_data = False
        """Whether sizes or numbers in the graph depend on the data of tensors."""
        self.sets_modes = False
        """Whether an operator switches modes that `Modes` does not know."""
        self.effects = False
        """Whether an operator has an effect beside its result, such as drawing random numbers."""

    def generators(self) -> list[torch.Generator]:
        """Those that operators draw from, beside torch's own."""
        return [g for g in self._constants.values() if isinstance(g, torch.Generator)]

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The graph's node for a tensor that is alive, or None."""
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._known[id(tensor)] = (OwnReference(tensor), node)

    def add_input(self, tensor: torch.Tensor, shadow_id: int) -> fx.Node:
        """A placeholder for a tensor that was there when the region was entered."""
        node = self._placeholder(shadow_id)
        if self.twin is not None:
            self.twin.meet(node, tensor, shadow_id)
        self.know(tensor, node)
        return node

    def add_drawn(self, tensor: torch.Tensor, drawn: Expression) -> None:
        """A placeholder for a tensor that the mock makes of random numbers."""
        node = self._placeholder(drawn)
        self.samples[drawn] = tensor
        if self.twin is not None:
            node.meta[TWIN] = self.twin.fixed(tensor)
        self.know(tensor, node)

    def add_object(self, value: Any, shadow_id: int) -> None:
        """A placeholder for an object from outside that is no tensor; the RefGraph holds it."""
        if id(value) not in self._objects:
            node = self._objects[id(value)] = self._placeholder(shadow_id)
            node.meta[TWIN] = value

    def scalar(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        value: Any,
        resolve: Callable[[torch.Tensor], fx.Node],
    ) -> fx.Node:
        """A number that is read from a tensor, such as ``t.item()``."""
        self.operators += 1
        self.reads_data = True
        tensor = resolve(args[0])
        if args[0].dtype not in REAL_NUMBERS:
            function = operation if isinstance(operation, type) else type(value)
            return self._know_number(self.graph.call_function(function, (tensor,)), value)
        read = args[0].dtype.is_floating_point
        node = self._know_number(
            self.graph.call_method("item", (tensor,)), float(value) if read else int(value)
        )
        if read is (type(value) is float):
            return node
        return self._arithmetic(type(value), (node,), value)

    def autograd_node(self, tensor: fx.Node) -> fx.Node:
        """The node of the autograd graph that a tensor has at this point."""
        node = self.graph.call_function(getattr, (tensor, "grad_fn"))
        node.meta[AS_IS] = "is looked at by the program"
        return node

    def elements(self, node: fx.Node, count: int) -> Iterator[fx.Node]:
        """Tensors of one element each: what a tensor of the graph holds."""
        flat = self.graph.call_method("reshape", (node, (-1,)))
        for i in range(count):
            yield self.graph.call_method("select", (flat, 0, i))

    def compute(
        self, operation: Callable[..., Any], operands: Sequence[Any], value: Any
    ) -> fx.Node:
        """Arithmetic on numbers of the graph."""
        parts = tuple(self._number(operand) or operand for operand in operands)
        return self._arithmetic(operation, parts, value)

    def _arithmetic(self, operation: Callable[..., Any], parts: Any, value: Any) -> fx.Node:
        operation = _IN_PLACE.get(operation.__name__, operation)
        if operation in (max, min) and len(parts) > 2:  # symbolic ones are of two
            parts = (self._arithmetic(operation, parts[:-1], None), parts[-1])
        operation = _ON_SYMBOLS.get(operation, operation)
        node = self.graph.call_function(graph_function(operation), parts)
        return self._know_number(node, value)

    def _know_number(self, node: fx.Node, value: Any) -> fx.Node:
        """A node that is a number: where its twin is not known, sizes made of it are not either."""
        node.meta[NUMBER] = True
        known = self.twin is not None and self.twin.run(node, self._constants, value)
        if not known or self._takes_number(node):
            self._scalars.add(node)
        return node

    def size(self, source: fx.Node, dim: int) -> fx.Node:
        """A number: one size of a tensor that an operator has made."""
        with self.graph.inserting_after(source):
            node = self.graph.call_method("size", (source, dim))
        node.meta[NUMBER] = True
        if self.twin is not None and TWIN in source.meta:
            node.meta[TWIN] = source.meta[TWIN].shape[dim]
        else:
            self._scalars.add(node)
        return node

    def fix_shape(self, node: fx.Node) -> None:
        """The sizes of what an operator has made are known, although they depend on data."""
        self._data_shapes.discard(node)

    def _number(self, value: Any) -> fx.Node | None:
        """The graph's node for a lifted number, or None for a constant."""
        expression = self.expression(value)
        return None if expression is None else self._node_for(expression, value)

    def _array_number(self, value: np.generic) -> fx.Node | None:
        """The graph's node for a lifted number of NumPy's, or None for a constant."""
        expression = self.expression(value)
        if expression is None:
            return None
        found = self._numbers.get(id(expression))
        if found is not None:
            return found[1]
        number = AsPython(expression)
        self.samples[number] = value.item()
        node: fx.Node = self._node_for(number, None)
        self._numbers[id(expression)] = (expression, node)
        return node

    def _node_for(self, expression: Any, value: Any) -> Any:
        """The node of an expression, or the constant itself; ``value`` is what it was, if known."""
        if isinstance(expression, InGraph):
            return expression.node
        found = self._numbers.get(id(expression))
        if found is not None:
            return found[1]
        if isinstance(expression, Computed) and not _is_for_python(expression):
            parts = tuple(self._node_for(part, None) for part in expression.operands)
            node = self._arithmetic(expression.operation, parts, value)
        elif isinstance(expression, Expression):
            node = self._placeholder(expression)
            node.meta[NUMBER] = True
            known = self.twin.numbers.get(expression) if self.twin is not None else None
            if known is None:  # sizes that it decides are not followed
                self._scalars.add(node)
                known = self.samples.get(expression, self.value_of(expression))
            node.meta[TWIN] = known
        else:
            return expression
        self._numbers[id(expression)] = (expression, node)
        return node

    def _placeholder(self, source: Any) -> fx.Node:
        first = next(iter(self.graph.nodes), None)
        last = self.inputs[-1][0] if self.inputs else None
        if last is not None:
            where = self.graph.inserting_after(last)
        elif first is not None and first.op != "root":
            where = self.graph.inserting_before(first)
        else:
            where = self.graph.inserting_after()
        with where:
            node = self.graph.placeholder(f"input_{len(self.inputs)}")
        self.inputs.append((node, source))
        return node

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
            UnknownTensor: a tensor among the inputs has no place in the graph.
        """
        if isinstance(operation, types.ClassMethodDescriptorType):
            operation, args = operation.__get__(None, args[0]), args[1:]
        if any(isinstance(arg, np.ndarray) for arg in args) and isinstance(result, torch.Tensor):
            if not any(isinstance(arg, torch.Tensor) for arg in (*args, *kwargs.values())):
                return self._adopt_array(args, result)
        if args and type(args[-1]) is torch.Size and _is_constructor_of_old(operation):
            if not args[-1]:
                raise UnknownTensor("makes a tensor of no dimensions by a constructor of old")
            args = (*args[:-1], *args[-1])  # they take a tuple for the elements, not the size
        if operation is torch.tensor and len(args) == 1 and is_number(args[0]):
            if self._number(args[0]) is not None:
                operation, kwargs = torch.scalar_tensor, _scalar_tensor_kwargs(args[0], kwargs)
        given = self.lists.get(id(args[0])) if args else None
        if isinstance(given, Gathered):
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
        if isinstance(operation, types.GetSetDescriptorType):
            node = self.graph.call_function(getattr, (fx_args[0], name))
        elif isinstance(operation, _METHODS) and issubclass(
            operation.__objclass__, torch._C.TensorBase
        ):
            node = self.graph.call_method(name, fx_args, fx_kwargs)
        else:
            if name in _IN_PLACE and not isinstance(fx_args[0], fx.Node):
                operation = _IN_PLACE[name]  # 2.0 += t makes a new tensor
            node = self.graph.call_function(graph_function(operation), fx_args, fx_kwargs)
        self.operators += 1
        if name == "setitem" and isinstance(args[2], torch.Tensor):
            node.meta[WRITTEN_FORM] = args[2].shape
        from_data = any(source in self._data_shapes for source in node.all_input_nodes) or (
            self._takes_number(node) and not self._keeps_shape(operation, name, fx_args)
        )
        if from_data and type(result) in (tuple, list) and name not in _FIXED_COUNT:
            # torch does not say whether the length of a plain sequence comes from a size.
            raise UnknownTensor("makes as many tensors as a size says that depends on data")
        of_data = depends_on_data(shape, args, kwargs)
        known = self.twin is not None and self.twin.run(
            node, self._constants, result, repeatable, of_data
        )
        if name in MAKES_SEVERAL and not known and (of_data or self.twin is not None):
            raise UnknownTensor("makes as many tensors as a size says that depends on data")
        self.reads_data |= from_data or of_data
        if from_data or (not known and (self.twin is not None or of_data)):
            self._data_shapes.add(node)
        self._adopt(node, result)
        self._note_value(node, operation, args, result)
        return node

    def _join(
        self,
        operation: Callable[..., Any],
        given: Gathered,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: torch.Tensor,
    ) -> fx.Node:
        """``torch.stack`` or ``torch.cat`` of a list of which a loop says how long it is."""
        node = self.graph.call_function(operation, (given.node, *args), dict(kwargs))
        self.operators += 1
        count = given.count if self.expression(given.count) is None else self._number(given.count)
        count = count.meta.get(TWIN) if isinstance(count, fx.Node) else count
        known = self.twin is not None and self.twin.join(
            node, operation, given.twin, count, args, kwargs, result
        )
        if not known and self.expression(given.count) is not None:
            self.reads_data = True
            self._data_shapes.add(node)
        self._adopt(node, result)
        return node

    def look_at(self, value: Any) -> None:
        """Somebody looks into ``value`` in a way that is not recorded, should it be a loop's list.

        Raises:
            Split: its length depends on data.
        """
        found = self.lists.get(id(value))
        if found is not None:
            found.look(self)

    def look_at_all(self) -> None:
        for found in list(self.lists.values()):
            found.look(self)

    def _note_value(
        self, node: fx.Node, operation: Callable[..., Any], args: Sequence[Any], result: Any
    ) -> None:
        """Remember what an integer in a tensor is made of, for it may become a bound or size."""
        if self.twin is None or operation not in _KEEP_VALUE:
            return
        if not isinstance(result, torch.Tensor) or result.dim() or result.dtype is not torch.int64:
            return
        values = [self.value_in(arg) for arg in args]
        if not any(isinstance(value, torch.SymInt) for value in values):
            return
        if all(isinstance(value, int | torch.SymInt) for value in values):
            value = _KEEP_VALUE[operation](*values)
            if hint(value) == int(result):
                self._values[node] = (value, tensor_version(result))

    def value_in(self, value: Any) -> Any:
        """The symbolic number in a tensor or of a lifted number, else a plain number, or None."""
        if isinstance(value, torch.Tensor):
            node = self.node_of(value)
            known = self._values.get(node) if node is not None else None
            return known[0] if known is not None and known[1] == tensor_version(value) else None
        if type(value) is not int:
            return None
        node = self._number(value)
        return value if node is None else node.meta.get(TWIN)

    def snapshot(self, node: fx.Node) -> fx.Node:
        """What a tensor of the graph holds at this point, whatever becomes of it later."""
        self.operators += 1
        return self.graph.call_method("clone", (self.graph.call_method("detach", (node,)),))

    def _keeps_shape(self, operation: Callable[..., Any], name: str, args: Sequence[Any]) -> bool:
        """Whether the result has the same sizes whatever the numbers in the arguments are."""
        if operation is torch.select:
            return args[1] not in self._scalars
        if operation in _READS_ITEM:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            parts = [part for part in index if not isinstance(part, fx.Node)]
            return not any(n in self._scalars for part in parts for n in _nodes_in(part))
        return name in _KEEPS_SHAPE or name.startswith("_foreach_")

    def _varies_in(self, key: Any) -> bool:
        """Whether a key has lifted numbers as indices."""
        parts = key if type(key) is tuple else (key,)
        return is_basic_key(key) and any(is_liftable(p) and self.expression(p) for p in parts)

    def _takes_number(self, node: fx.Node) -> bool:
        return any(source in self._scalars for source in node.all_input_nodes)

    def has_data_shape(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's sizes may depend on the data of other tensors, who knows how."""
        node = self.node_of(tensor)
        return node is not None and node in self._data_shapes

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The symbolic twin of an operator's result or input, where there is one."""
        node = self.node_of(tensor)
        return None if node is None else node.meta.get(TWIN, self._twins.get(node))

    def _argument(self, value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
        """An argument as ``torch.fx`` writes it: tensors become nodes, containers are rebuilt."""
        if isinstance(value, torch.Tensor):
            return resolve(value)
        if isinstance(value, fx.Node):
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
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self._argument(item, resolve) for item in value))
        if kind is dict:
            return {key: self._argument(item, resolve) for key, item in value.items()}
        if kind is slice:
            parts = (self._bound(part) for part in (value.start, value.stop, value.step))
            return slice(
                *(
                    part if isinstance(part, fx.Node) else self._argument(part, resolve)
                    for part in parts
                )
            )
        if isinstance(value, np.generic):
            return self._array_number(value) or value.item()
        if isinstance(value, np.ndarray):
            value = value.copy(order="K")
        elif not is_plain(value) and not is_identity(value) and _may_change(value):
            raise UnknownTensor(f"gives a {kind.__qualname__} to a tensor operator")
        if isinstance(value, Iterator):
            raise UnknownTensor(f"hands a {type(value).__qualname__} to an operator")
        return self._constant(value)

    def _bound(self, part: Any) -> Any:
        """A bound, as of a slice: a number, if it comes in a tensor and is known at entry."""
        if not isinstance(part, torch.Tensor) or self.twin is None:
            return part
        value = self.value_in(part)
        if not isinstance(value, torch.SymInt):
            return part
        try:
            return self._node_for(self.twin.expression(value), int(part))
        except Untranslatable:
            return part

    def _adopt_array(self, args: Sequence[Any], result: torch.Tensor) -> fx.Node:
        """A tensor made from a NumPy array is a constant as the array is; each run gets its own."""
        self.operators += 1
        self.arrays += [(arg, arg.copy()) for arg in args if isinstance(arg, np.ndarray)]
        node = self.graph.call_method("clone", (self._constant(result.detach().clone()),))
        self.know(result, node)
        return node

    def _constant(self, value: Any) -> fx.Node:
        """An object that has no source text hangs on the graph's module."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = value
        node = self.graph.create_node("get_attr", name)
        if self.twin is not None:
            self.twin.run(node, self._constants, value)
        return node

    # --- branches --------------------------------------------------------------------------------

    def is_constant_tensor(self, node: fx.Node) -> bool:
        value = self._constants.get(str(node.target)) if node.op == "get_attr" else None
        return isinstance(value, torch.Tensor)

    def forget_numbers(self, nodes: Collection[fx.Node]) -> None:
        """These nodes, some of which compute lifted numbers, are none of this graph's any more."""
        self._numbers = {k: known for k, known in self._numbers.items() if known[1] not in nodes}

    def subgraph(
        self, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], outputs: Sequence[Any]
    ) -> fx.GraphModule:
        """A part of this graph as a graph of its own; ``outputs`` are nodes and plain numbers."""
        graph = fx.Graph()
        copies = {node: graph.placeholder(f"operand_{i}") for i, node in enumerate(inputs)}
        for node, copy in copies.items():
            copy.meta |= {key: node.meta.get(key, False) for key in (NUMBER, LIST)}
        root = torch.nn.Module()
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                setattr(root, str(node.target), self._constants[str(node.target)])
        graph.output(tuple(copies[n] if isinstance(n, fx.Node) else n for n in outputs))
        return fx.GraphModule(root, graph, class_name="Subgraph")

    def condition(self, inputs: Sequence[fx.Node], stays: bool) -> fx.GraphModule:
        """The graph of a loop's condition: whether the first of its inputs is ``stays``."""
        graph = fx.Graph()
        first, *_ = [graph.placeholder(f"operand_{i}") for i in range(len(inputs))]
        graph.output(first if stays else graph.call_function(torch.logical_not, (first,)))
        return fx.GraphModule(torch.nn.Module(), graph, class_name="Condition")

    def value_node(self, value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
        """The node of a tensor or lifted number; any other number itself."""
        return resolve(value) if isinstance(value, torch.Tensor) else self._number(value) or value

    def truth(self, test: fx.Node, predicate: torch.Tensor) -> fx.Node:
        """The truth of a tensor as a ``bool`` tensor without dimensions."""
        if predicate.dtype is not torch.bool:
            test = self.graph.call_method("to", (test, torch.bool))
        return self.graph.call_method("reshape", (test, ())) if predicate.dim() else test

    def row(self, tensor: fx.Node, index: fx.Node) -> fx.Node:
        """A row of a tensor: its sizes are the same whatever the index is."""
        node = self.graph.call_function(torch.select, (tensor, 0, index))
        if self.twin is not None and TWIN in tensor.meta:
            self.twin.run(node, self._constants, None)
        return node

    def fill(self, tensor: fx.Node, rows: slice, found: fx.Node) -> None:
        """Write the tensors of a loop's list to rows of another tensor."""
        stacked = self.graph.call_function(torch.stack, (found,))
        self.graph.call_function(operator.setitem, (tensor, rows, stacked))
        self.operators += 2

    def symbol(self, number: bool, twin: Any = None) -> fx.Node:
        """Stands for what a loop carries, until its graphs are made. ``twin`` is that of any value
        that it carries; no size may follow from a number."""
        node = self.graph.call_function(_symbol)
        if twin is not None:
            node.meta[TWIN] = twin
        if number:
            self._scalars.add(node)
            node.meta[NUMBER] = True
        return node

    def control(
        self,
        operation: Callable[..., Any],
        before: Sequence[Any],
        graphs: Sequence[fx.GraphModule],
        after: Sequence[Any],
        numbers: Sequence[bool],
    ) -> list[fx.Node]:
        """The results of an operator that runs graphs; ``numbers`` says which of them are such."""
        parts = [self._constant(graph) for graph in graphs]
        node = self.graph.call_function(operation, (*before, *parts, *after))
        self.operators += 1
        results = []
        for i, number in enumerate(numbers):
            results.append(self.graph.call_function(operator.getitem, (node, i)))
            results[-1].meta[NUMBER] = number
            if number:
                self._scalars.add(results[-1])
        return results

    def _adopt(self, node: fx.Node, result: Any) -> None:
        """Learn which tensors an operator has made. One that is known already stays what it was."""
        if isinstance(result, torch.Tensor):
            if self.node_of(result) is None:
                self.know(result, node)
        elif isinstance(result, tuple | list):
            for i, item in enumerate(result):
                if _has_tensor(item):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    if TWIN in node.meta and self.twin is not None:
                        part.meta[TWIN] = node.meta[TWIN][i]
                        self.twin.note_sources(part, part.meta[TWIN])
                    if node in self._data_shapes:
                        self._data_shapes.add(part)
                    self._adopt(part, item)

    def let_go(self, numbers: Collection[fx.Node], outputs: Collection[fx.Node]) -> None:
        """Leave those of the ``numbers`` out that nothing in the graph needs, nor its caller."""
        for node in reversed(self.graph.nodes):
            if node in numbers and not node.users and node not in outputs:
                self.graph.erase_node(node)

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph with these outputs, as a module."""
        self.graph.output(tuple(outputs))
        for node in self.graph.nodes:
            if TWIN in node.meta:
                self._twins[node] = node.meta.pop(TWIN)
        root = torch.nn.Module()
        for name, value in self._constants.items():
            if isinstance(value, torch.Tensor):
                root.register_buffer(name, value)
            else:
                setattr(root, name, value)
        return fx.GraphModule(root, self.graph, class_name="OperatorGraph")


def _nodes_in(argument: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(argument, found.append)
    return found


def _may_change(value: Any) -> bool:
    """Whether an argument could be something else at the next call, or lead to tensors.

    Not a ``Sequential``: what is given a module calls it, as it is at that time.
    """
    if isinstance(value, torch.nn.Module):
        return False
    return isinstance(value, set | frozenset) or hasattr(type(value), "__iter__")


_WRITTEN_AS_THEY_ARE = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype,
        torch.device, torch.layout, torch.memory_format,
    }
)  # fmt: skip

_KEEPS_SHAPE = frozenset(
    name + end
    for name in (
        "add", "sub", "rsub", "mul", "truediv", "floordiv", "div", "mod", "pow", "remainder",
        "fmod", "lt", "le", "gt", "ge", "eq", "ne", "clamp", "clamp_min", "clamp_max",
        "masked_fill", "fill", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow",
        "lerp", "addcmul", "addcdiv", "where", "dropout", "leaky_relu", "elu", "full_like", "and",
        "or", "xor", "setitem", "copy", "zero", "threshold", "softmax", "hardtanh",
    )
    for end in ("", "_")
)  # fmt: skip
"""Operators whose output has the same shape whatever a number among the inputs is."""

MAKES_SEVERAL = {
    "unbind", "split", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "unsafe_split",
    "unsafe_chunk",
}  # fmt: skip
"""Operators that make as many tensors as a size says."""

_FIXED_COUNT = {
    "split_with_sizes", "unsafe_split_with_sizes", "broadcast_tensors", "meshgrid", "nonzero",
    "where", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "std_mean", "var_mean", "_unique2", "unique_consecutive", "unique_dim", "_pack_padded_sequence",
    "_pad_packed_sequence", "native_layer_norm", "native_batch_norm",
}  # fmt: skip
"""Operators that give several tensors, as many whatever the sizes of their inputs are."""

_IN_PLACE = {
    f"i{name}": getattr(operator, word)
    for name, word in (
        ("add", "add"), ("and", "and_"), ("floordiv", "floordiv"), ("lshift", "lshift"),
        ("matmul", "matmul"), ("mul", "mul"), ("mod", "mod"), ("or", "or_"), ("pow", "pow"),
        ("rshift", "rshift"), ("sub", "sub"), ("truediv", "truediv"), ("xor", "xor"),
    )
}  # fmt: skip


def _scalar_tensor_kwargs(number: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``torch.tensor`` finds the type by the number, ``torch.scalar_tensor`` does not."""
    kind = torch.int64 if type(number) is int else torch.get_default_dtype()
    given = kwargs.get("dtype")
    return {**kwargs, "dtype": kind if given is None else given}


_KEEP_VALUE: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    torch.scalar_tensor: lambda number: number,
}
"""Operators on integers in tensors, and the same on symbolic numbers."""

_READS_ITEM = (operator.getitem, torch.Tensor.__getitem__, getitem)

_BOUNDED = frozenset({"clamp", "clamp_", "clip", "clip_"})


def _is_constructor_of_old(operation: Any) -> bool:
    """``torch.Tensor(…)``, ``torch.FloatTensor(…)`` and ``tensor.new(…)``."""
    if operation is torch.Tensor or operation is torch.Tensor.new:
        return True
    return type(operation) is type(torch.FloatTensor)


_ON_SYMBOLS: dict[Any, Callable[..., Any]] = {
    max: torch.sym_max,
    min: torch.sym_min,
    int: torch.sym_int,
    float: torch.sym_float,
    math.sqrt: torch.sym_sqrt,
}
"""Functions of numbers that would ask a symbolic one for its value, and those that do not."""


_FOR_PYTHON: set[Any] = {
    *(set(filter(callable, vars(math).values())) - {math.sqrt, math.floor, math.ceil}),
    as_number,
    choose,
}
"""Functions of numbers that symbolic ones have no counterpart of."""


def _is_for_python(expression: Computed) -> bool:
    """Whether a number comes into the graph from the mock, which can compute it."""
    by_python = expression.operation in _FOR_PYTHON or is_of_tensor(expression)
    return by_python and known_before_graph(expression)


REAL_NUMBERS = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
     torch.float32, torch.float64}
)  # fmt: skip
"""The element types that ``item()`` gives as an ``int`` or a ``float``."""


def graph_function(operation: Callable[..., Any]) -> Callable[..., Any]:
    """A function that ``torch.fx`` can name, for one that lies where its name does not lead to."""
    module = sys.modules.get(getattr(operation, "__module__", None) or "")
    if getattr(module, getattr(operation, "__name__", ""), None) is operation:
        return operation
    if isinstance(operation, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return operation
    if getattr(torch, getattr(operation, "__name__", ""), None) is operation:
        return operation

    def run(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    owner = getattr(operation, "__self__", None) or getattr(operation, "__objclass__", None)
    stem = getattr(owner, "__name__", "") or ""
    name = "_".join(filter(None, (stem, getattr(operation, "__name__", "operator"))))
    run.__name__ = re.sub(r"\W", "_", name)
    run.__qualname__ = run.__name__
    setattr(run, REPLAYED, operation)
    return run


_INFERS_DTYPE = {torch.tensor, torch.as_tensor, torch.asarray}


def _holds_array_scalar(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_array_scalar, value))
    return isinstance(value, np.generic)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, tuple | list) and any(map(_has_tensor, value))


class _ReplaceData(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def replace_data(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``tensor`` after ``tensor.data = value``: gradients still flow to where they did."""
    return _ReplaceData.apply(tensor, value.detach())
