"""Facts of a compiled graph that decide if it may become a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx

from magpy_like.graph_operators.node_metadata import source_line


@dataclass(frozen=True)
class GraphFacts:
    """Facts of a compiled graph that decide about its capture, known when it is compiled.

    ``gpu``: index of the only GPU that it uses; None without one
    ``obstacle``: why it cannot be captured, with the operator; None if it can
    ``obstacle_node``: index of the ATen node that is the obstacle, or is from the same line of the
    program
    ``lendable``: positions of results that only the backward pass reads, or a program's gradients
    ``symbolic``: do sizes differ between calls?
    """

    gpu: int | None
    obstacle: str | None
    lendable: tuple[int, ...]
    symbolic: bool
    obstacle_node: int | None = None

    def located(self, lines: Lines) -> GraphFacts:
        """These facts with the program's line in the obstacle."""
        line = self.line(lines)
        return self if line is None else replace(self, obstacle=f"{self.obstacle} ({line})")

    def line(self, lines: Lines) -> str | None:
        """The program's line in which the obstacle is."""
        if self.obstacle_node is None or not lines:
            return None
        return [*lines.values()][self.obstacle_node]


Lines = Mapping[str, str | None]
"""Name of each node of a graph, before any pass -> the program's line, ``file:line``."""


def source_lines(gm: fx.GraphModule) -> Lines:
    """The program's lines that the nodes of a graph are from."""
    return {node.name: source_line(node.stack_trace) for node in gm.graph.nodes}


def find_line(gm: fx.GraphModule, line: str | None) -> int | None:
    """The index of the first node of a graph that is from this line of the program."""
    alike = (k for k, n in enumerate(gm.graph.nodes) if source_line(n.stack_trace) == line)
    return None if line is None else next(alike, None)
