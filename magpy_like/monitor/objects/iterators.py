"""External native iterators, for example of a loop that was running at a split.

The next elements of such an iterator can be read without advancing it, so they are variables that
a guard can fetch: the edge ITERATION n leads to the n-th element after the state at entry. The mock
advances the iterator by the number of elements that the program has taken.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, GeneratorType, MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from magpy_like.monitor.objects.containers import (
    CONTAINERS,
    DICT_VIEWS,
    arguments_of,
    elements,
)
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import proxied_mapping
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any] | None

SEQUENCE_ITERATORS: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))))
DICT_ITERATORS: dict[type, Any] = {
    type(iter({})): iter,
    type(iter({}.values())): lambda d: iter(dict.values(d)),
    type(iter({}.items())): lambda d: iter(dict.items(d)),
}
"""Types of dictionary iterators, with the function that creates one."""
SINGLE = (*SEQUENCE_ITERATORS, *DICT_ITERATORS, type(reversed([])))
ARRAY_ITERATOR = type(iter(np.zeros(1)))
"""Iterates over anything with a ``__getitem__``, such as an array."""
PEEKABLE: tuple[type, ...] = (*SINGLE, enumerate, zip)
"""Types of iterators whose next elements can be read without advancing them."""


def external_advance_split(iterator: Any) -> Split:
    """The split of a program that takes elements from an external iterator."""
    name = type(iterator).__qualname__
    return Split(SplitReason.ITERATOR_STATE, f"advances an external {name}")


def peek(iterator: Any, count: int) -> Any:
    """The element of an iterator after ``count`` others; NOTHING if there are fewer.

    Raises:
        Split: the element cannot be read without advancing the iterator.
    """
    kind = type(iterator)
    if kind is enumerate:
        _, (inner, start) = iterator.__reduce__()
        value = peek(inner, count)
        return value if value is NOTHING else (start + count, value)
    if kind is zip:
        reduced = iterator.__reduce__()
        values = tuple([peek(inner, count) for inner in reduced[1]])
        if not values or any(value is NOTHING for value in values):
            if len(reduced) > 2:
                raise Split(SplitReason.ITERATOR_STATE, "exhausts an external zip with strict=True")
            return NOTHING
        return values
    if kind not in SINGLE:
        raise external_advance_split(iterator)
    return _peek_container(iterator, count)


def _peek_container(iterator: Any, count: int) -> Any:
    maker, (container, *_), *state = iterator.__reduce__()
    position = state[0] if state and state[0] is not None else 0
    if maker is reversed:
        return container[position - count] if position >= count else NOTHING
    position += count
    return container[position] if position < len(container) else NOTHING


def advance(iterator: Any, count: int) -> None:
    """Take elements out of an iterator."""
    for _ in range(count):
        next(iterator, None)


def container_iterators(iterator: Any) -> Iterator[Any]:
    """The iterators over containers from which an iterator takes its elements."""
    if type(iterator) is enumerate:
        yield from container_iterators(iterator.__reduce__()[1][0])
    elif type(iterator) is zip:
        for inner in iterator.__reduce__()[1]:
            yield from container_iterators(inner)
    else:
        yield iterator


def are_independent(*iterators: Any) -> bool:
    """True if no two of these iterators, or of their parts, take elements from a common one."""
    found = [id(inner) for iterator in iterators for inner in container_iterators(iterator)]
    return len(found) == len(set(found))


def container_of(iterator: Any) -> Any:
    """The container that an iterator iterates over; None when it is exhausted."""
    if type(iterator) in DICT_ITERATORS:
        return next((held for held in gc.get_referents(iterator) if is_instance(held, dict)), None)
    return iterator.__reduce__()[1][0]


def peekable_node(rec: Recording, value: Any) -> ShadowNode | None:
    """The node of an external iterator whose elements a guard can fetch; None for any other."""
    return rec.variables.node(value) if type(value) in PEEKABLE else None


def is_native_iterator(value: Any) -> bool:
    """True if native code implements ``__next__`` and holds the iterator's state."""
    step = lookup_in_type(type(value), "__next__")
    return step is not NULL and not is_instance(step, FunctionType)


def contents_of(value: Any) -> list[Any]:
    """The objects that native code may read when it receives ``value``."""
    if is_instance(value, CONTAINERS):
        return elements(value)
    if is_instance(value, slice):
        return [value.start, value.stop, value.step]
    if is_instance(value, BaseException):
        return [*arguments_of(value)]
    if is_instance(value, SimpleNamespace):
        return [*value.__dict__.values()]
    if is_instance(value, MappingProxyType):
        return [proxied_mapping(value)]
    if is_native_iterator(value) and not is_instance(value, GeneratorType):
        return gc.get_referents(value)  # the source of its elements
    view: Any = value
    return list(view) if is_instance(value, DICT_VIEWS) else []


def yields_from_python(value: Any) -> bool:
    """True if functions in Python may compute the elements that native code takes from a value."""
    if is_native_iterator(value):
        return True
    methods = (lookup_in_type(type(value), name) for name in ("__iter__", "__getitem__"))
    return any(is_instance(method, FunctionType) for method in methods)


def is_started_before(rec: Recording, value: Any) -> bool:
    """True for an external generator, whose next step depends on its frame."""
    return is_instance(value, GeneratorType) and rec.variables.node(value) is not None
