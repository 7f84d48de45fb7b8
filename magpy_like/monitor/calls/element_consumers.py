"""Functions that take all elements of something at once, in Python: a round for each of them.

A generator expression is not handed to them, but what makes it: made for one element, it gives what
the round for that element would. So a round here is one of the generator's, which has no other
state than the variables that it shares.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch

GeneratorRecipe: TypeAlias = tuple[
    Callable[[Iterator[Any]], Iterable[Any]], Callable[..., Iterable[Any]], tuple[Any, ...]
]
"""``(make, head, args)`` for the generator ``make(iter(head(*args)))``."""


def return_recipe(rounds: GeneratorRecipe, elements: Iterator[Any]) -> GeneratorRecipe:
    """Is called in place of ``make``; nobody goes through ``elements``."""
    return rounds


def map_recipe(function: Callable[..., Any], /, *iterables: Iterable[Any]) -> GeneratorRecipe:
    """Is called in place of ``map``."""

    def make(elements: Iterator[Any]) -> Iterable[Any]:
        (element,) = elements
        return (function(*element),)

    return make, zip, iterables


def _list(rounds: GeneratorRecipe, /) -> list[Any]:
    make, head, args = rounds
    found = []
    try:
        for element in head(*args):
            for item in make(iter((element,))):
                found.append(item)
    except StopIteration:  # by which a `map` ends, too
        pass
    return found


def _tuple(rounds: GeneratorRecipe, /) -> tuple[Any, ...]:
    return tuple(_list(rounds))


def _sum(rounds: GeneratorRecipe, /, start: Any = 0) -> Any:
    make, head, args = rounds
    total: Any = None
    numbers: list[Any] = []
    try:
        for element in head(*args):
            total = _added(make, element, total, numbers, start)
    except StopIteration:
        pass
    return sum(numbers, start) if total is None else total


def _added(make: Any, element: Any, total: Any, numbers: list[Any], start: Any) -> Any:
    for item in make(iter((element,))):
        if total is not None:
            total = total + item
        elif isinstance(item, torch.Tensor):
            total = sum(numbers, start) + item
        else:
            numbers.append(item)
    return total


CONSUMERS: dict[Any, Callable[..., Any]] = {list: _list, tuple: _tuple, sum: _sum}
"""By what a program gives a generator to."""


CODE = {
    function.__code__
    for function in (return_recipe, map_recipe, _added, *CONSUMERS.values())
    if isinstance(function, types.FunctionType)
}
CODE |= {part for part in map_recipe.__code__.co_consts if isinstance(part, types.CodeType)}
