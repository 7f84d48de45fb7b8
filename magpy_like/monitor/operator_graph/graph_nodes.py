"""Nodes of the operator graph: placeholders, constants, and the node of each tensor.

A tensor is the value of one node for as long as it lives. The placeholders come first, in the order
in which the program read their variables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.checkpoint_operator import fold_checkpoints
from magpy_like.graph_operators.node_metadata import AS_IS, ON_GPU, TWIN
from magpy_like.monitor.operator_graph.profiler_labels import ProfilerLabels
from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import MonitorWeakRef
from magpy_like.torch_compat.tracing.unobserved_modules import (
    UnobservedGraphModule,
    UnobservedModule,
)


class LocatedGraph(fx.Graph):
    """A graph whose calls note the line of the program that makes them, as a stack trace, and the
    regions of ``record_function`` that it is in.

    Torch's tracing passes both on to the nodes of the forward and the backward graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.locate: Callable[[], str] = nowhere
        """Returns the program's present line."""
        self.labels = ProfilerLabels()
        """The regions of ``record_function`` that the program is in."""

    def create_node(self, op: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(op, *args, **kwargs)
        if op.startswith("call"):
            if line := self.locate():
                node.stack_trace = line
            self.labels.enclose(node)
        return node


def nowhere() -> str:
    """The line of a node that the program does not add."""
    return ""


class GraphNodes:
    """A ``torch.fx`` graph, and the nodes of live tensors and objects."""

    def __init__(self) -> None:
        self.graph = LocatedGraph()
        self.twin: SymbolicTwin | None = None
        """Runs each operator on symbolic sizes too; None without dynamic dimensions."""
        self._twins: dict[fx.Node, Any] = {}
        """The twins of a finished graph's nodes, for the code after a split."""
        self._known: dict[int, tuple[MonitorWeakRef, fx.Node]] = {}
        self.inputs: list[tuple[fx.Node, Any]] = []
        """Placeholders, each with the id of a ShadowNode, or an expression."""
        self.example_values: dict[Any, Any] = {}
        """Values in this run of input expressions that are no lifted numbers."""
        self.objects: dict[int, fx.Node] = {}
        """By id, the placeholders of objects, such as a configuration."""
        self.constants: dict[str, Any] = {}
        """The values of ``get_attr`` nodes, by target."""
        self.operator_count = 0
        """The number of operators, without arithmetic on numbers."""

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node of a live tensor, or None."""
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def live_tensors(self) -> Iterator[tuple[torch.Tensor, fx.Node]]:
        """The live tensors of the graph, with their nodes."""
        alive = [(held(), node) for held, node in self._known.values()]
        return ((tensor, node) for tensor, node in alive if tensor is not None)

    def set_node(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._known[id(tensor)] = (MonitorWeakRef(tensor), node)
        if tensor.is_cuda:
            node.meta[ON_GPU] = True

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The symbolic twin of an operator's result or input, or None."""
        node = self.node_of(tensor)
        return None if node is None else node.meta.get(TWIN, self._twins.get(node))

    def add_placeholder(self, source: Any) -> fx.Node:
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

    def add_input(self, tensor: torch.Tensor, shadow_id: int) -> fx.Node:
        """A placeholder for an external tensor."""
        node = self.add_placeholder(shadow_id)
        if self.twin is not None:
            self.twin.add_placeholder(node, tensor, shadow_id)
        self.set_node(tensor, node)
        return node

    def add_drawn(self, tensor: torch.Tensor, drawn: Expression) -> None:
        """A placeholder for a tensor that the mock computes from random numbers."""
        node = self.add_placeholder(drawn)
        self.example_values[drawn] = tensor
        if self.twin is not None:
            node.meta[TWIN] = self.twin.static_fake(tensor)
        self.set_node(tensor, node)

    def add_object(self, value: Any, shadow_id: int) -> None:
        """A placeholder for an external object that is no tensor; the RefGraph holds it."""
        if id(value) not in self.objects:
            node = self.objects[id(value)] = self.add_placeholder(shadow_id)
            node.meta[TWIN] = value

    def add_constant(self, value: Any) -> fx.Node:
        """A node for an object without source text: an attribute of the graph's module."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        node = self.graph.create_node("get_attr", name)
        if self.twin is not None:
            self.twin.run_node(node, self.constants, value)
        return node

    def is_constant_tensor(self, node: fx.Node) -> bool:
        value = self.constants.get(str(node.target)) if node.op == "get_attr" else None
        return is_instance(value, torch.Tensor)

    def generators(self) -> list[torch.Generator]:
        """The generators that operators draw from, except torch's own."""
        return [g for g in self.constants.values() if is_instance(g, torch.Generator)]

    def add_grad_fn(self, tensor: fx.Node) -> fx.Node:
        """The autograd node of a tensor at this point."""
        node = self.graph.call_function(getattr, (tensor, "grad_fn"))
        node.meta[AS_IS] = "is read by the program"
        return node

    def add_snapshot(self, node: fx.Node) -> fx.Node:
        """A copy of a tensor at this point, independent of later writes."""
        self.operator_count += 1
        return self.graph.call_method("clone", (self.graph.call_method("detach", (node,)),))

    def erase_unused(self, numbers: Collection[fx.Node], outputs: Collection[fx.Node]) -> None:
        """Erase those of the ``numbers`` that neither the graph nor its outputs use."""
        for node in reversed(self.graph.nodes):
            if node in numbers and not node.users and node not in outputs:
                self.graph.erase_node(node)

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph with these outputs, as a module."""
        self.graph.locate = nowhere
        self.graph.labels.finish(self.graph, self.graph.output(tuple(outputs)))
        for node in self.graph.nodes:
            if TWIN in node.meta:
                self._twins[node] = node.meta.pop(TWIN)
        root = UnobservedModule()
        for name, value in self.constants.items():
            if is_instance(value, torch.Tensor):
                root.register_buffer(name, value)
            else:
                setattr(root, name, value)
        graph = UnobservedGraphModule(root, self.graph, class_name="OperatorGraph")
        fold_checkpoints(graph)
        return graph
