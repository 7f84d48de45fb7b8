"""Where objects lie in memory is another place for every object, and none is the answer twice."""

import copy

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


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

RELIED_ON = {
    "hash of a tuple": lambda x, thing: hash((1, (thing, "a"))),
    "hash of a frozen set": lambda x, thing: hash(frozenset((1, thing))),
    "key": lambda x, thing: {id(thing): 1},
    "set of ids": lambda x, thing: {id(thing), id(x)},
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


@pytest.mark.parametrize("name", TOLD)
def test_other_objects_tell_their_own_address_from_one_record(name):
    _, info = calls(lambda x, thing: (TOLD[name](x, thing), x * 2))
    assert (info.records, info.graphs, info.hits) == (1, 1, 4)


@pytest.mark.parametrize("name", RELIED_ON)
def test_what_is_made_of_an_address_is_made_anew_for_another(name):
    _, info = calls(lambda x, thing: (RELIED_ON[name](x, thing), x * 2))
    assert info.hits >= 1


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
    "class": (lambda x: type("New", (), {}), id),
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
    assert len({address for _, address, _ in kept}) == len(kept)


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
