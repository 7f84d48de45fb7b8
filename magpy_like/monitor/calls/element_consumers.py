"""``list``, ``tuple`` and ``sum`` of a generator expression, as Python loops over its source.

These functions receive a recipe of the generator instead of the generator. A generator created for
one element yields the values of that element's iteration. So one iteration of the loop here is one
iteration of the generator, whose only state is the variables that it shares.
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


def return_recipe(recipe: GeneratorRecipe, elements: Iterator[Any]) -> GeneratorRecipe:
    """Called in place of ``make``; nothing iterates over ``elements``."""
    return recipe


def map_recipe(function: Callable[..., Any], /, *iterables: Iterable[Any]) -> GeneratorRecipe:
    """Called in place of ``map``."""

    def make(elements: Iterator[Any]) -> Iterable[Any]:
        (element,) = elements
        return (function(*element),)

    return make, zip, iterables


def _list(recipe: GeneratorRecipe, /) -> list[Any]:
    make, head, args = recipe
    found = []
    try:
        for element in head(*args):
            for item in make(iter((element,))):
                found.append(item)
    except StopIteration:  # ends a `map`, too
        pass
    return found


def _tuple(recipe: GeneratorRecipe, /) -> tuple[Any, ...]:
    return tuple(_list(recipe))


def _sum(recipe: GeneratorRecipe, /, start: Any = 0) -> Any:
    make, head, args = recipe
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
"""The replacement of each function that consumes a generator."""


CODE = {
    function.__code__
    for function in (return_recipe, map_recipe, _added, *CONSUMERS.values())
    if isinstance(function, types.FunctionType)
}
CODE |= {part for part in map_recipe.__code__.co_consts if isinstance(part, types.CodeType)}
