"""Keys with hashes and comparisons in Python: called as often as in eager mode."""

import collections
import dataclasses
import enum
import functools
import types

import pytest
import torch

import magpy_like as magpy
from magpy_like.monitor.objects.containers import copy_of, items_of
from magpy_like.native import dict_of, stored_hashes
from tests.programs import Twins, one


def _make_program(operation):
    """A program whose keys log each hash and comparison, the log, and the program's state."""
    log = []

    class Key:
        hashed = 0

        def __init__(self, name):
            self.name = name

        def __hash__(self):
            Key.hashed += 1
            log.append(("hash", self.name))
            return hash(self.name)

        def __eq__(self, other):
            log.append(("compare", self.name))
            return self.name == (other.name if isinstance(other, Key) else other)

    class Meta(type):
        def __hash__(cls):
            log.append("hash of a class")
            return 5

    class Kind(metaclass=Meta):
        pass

    class Loud(enum.Enum):
        A = 1

        def __hash__(self):
            log.append("hash of a member")
            return 7

    @dataclasses.dataclass(frozen=True)
    class Record:
        part: object

    @functools.cache
    def cached(key):
        return 2.0

    keys = [Key("a"), Key("b")]
    table = dict.fromkeys(keys, 1.0)
    state = types.SimpleNamespace(
        Key=Key, Kind=Kind, Loud=Loud, Record=Record, Set=type("Set", (set,), {}), cached=cached,
        keys=keys, table=table, ordered=collections.OrderedDict(table), members=set(keys),
        kinds={Kind: 2.0}, loud={Loud.A: 2.0}, empty={}, kept=None,
    )  # fmt: skip
    state.ordered.move_to_end(keys[0])

    def program(x):
        return operation(state, x), Key.hashed

    return program, log, state


_OPERATIONS = {
    "lookup": lambda s, x: s.table[s.Key("a")] * x,
    "lookup of a key that others find equal": lambda s, x: (s.table["a"] * x, "b" in s.table),
    "missing key": lambda s, x: s.table.get(s.Key("c")),
    "set default": lambda s, x: s.table.setdefault(s.Key("c"), 2.0),
    "store at a key that another finds equal": lambda s, x: s.table.__setitem__("a", 3.0),
    "copy": lambda s, x: len(s.table.copy()),
    "set of keys": lambda s, x: len(set(s.table)),
    "union": lambda s, x: len(s.table | {s.Key("b"): x}),
    "iteration": lambda s, x: [key.name for key in s.table],
    "equality": lambda s, x: s.table == {s.Key("a"): 1.0, s.Key("b"): 1.0},
    "popped": lambda s, x: s.table.pop(s.keys[0], None),
    "cleared": lambda s, x: s.table.clear(),
    "last item": lambda s, x: s.table.popitem()[1] if s.table else None,
    "ordered update": lambda s, x: s.ordered.update({s.Key("c"): 1.0}),
    "ordered move": lambda s, x: s.ordered.move_to_end(s.keys[1]),
    "ordered copy": lambda s, x: len(s.ordered.copy()),
    "new ordered dictionary": lambda s, x: len([collections.OrderedDict({s.Key("a"): x})][0]),
    "stored ordered dictionary": lambda s, x: s.__setattr__(
        "kept", collections.OrderedDict({s.Key("a"): x})
    ),
    "member": lambda s, x: s.members.add(s.Key("a")),
    "new member": lambda s, x: s.members.add(s.Key("c")),
    "plain member among them": lambda s, x: s.members.add("a"),
    "set operations": lambda s, x: (len(s.members & {s.Key("a")}), len(s.members - {s.Key("b")})),
    "class": lambda s, x: s.kinds[s.Kind] * x,
    "member of an enumeration": lambda s, x: s.loud[s.Loud.A] * x,
    "cache": lambda s, x: s.cached(s.Key("a")) * x,
    "created": lambda s, x: len({s.Key("a"): x, s.Key("b"): x, s.Key("a"): x + 1}),
    "created and looked up": lambda s, x: {s.Key("a"): x}["a"],
    "created and stored": lambda s, x: s.__setattr__(
        "kept", {s.Key("a"): x, s.Key("b"): {s.Key("c")}}
    ),
    "equal hashes": lambda s, x: s.__setattr__("kept", {s.Key(-1): x, s.Key(-2): x}),
    "keys in keys": lambda s, x: s.__setattr__(
        "kept", {frozenset([s.Key("a")]): x, (s.Key("b"), (s.Key("c"),)): x, s.Record(s.Key(1)): x}
    ),
    "subclass": lambda s, x: s.__setattr__("kept", s.Set([s.Key("a"), s.Key("b")])),
    "into an empty one": lambda s, x: s.empty.update({s.Key("a"): 1.0}) if not s.empty else None,
}


@pytest.mark.parametrize("name", _OPERATIONS)
def test_keys_are_hashed_and_compared_as_often_as_in_eager(name):
    eager, eager_log, eager_state = _make_program(_OPERATIONS[name])
    target, log, state = _make_program(_OPERATIONS[name])
    compiled = magpy.compile(target, backend="eager")
    for i in range(5):
        x = torch.tensor([1.0, float(i)])
        expected, expected_hashed = eager(x)
        found, hashed = compiled(x)
        assert log == eager_log, f"call {i}"
        assert hashed == expected_hashed == eager_state.Key.hashed == state.Key.hashed, f"call {i}"
        assert str(found) == str(expected), f"call {i}"
        for part in ("table", "ordered", "members", "kept", "empty"):
            assert _names(getattr(state, part)) == _names(getattr(eager_state, part)), part


def _names(value):
    """Contents of a container, read without hashing or comparing its keys."""
    if isinstance(value, dict):
        return [type(value).__name__, *((_names(k), _names(v)) for k, v in items_of(value))]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, *sorted(str(_names(item)) for item in value)]
    if isinstance(value, tuple):
        return [*map(_names, value)]
    if isinstance(value, torch.Tensor | int | str):
        return str(value)
    return getattr(value, "name", type(value).__qualname__)


def test_containers_of_such_keys_are_created_by_a_hit():
    compiled = magpy.compile(_make_program(_OPERATIONS["created and stored"])[0], backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
    assert magpy.cache_info(compiled).hits


def test_created_containers_find_equal_keys():
    def make():
        @dataclasses.dataclass(frozen=True)
        class Size:
            height: int
            width: int

        def program(x):
            sizes = {Size(1, 2): x, Size(3, 4): x + 1}
            return sizes, {Size(1, 2), Size(5, 6)}, frozenset({Size(7, 8)}), Size

        return program

    compiled = magpy.compile(make(), backend="eager")
    for i in range(3):
        table, members, frozen, Size = compiled(torch.ones(2))
        assert torch.equal(table[Size(3, 4)], torch.full((2,), 2.0)), f"call {i}"
        assert Size(5, 6) in members and Size(3, 4) not in members and Size(7, 8) in frozen
    assert magpy.cache_info(compiled).hits == 2


def test_data_classes_are_found_in_a_cache():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        scale: float

    def make():
        scale = functools.cache(lambda settings: settings.scale * 2)
        settings = Settings(3.0)
        return lambda x: x * scale(settings)

    twins = Twins(make)
    for i in range(3):
        twins.call(one(1, 2), hit=i > 0)


def test_monitor_calls_no_methods_of_dictionary_subclasses():
    def make():
        counts = {"values": 0}

        class Table(dict):
            def values(self):
                counts["values"] += 1
                return super().values()

        def program(x):
            return len([Table(a=x)][0]), counts["values"]

        return program

    twins = Twins(make)
    for i in range(3):
        twins.call(one(1, 2), why=f"call {i}")


class _Counting:
    hashed = 0

    def __hash__(self):
        _Counting.hashed += 1
        return 3


def test_ordered_dictionaries_are_read_and_copied_in_order_without_hashing():
    first, second = _Counting(), "second"
    ordered = collections.OrderedDict({first: 1, second: 2, "third": 3})
    ordered.move_to_end(first)
    _Counting.hashed = 0
    expected = [(second, 2), ("third", 3), (first, 1)]
    assert items_of(ordered) == expected
    assert list(copy_of(ordered).items()) == expected
    assert _Counting.hashed == 0


def test_dictionary_is_created_from_stored_hashes():
    key = _Counting()
    table = {key: 1, "a": 2}
    _Counting.hashed = 0
    hashes = tuple(number for _, number in stored_hashes(table))
    again = dict_of(tuple(table), hashes, (5, 6))
    assert list(again.items()) == [(key, 5), ("a", 6)] and hashes == (3, hash("a"))
    assert stored_hashes({key}) == [(key, 3)] and _Counting.hashed == 1  # by the set literal
    assert again[key] == 5 and again["a"] == 6
    with pytest.raises(ValueError, match="as many hashes"):
        dict_of((1, 2), (1,), (1, 2))
    with pytest.raises(TypeError, match="dictionary or a set"):
        stored_hashes([key])
