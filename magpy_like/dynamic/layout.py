"""The values in a chain of open frames, as a flat list that guards and mocks can work on.

A mock hands the state at a split to the continuation as plain values, and the continuation's own
records guard them like arguments. What is the same every time (code, offsets, which slots are
bound) is the layout; two states with equal layouts continue at the same place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, GeneratorType
from typing import Any

from magpy_like.dynamic.code_flow import live_locals
from magpy_like.dynamic.frame_state import FrameState, Then, Waiting
from magpy_like.native import NULL

_ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter({})),
    type(iter({}.values())),
    type(iter({}.items())),
    type(reversed([])),
    enumerate,
    zip,
    map,
    filter,
    itertools.chain,
    itertools.islice,
    itertools.count,
)
"""Iterators that say how to be made again, half-way through."""


class NoLayout(Exception):
    """The state holds something that cannot be handed over; the text says what."""


@dataclass(frozen=True)
class Leaf:
    """One value. ``iterated``: an iterator of the state goes through it."""

    iterated: bool = False


@dataclass(frozen=True)
class Made:
    """An iterator: ``maker(*parts)``, then ``__setstate__`` of the last part if ``has_state``."""

    maker: Callable[..., Any]
    parts: tuple[Leaf | Made, ...]
    has_state: bool


Part = Leaf | Made


@dataclass(frozen=True)
class FrameLayout:
    """All of a frame's state but the values. ``None`` stands for an empty slot."""

    code: CodeType
    offset: int
    function: Part
    locals: tuple[Part | None, ...]
    stack: tuple[Part | None, ...]
    then: Then | None
    complete: Part | None


@dataclass(frozen=True)
class Layout:
    """The layout of a chain of open frames, innermost first."""

    frames: tuple[FrameLayout, ...]

    def build(self, values: Sequence[Any]) -> list[FrameState]:
        """The states that these values, in order, belong to."""
        source = iter(values)
        return [_build_frame(frame, source) for frame in self.frames]

    def iterated(self) -> list[int]:
        """Positions of the values that iterators of the state go through."""
        return [i for i, leaf in enumerate(self._leaves()) if leaf.iterated]

    def in_iterators(self) -> list[int]:
        """Positions of the values that iterators of the state are made from."""
        found: list[int] = []
        at = 0
        for frame in self.frames:
            for part in (frame.function, *frame.locals, *frame.stack, frame.complete):
                count = 0 if part is None else sum(1 for _ in _leaves_of(part))
                if isinstance(part, Made):
                    found += range(at, at + count)
                at += count
        return found

    def slot_of(self, position: int) -> tuple[int, int | None, int] | None:
        """Where the value at a position is: frame, slot of a local, depth on the operand stack.

        None when it is part of an iterator, or not in a frame itself.
        """
        at = 0
        for number, frame in enumerate(self.frames):
            depth = len(frame.stack)
            places: list[tuple[Part | None, tuple[int, int | None, int] | None]] = [
                (frame.function, None),
                *((part, (number, slot, 0)) for slot, part in enumerate(frame.locals)),
                *((part, (number, None, depth - i)) for i, part in enumerate(frame.stack)),
                (frame.complete, None),
            ]
            for part, place in places:
                if part is None:
                    continue
                if at == position:
                    return place if isinstance(part, Leaf) else None
                at += sum(1 for _ in _leaves_of(part))
        return None

    def _leaves(self) -> Iterator[Leaf]:
        for frame in self.frames:
            for part in (frame.function, *frame.locals, *frame.stack, frame.complete):
                if part is not None:
                    yield from _leaves_of(part)


def lay_out(
    states: Sequence[FrameState], shared: Callable[[Any], bool]
) -> tuple[Layout, list[Any]]:
    """The layout of a chain of states, and its values.

    Iterators are made anew where the program goes on, so each must belong to the frames alone:
    ``shared`` says whether one is known elsewhere.

    Raises:
        NoLayout: a value of the state cannot be told from outside, such as a generator.
    """
    values: list[Any] = []
    _look_for_shared(states, shared)
    return Layout(tuple(_lay_out_frame(state, values) for state in states)), values


def _look_for_shared(states: Sequence[FrameState], shared: Callable[[Any], bool]) -> None:
    seen: set[int] = set()
    for state in states:
        live = live_locals(state.code, state.offset)
        slots = [value for slot, value in enumerate(state.locals) if slot in live]
        for value in (*slots, *state.stack):
            if isinstance(value, _ITERATORS):
                if id(value) in seen or shared(value):
                    raise NoLayout(f"a {type(value).__qualname__} is used in more than one place")
                seen.add(id(value))


def _lay_out_frame(state: FrameState, values: list[Any]) -> FrameLayout:
    if state.handled is not None:
        raise NoLayout(f"an exception is being handled at {state.where}")
    live = live_locals(state.code, state.offset)
    function = _take(state.function, values)
    slots = tuple(
        None if value is NULL or slot not in live else _take(value, values)
        for slot, value in enumerate(state.locals)
    )
    stack = tuple(None if value is NULL else _take(value, values) for value in state.stack)
    waiting = state.waiting
    complete = None
    if waiting is not None and waiting.complete is not None:
        complete = _take(waiting.complete, values)
    then = waiting.then if waiting is not None else None
    return FrameLayout(state.code, state.offset, function, slots, stack, then, complete)


def _take(value: Any, values: list[Any], iterated: bool = False) -> Part:
    if isinstance(value, _ITERATORS):
        reduced: tuple[Any, ...] = value.__reduce__()  # type: ignore[assignment]
        maker, arguments, *state = reduced
        given = [*arguments, *[s for s in state[:1] if s is not None]]
        parts = tuple(_take(part, values, iterated=True) for part in given)
        return Made(maker, parts, len(given) > len(arguments))
    if isinstance(value, GeneratorType) or (
        hasattr(type(value), "__next__") and not isinstance(type(value).__next__, FunctionType)
    ):
        raise NoLayout(f"a {type(value).__qualname__} is half-way through")
    values.append(value)
    return Leaf(iterated and not isinstance(value, int))


def _leaves_of(part: Part) -> Iterator[Leaf]:
    if isinstance(part, Leaf):
        yield part
    else:
        for inner in part.parts:
            yield from _leaves_of(inner)


def _give(part: Part, source: Iterator[Any]) -> Any:
    if isinstance(part, Leaf):
        return next(source)
    given = [_give(inner, source) for inner in part.parts]
    if not part.has_state:
        return part.maker(*given)
    made = part.maker(*given[:-1])
    made.__setstate__(given[-1])
    return made


def _build_frame(frame: FrameLayout, source: Iterator[Any]) -> FrameState:
    function = _give(frame.function, source)
    slots = tuple(NULL if part is None else _give(part, source) for part in frame.locals)
    stack = tuple(NULL if part is None else _give(part, source) for part in frame.stack)
    complete = None if frame.complete is None else _give(frame.complete, source)
    waiting = None if frame.then is None else Waiting(frame.then, complete)
    return FrameState(function, frame.code, frame.offset, slots, stack, None, waiting)
