"""Where the regions of a program begin and end in a sequence of steps that compute its operators.

A region of ``record_function`` encloses operators; a step, such as a kernel, may compute operators
of several regions. A region spans all steps from the first to the last that computes one of its
operators. Of two that would overlap in part, the later one begins where the earlier one has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import NamedTuple

from magpy_like.graph_operators.node_origins import ProfilerRegion


class Span(NamedTuple):
    """The steps that a region encloses, both ends included."""

    region: ProfilerRegion
    first: int
    last: int


def spans(steps: Sequence[Collection[ProfilerRegion]]) -> list[Span]:
    """The spans of regions in steps, properly nested, in the order in which they begin.

    ``steps`` has, per step, the regions of the operators that it computes.
    """
    found: dict[ProfilerRegion, tuple[int, int]] = {}
    for index, regions in enumerate(steps):
        for region in regions:
            first, _ = found.get(region, (index, index))
            found[region] = first, index
    waiting = [(first, -last, region) for region, (first, last) in found.items()]
    heapq.heapify(waiting)
    nested: list[Span] = []
    enclosing: list[int] = []
    """The last steps of the spans that have begun, the innermost last."""
    while waiting:
        first, minus_last, region = heapq.heappop(waiting)
        while enclosing and enclosing[-1] < first:
            enclosing.pop()
        if enclosing and enclosing[-1] < -minus_last:  # it would overlap in part
            heapq.heappush(waiting, (enclosing[-1] + 1, minus_last, region))
            continue
        nested.append(Span(region, first, -minus_last))
        enclosing.append(-minus_last)
    return nested
