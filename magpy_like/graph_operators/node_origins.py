"""What nodes of traced graphs know of the captured graph that they are from.

Torch's tracing passes a node's entry ``custom`` on to the nodes of the forward and the backward
graph, as it does ``stack_trace``. This project keeps two things in it: the regions of
``torch.profiler.record_function`` that enclose a node in the program, and its index in the captured
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import fx


class ProfilerRegion(NamedTuple):
    """One execution of a program's ``with record_function(name, args)``."""

    number: int
    """Counts those of the process in the order in which they begin."""
    name: str
    args: str | None


_REGIONS = "magpy_like.regions"
_INDEX = "magpy_like.index"


def enclose(node: fx.Node, regions: Sequence[ProfilerRegion]) -> None:
    """Note the regions that a node is in, the outermost first."""
    _note(node, _REGIONS, tuple(regions))


def enclosing_regions(node: fx.Node) -> tuple[ProfilerRegion, ...]:
    """The regions that a node is in, the outermost first."""
    found: tuple[ProfilerRegion, ...] = _custom(node).get(_REGIONS, ())
    return found


def number_nodes(graph: fx.Graph) -> None:
    """Note the index of each node, in this captured graph and in what torch traces from it."""
    for index, node in enumerate(graph.nodes):
        _note(node, _INDEX, index)


def captured_index(node: fx.Node) -> int | None:
    """The index in the captured graph of the node that this one is from."""
    found: int | None = _custom(node).get(_INDEX)
    return found


class OriginalNodes:
    """What the nodes of a graph knew before passes replaced them."""

    def __init__(self, gm: fx.GraphModule) -> None:
        nodes = [*gm.graph.nodes]
        self.stack_traces = [node.stack_trace for node in nodes]
        self.regions = [enclosing_regions(node) for node in nodes]
        self.captured = [captured_index(node) for node in nodes]
        self._names = {node.name: index for index, node in enumerate(nodes)}

    def index(self, node: fx.Node) -> int | None:
        """The index of a node, or of the first that is from the same node or line of the
        program."""
        found = self._names.get(node.name)
        if found is not None:
            return found
        for known, wanted in (
            (self.captured, captured_index(node)),
            (self.stack_traces, node.stack_trace),
        ):
            if wanted is not None and wanted in known:
                return known.index(wanted)
        return None


def _custom(node: fx.Node) -> dict[str, Any]:
    custom: dict[str, Any] = node.meta.get("custom") or {}
    return custom


def _note(node: fx.Node, key: str, value: Any) -> None:
    node.meta["custom"] = {**_custom(node), key: value}
