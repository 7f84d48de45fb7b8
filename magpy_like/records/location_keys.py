"""Keys of locations in fixed objects: global names, attributes, elements of lists, closure cells.

A record's native watch compares these locations with what the recorded run found there. Records of
one function that read the same locations differ in what they expect: they are indexed by it.
"""

from __future__ import annotations

import types
from collections.abc import Hashable
from typing import Any, NamedTuple

from magpy_like.native import ABSENT
from magpy_like.native.instance_checks import is_instance
from magpy_like.synthesis.guard.conditions import INDEXED_TYPES, Aspect, argument_key

_KEY_TYPES = frozenset({str, int, type(None)})
"""Types of keys that compare without code of the program; a cell has the key None."""


class Location(NamedTuple):
    """A location in a fixed object, and the aspect in which records compare its contents."""

    holder: int
    """The ``id`` of a dictionary, list or cell."""
    key: str | int | None
    aspect: Aspect


class LocationKeys(NamedTuple):
    """What one record expects at locations."""

    holders: dict[int, Any]
    """The holders by their ``id``."""
    keys: dict[Hashable, Hashable]
    """The key of the expected contents by location: the watch fails unless it is this one."""


def location_keys(watch: Any) -> LocationKeys:
    """The locations that a native watch compares, apart from those without a key."""
    holders: dict[int, Any] = {}
    keys: dict[Hashable, Hashable] = {}
    for holder, key, expected, equal in watch.entries():
        is_value = type(expected) in INDEXED_TYPES
        if type(key) not in _KEY_TYPES or expected is ABSENT or (equal and not is_value):
            continue
        aspect = Aspect.VALUE if is_value else Aspect.IDENTITY
        holders[id(holder)] = holder
        keys[Location(id(holder), key, aspect)] = argument_key(aspect, expected)
    return LocationKeys(holders, keys)


def current_key(holder: Any, location: Location) -> Hashable:
    """The key of what a location contains now; None, which no record expects, if it is empty.

    Raises:
        IndexError: a list has become shorter.
        ValueError: a cell has become empty.
    """
    if type(holder) is types.CellType:
        found = holder.cell_contents
    elif is_instance(holder, list):
        found = list.__getitem__(holder, location.key)  # type: ignore[index]
    else:
        found = dict.get(holder, location.key, ABSENT)  # not the method of a subclass
    return None if found is ABSENT else argument_key(location.aspect, found)
