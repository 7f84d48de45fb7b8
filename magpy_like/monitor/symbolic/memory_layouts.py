"""How a tensor's elements lie in memory: which strides follow from sizes, and which are free.

A *free* stride is that of a window on a larger tensor: it depends on the sizes of the larger one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any


def inner_first(strides: Sequence[int]) -> list[int]:
    """The dimensions by stride, the smallest one first."""
    return sorted(range(len(strides)), key=lambda i: (strides[i], -i))


def inner_dimensions(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """For each dimension the next inner one whose size times stride is its stride, or -1."""
    inner = [-1] * len(sizes)
    for a, b in itertools.pairwise(inner_first(strides)):
        if strides[b] == sizes[a] * strides[a]:
            inner[b] = a
    return inner


def neighbours(sizes: Sequence[int], strides: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of a dimension and the next outer one, of those along which memory is passed."""
    used = (i for i in inner_first(strides) if sizes[i] > 1 and strides[i] > 0)
    return itertools.pairwise(used)


def is_free_of_overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """True if a step along each dimension passes all that the inner dimensions cover."""
    return all(strides[b] >= sizes[a] * strides[a] for a, b in neighbours(sizes, strides))


def guard_overlaps(
    pairs: Iterable[tuple[int, int]], sizes: Sequence[Any], strides: Mapping[int, Any]
) -> None:
    """Compare symbolic strides with what the inner dimensions cover.

    The comparisons become guards: a later call's elements overlap if those of the recorded call do.
    """
    extent, is_apart = 0, True
    for a, b in pairs:
        extent += (sizes[a] - 1) * strides[a]
        is_apart = is_apart and bool(strides[b] >= sizes[a] * strides[a])
        if not is_apart:
            bool(strides[b] > extent)


def other_free_strides(
    sizes: Sequence[int],
    strides: Sequence[int],
    found_sizes: Sequence[int],
    found_strides: Sequence[int],
) -> Collection[int]:
    """The dimensions whose stride may become a symbol, because two tensors differ in it.

    Both have the same order of dimensions in memory and no overlaps. Strides 0 and 1 are like no
    others, as sizes 0 and 1 are.
    """
    if not (is_free_of_overlaps(sizes, strides)
            and is_free_of_overlaps(found_sizes, found_strides)):  # fmt: skip
        return ()
    used = [i for i, both in enumerate(zip(sizes, found_sizes, strict=True)) if min(both) > 1]
    order, found_order = inner_first(strides), inner_first(found_strides)
    if [i for i in order if i in used] != [i for i in found_order if i in used]:
        return ()
    inner = inner_dimensions(sizes, strides)
    expected = (
        step if a < 0 else found_sizes[a] * found_strides[a]
        for step, a in zip(strides, inner, strict=True)
    )
    other = [i for i, step in enumerate(expected) if step != found_strides[i]]
    return other if all(min(strides[i], found_strides[i]) > 1 for i in other) else ()
