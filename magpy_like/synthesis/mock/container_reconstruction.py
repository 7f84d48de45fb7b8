"""Reconstruction of lists, tuples, dictionaries and sets, and contents of their subclasses."""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.objects.containers import (
    CONTAINERS,
    elements,
    hashes_in_python,
    hashes_of,
    items_of,
)
from magpy_like.native import dict_of, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.synthesis.mock.reconstruction import Reconstruction


_FILL: tuple[tuple[Any, str], ...] = (
    (list, "list.extend({0}, {1})"),
    (dict, "dict.update({0}, {1})"),
    (set, "set.update({0}, {1})"),
    (collections.deque, "{0}.extend({1})"),
)


class Containers:
    """Emits containers and expressions for their contents."""

    def __init__(self, values: Reconstruction) -> None:
        self._values, self._rec, self._source = values, values.rec, values.source

    def make_list(self, value: list[Any]) -> str:
        name = self._values.bind(value, "[]") if _refers_to_itself(value) else None
        text = self.list_text(value)
        if name is None:
            return self._values.bind(value, text)
        self._source.emit(f"{name}.extend({text})")
        return name

    def make_dict(self, value: dict[Any, Any]) -> str:
        name = self._values.bind(value, "{}") if _refers_to_itself(value) else None
        text = self.dict_text(value)
        if name is None:
            return self._values.bind(value, text)
        self._source.emit(f"{name}.update({text})")
        return name

    def tuple_text(self, items: Any) -> str:
        texts = [self._values.value(item) for item in items]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def list_text(self, items: Any) -> str:
        return f"[{', '.join(self._values.value(item) for item in items)}]"

    def members_text(self, members: set[Any] | frozenset[Any]) -> str:
        """An iterable of a set's members."""
        found = elements(members)
        if any(map(hashes_in_python, found)):
            return self._with_known_hashes(members, [(member, None) for member in found])
        return self.tuple_text(found)

    def dict_text(
        self, mapping: dict[Any, Any], items: Sequence[tuple[Any, Any]] | None = None
    ) -> str:
        """A dictionary of some ``items`` of a mapping, or of all.

        Raises:
            Split: the mock would call a ``__hash__`` of the program.
        """
        items = items_of(mapping) if items is None else items
        if any(hashes_in_python(key) for key, _ in items):
            return self._with_known_hashes(mapping, items)
        pairs = [f"{self._values.value(k)}: {self._values.value(v)}" for k, v in items]
        return "{" + ", ".join(pairs) + "}"

    def _with_known_hashes(self, container: Any, items: Sequence[tuple[Any, Any]]) -> str:
        """Keys with the hashes that they had: ``__hash__`` in Python may have had effects."""
        if is_instance(container, collections.OrderedDict):
            raise Split(
                SplitReason.UNGUARDABLE_KEY,
                "leaves an OrderedDict with keys that have a __hash__ in Python",
            )
        hashes = hashes_of(container)
        numbers = tuple(hashes[id(key)] for key, _ in items)
        if len(set(numbers)) < len(numbers):
            raise Split(
                SplitReason.UNGUARDABLE_KEY, "leaves keys with equal hashes and an __eq__ in Python"
            )
        if not all(_keeps_hash(key) for key, _ in items):
            raise Split(SplitReason.OBJECT_IDENTITY, "leaves keys that hash by memory address")
        parts = [self.tuple_text([key for key, _ in items]), repr(numbers)]
        parts.append(self.tuple_text([value for _, value in items]))
        return f"{self._source.constant(dict_of)}({', '.join(parts)})"

    def fill(self, value: Any, name: str) -> None:
        """Fill the empty container called ``name`` with the contents of another one."""
        for base, fill in _FILL:
            if is_instance(value, base) and base.__len__(value):
                if base is dict:
                    text = self.dict_text(value)
                elif base is set:
                    text = self.members_text(value)
                else:
                    text = self.list_text(elements(value))
                self._source.emit(fill.format(name, text))


def _keeps_hash(key: Any) -> bool:
    """True if a key's hash in a mock is that of the recorded run, or needs no call."""
    if is_instance(key, tuple | frozenset) and not is_instance(
        lookup_in_type(type(key), "__hash__"), types.FunctionType
    ):
        return all(map(_keeps_hash, elements(key)))
    return is_plain(key) or is_identity(key) or hashes_in_python(key)


def _refers_to_itself(container: Any) -> bool:
    """True if a list or dictionary can be reached from its own contents."""
    seen: set[int] = set()
    pending = elements(container)
    while pending:
        item = pending.pop()
        if item is container:
            return True
        if id(item) in seen or is_plain(item):
            continue
        seen.add(id(item))
        if is_instance(item, CONTAINERS):
            pending.extend(elements(item))
        else:
            pending.extend((instance_dict(item) or {}).values())
    return False
