"""What generated guards call for the checks that are not worth native code."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from magpy_like.monitor.objects.access_paths import lookup
from magpy_like.monitor.objects.containers import SCALARS, items_of
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import array_metadata, is_plain, is_same_value, storage_of


def same_scalar(a: Any, b: Any) -> bool:
    """Whether plain values, or instances of a subclass of a number or string, are equal."""
    if is_plain(b):
        return is_same_value(a, b)
    base = next(kind for kind in SCALARS if is_instance(b, kind))
    return base.__repr__(a) == base.__repr__(b)


def same_list(a: Any, b: list[Any]) -> bool:
    """Whether lists of integers and truths, however deep, are the same."""
    return repr(a) == repr(b)


def ordered_keys(mapping: dict[Any, Any]) -> list[Any]:
    """The keys in the order in which the mapping hands them out."""
    return [key for key, _ in items_of(mapping)]


def same_keys(found: Iterable[Any], expected: list[Any]) -> bool:
    """Whether keys or members are the same in the same order; 1, 1.0 and True are not the same."""
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
    """Whether an array that is laid out alike holds the same."""
    return bool(array.tobytes() == expected.tobytes())


def returns(call: Callable[[], Any], result: Any) -> bool:
    """True if a call that reads process-wide state returns the same again."""
    return is_same(call(), result)


def is_same(found: Any, result: Any) -> bool:
    """Whether process-wide state is what it was: the same object, or equal to it."""
    return found is result or (type(found) is type(result) and bool(found == result))


def returns_cached(call: Callable[[], Any], result: Any) -> bool:
    found = call()
    same_text = is_plain(result) and type(found) is type(result) and repr(found) == repr(result)
    return found is result or same_text


def location_check(owner: Any, relation: Relation, value: Any, equal: bool) -> Callable[[], bool]:
    """A check that a location still holds a value: ``...`` is any, ``NOTHING`` none at all."""

    def check() -> bool:
        try:
            found = lookup(owner, relation)
        except (LookupError, AttributeError, ValueError, TypeError):
            return value is NOTHING
        if value is NOTHING:
            return False
        if value is ... or found is value:
            return True
        return equal and type(found) is type(value) and bool(found == value)

    return check


def is_missing(owner: Any, relation: Relation) -> bool:
    try:
        lookup(owner, relation)
    except (LookupError, AttributeError, ValueError, TypeError):
        return True
    return False


def share_no_memory(changed: tuple[torch.Tensor, ...], fixed: tuple[torch.Tensor, ...]) -> bool:
    memory = {storage_of(tensor) for tensor in changed}
    return not any(storage_of(tensor) in memory for tensor in fixed)


def memory_of(*tensors: torch.Tensor) -> tuple[int, ...]:
    """For each tensor, the first one that lies in the same storage, and how far from there."""
    first: dict[int, tuple[int, int]] = {}
    places: list[int] = []
    for i, t in enumerate(tensors):
        offset = t.storage_offset()
        found, start = first.setdefault(t.untyped_storage()._cdata, (i, offset))
        places += (found, offset - start)
    return tuple(places)
