"""Calls of functions with a cache (``functools.lru_cache``) whose arguments hold lifted numbers.

The guard makes each call once, in the program's order, as the cache counts its look-ups. It checks
that the result has the form of the recorded one. The numbers in it that have differed between calls
are lifted: other conditions and the mock read them from the result of the guard's call.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.symbolic.expressions import Computed, is_number
from magpy_like.monitor.symbolic.numbers.pure_number_calls import LIFTED, LiftedCall, SizeForm
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain, is_same_value

if TYPE_CHECKING:
    from magpy_like.monitor.objects.object_replacement import OriginalNumbers
    from magpy_like.monitor.recording import Recording
    from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities

VARYING = object()
"""In the form of a result: a number that may differ at the next call."""
CONTAINERS = (tuple, list, dict)
"""The types of containers whose numbers are lifted."""
Path = tuple[Any, ...]
_KEPT_CALLS = 8
_MOST_NESTED = 8


class _MadeLookUps(threading.local):
    """The look-ups that the guards of one call have made in this thread, in order.

    Where a guard fails after a look-up, the guard of the next record takes the result: the program
    would have made one.
    """

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any]] = []
        """Functions with their arguments, and results."""
        self.position = 0
        """How many of them the guard that runs has reached."""

    def make(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = operation, _with_types(args), _with_types(kwargs)
        position = self.position
        if position < len(self.made) and self.made[position][0] == key:
            self.position += 1
            return self.made[position][1]
        before = self.made[:position]
        result = operation(*args, **kwargs)  # it may call compiled functions
        self.made, self.position = [*before, (key, result)], position + 1
        return result


_of_thread = _MadeLookUps()


def forget_look_ups() -> None:
    """Begin a call: the guards of its records have made no look-up yet."""
    _of_thread.made, _of_thread.position = [], 0


def begin_look_ups() -> bool:
    """Begin the look-ups of one guard, which is a condition that always holds."""
    _of_thread.position = 0
    return True


def made_look_ups() -> list[Any]:
    """The results of the look-ups that the guard has made, in order."""
    return [result for _, result in _of_thread.made[: _of_thread.position]]


def are_same_look_ups(calls: Sequence[tuple[functools.partial[Any], Any]]) -> bool:
    """True if each call, made in order until one does not, returns the result beside it."""
    for call, result in calls:
        found = _of_thread.make(call.func, call.args, call.keywords)
        if not _is_same(found, result):
            return False
    return True


def _with_types(value: Any) -> Any:
    """A key that tells arguments apart as a cache may: equal numbers of different types differ."""
    if type(value) is tuple or type(value) is torch.Size:
        return type(value).__name__, tuple(map(_with_types, value))
    if type(value) is dict:
        return tuple((key, _with_types(part)) for key, part in value.items())
    return type(value), value if is_plain(value) else id(value)


class LookUp:
    """One call of a cached function: the guard makes it, and all others read its result."""

    def __init__(self, call: LiftedCall, form: Any) -> None:
        """``form`` is the expected result, with ``VARYING`` for lifted numbers."""
        self.call, self._form = call, form
        self._of_thread = threading.local()

    @property
    def __name__(self) -> str:
        return str(getattr(self.call.operation, "__name__", "cached"))

    def __str__(self) -> str:
        """The function, and the form of its result: types for numbers that may differ."""
        return f"{self.__name__} returns {_text(self._form)}"

    def __call__(self, *numbers: Any) -> bool:
        """Make the call; true if the result has the expected form."""
        if self.call.operation in _raised:
            return False
        try:
            result = _of_thread.make(self.call.operation, *self.call.arguments(numbers))
        except Exception:
            _raised.add(self.call.operation)  # the program calls it again, once
            raise
        self._of_thread.last = numbers, result
        return _has_form(result, self._form)

    def result(self, numbers: tuple[Any, ...]) -> Any:
        """The result of the call that the guard has made in this thread."""
        last, result = self._of_thread.last
        # A call inside a later one may have made another look-up: this entry is in the cache.
        return result if last == numbers else self.call(*numbers)


@dataclass(frozen=True, eq=False)
class PartOfResult:
    """A part of the result of a look-up, as a function of the lifted arguments."""

    look_up: LookUp
    path: Path

    @property
    def __name__(self) -> str:
        return f"part_of_{self.look_up.__name__}"

    def __call__(self, *numbers: Any) -> Any:
        part = self.look_up.result(numbers)
        for key in self.path:
            part = part[key]
        return part


class LookUps:
    """The look-ups of one run."""

    def __init__(
        self, rec: Recording, identities: LiftedIdentities, originals: OriginalNumbers
    ) -> None:
        self._rec, self._identities, self._originals = rec, identities, originals
        self._containers: dict[int, tuple[Any, list[Any], Computed]] = {}
        """The lists, dictionaries and tuples in results, their contents when they were looked up,
        and their expressions."""

    def lift(
        self, call: LiftedCall, operands: tuple[Any, ...], result: Any
    ) -> tuple[LookUp, tuple[Any, ...], Any]:
        """A look-up, the expressions of its operands, and the result with lifted numbers, which
        are in its containers until the program ends."""
        varying = _varying_parts(call, operands, result)
        look_up = LookUp(call, _form(result, varying, ()))
        parts = self._identities.expressions(operands)
        if is_number(result):
            lifted = self._part(look_up, (), parts, result) if () in varying else result
            return look_up, parts, lifted
        for path, container in _containers_in(result, ()):
            expression = Computed(PartOfResult(look_up, path), parts)
            for key, value in _items(container):
                if (*path, key) in varying:
                    number = self._part(look_up, (*path, key), parts, value)
                    self._originals.note(number, value)
                    self._originals.substitute(container, key, number)
            self._containers[id(container)] = container, _items(container), expression
        return look_up, parts, result

    def _part(self, look_up: LookUp, path: Path, parts: tuple[Any, ...], value: Any) -> Any:
        expression, twin = Computed(PartOfResult(look_up, path), parts), self._rec.sizes.twin
        symbol = None if twin is None else twin.add_number(expression, value, size=False)
        return self._identities.lift(value, expression, symbol)

    def expression(self, value: Any) -> Computed | None:
        """The expression of a container that a cached function has returned, or of one in it."""
        found = self._containers.get(id(value))
        return found[2] if found is not None else None

    def are_unchanged(self) -> bool:
        """True if the program has not changed what caches hold."""
        return all(
            len(before) == len(now := _items(container))
            and all(a == b and _is_same(x, y) for (a, x), (b, y) in zip(before, now, strict=True))
            for container, before, _ in self._containers.values()
        )


def _is_same(one: Any, other: Any) -> bool:
    """True for one object, and for equal plain values: a lifted number counts as the one that it
    replaces."""
    return one is other or (is_plain(one) and is_same_value(one, other))


def depends_on_look_up(expression: Any) -> bool:
    """True if an expression reads the result of a look-up."""
    pending, seen = [expression], set[int]()
    while pending:
        part = pending.pop()
        if is_instance(part, Computed) and id(part) not in seen:
            seen.add(id(part))
            if is_instance(part.operation, PartOfResult):
                return True
            pending += part.operands
    return False


def can_be_looked_up(result: Any, depth: int = _MOST_NESTED) -> bool:
    """True for plain values, and for nested lists, dictionaries and tuples of them."""
    if type(result) not in CONTAINERS:
        return is_plain(result)
    keys = result if type(result) is dict else ()
    if not depth or not all(map(is_plain, keys)):
        return False
    return all(can_be_looked_up(part, depth - 1) for _, part in _items(result))


_raised: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that have raised in a guard."""


def may_be_looked_up(operation: Any) -> bool:
    """True unless a function has raised in a guard: the guard and then the program have called it,
    which had its effects twice."""
    return operation not in _raised


_known_calls: weakref.WeakKeyDictionary[Any, deque[tuple[Any, Any, dict[Path, Any]]]] = (
    weakref.WeakKeyDictionary()
)
"""The last calls of cached functions: arguments, and the numbers in the result."""


def note_call(operation: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
    """Note a recorded call, so that a later one knows which numbers of the result differ."""
    if can_be_looked_up(result):
        calls = _known_calls.setdefault(operation, deque(maxlen=_KEPT_CALLS))
        calls.append((_plain_parts(args), _plain_parts(dict(kwargs)), _numbers_in(result)))


def _varying_parts(call: LiftedCall, operands: tuple[Any, ...], result: Any) -> set[Path]:
    """The numbers in a result that differ from those of earlier calls with other lifted arguments;
    if there was none, those that equal a lifted argument."""
    numbers, varying, is_known = _numbers_in(result), set[Path](), False
    for args, kwargs, earlier in _known_calls.get(call.operation, ()):
        if _fits(args, call.args) and _fits(kwargs, dict(call.kwargs)):
            if earlier.keys() == numbers.keys():
                is_known = True
                varying |= {path for path in numbers if earlier[path] != numbers[path]}
    return varying if is_known else {path for path, n in numbers.items() if n in operands}


def _plain_parts(value: Any) -> Any:
    """Arguments without the objects of the program, which must not be kept alive."""
    if type(value) in (tuple, list, torch.Size):
        return tuple(map(_plain_parts, value))
    if type(value) is dict:
        return {key: _plain_parts(part) for key, part in value.items()}
    return value if is_plain(value) else id(value)


def _fits(value: Any, form: Any) -> bool:
    """True if a call's arguments are those of another one but for its lifted numbers."""
    if form is LIFTED:
        return is_number(value)
    if type(form) in (tuple, list, SizeForm):
        return (
            type(value) is tuple
            and len(value) == len(form)
            and all(_fits(v, f) for v, f in zip(value, form, strict=True))
        )
    if type(form) is dict:
        return value.keys() == form.keys() and all(_fits(value[k], form[k]) for k in form)
    return bool(value == _plain_parts(form))


def _items(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items() if type(container) is dict else enumerate(container))


def _containers_in(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if type(value) in CONTAINERS:
        yield path, value
        for key, part in _items(value):
            yield from _containers_in(part, (*path, key))


def _numbers_in(value: Any) -> dict[Path, Any]:
    if is_number(value):
        return {(): value}
    return {
        (*path, key): part
        for path, container in _containers_in(value, ())
        for key, part in _items(container)
        if is_number(part)
    }


def _form(value: Any, varying: set[Path], path: Path) -> Any:
    if path in varying:
        return VARYING, type(value)
    if type(value) not in CONTAINERS:
        return value, type(value)
    parts = {key: _form(part, varying, (*path, key)) for key, part in _items(value)}
    return parts, type(value)


def _text(form: Any) -> str:
    expected, kind = form
    if expected is VARYING:
        return str(kind.__name__)
    if kind is dict:
        return f"{{{', '.join(f'{key!r}: {_text(part)}' for key, part in expected.items())}}}"
    if kind in CONTAINERS:
        parts = ", ".join(map(_text, expected.values()))
        return f"[{parts}]" if kind is list else f"({parts})"
    return repr(expected)


def _has_form(value: Any, form: Any) -> bool:
    """True if a result has a form: types, keys, and numbers but for those that vary."""
    expected, kind = form
    if type(value) is not kind:
        return False
    if expected is VARYING:
        return True
    if kind not in CONTAINERS:
        return repr(value) == repr(expected)
    items = _items(value)
    return len(items) == len(expected) and all(
        key == known and _has_form(part, expected[known])
        for (key, part), known in zip(items, expected, strict=True)
    )
