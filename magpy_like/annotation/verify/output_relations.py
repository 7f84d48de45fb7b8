"""Checks of relations: the output is the object that the relation of the annotation leads to."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch

from magpy_like.annotation.schema import RelationKind, RelationProperty

LIMIT = 20
_MISSING = object()


class Witness:
    """The object at a relation, looked up before the operation, which may change it."""

    def __init__(
        self, relation: RelationProperty, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.relation = relation
        self.args = args
        holders: Any = args if isinstance(relation.of, int) else kwargs
        self.source = holders[relation.of]
        self.key = self._argument(relation.key)
        self.default = self._argument(relation.default)
        self.elements = _elements(self.source)
        self.inputs = [*args, *kwargs.values()]
        self.all_elements = [*itertools.chain(*map(_elements, self.inputs))]
        self.length = len(self.source) if hasattr(type(self.source), "__len__") else None
        self.expected = self._look_up() if relation.access == "read" else _MISSING

    def _argument(self, position: int | None) -> Any:
        return _MISSING if position is None or position >= len(self.args) else self.args[position]

    def _look_up(self) -> Any:
        try:
            match self.relation.kind:
                case RelationKind.ITEM | RelationKind.KEY:
                    return self.source[self.key]
                case RelationKind.ATTRIBUTE:
                    return getattr(self.source, self.key)
                case RelationKind.MEMBERSHIP:
                    return self.key in self.source
                case RelationKind.HAS_ATTRIBUTE:
                    return hasattr(self.source, self.key)
                case RelationKind.DICT:
                    return self.source.__dict__
                case RelationKind.TYPE:
                    return type(self.source)
        except Exception:
            pass
        return _MISSING


def holds(witness: Witness, output: Any, again: Callable[[], Any]) -> bool | None:
    """True if the relation holds; None if this call cannot test it."""
    relation = witness.relation
    if relation.access == "write":
        return _written(witness)
    match relation.kind:
        case RelationKind.DICT:
            return output is witness.expected or output == witness.expected
        case RelationKind.SELF:
            return output is witness.source
        case RelationKind.LENGTH:
            return output == witness.length
        case RelationKind.MEMBERSHIP | RelationKind.HAS_ATTRIBUTE | RelationKind.TYPE:
            return output == witness.expected
        case RelationKind.ITEM | RelationKind.KEY | RelationKind.ATTRIBUTE:
            return _looked_up(witness, output)
        case RelationKind.ARGUMENT:
            return _among(output, [*witness.inputs, *witness.all_elements])
        case RelationKind.ELEMENT:
            return _among(output, [*witness.elements, *_given(witness.default)])
        case RelationKind.COPY:
            return _is_copy(output, witness.all_elements)
        case RelationKind.ITERATION:
            if isinstance(witness.source, Iterator) and not witness.elements:
                return None  # its remaining items are not accessible
            return _iterates(witness, output)
        case RelationKind.CONSTANT | RelationKind.SLOT | RelationKind.CELL | RelationKind.CONTEXT:
            return _same_again(output, again)
    return None


def _looked_up(witness: Witness, output: Any) -> bool | None:
    if isinstance(witness.key, slice):
        return None
    if witness.relation.key is None or witness.key is _MISSING:
        return _among(output, witness.elements)
    if witness.expected is _MISSING:
        given = _given(witness.default)
        return _among(output, given) if given else None
    if output is witness.expected:
        return True
    # Some are created by the read: bound methods, items of a string or range, views.
    if isinstance(output, torch.Tensor):
        return (
            _equal(output, witness.expected)
            if isinstance(witness.expected, torch.Tensor)
            else False
        )
    return bool(output == witness.expected)


def _written(witness: Witness) -> bool | None:
    relation = witness.relation
    value = witness._argument(relation.value)
    found = _MISSING
    try:
        match relation.kind:
            case RelationKind.ATTRIBUTE:
                found = getattr(witness.source, witness.key)
            case RelationKind.ITEM | RelationKind.KEY:
                if isinstance(witness.key, slice) or isinstance(witness.source, torch.Tensor):
                    return None
                if relation.value is None and not isinstance(witness.source, dict):
                    return None  # another element is in its position
                found = witness.source[witness.key]
            case RelationKind.CONTEXT:
                found = witness.source.get()
            case _:
                return None
    except (AttributeError, LookupError):
        pass
    return found is value


def _given(value: Any) -> list[Any]:
    return [] if value is _MISSING else [value]


def _among(output: Any, candidates: list[Any]) -> bool:
    """True if the output is among the elements; numbers created by the read need only be equal."""
    if any(candidate is output for candidate in candidates):
        return True
    return any(
        type(candidate) is type(output)
        and not isinstance(output, torch.Tensor)
        and isinstance(output, int | float | str | bytes)
        and candidate == output
        for candidate in candidates
    )


def _is_copy(output: Any, elements: list[Any]) -> bool:
    parts = _elements(output)
    return all(_among(part, elements) or isinstance(part, int | str | float) for part in parts)


def _iterates(witness: Witness, output: Any) -> bool | None:
    """True if all results, in any grouping, are elements or consist of plain values."""
    if isinstance(output, Iterator | collections.abc.MappingView):
        parts = list(itertools.islice(output, LIMIT))  # type: ignore[arg-type]
    else:
        parts = [output]
    known = [*witness.elements, *_given(witness.default)]
    known += witness.all_elements + witness.inputs
    known += [*itertools.chain(*map(_elements, witness.all_elements))]
    return all(_made_of(part, known) for part in parts)


def _made_of(value: Any, known: list[Any]) -> bool:
    if _among(value, known) or isinstance(value, int | float | complex | str | bytes | type(None)):
        return True
    if isinstance(value, tuple | list):
        return all(_made_of(part, known) for part in value)
    return isinstance(value, Iterator) or not known


def _same_again(output: Any, again: Callable[[], Any]) -> bool | None:
    try:
        return again() is output
    except Exception:
        return None


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and bool((left == right).all())


def _elements(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | numpy.ndarray | str | bytes):
        return list(value) if not isinstance(value, torch.Tensor) else []
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, collections.abc.Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | collections.deque | range):
        return list(value)
    if isinstance(value, collections.abc.MappingView):
        return [*value]  # type: ignore[misc]
    if isinstance(value, Iterator) or type(value).__module__ == "itertools":
        return _remaining(value)
    return []


def _remaining(iterator: Any) -> list[Any]:
    """The remaining items of an iterator and its other state, without advancing it."""
    try:
        _, *state = iterator.__reduce__()
    except Exception:
        return []
    found = list(itertools.chain(*map(_elements, state)))
    for _ in range(2):  # iterators of iterators, arguments in tuples
        found += itertools.chain(*map(_elements, found))
    return found
