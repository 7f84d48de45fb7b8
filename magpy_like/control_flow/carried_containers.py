"""Containers in which rounds of a loop hand on tensors and numbers: lists, tuples and named tuples,
dictionaries, and instances that keep all they have in their attributes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from magpy_like.control_flow.carried_places import say, unchanged
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native import NULL, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE
from magpy_like.split_points import LoopNotMergeable

Path: TypeAlias = tuple[Any, ...]
"""Positions, keys and names of attributes on the way into containers."""


def parts(value: Any) -> dict[Any, Any] | None:
    """What is in a container, by position, key or name; None for any other value."""
    kind = type(value)
    if kind in (list, tuple) or _is_named(value):
        return dict(enumerate(value))
    if kind is dict:
        return value if all(type(key) in (str, int) for key in value) else None
    found = instance_dict(value) if _keeps_attributes(kind) else None
    return found if type(found) is dict else None


def part(value: Any, path: Path) -> Any:
    """What is there on the way into a container."""
    for key in path:
        inside = parts(value)
        assert inside is not None
        value = inside[key]
    return value


def put(container: Any, key: Any, value: Any) -> Any:
    """The container with another value in it: itself, or another tuple."""
    if is_instance(container, tuple):
        return tuple.__new__(type(container), (*container[:key], value, *container[key + 1 :]))
    (container if type(container) in (list, dict) else instance_dict(container))[key] = value
    return container


def rebuilt(value: Any, leaves: Mapping[Path, Any], path: Path = ()) -> Any:
    """A copy of a container with other values at some places in it."""
    if path in leaves:
        return leaves[path]
    below = any(place[: len(path)] == path for place in leaves)
    inside = parts(value) if below or not path else None
    if inside is None:
        return value
    items = {key: rebuilt(item, leaves, (*path, key)) for key, item in inside.items()}
    if is_instance(value, tuple):
        return tuple.__new__(type(value), items.values())
    if type(value) is list:
        return [*items.values()]
    if type(value) is dict:
        return items
    made = object.__new__(type(value))
    instance_dict(made).update(items)
    return made


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The tensors and numbers that differ.

    Raises:
        Split: something else does.
    """
    if unchanged(before, after):
        return
    check_depth(path)
    same_type = type(before) is type(after)
    one, other = (parts(before), parts(after)) if same_type else (None, None)
    if one is not None and other is not None and [*one] == [*other]:
        for key in one:
            yield from differences(one[key], other[key], (*path, key))
    elif is_instance(before, torch.Tensor) == is_instance(after, torch.Tensor) and (
        is_instance(after, torch.Tensor) or (same_type and is_number(after))
    ):
        yield path, after
    else:
        raise LoopNotMergeable(f"an iteration replaces {say(before)} by {say(after)}")


def containers(value: Any) -> Iterator[Any]:
    """Those of which it can be told which one they are, as they may be changed."""
    inside = parts(value)
    if inside is not None:
        if not is_instance(value, tuple):
            yield value
        for item in inside.values():
            yield from containers(item)


def check_depth(path: Path) -> None:
    """Raises Split: containers lie in each other without end, or nearly so."""
    if len(path) > _MOST_NESTED:
        raise LoopNotMergeable("deeply nested containers differ between iterations")


def shared(value: Any, rec: Recording, references: int, depth: int = 0) -> set[int]:
    """The ids of the dictionaries and instances in a value that the program has not made, or of
    which somebody may tell that they are not copies. There are as many ``references`` to the value
    as no other part of the program has."""
    by_kind = type(value)
    if by_kind not in (list, tuple):
        # With that of this variable, and that of an argument.
        if parts(value) is None:
            return set()
        if sys.getrefcount(value) > references + 2 or rec.variables.node(value) is not None:
            return {id(value)}
    if depth == _MOST_NESTED:
        return {id(value)}
    found: set[int] = set()
    for key in [*(parts(value) or ())]:
        found |= shared(part(value, (key,)), rec, 1, depth + 1)
    return found


_MOST_NESTED = 8


def _is_named(value: Any) -> bool:
    kind = type(value)
    fields = getattr(kind, "_fields", ())
    named = is_instance(value, tuple) and type(fields) is tuple and len(fields) == len(value)
    return named and kind.__basicsize__ == tuple.__basicsize__ and not kind.__dictoffset__


class _Plain:
    """What an instance is that keeps its attributes in a dictionary, and nothing else."""


def _keeps_attributes(kind: type) -> bool:
    """Whether an instance is its class and its attributes, and nothing is done at its end."""
    if not kind.__flags__ & HEAP_TYPE or issubclass(kind, torch.nn.Module):
        return False
    layout = kind.__basicsize__, kind.__dictoffset__
    if layout != (_Plain.__basicsize__, _Plain.__dictoffset__):
        return False
    return lookup_in_type(kind, "__del__") is NULL
