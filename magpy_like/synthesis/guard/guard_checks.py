"""Functions that generated guards call: comparisons that need not be native code."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from magpy_like.monitor.objects.access_paths import follow
from magpy_like.monitor.objects.containers import SCALARS, items_of
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import ANY_VALUE, memory_of
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import (
    array_metadata,
    is_leaf_or_view_of_one,
    is_plain,
    is_same_value,
)


def same_scalar(a: Any, b: Any) -> bool:
    """True if plain values, or instances of a number's or string's subclass, are the same."""
    if is_plain(b):
        return is_same_value(a, b)
    base = next(kind for kind in SCALARS if is_instance(b, kind))
    return base.__repr__(a) == base.__repr__(b)


def same_list(a: Any, b: list[Any]) -> bool:
    """True if nested lists of integers and bools are the same."""
    return repr(a) == repr(b)


def ordered_keys(mapping: dict[Any, Any]) -> list[Any]:
    """The keys in the mapping's order of iteration."""
    return [key for key, _ in items_of(mapping)]


def same_keys(found: Iterable[Any], expected: list[Any]) -> bool:
    """True if keys or members are the same in the same order; 1, 1.0 and True differ."""
    keys = list(found)
    return len(keys) == len(expected) and all(map(_same_key, keys, expected))


def _same_key(a: Any, b: Any) -> bool:
    if is_instance(b, weakref.ref):
        return is_instance(a, weakref.ref) and a == b
    if type(a) is type(b) is tuple:
        return same_keys(a, list(b))
    return is_same_value(a, b)


def same_metadata(array: Any, layout: tuple[Any, ...]) -> bool:
    return array_metadata(array) == layout


def same_array(array: Any, expected: np.ndarray[Any, Any]) -> bool:
    """True if an array with the same metadata has the same contents."""
    return bool(array.tobytes() == expected.tobytes())


def returns(call: Callable[[], Any], result: Any) -> bool:
    """True if a call that reads process-wide state returns the same again."""
    return is_same(call(), result)


def is_same(found: Any, result: Any) -> bool:
    """True if process-wide state is the same object, or an equal one of the same type."""
    return found is result or (type(found) is type(result) and bool(found == result))


def location_check(owner: Any, relation: Relation, value: Any, equal: bool) -> Callable[[], bool]:
    """A check that a location still holds a value: ``ANY_VALUE``, or ``NOTHING`` for none."""

    def check() -> bool:
        try:
            found = follow(owner, relation)
        except (LookupError, AttributeError, ValueError, TypeError):
            return value is NOTHING
        if value is NOTHING:
            return False
        if value is ANY_VALUE or found is value:
            return True
        return equal and is_same_value(found, value)

    return check


def is_missing(owner: Any, relation: Relation) -> bool:
    try:
        follow(owner, relation)
    except (LookupError, AttributeError, ValueError, TypeError):
        return True
    return False


def share_no_memory(changed: tuple[torch.Tensor, ...], fixed: tuple[torch.Tensor, ...]) -> bool:
    first_in_memory = memory_of(*changed, *fixed)[::2]
    return min(first_in_memory[len(changed) :]) >= len(changed)


def are_no_leaves(*tensors: torch.Tensor) -> bool:
    """True if autograd admits writes to all of the tensors."""
    return not any(map(is_leaf_or_view_of_one, tensors))
