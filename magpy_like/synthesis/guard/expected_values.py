"""Sizes and numbers that a record expects, by access path, for the analysis of misses.

They are compared with calls that miss, and with the expected values of more general records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.access_paths import follow
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    EntryValue,
    Size,
    Stride,
    is_liftable,
)
from magpy_like.monitor.symbolic.memory_layouts import other_free_strides
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, Fact, Relation
from magpy_like.refgraph.plain_values import has_values
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables


@dataclass(frozen=True)
class TensorLayout:
    """Sizes and strides of a tensor, both in elements, and what else a guard checks of it."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    kind: tuple[Any, ...]


@dataclass
class ExpectedValues:
    """Numbers and tensors at external locations: their values in one recorded run, and ranges."""

    numbers: dict[Path, Any] = field(default_factory=dict)
    """The numbers that the guard compares."""
    layouts: dict[Path, TensorLayout] = field(default_factory=dict)
    """Layouts of the tensors that the guard checks."""
    size_ranges: dict[Path, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By tensor, the least and the largest size of each dimension that may vary."""
    specialized_at: dict[tuple[Path, int], str] = field(default_factory=dict)
    """By dimension, the position at which the program specializes its size."""
    lengths: dict[Path, int] = field(default_factory=dict)
    """Lengths of the fetched lists whose length the guard checks."""
    counts: dict[Path, int] = field(default_factory=dict)
    """Lengths of all lists and deques whose length the guard checks, fixed ones included."""
    names: dict[Path, str] = field(default_factory=dict)
    """The access paths as Python text."""
    stride_ranges: dict[Path, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By tensor, the least and the largest stride of each dimension whose stride may vary."""
    inner_dims: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    """By dimension, the next inner one that determines its stride; -1: the stride is fixed."""
    number_ranges: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """The least and the largest value of the lifted numbers that have bounds."""
    lifted: dict[Path, Any] = field(default_factory=dict)
    """Values of the lifted numbers."""
    conditions: list[tuple[Any, Any]] = field(default_factory=list)
    """Expressions over lifted sizes and numbers, each with its value."""
    paths: dict[int, Path] = field(default_factory=dict)
    """Access paths of the nodes in these expressions, by node id."""
    roots: dict[Relation, Any] = field(default_factory=dict)
    """The fixed objects at which access paths begin."""

    def current(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value at an access path in this call.

        Raises:
            LookupError, AttributeError, ...: the call has no such value.
        """
        first, *rest = path
        if first.kind is not RelationKind.LOCAL:
            value = self.roots[first]
        elif is_instance(first.key, int):
            value = args[first.key]
        else:
            value = kwargs[str(first.key)]
        for relation in rest:
            value = follow(value, relation)
        return value

    def admits(self, other: ExpectedValues) -> bool:
        """True if this record serves the sizes and numbers of another one."""
        for path, recorded in self.layouts.items():
            layout, inner = other.layouts.get(path), self.inner_dims.get(path)
            free = self.size_ranges.get(path, {}), self.stride_ranges.get(path, {})
            if layout is None or not _fits(layout, recorded, *free, inner):
                return False
        for path, value in self.lifted.items():
            number = other.numbers.get(path, other.lifted.get(path))
            if type(number) is not type(value):
                return False
            if path in self.number_ranges:
                least, most = self.number_ranges[path]
                if number is None or not least <= number <= most:
                    return False
        try:
            return all(
                _evaluate(condition, self.paths, other) == value
                for condition, value in self.conditions
            )
        except (LookupError, ArithmeticError, TypeError, ValueError):
            return False


def _fits(
    layout: TensorLayout,
    recorded: TensorLayout,
    free: dict[int, tuple[int, int]],
    free_strides: dict[int, tuple[int, int]],
    inner: tuple[int, ...] | None,
) -> bool:
    if inner is None:
        return layout == recorded
    sizes, strides = layout.sizes, layout.strides
    if layout.kind != recorded.kind or len(sizes) != len(recorded.sizes):
        return False
    for i, size in enumerate(sizes):
        least, most = free.get(i, (recorded.sizes[i], recorded.sizes[i]))
        follows = inner[i]
        stride = recorded.strides[i] if follows < 0 else sizes[follows] * strides[follows]
        lowest, highest = free_strides.get(i, (stride, stride))
        if not (least <= size <= most and lowest <= strides[i] <= highest):
            return False
    return True


def _evaluate(expression: Any, paths: dict[int, Path], sample: ExpectedValues) -> Any:
    if is_instance(expression, Computed):
        parts = (_evaluate(part, paths, sample) for part in expression.operands)
        return expression.operation(*parts)
    if is_instance(expression, Size):
        return sample.layouts[paths[expression.node.node_id]].sizes[expression.dim]
    if is_instance(expression, Stride):
        return sample.layouts[paths[expression.node.node_id]].strides[expression.dim]
    if is_instance(expression, EntryValue):
        path = paths[expression.node.node_id]
        return sample.numbers[path] if path in sample.numbers else sample.lifted[path]
    return expression


def expected_values(rec: Recording, guarded: GuardedVariables) -> ExpectedValues:
    """The sizes and numbers of a recording that a guard compares."""
    expected = ExpectedValues()
    for node in guarded.order:
        if node.type in (list, deque) and Fact.LENGTH in node.facts:
            path = rec.variables.path(node)
            contents = node.variable if node.contents is None else node.contents
            expected.counts[path] = len(contents)
            root = rec.variables.root(path[0])
            if root is not None:
                expected.roots.setdefault(path[0], root)
        if node.node_id in rec.reads.layouts and not guarded.is_fixed(node):
            path = rec.variables.path(node)
            kind = rec.reads.tensor_kinds[node.node_id]
            expected.layouts[path] = TensorLayout(*rec.reads.layouts[node.node_id], kind)
        elif node.type is list and Fact.LENGTH in node.facts and not guarded.is_fixed(node):
            path = rec.variables.path(node)
            contents = node.variable if node.contents is None else node.contents
            expected.lengths[path] = list.__len__(contents)
        elif node.plain and (is_liftable(node.first.value) or type(node.first.value) is bool):
            parent, relation = guarded.edges[node.node_id][0]
            if relation.key == "training" and is_instance(parent.variable, torch.nn.Module):
                continue  # a mode: each has graphs of its own
            if relation.kind is RelationKind.MEMBERSHIP:
                continue
            if type(node.first.value) is str and parent.node_id != EXTERNAL:
                continue
            path = rec.variables.location(parent, relation)
            if Fact.VALUE in node.facts:
                expected.numbers[path] = node.first.value
            elif node.node_id in rec.lifted.external.nodes:
                expected.lifted[path] = node.first.value
            else:
                continue
            if guarded.is_fixed(parent) and path[0].kind is not RelationKind.LOCAL:
                expected.roots[path[0]] = parent.variable
        else:
            continue
        expected.paths[node.node_id] = path
        root = rec.variables.root(path[0])
        if root is not None:
            expected.roots.setdefault(path[0], root)
    return expected


def other_lengths(
    record: ExpectedValues, lengths: dict[Path, int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Path]:
    """Access paths at which the length of a call's list differs from the recorded run."""
    for path, length in lengths.items():
        try:
            found = record.current(path, args, kwargs)
        except Exception:  # the call has no such value
            continue
        if type(found) in (list, deque) and len(found) != length:
            yield path


def differences(
    record: ExpectedValues, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Path, int | None]]:
    """Access paths at which a number, or the size of a tensor, differs from the recorded run.

    Types and numbers of dimensions must agree.

    Yields:
        Pairs of access path and dimension (None for a number).
    """
    for path, value in record.numbers.items():
        try:
            found = record.current(path, args, kwargs)
        except Exception:  # the call has no such value
            continue
        if type(found) is type(value) and found != value:
            yield path, None
    for path, layout, found in _tensors_of_same_rank(record, args, kwargs):
        free = record.size_ranges.get(path, {})
        for dim, size in enumerate(layout.sizes):
            least, most = free.get(dim, (size, size))
            if found.shape[dim] != size and least == most:
                yield path, dim


def _tensors_of_same_rank(
    record: ExpectedValues, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Path, TensorLayout, torch.Tensor]]:
    """Access paths, recorded layouts and tensors of a call, where both have as many dimensions.

    A nested tensor has no sizes to compare.
    """
    for path, layout in record.layouts.items():
        try:
            found = record.current(path, args, kwargs)
        except Exception:  # the call has no such value
            continue
        if not is_instance(found, torch.Tensor) or found.is_nested:
            continue
        if found.dim() == len(layout.sizes):
            yield path, layout, found


def other_strides(
    record: ExpectedValues, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Path, int]]:
    """Access paths of tensors, and dimensions in which their stride differs from the recorded run
    as that of another window does.

    A stride that only follows other sizes does not differ.
    """
    for path, layout, found in _tensors_of_same_rank(record, args, kwargs):
        if found.layout is not torch.strided or not has_values(found):
            continue
        free = record.stride_ranges.get(path, {})
        strides = other_free_strides(layout.sizes, layout.strides, found.shape, found.stride())
        for dim in strides:
            least, most = free.get(dim, (0, 0))
            if least == most:
                yield path, dim
