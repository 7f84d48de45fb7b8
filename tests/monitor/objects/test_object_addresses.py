"""Where objects lie in memory is another place for every object, and none is the answer twice."""

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
    """Equal to itself alone, and found by its address."""


class Numbered:
    """Says itself that it is found by its address."""

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


class Named:
    def __init__(self, thing):
        self.thing = thing

    def __repr__(self):
        return f"named {self.thing!r}"


def _added(found, *others):
    for other in others:
        found.add(other)
    return [item is others[0] for item in found]


TOLD = {
    "id": lambda x, thing: id(thing),
    "hash": lambda x, thing: hash(thing),
    "hash by the method of object": lambda x, thing: object.__hash__(thing),
    "hash by its method": lambda x, thing: thing.__hash__(),
    "id in a list": lambda x, thing: [id(thing), 1],
    "id as text": lambda x, thing: f"thing {id(thing)}",
    "number made of an id": lambda x, thing: id(thing) % 4096 + 1,
    "id of a tensor": lambda x, thing: id(x),
    "hash of a tensor": lambda x, thing: hash(x),
    "hash of a tensor by its method": lambda x, thing: x.__hash__(),
}
"""What the mock asks for again."""

SHOWN = {
    "repr": lambda x, thing: repr(thing),
    "str": lambda x, thing: str(thing),
    "format": lambda x, thing: format(thing),
    "method of the class": lambda x, thing: thing.__repr__(),
    "method of object": lambda x, thing: object.__str__(thing),
    "field": lambda x, thing: f"{thing}",
    "field of the representation": lambda x, thing: f"<{thing!r}, {id(thing):#x}>",
}

SHOWN_INSIDE = {
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
    "method in Python": lambda x, thing: repr(Named(thing)),
    "joined": lambda x, thing: ", ".join(map(str, (thing, 1))),
}

IN_ORDER = {
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
    "set that is added to": lambda a, b: _added(set(), a, b),
    "sorted": lambda a, b: [found is a for found in sorted((a, b), key=id)],
    "largest": lambda a, b: max([a, b], key=hash) is a,
    "comparison": lambda a, b: id(a) < id(b),
    "comparison of texts": lambda a, b: repr(a) < repr(b),
}
"""What tells which of two objects lies where."""

RELIED_ON = {
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
"""What a record has of one object, and no other."""


def calls(program, count=4):
    """A compiled program is called with other objects each time: how often it hit."""
    fast, kept = magpy.compile(program, backend="eager"), []
    for _ in range(count):
        kept.append((torch.ones(2), Thing()))
        assert_same(fast(*kept[-1]), program(*kept[-1]))
    assert_same(fast(*kept[-1]), program(*kept[-1]))
    return fast, magpy.cache_info(fast)


@pytest.mark.parametrize("name", [*TOLD, *SHOWN])
def test_other_objects_tell_their_own_address_from_one_record(name):
    told = {**TOLD, **SHOWN}[name]
    _, info = calls(lambda x, thing: (told(x, thing), x * 2))
    assert (info.records, info.graphs, info.hits) == (1, 1, 4)


@pytest.mark.parametrize("name", [*RELIED_ON, *SHOWN_INSIDE])
def test_what_is_made_of_an_address_is_made_anew_for_another(name):
    made = {**RELIED_ON, **SHOWN_INSIDE}[name]
    _, info = calls(lambda x, thing: (made(x, thing), x * 2), 7)
    assert info.hits >= 1 and info.graphs == 1


@pytest.mark.parametrize("name", IN_ORDER)
def test_order_of_objects_is_that_of_these_objects(name):
    told, things = IN_ORDER[name], [Thing() for _ in range(20)]
    pairs = itertools.combinations(things, 2)
    pair = next(pair for pair in pairs if told(*pair) != told(*pair[::-1]))
    fast = magpy.compile(lambda x, a, b: (told(a, b), x * 2), backend="eager")
    for a, b in [pair, pair[::-1], pair, pair[::-1]]:
        assert fast(torch.ones(2), a, b)[0] == told(a, b)
    assert magpy.cache_info(fast).hits == 2


def test_hash_that_is_an_address_by_its_own_method():
    def program(x, thing):
        return hash(thing), x * 2

    fast = magpy.compile(program, backend="eager")
    for thing in [Numbered(), Numbered(), Numbered()]:
        for _ in range(2):
            assert fast(torch.ones(2), thing)[0] == id(thing)


BORN = {
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
"""What makes an object, and what tells its address."""


@pytest.mark.parametrize("name", BORN)
def test_what_the_program_makes_lies_elsewhere_at_every_call(name):
    make, told = BORN[name]

    def program(x):
        found = make(x)
        return found, told(found), x * 2

    fast, kept = magpy.compile(program, backend="eager"), []
    for _ in range(4):
        kept.append(fast(torch.ones(2)))
        assert kept[-1][1] == told(kept[-1][0])
    assert len({str(address) for _, address, _ in kept}) == len(kept)


@pytest.mark.parametrize("name", ["__repr__", "__str__", "__format__"])
def test_class_that_is_given_a_text_of_its_own_is_asked_for_it(name):
    class Plain:
        pass

    def program(x, thing):
        return f"{thing}", x * 2

    fast, thing = magpy.compile(program, backend="eager"), Plain()
    for _ in range(2):
        assert_same(fast(torch.ones(2), thing), program(torch.ones(2), thing))
    setattr(Plain, name, lambda self, *_: "seven")
    assert_same(fast(torch.ones(2), thing), program(torch.ones(2), thing))


class Sharing(torch.nn.Module):
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


def test_parameters_of_a_model_are_told_by_ids_in_one_graph():
    model = Sharing()
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        assert_same(fast(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert magpy.cache_info(fast).hits == 2
    guards = magpy.explain(model, torch.ones(1, 2)).guards
    assert not any("function id" in guard for guard in guards)  # they are bound to the record
    model.layers[1].weight = torch.nn.Parameter(torch.ones(2, 2))
    model.cache[id(model.layers[1].weight)] = 5.0
    assert_same(fast(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_objects_are_told_apart_by_ids_whichever_they_are():
    _, info = calls(lambda x, thing: x + 1 if id(x) == id(thing) else x)
    assert (info.records, info.hits) == (1, 4)


def test_copies_that_note_what_they_have_copied_are_of_any_object():
    def program(x, thing):
        return copy.deepcopy({"a": [thing.__dict__, (x.shape, [1])]}), x * 2

    _, info = calls(program)
    assert (info.records, info.graphs, info.hits) == (1, 1, 4)


@pytest.mark.parametrize("name", ["key", "hash of a tuple", "ids of several"])
def test_record_of_one_object_does_not_keep_it(name):
    fast = magpy.compile(lambda x, thing: (RELIED_ON[name](x, thing), x * 2), backend="eager")
    x, thing = torch.ones(2), Thing()
    for _ in range(2):
        fast(x, thing)
    end = weakref.ref(thing)
    del thing
    collect()
    assert end() is None and magpy.cache_info(fast).hits == 1


def test_addresses_are_told_where_sizes_vary():
    def program(x, thing):
        return x * len({id(x), id(thing)}), f"{thing} of {len(x)}"

    fast = magpy.compile(program, backend="eager", dynamic=True)
    kept = [(torch.ones(size), Thing()) for size in (2, 3, 5)]
    for args in [*kept, *kept]:
        assert_same(fast(*args), program(*args))
