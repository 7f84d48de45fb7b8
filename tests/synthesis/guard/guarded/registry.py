"""Registry of programs that each rely on one condition, and of calls that break just that one.

Each entry is a function that creates the program anew and returns it with functions that create its
arguments, one for each call. They also change the state that is no argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magpy_like.synthesis.guard.conditions import Kind

Calls = tuple[Callable[..., Any], list[Callable[[], tuple[Any, ...]]]]


class Program(NamedTuple):
    make: Callable[[], Calls]
    kinds: set[Kind]
    """Kinds of conditions that it needs at least; see :mod:`tests.conditions`."""
    backend: str
    after_split: bool
    """Whether it may also run after a split that returns its arguments."""


PROGRAMS: dict[str, Program] = {}


def relies_on(
    *kinds: Kind, backend: str = "eager", after_split: bool = True
) -> Callable[[Callable[[], Calls]], Callable[[], Calls]]:
    def add(make: Callable[[], Calls]) -> Callable[[], Calls]:
        PROGRAMS[make.__name__] = Program(make, {*kinds}, backend, after_split)
        return make

    return add


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes or (2,))


def varied_argument(program: Callable[..., Any], *others: Callable[[], Any]) -> Calls:
    """A program of a tensor and another argument, called with one kind of it twice before
    others."""
    return program, [lambda make=make: (ones(), make()) for make in (others[0], *others)]


def varied_state(program: Callable[..., Any], change: Callable[[int], Any], *states: int) -> Calls:
    """A program of a tensor, called in one external state twice before others."""

    def arguments(state: int) -> tuple[Any, ...]:
        made = ones()
        change(state)
        return (made,)

    states = states or (0, 0, 1)
    return program, [functools.partial(arguments, state) for state in states]


class Box:
    kind = 1

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def twice(self, x: Any) -> Any:
        return x * 2


class Other(Box):
    kind = 2

    def twice(self, x: Any) -> Any:
        return x * 3


class Number(int):
    pass


def plus(n: Any) -> Callable[..., Any]:
    def function(x: Any, m: Any = 0, *, k: Any = 0) -> Any:
        return x + n + m + k

    return function


def minus(n: Any) -> Callable[..., Any]:
    def function(x: Any, m: Any = 0, *, k: Any = 0) -> Any:
        return x - n + m + k

    return function
