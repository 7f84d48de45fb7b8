"""The operator graph: a ``torch.fx`` graph and the tensors it knows (section 4.3)."""

from __future__ import annotations

import operator
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.annotation.schema import DataShape
from magpy_like.refgraph.values import is_identity, is_plain

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class UnknownTensor(Exception):
    """An input of an operator is neither another's result nor was it read from outside."""


class OperatorGraph:
    """Tensor operators in the order in which the program ran them."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._known: dict[int, tuple[weakref.ref[Any], fx.Node]] = {}
        self.inputs: list[tuple[fx.Node, Any]] = []
        """Placeholders, each with the id of the ShadowNode of a tensor, or a lifted number."""
        self.expression: Callable[[Any], Any] = lambda value: None
        """Gives the expression of a lifted number, None for any other value."""
        self._numbers: dict[int, fx.Node] = {}
        self._objects: dict[int, fx.Node] = {}
        """By id, the placeholders of objects that stand for themselves, such as a configuration."""
        self._data_shapes: set[fx.Node] = set()
        self._scalars: set[fx.Node] = set()
        self._constants: dict[str, Any] = {}
        self.arrays: list[tuple[Any, Any]] = []
        """NumPy arrays that tensors share memory with, and copies of what they held."""
        self.operators = 0
        self.sets_modes = False
        """Whether an operator switches one of torch's modes other than the grad mode."""
        self.effects = False
        """Whether an operator has an effect beside its result, such as drawing random numbers."""

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The graph's node for a tensor that is alive, or None."""
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), node)

    def add_input(self, tensor: torch.Tensor, shadow_id: int) -> fx.Node:
        """A placeholder for a tensor that was there when the region was entered."""
        node = self._placeholder(shadow_id)
        self.know(tensor, node)
        return node

    def add_object(self, value: Any, shadow_id: int) -> None:
        """A placeholder for an object from outside that is no tensor; the RefGraph holds it."""
        if id(value) not in self._objects:
            self._objects[id(value)] = self._placeholder(shadow_id)

    def scalar(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        resolve: Callable[[torch.Tensor], fx.Node],
    ) -> fx.Node:
        """A number that is read from a tensor, such as ``t.item()``."""
        self.operators += 1
        tensor = resolve(args[0])
        if isinstance(operation, type):
            node = self.graph.call_function(operation, (tensor,))
        else:
            node = self.graph.call_method(operation.__name__, (tensor,))
        self._scalars.add(node)
        return node

    def compute(self, operation: Callable[..., Any], operands: Sequence[Any]) -> fx.Node:
        """Arithmetic on numbers of the graph."""
        parts = tuple(self._number(operand) or operand for operand in operands)
        operation = _IN_PLACE.get(operation.__name__, operation)
        node = self.graph.call_function(graph_function(operation), parts)
        self._scalars.add(node)
        return node

    def _number(self, value: Any) -> fx.Node | None:
        """The graph's node for a lifted number, or None for a constant."""
        expression = self.expression(value)
        if expression is None:
            return None
        if isinstance(getattr(expression, "node", None), fx.Node):
            return expression.node
        node = self._numbers.get(id(value))
        if node is None:
            node = self._numbers[id(value)] = self._placeholder(value)
            self._scalars.add(node)
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
    ) -> fx.Node:
        """Record that ``operation(*args, **kwargs)`` gave ``result``.

        Raises:
            UnknownTensor: a tensor among the inputs has no place in the graph.
        """
        if isinstance(operation, types.ClassMethodDescriptorType):
            operation, args = operation.__get__(None, args[0]), args[1:]
        if any(isinstance(arg, np.ndarray) for arg in args) and isinstance(result, torch.Tensor):
            if not any(isinstance(arg, torch.Tensor) for arg in (*args, *kwargs.values())):
                return self._adopt_array(args, result)
        fx_args = tuple(self._argument(arg, resolve) for arg in args)
        fx_kwargs = {name: self._argument(arg, resolve) for name, arg in kwargs.items()}
        if isinstance(operation, types.GetSetDescriptorType):
            node = self.graph.call_function(getattr, (fx_args[0], operation.__name__))
        elif isinstance(operation, _METHODS) and issubclass(
            operation.__objclass__, torch._C.TensorBase
        ):
            node = self.graph.call_method(operation.__name__, fx_args, fx_kwargs)
        else:
            if operation.__name__ in _IN_PLACE and not isinstance(fx_args[0], fx.Node):
                operation = _IN_PLACE[operation.__name__]  # 2.0 += t makes a new tensor
            node = self.graph.call_function(graph_function(operation), fx_args, fx_kwargs)
        self.operators += 1
        from_data = any(source in self._data_shapes for source in node.all_input_nodes) or (
            self._takes_number(node) and operation.__name__ not in _KEEPS_SHAPE
        )
        if from_data and type(result) in (tuple, list):
            # torch does not say whether the length of a plain sequence comes from a size.
            raise UnknownTensor("makes as many tensors as a size says that depends on data")
        if from_data or _depends_on_data(shape, args):
            self._data_shapes.add(node)
        self._adopt(node, result)
        return node

    def snapshot(self, node: fx.Node) -> fx.Node:
        """What a tensor of the graph holds at this point, whatever becomes of it later."""
        self.operators += 1
        return self.graph.call_method("clone", (self.graph.call_method("detach", (node,)),))

    def _takes_number(self, node: fx.Node) -> bool:
        return any(source in self._scalars for source in node.all_input_nodes)

    def has_data_shape(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's sizes may depend on the data of other tensors."""
        node = self.node_of(tensor)
        return node is not None and node in self._data_shapes

    def _argument(self, value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
        """An argument as ``torch.fx`` writes it: tensors become nodes, containers are rebuilt."""
        if isinstance(value, torch.Tensor):
            return resolve(value)
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
            parts = (value.start, value.stop, value.step)
            return slice(*(self._argument(part, resolve) for part in parts))
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            value = value.copy()
        elif not is_plain(value) and not is_identity(value) and _may_change(value):
            raise UnknownTensor(f"gives a {kind.__qualname__} to a tensor operator")
        if isinstance(value, Iterator):
            raise UnknownTensor(f"hands a {type(value).__qualname__} to an operator")
        return self._constant(value)

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
        return self.graph.create_node("get_attr", name)

    def _adopt(self, node: fx.Node, result: Any) -> None:
        """Learn which tensors an operator has made. One that is known already stays what it was."""
        if isinstance(result, torch.Tensor):
            if self.node_of(result) is None:
                self.know(result, node)
        elif isinstance(result, tuple | list):
            for i, item in enumerate(result):
                if _has_tensor(item):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    if node in self._data_shapes:
                        self._data_shapes.add(part)
                    self._adopt(part, item)

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph with these outputs, as a module."""
        self.graph.output(tuple(outputs))
        root = torch.nn.Module()
        for name, value in self._constants.items():
            if isinstance(value, torch.Tensor):
                root.register_buffer(name, value)
            else:
                setattr(root, name, value)
        return fx.GraphModule(root, self.graph, class_name="OperatorGraph")


def _may_change(value: Any) -> bool:
    """Whether an argument could be something else at the next call, or lead to tensors."""
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

_IN_PLACE = {
    f"i{name}": getattr(operator, word)
    for name, word in (
        ("add", "add"), ("and", "and_"), ("floordiv", "floordiv"), ("lshift", "lshift"),
        ("matmul", "matmul"), ("mul", "mul"), ("mod", "mod"), ("or", "or_"), ("pow", "pow"),
        ("rshift", "rshift"), ("sub", "sub"), ("truediv", "truediv"), ("xor", "xor"),
    )
}  # fmt: skip


def _depends_on_data(shape: DataShape, args: Sequence[Any]) -> bool:
    """Whether this call's output has sizes that depend on data."""
    if shape is DataShape.NEVER:
        return False
    if shape is DataShape.ALWAYS:
        return True
    if shape is DataShape.MASK_INDEX:
        index = args[1] if len(args) > 1 else None
        parts = index if isinstance(index, tuple | list) else (index,)
        return any(
            isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)
            for part in parts
        )
    if shape is DataShape.ONE_ARGUMENT:
        return len(args) == 1
    return any(isinstance(arg, torch.Tensor) for arg in args[1:])


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
    return run


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
