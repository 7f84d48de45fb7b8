"""Inputs and outputs of a mock: fetched variables, and results of the operator graph."""

from __future__ import annotations

import torch
from torch import fx

from magpy_like.monitor.recording import Recording
from magpy_like.refgraph import ShadowNode
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source
from magpy_like.synthesis.guard.guard_builder import GuardBuilder
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables


class MockInterface:
    """Names of external variables and of the operator graph's outputs in a mock."""

    def __init__(
        self, rec: Recording, guarded: GuardedVariables, guard: GuardBuilder, source: Source
    ) -> None:
        self._rec, self._guarded, self._guard, self._source = rec, guarded, guard, source
        self.parameters: dict[int, str] = {}
        """Names of the fetched variables that the guard passes to the mock, by node id."""
        self.outputs: list[fx.Node] = []
        """The outputs of the operator graph, in order."""
        self._output_names: dict[fx.Node, str] = {}

    def existing(self, node: ShadowNode) -> str:
        """The name of an external variable.

        Raises:
            Split: the guard does not fetch it.
        """
        variables = self._guard.writer.variables
        if node.plain and node.node_id not in variables:
            return self._guard.lifted.name_of_number(node, self._source)
        if self._guarded.is_fixed(node):
            return self._source.constant(node.variable, node.type.__name__.lower())
        name = variables.get(node.node_id)
        if name is None:
            raise Split(
                SplitReason.UNREACHABLE_VARIABLE,
                f"leaves an external {node.type.__qualname__} that a later call cannot find",
            )
        self.parameters[node.node_id] = name
        return name

    def output(self, tensor: torch.Tensor) -> str | None:
        """The name of an output of the operator graph; None for an external tensor."""
        if self._rec.variables.node(tensor) is not None:
            return None
        node = self._rec.operators.nodes.node_of(tensor)
        return None if node is None else self.graph_output(node)

    def graph_output(self, node: fx.Node) -> str:
        """The name of a node's value, which becomes an output of the operator graph."""
        name = self._output_names.get(node)
        if name is None:
            name = self._output_names[node] = f"out{len(self.outputs)}"
            self.outputs.append(node)
        return name
