"""The operator graph of a monitor run: a ``torch.fx`` graph and the tensors it knows (section 4.3)."""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class UnknownTensor(Exception):
    """An operator has an input that no recorded operator made and that was not read from outside."""


class OperatorGraph:
    """Tensor operators in the order in which the program ran them."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._known: dict[int, tuple[weakref.ref[Any], fx.Node]] = {}
        self.inputs: list[tuple[fx.Node, int]] = []
        """Placeholders and the ids of the ShadowNodes they stand for."""
        self.operators = 0
        self.effects = False
        """Whether some operator has an effect beside its result, such as a draw of random numbers."""

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The graph's node for a tensor that is alive, or None."""
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), node)

    def add_input(self, tensor: torch.Tensor, shadow_id: int) -> fx.Node:
        """A placeholder for a tensor that was there when the region was entered."""
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
        self.inputs.append((node, shadow_id))
        self.know(tensor, node)
        return node

    def add_operator(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        resolve: Callable[[torch.Tensor], fx.Node],
    ) -> None:
        """Record that ``operation(*args, **kwargs)`` gave ``result``.

        Raises:
            UnknownTensor: a tensor among the inputs has no place in the graph.
        """
        fx_args = tuple(_to_graph(arg, resolve) for arg in args)
        fx_kwargs = {name: _to_graph(arg, resolve) for name, arg in kwargs.items()}
        if isinstance(operation, types.GetSetDescriptorType):
            node = self.graph.call_function(getattr, (fx_args[0], operation.__name__))
        elif isinstance(operation, _METHODS) and issubclass(
            operation.__objclass__, torch._C.TensorBase
        ):
            node = self.graph.call_method(operation.__name__, fx_args, fx_kwargs)
        else:
            node = self.graph.call_function(operation, fx_args, fx_kwargs)
        self.operators += 1
        self._adopt(node, result)

    def _adopt(self, node: fx.Node, result: Any) -> None:
        """Learn which tensors an operator has made. One that is known already stays what it was."""
        if isinstance(result, torch.Tensor):
            if self.node_of(result) is None:
                self.know(result, node)
        elif isinstance(result, tuple | list):
            for i, item in enumerate(result):
                if _has_tensor(item):
                    self._adopt(self.graph.call_function(operator.getitem, (node, i)), item)

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph with these outputs, as a module."""
        self.graph.output(tuple(outputs))
        return fx.GraphModule(torch.nn.Module(), self.graph, class_name="OperatorGraph")



def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, tuple | list) and any(map(_has_tensor, value))


def _to_graph(value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
    """An argument as ``torch.fx`` writes it: tensors become nodes, containers are rebuilt."""
    if isinstance(value, torch.Tensor):
        return resolve(value)
    kind = type(value)
    if kind is torch.Size or kind is tuple:
        return tuple(_to_graph(item, resolve) for item in value)
    if kind is list:
        return [_to_graph(item, resolve) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_to_graph(item, resolve) for item in value))
    if kind is dict:
        return {key: _to_graph(item, resolve) for key, item in value.items()}
    if kind is slice:
        return slice(
            _to_graph(value.start, resolve),
            _to_graph(value.stop, resolve),
            _to_graph(value.step, resolve),
        )
    return value
