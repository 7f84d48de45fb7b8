"""Graphs that run operator by operator: the program's regions around the operators.

Where no profiler is on, the graph runs as it is.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from torch import fx
from torch.profiler import record_function

from magpy_like.graph_operators.node_metadata import PROFILER_REGIONS
from magpy_like.graph_operators.node_origins import ProfilerRegion, enclosing_regions
from magpy_like.graph_operators.region_spans import spans
from magpy_like.torch_compat.profiler import is_profiled
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule


def interpreted(gm: fx.GraphModule) -> Callable[..., Any]:
    """``gm.forward``, which shows the program's regions to a profiler."""
    if not _all_regions(gm):
        return cast(Callable[..., Any], gm.forward)
    with_regions = functools.cache(lambda: _with_regions(gm))

    def run(*args: Any) -> Any:
        return with_regions()(*args) if is_profiled() else gm.forward(*args)

    return run


def show_regions(
    call: Callable[..., Any], regions: Collection[ProfilerRegion]
) -> Callable[..., Any]:
    """``call`` after these regions, which are empty: the graph has no step to show."""
    if not regions:
        return call

    def run(*args: Any) -> Any:
        if is_profiled():
            show_empty(regions)
        return call(*args)

    return run


def show_empty(regions: Collection[ProfilerRegion]) -> None:
    """Show empty regions to a profiler."""
    for region in regions:
        with record_function(region.name, region.args):
            pass


def regions_of(gm: fx.GraphModule) -> tuple[ProfilerRegion, ...]:
    """The regions that the program has left while a graph was recorded."""
    found: tuple[ProfilerRegion, ...] = gm.graph.output_node().meta.get(PROFILER_REGIONS, ())
    return found


def _all_regions(gm: fx.GraphModule) -> dict[ProfilerRegion, None]:
    """The regions of a graph or of a part of one."""
    found = dict.fromkeys(regions_of(gm))
    for node in gm.graph.nodes:
        found |= dict.fromkeys(enclosing_regions(node))
    return found


def _with_regions(gm: fx.GraphModule) -> Callable[..., Any]:
    graph = copy.deepcopy(gm.graph)
    steps = [node for node in graph.nodes if node.op.startswith("call")]
    regions = _all_regions(gm)
    add_regions(graph, steps, [enclosing_regions(node) for node in steps])
    spanning = set().union(*map(enclosing_regions, steps))
    empty = [region for region in regions if region not in spanning]
    return show_regions(UnobservedGraphModule(gm, graph).forward, empty)


def add_regions(
    graph: fx.Graph, steps: Sequence[fx.Node], regions: Sequence[Collection[ProfilerRegion]]
) -> None:
    """Add nodes to a graph that show regions to a profiler, around the steps that are in them."""
    begun: list[tuple[int, fx.Node]] = []
    for span in spans(regions):
        with graph.inserting_before(steps[span.first]):
            node = graph.call_function(begin_region, (span.region.name, span.region.args))
        begun.append((span.last, node))
    for last, node in begun:  # the innermost of regions with a common end is to end first
        with graph.inserting_after(steps[last]):
            graph.call_function(end_region, (node,))


def begin_region(name: str, args: str | None) -> record_function | None:
    """A region that has begun, if a profiler records this thread. It ends when it is released, if
    an operator raises."""
    return record_function(name, args).__enter__() if is_profiled() else None


def end_region(region: record_function | None) -> None:
    if region is not None:
        region.__exit__(None, None, None)
