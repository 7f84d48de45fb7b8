"""Containers in which iterations carry tensors and numbers: lists, tuples, named tuples,
dictionaries, and instances whose only state is their attributes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from magpy_like.config import config
from magpy_like.control_flow.paths.value_comparison import describe, is_unchanged
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native import NULL, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE
from magpy_like.split_points import LoopNotMergeable

Path: TypeAlias = tuple[Any, ...]
"""Positions, keys and attribute names of nested containers."""


def parts(value: Any) -> dict[Any, Any] | None:
    """The items of a container by position, key or name; None for any other value."""
    kind = type(value)
    if kind in (list, tuple) or _is_named(value):
        return dict(enumerate(value))
    if kind is dict:
        return value if all(type(key) in (str, int) for key in value) else None
    found = instance_dict(value) if _keeps_attributes(kind) else None
    return found if type(found) is dict else None


def part(value: Any, path: Path) -> Any:
    """The item at a path in nested containers."""
    for key in path:
        inside = parts(value)
        assert inside is not None
        value = inside[key]
    return value


def put(container: Any, key: Any, value: Any) -> Any:
    """Replace one item. Returns the container itself, or a new tuple."""
    if is_instance(container, tuple):
        return tuple.__new__(type(container), (*container[:key], value, *container[key + 1 :]))
    (container if type(container) in (list, dict) else instance_dict(container))[key] = value
    return container


def rebuilt(value: Any, leaves: Mapping[Path, Any], path: Path = ()) -> Any:
    """A copy of a container in which the items at some paths are replaced by ``leaves``."""
    if path in leaves:
        return leaves[path]
    below = any(other[: len(path)] == path for other in leaves)
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
    instance = object.__new__(type(value))
    instance_dict(instance).update(items)
    return instance


def differences(
    before: Any, after: Any, rec: Recording, path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """The paths at which tensors or numbers differ, with the values afterwards.

    Raises:
        Split: other values differ.
    """
    if is_unchanged(before, after, rec):
        return
    check_depth(path)
    same_type = type(before) is type(after)
    one, other = (parts(before), parts(after)) if same_type else (None, None)
    if one is not None and other is not None and [*one] == [*other]:
        for key in one:
            yield from differences(one[key], other[key], rec, (*path, key))
    elif is_instance(before, torch.Tensor) == is_instance(after, torch.Tensor) and (
        is_instance(after, torch.Tensor) or (same_type and is_number(after))
    ):
        yield path, after
    else:
        raise LoopNotMergeable(f"an iteration replaces {describe(before)} by {describe(after)}")


def containers(value: Any) -> Iterator[Any]:
    """The mutable containers in a value, whose identity the program may observe."""
    inside = parts(value)
    if inside is not None:
        if not is_instance(value, tuple):
            yield value
        for item in inside.values():
            yield from containers(item)


def check_depth(path: Path) -> None:
    """
    Raises:
        Split: containers are nested too deeply, or in themselves.
    """
    if len(path) > config.max_carried_nesting:
        raise LoopNotMergeable("deeply nested containers differ between iterations")


def shared(value: Any, rec: Recording, references: int, depth: int = 0) -> set[int]:
    """The ids of the dictionaries and instances in a value that are external, or to which other
    parts of the program refer, so that a copy would be observed.

    Args:
        references: the number of references to the value that do not count as other parts.
    """
    if type(value) not in (list, tuple):
        # And the references from this variable and the argument.
        if parts(value) is None:
            return set()
        if sys.getrefcount(value) > references + 2 or rec.variables.node(value) is not None:
            return {id(value)}
    if depth == config.max_carried_nesting:
        return {id(value)}
    found: set[int] = set()
    for key in [*(parts(value) or ())]:
        found |= shared(part(value, (key,)), rec, 1, depth + 1)
    return found


def _is_named(value: Any) -> bool:
    kind = type(value)
    fields = getattr(kind, "_fields", ())
    named = is_instance(value, tuple) and type(fields) is tuple and len(fields) == len(value)
    return named and kind.__basicsize__ == tuple.__basicsize__ and not kind.__dictoffset__


class _Plain:
    """The layout of an instance that has a dictionary of attributes and no other state."""


def _keeps_attributes(kind: type) -> bool:
    """True if an instance's only state is its class and attributes, and it has no destructor."""
    if not kind.__flags__ & HEAP_TYPE or issubclass(kind, torch.nn.Module):
        return False
    layout = kind.__basicsize__, kind.__dictoffset__
    if layout != (_Plain.__basicsize__, _Plain.__dictoffset__):
        return False
    return lookup_in_type(kind, "__del__") is NULL
