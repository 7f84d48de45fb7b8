"""Putting one object in place of another, wherever a program has it."""

from __future__ import annotations

import gc
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from magpy_like.monitor.objects.containers import elements
from magpy_like.native import instance_dict, replace_references, tuple_set
from magpy_like.native.instance_checks import is_instance


class OriginalNumbers:
    """The objects that stand outside for the lifted numbers that a program has: a monitor tells
    those by an identity of their own, and callers may ask for the one that they know."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self._substituted: list[tuple[Any, Any, Any]] = []
        """Containers from outside, each with a key and the number that is there now."""

    def note(self, number: Any, found: Any) -> None:
        """The program has ``number`` instead of ``found``."""
        self._pairs[id(number)] = number, self.original(found)

    def substitute(self, container: Any, key: Any, number: Any) -> None:
        """Let a container have ``number`` for as long as the program is watched, so that whatever
        goes through it, native code too, hands on an object that the monitor knows."""
        _put(container, key, number)
        self._substituted.append((container, key, number))

    def restore_containers(self, keep: Callable[[Any], bool] | None = None) -> None:
        """Put back what was found, except in containers to ``keep``: what a mock is to leave there
        is told by the numbers."""
        substituted, self._substituted = self._substituted, []
        for container, key, number in substituted:
            if keep is not None and keep(container):
                self._substituted.append((container, key, number))
                continue
            try:
                found = container[key]
            except LookupError:  # the program has taken it away
                continue
            if found is number:
                _put(container, key, self.original(number))

    def original(self, value: Any) -> Any:
        pair = self._pairs.get(id(value))
        return value if pair is None else pair[1]

    def restore_originals(self, result: Any, changed: Sequence[Any]) -> Any:
        """``result`` with the objects that were found, which are put where the program has left
        others: it has ``changed`` these objects from outside. Call it when nothing of the program
        runs any more and the recording is released."""
        if not self._pairs:
            return result
        self.restore_containers()
        result = replaced(result, self.original)
        numbers = [number for number, _ in self._pairs.values()]
        held = [number for number in numbers if sys.getrefcount(number) > _OURS]
        if held:
            originals = {key: found for key, (_, found) in self._pairs.items()}
            ours = {id(numbers), id(held), *map(id, self._pairs.values())}
            # The collector does not know dictionaries of nothing but numbers, nor what is frozen.
            more = (*changed, *_dictionaries((result, *changed)))
            replace_all(held, originals, ours, more)
        self._pairs.clear()
        return result


def _put(container: Any, key: Any, value: Any) -> None:
    """Put a value in the place of an equal one."""
    if is_instance(container, tuple):
        tuple_set(container, key, value)
    else:
        container[key] = value


def _dictionaries(values: Sequence[Any]) -> list[dict[Any, Any]]:
    """These and what they consist of, as far as it is dictionaries."""
    found, waiting, seen = [], list(values), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is list or type(value) is tuple:
            waiting += value
            continue
        entries = value if type(value) is dict else instance_dict(value)
        if entries is not None:
            found.append(entries)
        if type(value) is dict:
            waiting += value.values()
    return found


_OURS = 4
"""References to a number from ``give_back``: from a pair, a list, a variable and an argument."""


def replaced(value: Any, original: Callable[[Any], Any]) -> Any:
    """A tree of tuples with the originals of its leaves."""
    if type(value) is not tuple:
        return original(value)
    parts = []
    for item in value:
        parts.append(replaced(item, original))
    return value if all(map(operator.is_, parts, value)) else tuple(parts)


def replace_all(
    held: Sequence[Any],
    originals: Mapping[int, Any],
    ours: Collection[int],
    more: Sequence[Any] = (),
) -> None:
    """Let whatever the garbage collector knows, and ``more``, refer to the originals of the values
    that are ``held``: ``originals`` by their ids. Frames are left alone, and what has an id among
    ``ours``."""
    for holder in [*gc.get_referrers(*held), *more]:
        if id(holder) not in ours and not is_instance(holder, types.FrameType):
            _replace_in(holder, held, originals)


def _replace_in(holder: Any, held: Sequence[Any], originals: Mapping[int, Any]) -> None:
    """Let ``holder`` refer to the originals of the values that are ``held`` instead of those,
    past whatever methods its class has for that."""
    if is_instance(holder, dict):
        for key, value in list(dict.items(holder)):
            if id(value) in originals:
                dict.__setitem__(holder, key, originals[id(value)])
    elif is_instance(holder, list | deque):
        base: Any = list if is_instance(holder, list) else deque
        for i, value in enumerate(elements(holder)):
            if id(value) in originals:
                base.__setitem__(holder, i, originals[id(value)])
    elif is_instance(holder, set):
        for value in [member for member in elements(holder) if id(member) in originals]:
            set.discard(holder, value)
            set.add(holder, originals[id(value)])
    else:
        if not is_instance(holder, tuple):
            _replace_attributes(holder, originals)
        for value in held:
            replace_references(holder, value, originals[id(value)])


def _replace_attributes(holder: Any, originals: Mapping[int, Any]) -> None:
    entries = instance_dict(holder) or {}
    for name, value in list(dict.items(entries)):
        if id(value) in originals:
            dict.__setitem__(entries, name, originals[id(value)])
