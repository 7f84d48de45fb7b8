"""Memory addresses in ``id``, hashes, orders of sets and texts: those of each call's objects."""

import copy
import dataclasses
import functools
import itertools
import types
import weakref

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import collect


class Thing:
    """Hashed by its address, and equal only to itself."""


class HashedByAddress:
    """Hashed by its address by a method in Python."""

    def __init__(self):
        self.held = Thing()

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


@dataclasses.dataclass
class Pair:
    first: object
    second: object


class ShowsAttribute:
    def __init__(self, thing):
        self.thing = thing

    def __repr__(self):
        return f"named {self.thing!r}"


def _added_to_set(found, *others):
    for other in others:
        found.add(other)
    return [item is others[0] for item in found]


REPEATED = {
    "id": lambda x, thing: id(thing),
    "hash": lambda x, thing: hash(thing),
    "hash by the method of object": lambda x, thing: object.__hash__(thing),
    "hash by its method": lambda x, thing: thing.__hash__(),
    "id in a list": lambda x, thing: [id(thing), 1],
    "id as text": lambda x, thing: f"thing {id(thing)}",
    "number derived from an id": lambda x, thing: id(thing) % 4096 + 1,
    "id of a tensor": lambda x, thing: id(x),
    "hash of a tensor": lambda x, thing: hash(x),
    "hash of a tensor by its method": lambda x, thing: x.__hash__(),
}
"""Values that the mock computes again for the objects of each call."""

TEXTS = {
    "repr": lambda x, thing: repr(thing),
    "str": lambda x, thing: str(thing),
    "format": lambda x, thing: format(thing),
    "method of the class": lambda x, thing: thing.__repr__(),
    "method of object": lambda x, thing: object.__str__(thing),
    "field": lambda x, thing: f"{thing}",
    "field of the representation": lambda x, thing: f"<{thing!r}, {id(thing):#x}>",
}

NESTED_TEXTS = {
    "percent": lambda x, thing: "%s" % thing,  # noqa: UP031
    "percent in bytes": lambda x, thing: b"%a" % thing,
    "percent of several": lambda x, thing: "%s %d".__mod__((thing, 1)),
    "ascii": lambda x, thing: ascii(thing),
    "field in ASCII": lambda x, thing: f"{thing!a}",
    "field with a width": lambda x, thing: f"{thing!r:>60}",
    "list": lambda x, thing: repr([1, [thing]]),
    "key": lambda x, thing: f"{ {thing: 1} }",
    "exception": lambda x, thing: str(ValueError(thing)),
    "bound method": lambda x, thing: repr(types.MethodType(len, thing)),
    "partial": lambda x, thing: repr(functools.partial(len, thing)),
    "data class": lambda x, thing: repr(Pair(thing, 1)),
    "native method of an object": lambda x, thing: repr(thing.__eq__),
    "method in Python": lambda x, thing: repr(ShowsAttribute(thing)),
    "joined": lambda x, thing: ", ".join(map(str, (thing, 1))),
}

ORDERS = {
    "loop": lambda a, b: [found is a for found in {a, b}],
    "list": lambda a, b: [found is a for found in list({a, b})],
    "tuples in a set": lambda a, b: [one is a for one, _ in {(a, 1), (b, 1)}],
    "spread": lambda a, b: [found is a for found in [*{a, b}]],
    "unpacked": lambda a, b: (lambda one, _: one is a)(*{a, b}),
    "zip": lambda a, b: [found is a for _, found in zip("ab", {a, b}, strict=True)],
    "first of equal ones": lambda a, b: min({a, b}, key=lambda _: 0) is a,
    "any one": lambda a, b: {a, b}.pop() is a,
    "first one": lambda a, b: next(iter({a, b})) is a,
    "keys": lambda a, b: [found is a for found in dict.fromkeys({a, b})],
    "set that is added to": lambda a, b: _added_to_set(set(), a, b),
    "sorted": lambda a, b: [found is a for found in sorted((a, b), key=id)],
    "largest": lambda a, b: max([a, b], key=hash) is a,
    "comparison": lambda a, b: id(a) < id(b),
    "comparison of texts": lambda a, b: repr(a) < repr(b),
}
"""Values that depend on the order of two addresses."""

GUARDED = {
    "hash of a tuple": lambda x, thing: hash((1, (thing, "a"))),
    "hash of a frozen set": lambda x, thing: hash(frozenset((1, thing))),
    "key": lambda x, thing: {id(thing): 1},
    "set of ids": lambda x, thing: {id(thing), id(x)},
    "groups": lambda x, thing: [key for key, _ in itertools.groupby([thing, x], key=id)],
    "hash of a weak reference": lambda x, thing: hash(weakref.ref(thing)),
    "hash of a bound method": lambda x, thing: hash(types.MethodType(len, thing)),
    "ids of several": lambda x, thing: [*map(id, (thing, x))],
    "hashes of several": lambda x, thing: [*map(hash, (thing, 1))],
    "bits of an id": lambda x, thing: id(thing).bit_count(),
}
"""Values that a record holds as constants, so that it serves one object only."""


def call_with_new_objects(program, count=4):
    """Call a compiled program with new objects each time; returns it and its cache information."""
    fast, kept = magpy.compile(program, backend="eager"), []
    for _ in range(count):
        kept.append((torch.ones(2), Thing()))
        assert_same(fast(*kept[-1]), program(*kept[-1]))
    assert_same(fast(*kept[-1]), program(*kept[-1]))
    return fast, magpy.cache_info(fast)


@pytest.mark.parametrize("name", [*REPEATED, *TEXTS])
def test_one_record_serves_addresses_of_all_objects(name):
    operation = {**REPEATED, **TEXTS}[name]
    _, info = call_with_new_objects(lambda x, thing: (operation(x, thing), x * 2))
    assert (info.records, info.graphs, info.hits) == (1, 1, 4)


@pytest.mark.parametrize("name", [*GUARDED, *NESTED_TEXTS])
def test_values_derived_from_an_address_are_those_of_each_object(name):
    operation = {**GUARDED, **NESTED_TEXTS}[name]
    _, info = call_with_new_objects(lambda x, thing: (operation(x, thing), x * 2), 7)
    assert info.hits >= 1 and info.graphs == 1


@pytest.mark.parametrize("name", ORDERS)
def test_order_by_address_is_that_of_each_call(name):
    operation, things = ORDERS[name], [Thing() for _ in range(20)]
    pairs = itertools.combinations(things, 2)
    pair = next(pair for pair in pairs if operation(*pair) != operation(*pair[::-1]))
    fast = magpy.compile(lambda x, a, b: (operation(a, b), x * 2), backend="eager")
    for a, b in [pair, pair[::-1], pair, pair[::-1]]:
        assert fast(torch.ones(2), a, b)[0] == operation(a, b)
    assert magpy.cache_info(fast).hits == 2


def test_hash_method_that_returns_the_address_is_followed():
    def program(x, thing):
        return hash(thing), x * 2

    fast = magpy.compile(program, backend="eager")
    for thing in [HashedByAddress(), HashedByAddress(), HashedByAddress()]:
        for _ in range(2):
            assert fast(torch.ones(2), thing)[0] == id(thing)


NEW_OBJECTS = {
    "instance": (lambda x: Thing(), id),
    "hash of an instance": (lambda x: Thing(), hash),
    "list": (lambda x: [x], id),
    "function": (lambda x: lambda: x, id),
    "tensor": (lambda x: x + 1, id),
    "hash of a tensor": (lambda x: x + 1, lambda found: found.__hash__()),
    "hash of a tuple": (lambda x: Thing(), lambda found: hash((found,))),
    "text": (lambda x: Thing(), lambda found: f"{found}"),
    "text of a list": (lambda x: [Thing()], repr),
    "text of a function": (lambda x: lambda: x, str),
    "text of an iterator": (lambda x: iter([x]), repr),
    "text by percent": (lambda x: Thing(), lambda found: "%s" % found),  # noqa: UP031
    "text of a data class": (lambda x: Pair(Thing(), 1), repr),
    "order": (lambda x: {Thing(), Thing(), Thing()}, lambda found: [*map(id, found)]),
    "order of tensors": (lambda x: {x + 1, x + 2}, lambda found: [*map(id, found)]),
}
"""Pairs of a function that creates an object, and one whose result depends on its address."""


@pytest.mark.parametrize("name", NEW_OBJECTS)
def test_new_objects_have_new_addresses_at_every_call(name):
    make, operation = NEW_OBJECTS[name]

    def program(x):
        found = make(x)
        return found, operation(found), x * 2

    fast, kept = magpy.compile(program, backend="eager"), []
    for _ in range(4):
        kept.append(fast(torch.ones(2)))
        assert kept[-1][1] == operation(kept[-1][0])
    assert len({str(address) for _, address, _ in kept}) == len(kept)


@pytest.mark.parametrize("name", ["__repr__", "__str__", "__format__"])
def test_text_method_added_to_a_class_takes_effect(name):
    class Plain:
        pass

    def program(x, thing):
        return f"{thing}", x * 2

    fast, thing = magpy.compile(program, backend="eager"), Plain()
    for _ in range(2):
        assert_same(fast(torch.ones(2), thing), program(torch.ones(2), thing))
    setattr(Plain, name, lambda self, *_: "seven")
    assert_same(fast(torch.ones(2), thing), program(torch.ones(2), thing))


class SharedParameters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])
        self.layers[2].weight = self.layers[0].weight
        self.cache = {id(p): float(i) for i, p in enumerate(self.parameters())}

    def forward(self, x):
        count = len({id(p) for p in self.parameters()})
        for layer in self.layers:
            x = layer(x) * self.cache[id(layer.weight)]
        first, *_ = sorted(self.parameters(), key=id)
        return x * count, [*map(id, self.parameters())], first


def test_ids_of_parameters_stay_in_one_graph():
    model = SharedParameters()
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        assert_same(fast(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert magpy.cache_info(fast).hits == 2
    guards = magpy.explain(model, torch.ones(1, 2)).guards
    # Parameters are fixed objects of the record, whose ids need no condition.
    assert not any("function id" in guard for guard in guards)
    model.layers[1].weight = torch.nn.Parameter(torch.ones(2, 2))
    model.cache[id(model.layers[1].weight)] = 5.0
    assert_same(fast(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_comparison_of_ids_serves_all_objects():
    _, info = call_with_new_objects(lambda x, thing: x + 1 if id(x) == id(thing) else x)
    assert (info.records, info.hits) == (1, 4)


def test_deep_copies_serve_all_objects():
    def program(x, thing):
        return copy.deepcopy({"a": [thing.__dict__, (x.shape, [1])]}), x * 2

    _, info = call_with_new_objects(program)
    assert (info.records, info.graphs, info.hits) == (1, 1, 4)


@pytest.mark.parametrize("name", ["key", "hash of a tuple", "ids of several"])
def test_record_for_one_object_does_not_keep_it_alive(name):
    fast = magpy.compile(lambda x, thing: (GUARDED[name](x, thing), x * 2), backend="eager")
    x, thing = torch.ones(2), Thing()
    for _ in range(2):
        fast(x, thing)
    end = weakref.ref(thing)
    del thing
    collect()
    assert end() is None and magpy.cache_info(fast).hits == 1


def test_addresses_are_read_where_sizes_vary():
    def program(x, thing):
        return x * len({id(x), id(thing)}), f"{thing} of {len(x)}"

    fast = magpy.compile(program, backend="eager", dynamic=True)
    kept = [(torch.ones(size), Thing()) for size in (2, 3, 5)]
    for args in [*kept, *kept]:
        assert_same(fast(*args), program(*args))
