"""The bound on the memory of CUDA graphs: the least recently replayed make room for new ones."""

from __future__ import annotations

import functools
import weakref
from typing import Protocol

import torch

from magpy_like.compiler.runtime.cuda_graphs.captured_graph import CapturedGraph

MAX_MEMORY_SHARE = 0.2
"""Largest share of a GPU's memory that graphs hold."""


class Site(Protocol):
    """The holder of a graph."""

    def drop(self, graph: CapturedGraph) -> None: ...


_sites: dict[int, weakref.WeakKeyDictionary[CapturedGraph, weakref.ref[Site]]] = {}
"""GPU -> graph -> its holder."""


def add(graph: CapturedGraph, site: Site, gpu: int) -> None:
    """Count a new graph, and drop the least recently replayed ones beyond the bound.

    Results of a dropped graph that somebody holds stay.
    """
    graphs = _sites.setdefault(gpu, weakref.WeakKeyDictionary())
    held = graph.nbytes + sum(other.nbytes for other in graphs)
    for old in sorted(graphs, key=lambda other: other.last_replay):
        if held <= MAX_MEMORY_SHARE * _total_memory(gpu):
            break
        held -= old.nbytes
        holder = graphs.pop(old)()
        if holder is not None:
            holder.drop(old)
    graphs[graph] = weakref.ref(site)


@functools.cache
def _total_memory(gpu: int) -> int:
    total: int = torch.cuda.get_device_properties(gpu).total_memory
    return total
