"""Identity of arguments: a record holds for one aliasing of them if control flow depends on it."""

import contextlib
import itertools
import types
import typing

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import check, check_results, tensor


def _updates_dictionary(x, a, b):
    table = {}
    table[a] = 1
    table[b] = 2
    table.setdefault(b, 3)
    table.pop(a, None)
    return x * len(table)


def _writes_attributes(x, pair):
    pair[0].value, pair[1].value = 1, 2
    return x * pair[0].value


ON_TENSORS = {
    "is": lambda a, b: a + 1 if a is b else a,
    "id": lambda a, b: a + 1 if id(a) == id(b) else a,
    "set of ids": lambda a, b: a * len({id(a), id(b)}),
    "keys of a dictionary": lambda a, b: a * len({a: 1, b: 2}),
    "key that is looked up": lambda a, b: a * {a: 2}.get(b, 5),
    "item by a key": lambda a, b: a * {a: 2, b: 3}[a],
    "member of a set": lambda a, b: a + 1 if b in {a} else a,
    "size of a set": lambda a, b: a * len({a, b}),
    "set operations": lambda a, b: a * len({a} | {b}) * (1 + len({a} & {b})),
    "set comprehension": lambda a, b: a * len({t for t in (a, b)}),
    "dictionary comprehension": lambda a, b: a * len({t: 1 for t in (a, b)}),
    "frozen set": lambda a, b: a * len(frozenset((a, b))),
    "keys from a list": lambda a, b: a * len(dict.fromkeys([a, b])),
    "spread set": lambda a, b: a * len({*[a], *[b]}),
    "dictionary that is changed": lambda a, b: _updates_dictionary(a, a, b),
    "same memory": lambda a, b: a + 1 if a.is_set_to(b) else a,
}

ON_OBJECTS = {
    "equality": lambda x, pair: x + 1 if pair[0] == pair[1] else x,
    "equality of tuples": lambda x, pair: x + 1 if (pair[0], 1) == (pair[1], 1) else x,
    "hash": lambda x, pair: x + 1 if hash(pair[0]) == hash(pair[1]) else x,
    "id": lambda x, pair: x + 1 if id(pair[0]) == id(pair[1]) else x,
    "set": lambda x, pair: x * len(set(pair)),
    "dictionary": lambda x, pair: x * len({pair[0]: 1, pair[1]: 2}),
    "membership": lambda x, pair: x + 1 if pair[1] in [pair[0]] else x,
    "position": lambda x, pair: x * pair.index(pair[1]),
    "count": lambda x, pair: x * pair.count(pair[0]),
    "attribute that is written": _writes_attributes,
}


def _removes_from_list(x, one, things):
    with contextlib.suppress(ValueError):
        things.remove(one)
    return x * len(things)


def _yields(things):
    yield from things


class _Iterable:
    def __init__(self, things):
        self.things = things

    def __getitem__(self, index):
        return self.things[index]


WITH_LIST = {
    "membership": lambda x, one, things: x + (one in things),
    "absence": lambda x, one, things: x + (one not in things),
    "membership in an iterator": lambda x, one, things: x + (one in iter(things)),
    "membership in a chain": lambda x, one, things: x + (one in itertools.chain([1], things)),
    "membership in pairs": lambda x, one, things: x + ((one, 1) in zip(things, [1], strict=False)),
    "membership in a generator": lambda x, one, things: x + (one in _yields(things)),
    "membership in results": lambda x, one, things: x + (one in map(lambda t: t, things)),
    "membership in an iterable": lambda x, one, things: x + (one in _Iterable(things)),
    "equality of lists": lambda x, one, things: x + ([one, 1] == things),
    "inequality of lists": lambda x, one, things: x + (things != [one, 1]),
    "equality of namespaces": lambda x, one, things: (
        x + (types.SimpleNamespace(a=one) == types.SimpleNamespace(a=things[0]))
    ),
    "removal": _removes_from_list,
    "keys from a list": lambda x, one, things: x * len(dict.fromkeys([one, *things])),
    "keys from pairs": lambda x, one, things: x * len(dict(zip([one, things[0]], (1, 2)))),  # noqa: B905
    "spread set": lambda x, one, things: x * len({one, *things}),
    "set of an iterator": lambda x, one, things: x * len(set(iter([one, *things]))),
    "set of a generator": lambda x, one, things: x * len(set(_yields([one, *things]))),
    "groups": lambda x, one, things: x * len(list(itertools.groupby([one, things[0]]))),
}


class Thing:
    pass


def same_tensor():
    x = tensor(1, 2)
    return x, x


def two_tensors():
    return tensor(1, 2), tensor(1, 2)


def same_thing():
    thing = Thing()
    return tensor(1, 2), (thing, thing)


def two_things():
    return tensor(1, 2), (Thing(), Thing())


@pytest.mark.parametrize("name", ON_TENSORS)
def test_aliasing_of_tensors_matches_eager(name):
    check_results(lambda: ON_TENSORS[name], same_tensor, two_tensors, same_tensor)
    check_results(lambda: ON_TENSORS[name], two_tensors, same_tensor, two_tensors)


@pytest.mark.parametrize("name", ON_OBJECTS)
def test_aliasing_of_objects_is_guarded(name):
    check(ON_OBJECTS[name], same_thing, other=[two_things])
    check(ON_OBJECTS[name], two_things, other=[same_thing])


def in_list():
    x, (thing, _) = same_thing()
    return x, thing, [thing, 1]


def not_in_list():
    return tensor(1, 2), Thing(), [Thing(), 1]


@pytest.mark.parametrize("name", WITH_LIST)
def test_identity_with_an_element_of_a_list_is_guarded(name):
    check(WITH_LIST[name], in_list, other=[not_in_list])
    check(WITH_LIST[name], not_in_list, other=[in_list])


HASHING = {
    "set": lambda x, a, b: x * len({a, b}),
    "set comprehension": lambda x, a, b: x * len({key for key in (a, b)}),  # noqa: C416
    "dictionary": lambda x, a, b: x * len({a: 1, b: 2}),
    "dictionary comprehension": lambda x, a, b: x * len({key: 1 for key in (a, b)}),  # noqa: C420
    "stored entries": lambda x, a, b: _updates_dictionary(x, a, b),
    "keys from a list": lambda x, a, b: x * len(dict.fromkeys([a, b])),
    "set of an iterator": lambda x, a, b: x * len(set(iter([a, b]))),
    "membership in an iterator": lambda x, a, b: x + (a in iter([b])),
}


@pytest.mark.parametrize("name", HASHING)
def test_contents_of_hashed_tuples_are_guarded(name):
    thing = Thing()
    equal = lambda: (tensor(1, 2), (1, thing), (1, thing))  # noqa: E731
    other_number = lambda: (tensor(1, 2), (1, thing), (2, thing))  # noqa: E731
    other_thing = lambda: (tensor(1, 2), (1, thing), (1, Thing()))  # noqa: E731
    check_results(lambda: HASHING[name], equal, other_number, other_thing, equal)
    check_results(lambda: HASHING[name], other_thing, equal, other_number)
    check_results(lambda: HASHING[name], other_number, other_thing, equal)


def test_aliasing_without_effect_is_not_guarded():
    twins = check(lambda a, b: a + b, two_tensors)
    twins.call(same_tensor, hit=True)


def test_types_of_annotations_are_distinguished():
    """Libraries that validate the fields of a configuration compare them like this."""
    kinds = {types.UnionType: 2, typing.Union: 3, list: 5}

    def program(x, expected):
        kind = kinds.get(typing.get_origin(expected), 7)
        return x * kind + (int in typing.get_args(expected))

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    some = [int | None, typing.Optional[list], list[int], list[str], str | None, int]
    for expected in [*some, *some]:
        assert_same(fast(torch.ones(2), expected), program(torch.ones(2), expected))
    assert magpy.cache_info(fast).hits == len(some)


def _appends_to_all(x, lists):
    for i, found in enumerate(lists):
        found.append(i)
    return [x * len(found) for found in lists]


def test_distinctness_of_changed_objects_is_guarded():
    different = lambda: (tensor(1), [[] for _ in range(5)])  # noqa: E731
    twins = check(
        _appends_to_all, different, other=[lambda: (tensor(1), [*([[]] * 2), [], [], []])]
    )
    twins.call(different, hit=True)


def test_distinctness_guards_grow_linearly():
    sizes = []
    for count in (10, 40):
        report = magpy.explain(_appends_to_all, tensor(1), [[] for _ in range(count)])
        sizes.append(len(report.guards))
    assert sizes[1] < 5 * sizes[0]
