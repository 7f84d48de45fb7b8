"""Regions of ``torch.profiler.record_function`` in a program.

A matched call shows them to a profiler around the kernels that compute what they enclose. The
program cannot observe them, so the guard does not depend on whether a profiler is on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx
from torch.autograd.profiler import record_function

from magpy_like.graph_operators.node_metadata import PROFILER_REGIONS
from magpy_like.graph_operators.node_origins import ProfilerRegion, enclose, enclosing_regions
from magpy_like.native import NULL

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.monitor_suspension import Finish


_numbers = itertools.count()


class ProfilerLabels:
    """The regions that the program has entered while one graph was recorded."""

    def __init__(self) -> None:
        self._entered: list[tuple[record_function, ProfilerRegion]] = []
        """Those that it is in, the outermost first, with their labels."""
        self._left: list[ProfilerRegion] = []
        self._with_nodes: set[ProfilerRegion] = set()

    @property
    def _open(self) -> tuple[ProfilerRegion, ...]:
        """The regions that the program is in, the outermost first."""
        return tuple(region for _, region in self._entered)

    def enclose(self, node: fx.Node) -> None:
        """Note that the program calls a node's operator."""
        if self._entered:
            enclose(node, self._open)
            self._with_nodes.update(self._open)

    @property
    def left(self) -> tuple[ProfilerRegion, ...]:
        """The regions that the program has left, in the order in which they began."""
        return tuple(sorted(self._left))

    def enter(self, label: record_function, name: str, args: str | None) -> None:
        self._entered.append((label, ProfilerRegion(next(_numbers), name, args)))

    def leave(self, label: record_function) -> None:
        """Leave the innermost region of a label, if the program has entered it in this graph."""
        for index in reversed(range(len(self._entered))):
            if self._entered[index][0] is label:
                self._left.append(self._entered.pop(index)[1])
                return

    def finish(self, graph: fx.Graph, output: fx.Node) -> None:
        """Note the regions in the output node of a finished graph.

        One that the program is still in is a region of the code after a split: the mock makes its
        label. Nor is one whose nodes were erased, as are those of an iteration that an operator for
        the whole loop replaces.
        """
        still_open, kept = set(self._open), set[ProfilerRegion]()
        for node in graph.nodes:
            if regions := enclosing_regions(node):
                kept.update(regions)
                enclose(node, [region for region in regions if region not in still_open])
        erased = self._with_nodes - kept
        if found := tuple(region for region in self.left if region not in erased):
            output.meta[PROFILER_REGIONS] = found
        self._entered.clear()


def is_label(manager: Any) -> bool:
    """True for a context manager whose code is torch's own."""
    return type(manager) is record_function


def enter(context: Context, label: record_function) -> Finish:
    """Record ``label.__enter__()``, which is about to run and is not followed."""
    return context.suspension.until(_finish_entering, label)


def _finish_entering(context: Context, label: record_function, result: Any) -> None:
    name, args = (_without_lifted(context, text) for text in (label.name, label.args))
    context.recording.operators.nodes.graph.labels.enter(label, str(name), args)
    context.account()  # a label's methods call operators of torch


def _without_lifted(context: Context, text: str | None) -> str | None:
    """A label's text, which matched calls show; one that is formatted from lifted numbers differs
    between calls, and is no reason for a record of each: it has ``#`` for numbers."""
    if text is None or not context.lifted.any_lifted((text,)):
        return text
    return _NUMBER.sub("#", text)


_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")


def leave(context: Context, label: record_function) -> Finish:
    """Record ``label.__exit__(...)``, which is about to run and is not followed."""
    context.recording.operators.nodes.graph.labels.leave(label)
    return context.suspension.until(_finish_leaving, None)


def _finish_leaving(context: Context, _: None, result: Any) -> None:
    context.account()


METHODS: dict[Any, Callable[[Context, record_function], Finish]] = {
    record_function.__enter__: enter,
    record_function.__exit__: leave,
}
"""What records a call of a label's method."""


def label_of_exit(method: Any) -> record_function | None:
    """The label whose bound ``__exit__`` this is, or None."""
    label = getattr(method, "__self__", NULL)
    is_exit = getattr(method, "__func__", None) is record_function.__exit__
    return label if is_exit and is_label(label) else None
