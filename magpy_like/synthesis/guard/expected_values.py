"""What a record expects of sizes and numbers, place by place: what an analysis of misses needs.

A later call that misses is compared with it, and so is a more general record with a special one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.access_paths import lookup
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Computed, EntryValue, Size, is_liftable
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, Fact, Relation
from magpy_like.synthesis.guard.access_places import Places


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of a tensor, both in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class Expected:
    """Of one record: what numbers and tensors were at places outside, and what they may be."""

    numbers: dict[Path, Any] = field(default_factory=dict)
    """The numbers that the guard compares."""
    layouts: dict[Path, Layout] = field(default_factory=dict)
    """Of the tensors that the guard checks, in the recorded run."""
    free: dict[Path, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """Of tensors with dimensions that may vary: the least and the largest size of each."""
    reasons: dict[tuple[Path, int], str] = field(default_factory=dict)
    """For each dimension that could vary, but does not: where the program relies on its size."""
    lengths: dict[Path, int] = field(default_factory=dict)
    """Of lists that the guard checks the lengths of."""
    counts: dict[Path, int] = field(default_factory=dict)
    """The same of deques, too, and of what is the same object at every call."""
    names: dict[Path, str] = field(default_factory=dict)
    """How a person would write these places."""
    inner: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    """And, by dimension, the next inner one that its stride follows from; -1: it is fixed."""
    bounds: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """The least and the largest value of lifted numbers that are compared with such."""
    lifted: dict[Path, Any] = field(default_factory=dict)
    """What the lifted numbers were."""
    conditions: list[tuple[Any, Any]] = field(default_factory=list)
    """Expressions over both, and what they must give."""
    places: dict[int, Path] = field(default_factory=dict)
    """By the id of a node in these expressions."""
    roots: dict[Relation, Any] = field(default_factory=dict)
    """The objects that the ways to these places begin at, where they are no arguments."""
    about_lifted: set[str] = field(default_factory=set)
    """The guard's sentences about what may vary."""

    def now(self, place: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is at a place at this call. Raises an error of Python's when there is no way."""
        first, *rest = place
        if first.kind is not RelationKind.LOCAL:
            value = self.roots[first]
        elif is_instance(first.key, int):
            value = args[first.key]
        else:
            value = kwargs[str(first.key)]
        for relation in rest:
            value = lookup(value, relation)
        return value

    def admits(self, other: Expected) -> bool:
        """Whether the sizes and numbers of another record are among those that this one serves."""
        for place, free in self.free.items():
            layout = other.layouts.get(place)
            if layout is None or not _fits(layout, self.layouts[place], free, self.inner[place]):
                return False
        for place, value in self.lifted.items():
            found = other.numbers.get(place, other.lifted.get(place))
            if type(found) is not type(value):
                return False
            if place in self.bounds:
                least, most = self.bounds[place]
                if found is None or not least <= found <= most:
                    return False
        try:
            return all(
                _evaluate(condition, self.places, other) == value
                for condition, value in self.conditions
            )
        except (LookupError, ArithmeticError, TypeError, ValueError):
            return False


def _fits(
    layout: Layout, recorded: Layout, free: dict[int, tuple[int, int]], inner: tuple[int, ...]
) -> bool:
    sizes, strides = layout.sizes, layout.strides
    if len(sizes) != len(recorded.sizes):
        return False
    for i, size in enumerate(sizes):
        least, most = free.get(i, (recorded.sizes[i], recorded.sizes[i]))
        follows = inner[i]
        stride = recorded.strides[i] if follows < 0 else sizes[follows] * strides[follows]
        if not least <= size <= most or strides[i] != stride:
            return False
    return True


def _evaluate(expression: Any, places: dict[int, Path], sample: Expected) -> Any:
    if is_instance(expression, Computed):
        parts = (_evaluate(part, places, sample) for part in expression.operands)
        return expression.operation(*parts)
    if is_instance(expression, Size):
        return sample.layouts[places[expression.node.node_id]].sizes[expression.dim]
    if is_instance(expression, EntryValue):
        place = places[expression.node.node_id]
        return sample.numbers[place] if place in sample.numbers else sample.lifted[place]
    return expression


def expected(rec: Recording, places: Places) -> Expected:
    """What a recording has met that a guard compares."""
    found = Expected()
    for node in places.order:
        if node.type in (list, deque) and Fact.LENGTH in node.facts:
            place = rec.path(node)
            contents = node.variable if node.contents is None else node.contents
            found.counts[place] = len(contents)
            root = rec.root(place[0])
            if root is not None:
                found.roots.setdefault(place[0], root)
        if node.node_id in rec.layouts and not places.is_fixed(node):
            place = rec.path(node)
            found.layouts[place] = Layout(*rec.layouts[node.node_id])
        elif node.type is list and Fact.LENGTH in node.facts and not places.is_fixed(node):
            place = rec.path(node)
            contents = node.variable if node.contents is None else node.contents
            found.lengths[place] = list.__len__(contents)
        elif node.plain and (is_liftable(node.first.value) or type(node.first.value) is bool):
            parent, relation = places.edges[node.node_id][0]
            if relation.key == "training" and is_instance(parent.variable, torch.nn.Module):
                continue  # a mode: each has graphs of its own
            if relation.kind is RelationKind.MEMBERSHIP:
                continue
            if type(node.first.value) is str and parent.node_id != EXTERNAL:
                continue
            place = rec.place(parent, relation)
            if Fact.VALUE in node.facts:
                found.numbers[place] = node.first.value
            elif node.node_id in rec.lifted.nodes:
                found.lifted[place] = node.first.value
            else:
                continue
            if places.is_fixed(parent) and place[0].kind is not RelationKind.LOCAL:
                found.roots[place[0]] = parent.variable
        else:
            continue
        found.places[node.node_id] = place
        root = rec.root(place[0])
        if root is not None:
            found.roots.setdefault(place[0], root)
    return found


def other_lengths(
    record: Expected, lengths: dict[Path, int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Path]:
    """The places at which a call has a list of another length than the recorded run."""
    for place, length in lengths.items():
        try:
            found = record.now(place, args, kwargs)
        except Exception:  # the call has nothing there
            continue
        if type(found) in (list, deque) and len(found) != length:
            yield place


def differences(
    record: Expected, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Path, int | None]]:
    """The places at which a call has another number, or a tensor of another size (and dimension),
    than the recorded run. Everything else about them is as it was."""
    for place, value in record.numbers.items():
        try:
            found = record.now(place, args, kwargs)
        except Exception:  # the call has nothing there
            continue
        if type(found) is type(value) and found != value:
            yield place, None
    for place, layout in record.layouts.items():
        try:
            found = record.now(place, args, kwargs)
        except Exception:
            continue
        if not is_instance(found, torch.Tensor) or found.dim() != len(layout.sizes):
            continue
        free = record.free.get(place, {})
        for dim, size in enumerate(layout.sizes):
            least, most = free.get(dim, (size, size))
            if found.shape[dim] != size and least == most:
                yield place, dim
