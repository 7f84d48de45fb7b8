"""Reconstruction of iterators and suspended generators at their positions."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.objects.iterators import (
    ARRAY_ITERATOR,
    DICT_ITERATORS,
    PEEKABLE,
    advance,
    container_of,
)
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.suspended_generators import capture_generator, rebuild_generator

if TYPE_CHECKING:
    from magpy_like.synthesis.mock.reconstruction import Reconstruction


ITERATORS: tuple[type, ...] = (*PEEKABLE, ARRAY_ITERATOR, type(reversed(())), map, filter)
"""Iterators whose ``__reduce__`` returns their position, and those of dictionaries."""


class Iterators:
    """Emits iterators and generators."""

    def __init__(self, values: Reconstruction) -> None:
        self._values, self._rec, self._source = values, values.rec, values.source

    def make_iterator(self, iterator: Any) -> str:
        """Create an iterator as its ``__reduce__`` states; advance an iterator of a dictionary.

        Raises:
            Split: the mock changes its dictionary after that.
        """
        kind = type(iterator)
        if kind in DICT_ITERATORS:
            mapping = container_of(iterator)
            node = self._rec.variables.node(mapping)
            if node is not None and node.changed:
                if [*map(id, node.contents)] != [*map(id, mapping)]:
                    raise Split(
                        SplitReason.ITERATOR_STATE,
                        "leaves an iterator over a dictionary whose keys it has changed",
                    )
            make = self._source.constant(DICT_ITERATORS[kind], kind.__name__)
            taken = 0 if mapping is None else len(mapping) - operator.length_hint(iterator)
            name = self._values.bind(
                iterator, f"{make}({self._values.value({} if mapping is None else mapping)})"
            )
            self._source.emit(f"{self._source.constant(advance)}({name}, {taken})")
            return name
        maker, parts, *state = iterator.__reduce__()
        make = self._source.constant(maker, maker.__name__)
        name = self._values.bind(iterator, f"{make}({', '.join(map(self._values.value, parts))})")
        if state and state[0] is not None:
            # The position is clipped to the length that a list has by then.
            self._values.final_lines.append(f"{name}.__setstate__({state[0]!r})")
        return name

    def make_generator(self, generator: types.GeneratorType[Any, Any, Any]) -> str:
        try:
            layout, parts = capture_generator(generator)
        except ValueError as reason:
            raise Split(
                SplitReason.GENERATOR_SUSPENDED, f"leaves a suspended generator: {reason}"
            ) from None
        make = self._source.constant(rebuild_generator)
        form = self._source.constant(layout, "generator_layout")
        return self._values.bind(
            generator, f"{make}({form}, {self._values.containers.tuple_text(parts)})"
        )
