"""Numbers that functions in Python return to native code: the guard checks those that vary."""

import collections
import functools
import itertools
import math
import operator

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor

LETTERS = "abcdefg"
ITEMS = [5, 6, 7, 8, 9]


class _Number:
    def __init__(self, n):
        self.n = n


class _Index(_Number):
    def __index__(self):
        return self.n


class _Length(_Number):
    def __len__(self):
        return self.n


class _Hash(_Number):
    def __hash__(self):
        return self.n

    def __eq__(self, other):
        return self.n == other


class _Keys(_Number):
    def keys(self):
        return [self.n, 1]

    def __getitem__(self, key):
        return 5


class _Pairs(_Number):
    def __iter__(self):
        yield self.n, 1
        yield 2, 2


class _List(_Number):
    def __iter__(self):
        return iter([self.n, 1, 2])


class _Tuple(_Number):
    def __iter__(self):
        return iter((self.n, 1, 2))


class _Map(_Number):
    def __iter__(self):
        return map(abs, [self.n, 1, 2])


class _Dict(_Number):
    def __iter__(self):
        return iter({self.n: 5, 1: 6, 2: 7})


INDICES = {
    "list": lambda x, o: x * ITEMS[o],
    "tuple": lambda x, o: x * (5, 6, 7, 8, 9)[o],
    "text": lambda x, o: x * ord(LETTERS[o]),
    "range": lambda x, o: x * range(10)[o],
    "itemgetter": lambda x, o: x * operator.itemgetter(o)(ITEMS),
    "slice": lambda x, o: x * len(ITEMS[o:]),
    "step of a slice": lambda x, o: x * sum(ITEMS[: o.n + 1 : _Index(o.n + 1)]),
    "slice object": lambda x, o: x * sum(ITEMS[slice(o, None)]),
    "repetition": lambda x, o: x * len([1] * o),
    "length of a range": lambda x, o: x * len(range(o)),
    "slice of a tensor": lambda x, o: x * torch.arange(9.0)[o:].sum(),
    "slices of a tensor": lambda x, o: x * torch.arange(9.0).view(3, 3)[0, :o].sum(),
    "slice object of a tensor": lambda x, o: x * torch.arange(9.0)[slice(o, None)].sum(),
    "index of a tensor": lambda x, o: x * torch.arange(9.0)[o],
}
TRUTHS = {
    "filter": lambda x, o: x * len(list(filter(None, [o]))),
    "filter by function": lambda x, o: x * len(list(filter(lambda _: o, [1, 2]))),
    "takewhile": lambda x, o: x * len(list(itertools.takewhile(lambda _: o, [1, 2]))),
    "filterfalse": lambda x, o: x * len(list(itertools.filterfalse(lambda _: o, [1, 2]))),
    "generator": lambda x, o: x * sum(1 for _ in filter(None, [o, o])),
}
PREDICATES = {
    "filter": lambda x, o: x * len(list(filter(lambda _: o.n - 1, [1, 2]))),
    "loop": lambda x, o: x * sum([a for a in filter(lambda _: o.n - 1, [1, 2])]),
    "dropwhile": lambda x, o: x * sum([a for a in itertools.dropwhile(lambda _: o.n - 1, [1, 2])]),
    "groupby": lambda x, o: (
        x * len([k for k, _ in itertools.groupby([1, 2], lambda a: o.n if a == 1 else 2)])
    ),
    "key": lambda x, o: x * sorted([1, 2], key=lambda a: (o.n if a == 1 else 2, a))[0],
}
COLLECTED = {
    "membership": lambda x, o: x * (2 if 3 in o else 3),
    "max": lambda x, o: x * max(o),
    "sorted": lambda x, o: x * sorted(o)[-1],
    "set": lambda x, o: x * len(set(o)),
    "set display": lambda x, o: x * len({*o}),
    "frozenset": lambda x, o: x * len(frozenset(o)),
    "update": lambda x, o: x * len(_updated(o)),
    "bytes": lambda x, o: x * bytes(o)[0],
    "Counter": lambda x, o: x * len(collections.Counter(o)),
    "fromkeys": lambda x, o: x * len(collections.OrderedDict.fromkeys(o)),
    "isdisjoint": lambda x, o: x * (2 if {3}.isdisjoint(o) else 3),
    "contains": lambda x, o: x * (2 if operator.contains(o, 3) else 3),
    "countOf": lambda x, o: x * operator.countOf(o, 3),
    "indexOf": lambda x, o: x * operator.indexOf(o, 2),
    "fsum": lambda x, o: x * math.fsum(o),
}


def _updated(iterable):
    found = set()
    found.update(iterable)
    return found


COMPARED = {
    "hash of a key": (_Hash, lambda x, o: x * {0: 9, 1: 2, 2: 3, 3: 4, 4: 5}[o]),
    "keys of a mapping": (_Keys, lambda x, o: x * len(dict(o))),
    "keys of a dictionary display": (_Keys, lambda x, o: x * len({**o})),
    "pairs of a generator": (_Pairs, lambda x, o: x * (2 if (3, 1) in o else 3)),
    "dict of pairs": (_Pairs, lambda x, o: x * len(dict(o))),
    "max of pairs": (_Pairs, lambda x, o: x * max(o)[0]),
}
CASES = {
    **{f"index of {name}": (_Index, use) for name, use in INDICES.items()},
    **{f"length in {name}": (_Length, use) for name, use in TRUTHS.items()},
    **{f"number in {name}": (_Number, use) for name, use in PREDICATES.items()},
    **{
        f"{kind.__name__} in {name}": (kind, use)
        for name, use in COLLECTED.items()
        for kind in (_List, _Tuple, _Map, _Dict)
    },
    **COMPARED,
}


@pytest.mark.parametrize("values", [(2, 3, 1, 4), (1, 2, 0, 3)])
@pytest.mark.parametrize("name", CASES)
def test_number_returned_to_native_code_is_guarded(name, values):
    kind, use = CASES[name]
    compiled = magpy.compile(use, backend="eager")
    for n in values:
        x = tensor(1)
        assert_same(compiled(x, kind(n)), use(x, kind(n)))


class _Container(_Number):
    def __getitem__(self, key):
        return self.n

    def __iter__(self):
        return iter([self.n, 1.0])

    def __next__(self):
        return self.n


MOVED = {
    "item": lambda x, o: x * o[0],
    "loop": lambda x, o: [x * n for n in o],
    "unpacking": lambda x, o: _multiply(x, *o),
    "display": lambda x, o: x * [*o][0],
    "list": lambda x, o: x * list(o)[0],
    "tuple of pairs": lambda x, o: x * tuple((n, n) for n in (o.n,))[0][0],
    "next of a generator": lambda x, o: x * next((n, n) for n in (o.n,))[0],
    "loop over a zip": lambda x, o: [x * n for n, _ in zip((m for m in (o.n,)), [1], strict=True)],
    "loop over a map": lambda x, o: [x * n for n in map(lambda m: m + o.n, [1.0])],
    "loop over a starmap": lambda x, o: [
        x * n for n in itertools.starmap(lambda m, _: m + o.n, [(1.0, 2)])
    ],
    "reduction": lambda x, o: x * functools.reduce(lambda a, b: (a[0] + o.n, b), [1], (1.0,))[0],
}


def _multiply(x, first, second):
    return x * first + second


@pytest.mark.parametrize("name", MOVED)
def test_number_that_native_code_only_moves_stays_lifted(name):
    use = MOVED[name]
    compiled = magpy.compile(use, backend="eager")
    for n in (2.5, 3.5, 1.5, 4.5, 7.5):
        x = tensor(1)
        assert_same(compiled(x, _Container(n)), use(x, _Container(n)))
    assert magpy.cache_info(compiled).hits >= 3
