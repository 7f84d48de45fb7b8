"""Programs that each rely on something, and calls between which just that changes.

Each is a function that makes the program anew and gives it with makers of its arguments, one for
each call. What is not an argument is changed by the makers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magpy_like.synthesis.guard.conditions import Kind

Made = tuple[Callable[..., Any], list[Callable[[], tuple[Any, ...]]]]


class Program(NamedTuple):
    make: Callable[[], Made]
    kinds: set[Kind]
    """The kinds of conditions that it needs at least; see :mod:`tests.conditions`."""
    backend: str
    behind: bool
    """Whether it may run behind a split as well, on arguments that it is given there."""


PROGRAMS: dict[str, Program] = {}


def relies_on(
    *kinds: Kind, backend: str = "eager", behind: bool = True
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        PROGRAMS[make.__name__] = Program(make, {*kinds}, backend, behind)
        return make

    return add


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes or (2,))


def given(program: Callable[..., Any], *others: Callable[[], Any]) -> Made:
    """A program of a tensor and something else, called with one kind of it twice before others."""
    return program, [lambda make=make: (ones(), make()) for make in (others[0], *others)]


def altered(program: Callable[..., Any], change: Callable[[int], Any], *states: int) -> Made:
    """A program of a tensor, called in one state of what is around it twice before others."""

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
