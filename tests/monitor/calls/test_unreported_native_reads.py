"""Reads and changes by native code that no instruction reports: guarded, or not recorded.

Each program runs on inputs that differ only in a property that such code reads. Whether it can be
recorded does not matter here; every result must equal that of eager mode.
"""

import abc
import array
import collections
import copy
import dataclasses
import enum
import functools
import itertools
import json
import math
import operator
import types

import pytest
import torch

from tests.programs import Twins, check_results, matrix, one, tensor


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __repr__(self):
        return f"Thing({self.__dict__})"

    def __lt__(self, other):
        return self.k < other.k

    def __eq__(self, other):
        return isinstance(other, Thing) and self.__dict__ == other.__dict__

    def __hash__(self):
        return hash(self.k)


class Items(list):
    def __init__(self, **attributes):
        super().__init__([1])
        self.__dict__.update(attributes)


def with_attributes(**attributes):
    found = torch.ones(2)
    found.__dict__.update(attributes)
    return found


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


class Fields(tuple):
    left = property(operator.itemgetter(0))


class Getter:
    left = property(operator.attrgetter("k"))

    def __init__(self, k):
        self.k = k


class Caching:
    def __init__(self, k):
        self.k = k

    @functools.lru_cache(None)
    def cached(self):
        return self.k

    @functools.cached_property
    def kept(self):
        return self.k * 2


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Record:
    a: int
    b: list


def named(name, **attributes):
    def function(y):
        return y

    function.__name__ = name
    function.__dict__.update(attributes)
    return function


def reordered_dictionary():
    table = collections.OrderedDict(a=1, b=2)
    table.move_to_end("a")
    return table


def two(*ks):
    return [Thing(k=k) for k in ks]


INSPECTIONS = {
    # Native callbacks.
    "map len": (lambda v: list(map(len, v)), [[1, 2], [3]], [[1], [3, 4]]),
    "map sum": (lambda v: list(map(sum, v)), [[1, 2], [3]], [[1], [3, 4]]),
    "map str": (lambda v: list(map(str, v)), [[1, 2], [3]], [[1], [3, 4]]),
    "map pop": (lambda v: list(map(list.pop, v)), [[1, 2], [3]], [[1], [3, 4]]),
    "map append": (lambda v: list(map(v.append, [1, 2])), [5], [6]),
    "map setattr": (lambda v: list(map(setattr, v, "ab", [1, 2])), two(5, 6), two(6, 7)),
    "map item": (lambda v: list(map(operator.itemgetter(0), v)), [[1], [2]], [[1], [3]]),
    "any not": (lambda v: any(map(operator.not_, v)), [[1], [2]], [[], [3]]),
    "filter none": (lambda v: len(list(filter(None, v))), [[1], [2]], [[], [3]]),
    "sorted attribute": (
        lambda v: sorted(v, key=operator.attrgetter("k"))[0] is v[0],
        two(1, 2),
        two(5, 3),
    ),
    "sorted objects": (lambda v: sorted(v)[0].k, two(3, 1), two(3, 2)),
    "max length": (lambda v: max(v, key=len) is v[0], [[1, 2], [3]], [[1], [3, 4]]),
    "reduce item": (
        lambda v: functools.reduce(operator.getitem, ["a", 0], v),
        {"a": [1]},
        {"a": [2]},
    ),
    "reduce attribute": (
        lambda v: functools.reduce(getattr, ["a", "b"], v),
        Thing(a=Thing(b=1)),
        Thing(a=Thing(b=2)),
    ),
    "chained": (lambda v: list(itertools.chain.from_iterable(v)), [[1], [2]], [[1], [3]]),
    "extended by a generator": (lambda v: v.extend(i * 2 for i in [1, 2]), [1], [2, 3]),
    "extended by itself": (lambda v: v.extend(v), [1], [2, 3]),
    # Copies, texts, comparisons.
    "copy": (lambda v: copy.copy(v).k, Thing(k=1), Thing(k=2)),
    "deep copy": (lambda v: copy.deepcopy(v).k, Thing(k=1), Thing(k=2)),
    "copy of a list with attributes": (lambda v: vars(copy.copy(v)), Items(k=1), Items(k=2)),
    "deep copy of a list with attributes": (
        lambda v: vars(copy.deepcopy(v)),
        Items(k=1),
        Items(j=1),
    ),
    "copy of a tensor with attributes": (
        lambda v: vars(copy.copy(v)),
        with_attributes(k=1),
        with_attributes(),
    ),
    "state of a tensor": (
        lambda v: torch._utils._get_obj_state(v),
        with_attributes(k=1),
        with_attributes(k=2),
    ),
    "deep copy of a list": (lambda v: copy.deepcopy(v), [[1]], [[2]]),
    "format of an attribute": (lambda v: "{0.k}".format(v), Thing(k=1), Thing(k=2)),
    "format map": (lambda v: "{a[0]}".format_map(v), {"a": [1]}, {"a": [2]}),
    "text": (lambda v: (str(v), f"{v}", "%s" % (v,)), [Thing(k=1)], [Thing(k=2)]),
    "json": (lambda v: json.dumps(v), {"a": [1]}, {"a": [2]}),
    "equal": (lambda v: v[0] == v[1], two(3, 3), two(3, 2)),
    "in": (lambda v: Thing(k=3) in v, two(3, 1), two(2, 1)),
    "as a key": (lambda v: {Thing(k=3): 2}.get(v[0], 5), two(3), two(2)),
    "as a member": (lambda v: len(set(v)), two(3, 1), two(1, 1)),
    "dataclass": (lambda v: dataclasses.asdict(v), Record(1, [2]), Record(1, [3])),
    "fields": (
        lambda v: [getattr(v, f.name) for f in dataclasses.fields(v)],
        Record(1, [2]),
        Record(1, [3]),
    ),
    # Values that are equal and not identical.
    "ranges": (lambda v: repr(v), range(0), range(2, 1)),
    "keys": (lambda v: list(v), {1: 2}, {True: 2}),
    "members": (lambda v: list(v), {1}, {True}),
    "order of a set": (lambda v: list(v), {1, 9, 17}, {17, 9, 1}),
    "order": (lambda v: list(v), collections.OrderedDict(a=1, b=2), reordered_dictionary()),
    "signed zero": (lambda v: math.copysign(1, v[0]), (0.0,), (-0.0,)),
    "complex zero": (lambda v: repr(v), complex(0.0, 1), complex(-0.0, 1)),
    "length limit": (lambda v: v.maxlen, collections.deque([1], 2), collections.deque([1], 3)),
    "default": (lambda v: v["x"], collections.defaultdict(list), collections.defaultdict(int)),
    # Native state.
    "int": (lambda v: v * 2, Whole(3), Whole(4)),
    "float": (lambda v: torch.ones(2) * v, Real(3), Real(4)),
    "str": (lambda v: v + "a", Text("a"), Text("b")),
    "array": (lambda v: v[0], array.array("i", [1]), array.array("i", [2])),
    "cell": (lambda v: v.cell_contents, types.CellType(2), types.CellType(3)),
    "item getter": (lambda v: v([1, 2]), operator.itemgetter(0), operator.itemgetter(1)),
    "method caller": (
        lambda v: v(tensor(-1)),
        operator.methodcaller("relu"),
        operator.methodcaller("abs"),
    ),
    "iterator": (lambda v: next(v), iter([2, 5]), iter([3, 5])),
    "flag": (lambda v: Bits.A in v, Bits.A | Bits.B, Bits.B),
    "field": (lambda v: v.left, Fields((1, 2)), Fields((2, 2))),
    "native property": (lambda v: v.left, Getter(1), Getter(2)),
    "cached method": (lambda v: v.cached(), Caching(1), Caching(2)),
    "cached property": (lambda v: v.kept, Caching(1), Caching(2)),
    "function name": (lambda v: v.__name__, named("a"), named("b")),
    "function state": (lambda v: dict(vars(v)), named("a", k=1), named("a", k=2)),
    "function attribute": (lambda v: v.k, named("a", k=1), named("a", k=2)),
}


@pytest.mark.parametrize("name", INSPECTIONS)
def test_native_reads_match_eager(name):
    program, first, second = INSPECTIONS[name]
    fresh = (
        copy.deepcopy
        if not callable(first) and type(first) is not types.CellType
        else (lambda v: v)
    )
    check_results(lambda: program, lambda: (fresh(first),), lambda: (fresh(second),))


HIDDEN_OPERATORS = {
    "map in place": lambda xs: len(list(map(torch.relu_, xs))),
    "map item": lambda xs: list(map(torch.Tensor.item, xs)),
    "map float": lambda xs: list(map(float, xs)),
    "any": lambda xs: any(x > 2 for x in xs),
    "all": lambda xs: all(map(lambda x: x > 0, xs)),
    "filter": lambda xs: len(list(filter(lambda x: x > 1, xs))),
    "take while": lambda xs: len(list(itertools.takewhile(lambda x: x > 0, xs))),
    "group by": lambda xs: len(list(itertools.groupby(xs, key=lambda x: x))),
    "sum of a generator": lambda xs: sum(x * 2 for x in xs),
    "sum of a map": lambda xs: sum(map(torch.relu, xs)),
    "reduce": lambda xs: functools.reduce(torch.add, xs),
    "accumulate": lambda xs: list(itertools.accumulate(xs)),
    "star map": lambda xs: list(itertools.starmap(torch.add, [xs])),
    "slice of a list": lambda xs: [1, 2, 3, 4, 5, 6][: xs[0].long().abs()],
    "size that depends on data": lambda xs: len(torch.unbind(xs[0][xs[0] > 1])),
    "rows that depend on data": lambda xs: [y for y in xs[0][xs[0] > 1]],
    "set by name": lambda xs: setattr(xs[0], "data", xs[1]),
}


@pytest.mark.parametrize("name", HIDDEN_OPERATORS)
def test_tensor_operators_run_by_native_code_match_eager(name):
    check_results(
        lambda: HIDDEN_OPERATORS[name],
        lambda: ([tensor(1), tensor(3)],),
        lambda: ([tensor(5), tensor(-2)],),
        lambda: ([tensor(0), tensor(0)],),
    )


def test_class_registered_with_an_abstract_class_misses():
    class Abstract(abc.ABC):
        pass

    class Concrete:
        pass

    def program(o, x):
        return x * 2 if isinstance(o, Abstract) else x

    twins = Twins(lambda: program)
    for _ in range(2):
        twins.call(lambda: (Concrete(), tensor(1)))
    Abstract.register(Concrete)
    twins.call(lambda: (Concrete(), tensor(1)), hit=False)


def test_class_registered_with_another_abstract_class_hits():
    class Abstract(abc.ABC):
        pass

    class Concrete:
        pass

    class Unrelated(abc.ABC):
        pass

    def program(o, x):
        return x * 2 if isinstance(o, Abstract) or issubclass(int, Abstract) else x

    twins = Twins(lambda: program)
    for _ in range(2):
        twins.call(lambda: (Concrete(), tensor(1)))
    Unrelated.register(Concrete)
    twins.call(lambda: (Concrete(), tensor(1)))
    Abstract.register(int)
    twins.call(lambda: (Concrete(), tensor(1)), hit=False)


def test_class_attributes_read_through_the_dictionary_are_guarded():
    class Base:
        k = 1

    def program(x):
        return x * vars(Base)["k"] * Base.__dict__.get("q", 3)

    twins = Twins(lambda: program)
    twins.call(one())
    for change in (lambda: setattr(Base, "k", 5), lambda: setattr(Base, "q", 7)):
        change()
        twins.call(one())


def test_replaced_bases_of_a_class_miss():
    class Left:
        k = 1

    class Right:
        k = 2

    class Sub(Left):
        pass

    instance = Sub()

    def program(x):
        return x * instance.k + Sub.k

    twins = Twins(lambda: program)
    for bases in ((Left,), (Right,), (Left,)):
        Sub.__bases__ = bases
        twins.call(one())


def test_order_of_an_ordered_dictionary_is_guarded():
    def make():
        table = collections.OrderedDict(a=1, b=2)

        def program(x):
            return x * list(table.values())[0]

        program.table = table
        return program

    twins = Twins(make)
    twins.call(one(), hit=False)
    twins.call(one(), hit=True)
    twins.change(lambda p: p.table.move_to_end("a"))
    twins.call(one(), hit=False)


def test_attribute_getters_as_arguments_are_guarded():
    check_results(
        lambda: lambda v, x: v(x),
        lambda: (operator.attrgetter("T"), matrix()),
        lambda: (operator.attrgetter("shape"), matrix()),
    )
