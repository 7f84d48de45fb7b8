"""Branches and loops on the operator graph: operators that run graphs, and these graphs.

A part of the graph becomes a graph of its own with placeholders for its inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import LIST, NUMBER, TWIN
from magpy_like.monitor.operator_graph.graph_nodes import GraphNodes
from magpy_like.monitor.operator_graph.graph_numbers import GraphNumbers
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.tracing.unobserved_modules import (
    UnobservedGraphModule,
    UnobservedModule,
)
from magpy_like.torch_patches import transient_graph_sources


class GraphControl:
    """The nodes of branches and loops."""

    def __init__(self, nodes: GraphNodes, numbers: GraphNumbers) -> None:
        self._nodes, self._numbers = nodes, numbers

    def subgraph(
        self, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], outputs: Sequence[Any]
    ) -> fx.GraphModule:
        """A part of this graph as a graph of its own; ``outputs`` are nodes and plain numbers."""
        graph = fx.Graph()
        copies = {node: graph.placeholder(f"operand_{i}") for i, node in enumerate(inputs)}
        for node, copy in copies.items():
            copy.meta |= {key: node.meta.get(key, False) for key in (NUMBER, LIST)}
        root = UnobservedModule()
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                setattr(root, str(node.target), self._nodes.constants[str(node.target)])
        graph.output(tuple(copies[n] if is_instance(n, fx.Node) else n for n in outputs))
        with transient_graph_sources():
            return UnobservedGraphModule(root, graph, class_name="Subgraph")

    def condition_graph(self, inputs: Sequence[fx.Node], stays: bool) -> fx.GraphModule:
        """The graph of a loop's condition: true if the first of its inputs is ``stays``."""
        graph = fx.Graph()
        first, *_ = [graph.placeholder(f"operand_{i}") for i in range(len(inputs))]
        graph.output(first if stays else graph.call_function(torch.logical_not, (first,)))
        with transient_graph_sources():
            return UnobservedGraphModule(UnobservedModule(), graph, class_name="Condition")

    def add_truth(self, test: fx.Node, predicate: torch.Tensor) -> fx.Node:
        """The truth of a tensor as a ``bool`` tensor without dimensions."""
        if predicate.dtype is not torch.bool:
            test = self._nodes.graph.call_method("to", (test, torch.bool))
        return self._nodes.graph.call_method("reshape", (test, ())) if predicate.dim() else test

    def add_condition(self, operation: Callable[..., Any], operands: Sequence[Any]) -> fx.Node:
        """A condition on numbers, some of them the graph's, as a Python number."""
        parts = tuple(self._numbers.value_node(operand, _no_tensor) for operand in operands)
        node = self._nodes.graph.call_function(operation, parts)
        node.meta[NUMBER] = True
        return node

    def add_row(self, tensor: fx.Node, index: fx.Node) -> fx.Node:
        """A row of a tensor, whose sizes do not depend on the index."""
        node = self._nodes.graph.call_function(torch.select, (tensor, 0, index))
        if self._nodes.twin is not None and TWIN in tensor.meta:
            self._nodes.twin.run_node(node, self._nodes.constants, None)
        return node

    def add_reversed(self, elements: fx.Node) -> fx.Node:
        """A list of the graph, reversed."""
        node = self._nodes.graph.call_function(reversed_elements, (elements,))
        node.meta[LIST] = True
        return node

    def add_row_writes(self, tensor: fx.Node, dim: int, rows: slice, found: fx.Node) -> None:
        """Write the tensors of a loop's list to the ``rows`` of a tensor along a dimension."""
        stacked = self._nodes.graph.call_function(torch.stack, (found, dim))
        key = (*[slice(None)] * dim, rows)
        self._nodes.graph.call_function(operator.setitem, (tensor, key, stacked))
        self._nodes.operator_count += 2

    def add_symbol(self, number: bool, twin: Any = None) -> fx.Node:
        """A symbol of a loop-carried value, until the loop's graphs are made.

        ``twin`` is that of the value in every iteration; no size may follow from a number.
        """
        node = self._nodes.graph.call_function(loop_symbol)
        if twin is not None:
            node.meta[TWIN] = twin
        if number:
            self._numbers.unknown.add(node)
            node.meta[NUMBER] = True
        return node

    def add_control(
        self,
        operation: Callable[..., Any],
        before: Sequence[Any],
        graphs: Sequence[fx.GraphModule],
        after: Sequence[Any],
        numbers: Sequence[bool],
    ) -> list[fx.Node]:
        """The results of an operator that runs graphs; ``numbers``: which of them are numbers."""
        parts = [self._nodes.add_constant(graph) for graph in graphs]
        node = self._nodes.graph.call_function(operation, (*before, *parts, *after))
        self._nodes.operator_count += 1
        results = []
        for i, number in enumerate(numbers):
            results.append(self._nodes.graph.call_function(operator.getitem, (node, i)))
            results[-1].meta[NUMBER] = number
            if number:
                self._numbers.unknown.add(results[-1])
        return results


def reversed_elements(elements: Any) -> Any:
    return elements[::-1]


def _no_tensor(value: Any) -> fx.Node:
    raise AssertionError(f"{value} is no number")


def loop_symbol() -> Any:
    raise AssertionError("a symbol is replaced before its graph runs")
