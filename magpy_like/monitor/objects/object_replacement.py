"""Replacing one object by another, wherever the program refers to it."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from magpy_like.monitor.objects.containers import elements
from magpy_like.native import (
    frame_locals,
    frame_set_local,
    frame_set_operand,
    frame_stack,
    instance_dict,
    replace_references,
    tuple_set,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import class_entries


class OriginalNumbers:
    """The external objects that lifted numbers replace: the monitor knows lifted numbers by their
    identity, and callers of the program may test the identity of the originals."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self._computed: dict[int, tuple[Any, Any]] = {}
        self._substituted: list[tuple[Any, Any, Any]] = []
        """External containers, each with a key and the lifted number that it holds there now."""

    def note(self, number: Any, original: Any) -> None:
        """Note that ``number`` replaces ``original`` in the program."""
        self._pairs[id(number)] = number, self.original(original)

    def note_computed(self, number: Any, computed: Any) -> None:
        """Note that ``number`` replaces what Python computes: a small number that all computations
        share, or an operand that a call returns."""
        self._computed[id(number)] = number, self.original(computed)

    def substitute(self, container: Any, key: Any, number: Any) -> None:
        """Put ``number`` into a container while the program is monitored: iterations over it, also
        by native code, then yield an object that the monitor can identify."""
        _put(container, key, number)
        self._substituted.append((container, key, number))

    def restore_containers(self, keep: Callable[[Any], bool] | None = None) -> None:
        """Restore the originals, except in containers for which ``keep`` is true: their contents
        after the mock are known by the lifted numbers."""
        substituted, self._substituted = self._substituted, []
        for container, key, number in substituted:
            if keep is not None and keep(container):
                self._substituted.append((container, key, number))
                continue
            try:
                current = container[key]
            except LookupError:  # the program has removed the element
                continue
            if current is number:
                _put(container, key, self.original(number))

    def original(self, value: Any) -> Any:
        """The object that a lifted number replaces; any other value itself."""
        pair = self._pairs.get(id(value)) or self._computed.get(id(value))
        return value if pair is None else pair[1]

    def any(self) -> bool:
        """True if the program may hold a lifted number, be it of an earlier recording."""
        return bool(self._pairs or self._computed)

    def _current(self) -> dict[int, tuple[Any, Any]]:
        """The lifted numbers that the program may hold now, by id, each with its original."""
        return self._computed | self._pairs

    def restore_in_objects(self, reached: Sequence[Any]) -> None:
        """Restore the originals in all objects except frames. Those that the garbage collector does
        not track are searched for in ``reached`` and its contents."""
        self.restore_containers()
        pairs = self._current()
        tables = (self._pairs, self._computed, pairs)
        ours = {id(pair) for table in tables for pair in table.values()}
        _restore(pairs, reached, ours.union(map(id, tables)))

    def restore_in_reached(self, reached: Sequence[Any]) -> None:
        """Restore the originals in the objects ``reached``: native code runs before the next
        recording begins. A search in all objects would take long."""
        _restore_in(self._current(), reached)

    def restore_originals(self, result: Any, changed: Sequence[Any]) -> Any:
        """``result`` with the originals of lifted numbers, which are restored wherever the program
        has left lifted numbers, as in the external objects it has ``changed``. The program must
        have ended, and the recording be released."""
        self.restore_containers()
        result = replaced(result, self.original)
        pairs = self._current()
        self._pairs.clear()
        self._computed.clear()
        _restore(pairs, (result, *changed), {id(pairs), *map(id, pairs.values())})
        return result


def _restore(
    pairs: Mapping[int, tuple[Any, Any]], reached: Sequence[Any], ours: Collection[int]
) -> None:
    """Restore the originals of these numbers: in the objects ``reached``, then, for numbers that
    anything else holds, in all objects that the garbage collector tracks but ``ours``."""
    _restore_in(pairs, reached)
    numbers = [number for number, _ in pairs.values()]
    held = [number for number in numbers if sys.getrefcount(number) > _OURS]
    if held:
        replace_all(held, _originals(pairs), {id(numbers), id(held), *ours})


def _restore_in(pairs: Mapping[int, tuple[Any, Any]], reached: Sequence[Any]) -> None:
    if not pairs:
        return
    originals = _originals(pairs)
    for holder in (*reached, *_untracked(reached)):
        _replace_in(holder, originals)


def _originals(pairs: Mapping[int, tuple[Any, Any]]) -> dict[int, Any]:
    return {key: original for key, (_, original) in pairs.items()}


_OURS = 4
"""References to a number in ``_restore``: from a pair, a list, a variable, an argument."""


def _put(container: Any, key: Any, value: Any) -> None:
    """Replace an element by an equal value."""
    if is_instance(container, tuple):
        tuple_set(container, key, value)
    else:
        container[key] = value


def _untracked(values: Sequence[Any]) -> list[dict[Any, Any] | tuple[Any, ...]]:
    """The dictionaries and tuples among these values and their contents that the garbage collector
    may not track: those of numbers alone, and those of frozen objects."""
    found: list[dict[Any, Any] | tuple[Any, ...]] = []
    waiting, seen = list(values), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is list or type(value) is tuple:
            waiting += value
            if type(value) is tuple and not gc.is_tracked(value):
                found.append(value)
        elif type(value) is types.FunctionType:
            waiting += (value.__defaults__, value.__kwdefaults__)
        elif type(value) is functools.partial:
            waiting += (value.args, value.keywords)
        elif type(value) is dict:
            found.append(value)
            waiting += value.values()
        elif (entries := instance_dict(value)) is not None:
            found.append(entries)
            waiting += [item for item in dict.values(entries) if type(item) in _HOLDERS]
        elif is_instance(value, type):
            waiting += [item for item in class_entries(value).values() if type(item) in _HOLDERS]
    return found


_HOLDERS = frozenset({list, tuple, dict, types.FunctionType, functools.partial})
"""Types of objects that the search enters wherever it finds them, beside those of ``reached``."""


def restore_locals(frame: types.FrameType, original: Callable[[Any], Any]) -> None:
    """Replace the values of a frame's local variables by their originals."""
    for slot, value in enumerate(frame_locals(frame)[: frame.f_code.co_nlocals]):
        if (found := original(value)) is not value:
            frame_set_local(frame, slot, found)


def restore_operands(frame: types.FrameType, original: Callable[[Any], Any]) -> None:
    """Replace the operands of a frame, which is before its next instruction, by their originals."""
    stack = frame_stack(frame)
    for i, value in enumerate(stack):
        if (found := original(value)) is not value:
            frame_set_operand(frame, len(stack) - i, found)


def replaced(value: Any, original: Callable[[Any], Any]) -> Any:
    """A tree of tuples with the originals of its leaves, which are put into the same tuples: the
    program may have left them elsewhere, too."""
    if type(value) is not tuple:
        return original(value)
    for i, item in enumerate(value):
        part = replaced(item, original)
        if part is not item:
            tuple_set(value, i, part)
    return value


def replace_all(
    held: Sequence[Any],
    originals: Mapping[int, Any],
    ours: Collection[int],
    more: Sequence[Any] = (),
) -> None:
    """Replace references to values by references to their originals.

    Args:
        held: The values to replace, in all objects that the garbage collector tracks except frames.
        originals: Their originals, by id.
        ours: Ids of objects to leave unchanged.
        more: Further objects to change.
    """
    for holder in [*gc.get_referrers(*held), *more]:
        is_own = holder is held or id(holder) in ours
        if not is_own and not is_instance(holder, types.FrameType):
            _replace_in(holder, originals)


def _replace_in(holder: Any, originals: Mapping[int, Any]) -> None:
    """Replace the references of ``holder`` to values by their ``originals``, by id, without calling
    methods of its class."""
    if is_instance(holder, dict):
        items = [(k, originals[id(v)]) for k, v in dict.items(holder) if id(v) in originals]
        owners = _classes_of(holder) if items else ()
        for key, original in items:
            for owner in owners:
                # Python keeps pointers to the attributes of a class, which only this resets.
                type.__setattr__(owner, key, original)
            if not owners:
                dict.__setitem__(holder, key, original)
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
        for value in [item for item in gc.get_referents(holder) if id(item) in originals]:
            replace_references(holder, value, originals[id(value)])


def _classes_of(holder: dict[Any, Any]) -> list[type]:
    """The class whose attributes a dictionary holds, if it is one of a class."""
    # Each class has a docstring, if only None; the dictionary of a module has builtins.
    if "__doc__" not in holder or "__builtins__" in holder:
        return []
    return [found for found in gc.get_referrers(holder) if is_instance(found, type)]


def _replace_attributes(holder: Any, originals: Mapping[int, Any]) -> None:
    entries = instance_dict(holder) or {}
    for name, value in list(dict.items(entries)):
        if id(value) in originals:
            dict.__setitem__(entries, name, originals[id(value)])
