"""Containers as arguments and results: types, contents, order and aliasing."""

import collections
import dataclasses
import enum
import functools
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn

from tests.programs import Twins, check, check_results, check_stateful, matrix, one, tensor

Pair = collections.namedtuple("Pair", "left right", defaults=[3])


class Stack(list):
    """A list with a method of its own."""

    def top(self):
        return self[-1]


class Table(dict):
    def __missing__(self, key):
        return 10.0


class Features(UserDict):
    def last(self):
        return list(self.data.values())[-1]


@dataclasses.dataclass
class Prediction:
    logits: torch.Tensor
    hidden: list = dataclasses.field(default_factory=list)
    name: str = "prediction"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    scale: float
    shift: tuple = (1, 2)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


# --- new containers -----------------------------------------------------------------------------

NEW = {
    "list": lambda x: [x, x + 1, [x]],
    "tuple": lambda x: (x, (x * 2,), ()),
    "dict": lambda x: {"a": x, 1: x + 1, (1, "b"): None, "nested": {"x": x}},
    "set": lambda x: {1, 2, "a", (3, 4)},
    "frozenset": lambda x: frozenset([1, "b"]),
    "set of tensors": lambda x: {x + 1},
    "slice": lambda x: slice(1, None, x.shape[0]),
    "range": lambda x: range(x.shape[0]),
    "size": lambda x: (x.shape, x.size(), torch.Size([1, 2])),
    "namedtuple": lambda x: Pair(x, right=x + 1)._replace(left=5),
    "namedtuple default": lambda x: Pair(x),
    "structseq": lambda x: torch.max(x.reshape(1, -1), 1),
    "ordered": lambda x: OrderedDict(a=x, b=x + 1),
    "ordered moved": lambda x: _moved(OrderedDict(a=x, b=x + 1, c=1)),
    "counter": lambda x: Counter("abca"),
    "defaultdict": lambda x: _grouped(x),
    "deque": lambda x: deque([x, x + 1, 3], maxlen=2),
    "deque rotated": lambda x: _rotated(x),
    "userdict": lambda x: Features(a=x, b=2),
    "userlist": lambda x: UserList([x, 2]),
    "chainmap": lambda x: ChainMap({"a": x}, {"b": 1}),
    "list subclass": lambda x: Stack([x, x + 1]),
    "dict subclass": lambda x: Table(a=x),
    "dataclass": lambda x: Prediction(x, [x + 1]),
    "frozen": lambda x: dataclasses.replace(Frozen(2.0), shift=(x, 1)),
    "asdict": lambda x: dataclasses.asdict(Frozen(2.0)),
    "enum": lambda x: (Color.RED, Level.HIGH, Color["BLUE"], Color(1)),
    "exception": lambda x: ValueError("text", 3),
    "numbers": lambda x: (1, True, 2.5, -0.0, float("inf"), 3 + 4j, None, ..., "text", b"bytes"),
    "types": lambda x: (int, torch.float32, torch.device("cpu"), torch.strided, Stack),
    "numpy scalar": lambda x: (np.float32(2.5), np.int64(3), np.bool_(True)),
    "numpy array": lambda x: np.arange(4).reshape(2, 2) * 2,
    "comprehended": lambda x: [{str(i): x * i} for i in range(2)],
    "concatenated": lambda x: [x] * 2 + [x + 1] + list((1, 2)),
    "list methods": lambda x: _listed(x),
    "dict methods": lambda x: _tabled(x),
    "set methods": lambda x: ({1, 2} | {3}) - {1} ^ {7},
    "string methods": lambda x: "-".join(["a", "b"]).upper() + f"{x.dim()!r:>3}" + "%d" % 3,
    "dict views": lambda x: (list({"a": x}.items()), list({"a": x}.keys()), sorted({3: 1, 2: 1})),
}


def _moved(d):
    d.move_to_end("a")
    d.popitem(last=False)
    return d


def _grouped(x):
    groups = defaultdict(list)
    for i in range(3):
        groups[i % 2].append(x + i)
    return groups


def _rotated(x):
    queue = deque(maxlen=3)
    for i in range(4):
        queue.append(x + i)
    queue.appendleft(7)
    queue.rotate(1)
    return queue, queue.popleft()


def _listed(x):
    items = [x, 3, x + 1, 1]
    items.append(5)
    items.extend([6, 7])
    items.insert(1, "in")
    items.reverse()
    del items[0]
    items[0:2] = [9]
    items += [8]
    return items, items.pop(), items.pop(0), items[::-1]


def _tabled(x):
    table = {"a": x}
    table.update(b=x + 1, c=2)
    table.setdefault("d", []).append(x)
    table |= {"e": 1}
    del table["c"]
    return table, table.pop("b"), table.get("zz", 5), "a" in table, len(table), table.popitem()


@pytest.mark.parametrize("name", NEW)
def test_new_container_equals_eagers(name):
    twins = check(NEW[name], one())
    twins.call(one(5, 6))


def test_new_namespace():
    check(lambda x: types.SimpleNamespace(x=x, n=1), one())


def test_external_namespace_is_read_and_written():
    def program(n):
        n.out = n.x * getattr(n, "factor", 7)
        return n

    def make(**more):
        return lambda: (types.SimpleNamespace(x=tensor(1, 2), **more),)

    check(program, make(factor=2), other=[make(factor=3), make()])


def test_slice_as_argument_and_result():
    def program(x, part, parts):
        return x[part], x[parts[0]], [1, 2, 3][part], part.start, slice(part.stop, None), part

    def make(part, *parts):
        return lambda: (tensor(1, 2, 3, 4), part, list(parts))

    check(
        program,
        make(slice(1, 3), slice(None)),
        other=[
            make(slice(0, 3), slice(None)),
            make(slice(1, 2), slice(None)),
            make(slice(1, 3, 2), slice(None)),
            make(slice(1, 3), slice(1)),
        ],
    )


def test_slice_in_a_closure_is_replaced():
    def make():
        part = slice(0, 2)

        def program(x):
            return x[part]

        def replace(other):
            nonlocal part
            part = other

        program.replace = replace
        return program

    check_stateful(make, one(), changes=[lambda p: p.replace(slice(0, 1)), lambda p: p.replace(2)])


READS_OF_MAPPINGS = {
    "item": lambda x, p: x * p["a"],
    "get": lambda x, p: x * p.get("a"),
    "membership": lambda x, p: x if "b" in p else x * p["a"],
    "length and value": lambda x, p: x * len(p) * p["a"],
    "truth": lambda x, p: x * p["a"] if p else -x,
    "items": lambda x, p: [x * v for k, v in p.items() if k],
    "copy": lambda x, p: {**p, "x": x},
    "union": lambda x, p: p | {"x": x},
}


@pytest.mark.parametrize("name", READS_OF_MAPPINGS)
def test_mapping_under_a_proxy_is_guarded(name):
    def make():
        inside = {"a": 2.0}
        proxy = types.MappingProxyType(inside)

        def program(x):
            return READS_OF_MAPPINGS[name](x, proxy)

        program.inside = inside
        return program

    check_stateful(make, one(), changes=[lambda p: p.inside.update(a=3.0)])
    other = lambda: (tensor(1, 2), types.MappingProxyType({"a": 5.0}))
    check(
        READS_OF_MAPPINGS[name],
        lambda: (tensor(1, 2), types.MappingProxyType({"a": 2.0})),
        other=[other],
    )


def test_new_mapping_proxy():
    fast = Twins(lambda: lambda x: types.MappingProxyType({"x": x + 1})).compiled
    assert [dict(fast(tensor(i)))["x"].item() for i in range(3)] == [1, 2, 3]
    assert type(fast(tensor(1))) is types.MappingProxyType


def test_results_of_two_calls_are_independent():
    def program(x):
        return {"list": [x + 1], "deque": deque([1])}

    twins = check(program, one())
    first, second = twins.compiled(tensor(1)), twins.compiled(tensor(1))
    first["list"].append("changed")
    first["deque"].append("changed")
    assert len(second["list"]) == len(twins.compiled(tensor(1))["list"]) == 1
    assert len(second["deque"]) == 1


# --- external containers ------------------------------------------------------------------------

EXTERNAL = {
    "list item": (
        lambda v, x: x * v[1],
        lambda: [1, 2, 3],
        [lambda: [1, 3, 3], lambda: [1], lambda: (1, 2, 3)],
    ),
    "negative item": (lambda v, x: x * v[-1], lambda: [1, 2], [lambda: [1, 3], lambda: [1, 2, 2]]),
    "list slice": (lambda v, x: x * sum(v[:2]), lambda: [1, 2, 3], [lambda: [2, 2, 3]]),
    "length": (lambda v, x: x * len(v), lambda: [1, 2, 3], [lambda: [1, 2]]),
    "truth": (lambda v, x: x if v else -x, lambda: [1], [lambda: []]),
    "iteration": (
        lambda v, x: [x * i for i in v],
        lambda: (1, 2),
        [lambda: (1, 3), lambda: (1,), lambda: [1, 2]],
    ),
    "dict item": (lambda v, x: x * v["a"], lambda: {"a": 2}, [lambda: {"a": 3}, lambda: {"b": 2}]),
    "dict order": (
        lambda v, x: [x * i for i in v.values()],
        lambda: {"a": 2, "b": 3},
        [lambda: {"b": 3, "a": 2}],
    ),
    "dict get": (lambda v, x: x * v.get("a", 5), lambda: {}, [lambda: {"a": 2}]),
    "membership": (lambda v, x: x if "a" in v else -x, lambda: {"a": 2}, [lambda: {"b": 2}]),
    "absence": (lambda v, x: x if "a" not in v else -x, lambda: {"b": 2}, [lambda: {"a": 2}]),
    "set membership": (lambda v, x: x if 2 in v else -x, lambda: {1, 2}, [lambda: {1, 3}]),
    "list membership": (lambda v, x: x if 2 in v else -x, lambda: [1, 2], [lambda: [1, 3]]),
    "equality": (
        lambda v, x: x if v == [1, [2]] else -x,
        lambda: [1, [2]],
        [lambda: [1, [3]], lambda: [1, (2,)]],
    ),
    "nested": (
        lambda v, x: x * v["a"][0]["b"],
        lambda: {"a": [{"b": 2}]},
        [lambda: {"a": [{"b": 3}]}],
    ),
    "ordered": (
        lambda v, x: x * next(iter(v.values())),
        lambda: OrderedDict(a=2, b=3),
        [lambda: OrderedDict(b=3, a=2)],
    ),
    "counter": (
        lambda v, x: x * v["a"] + v["zz"],
        lambda: Counter("aab"),
        [lambda: Counter("aaab"), lambda: Counter(["a", "a", "zz"])],
    ),
    "defaultdict": (
        lambda v, x: x * v["a"],
        lambda: defaultdict(int, a=2),
        [lambda: defaultdict(int, a=3)],
    ),
    "deque": (
        lambda v, x: x * v[0] + len(v),
        lambda: deque([1, 2]),
        [lambda: deque([2, 2])],
    ),
    "deque of another length": (
        lambda v, x: x * v[0] + len(v),
        lambda: deque([1, 2]),
        [lambda: deque([1, 2, 3])],
    ),
    "userdict": (
        lambda v, x: x * v["a"] + v.last(),
        lambda: Features(a=2),
        [lambda: Features(a=3), lambda: Features(a=2, b=2)],
    ),
    "list subclass": (
        lambda v, x: x * v.top(),
        lambda: Stack([1, 2]),
        [lambda: Stack([1, 3]), lambda: [1, 2]],
    ),
    "dict subclass": (lambda v, x: x * v["zz"], lambda: Table(a=1), [lambda: Table(zz=1)]),
    "namedtuple": (
        lambda v, x: x * v.left + v[1],
        lambda: Pair(2, 3),
        [lambda: Pair(3, 3), lambda: Pair(2, 4)],
    ),
    "dataclass": (
        lambda v, x: x * v.scale + v.shift[1],
        lambda: Frozen(2.0),
        [lambda: Frozen(3.0), lambda: Frozen(2.0, (1, 3))],
    ),
    "enum": (
        lambda v, x: x if v is Color.RED else -x,
        lambda: Color.RED,
        [lambda: Color.BLUE, lambda: Color],
    ),
    "enum value": (
        lambda v, x: x * v.value,
        lambda: Level.LOW,
        [lambda: Level.HIGH, lambda: Color.RED],
    ),
    "string": (lambda v, x: x * len(v.upper()), lambda: "ab", [lambda: "abc", lambda: b"ab"]),
    "bool or int": (lambda v, x: x * v, lambda: 1, [lambda: True, lambda: 1.0, lambda: 2]),
    "signed zero": (lambda v, x: x * v, lambda: 0.0, [lambda: -0.0, lambda: 0]),
    "none": (lambda v, x: x if v is None else -x, lambda: None, [lambda: 0]),
    "type": (lambda v, x: x if isinstance(v, list) else -x, lambda: [1], [lambda: (1,)]),
    "class": (lambda v, x: v([x]), lambda: Stack, [lambda: list, lambda: tuple]),
    "dtype": (lambda v, x: x.to(v), lambda: torch.float64, [lambda: torch.int64]),
    "device": (lambda v, x: x.to(v), lambda: torch.device("cpu"), [lambda: "cpu"]),
    "size": (
        lambda v, x: x.expand(v),
        lambda: torch.Size([2, 3]),
        [lambda: torch.Size([4, 3]), lambda: (2, 3)],
    ),
    "range": (
        lambda v, x: [x * i for i in v],
        lambda: range(2),
        [lambda: range(3), lambda: [0, 1]],
    ),
    "numpy scalar": (
        lambda v, x: x * v,
        lambda: np.float32(2),
        [lambda: np.float32(3), lambda: np.float64(2), lambda: 2.0],
    ),
    "namespace": (
        lambda v, x: x * v.a,
        lambda: types.SimpleNamespace(a=2),
        [lambda: types.SimpleNamespace(a=3)],
    ),
    "proxy": (lambda v, x: x * v["a"], lambda: types.MappingProxyType({"a": 2}), None),
    "array": (lambda v, x: x * float(v.sum()), lambda: np.array([1.0, 2]), None),
    "slice": (lambda v, x: x[v], lambda: slice(0, 2), None),
    "chainmap": (
        lambda v, x: x * v["a"],
        lambda: ChainMap({}, {"a": 2}),
        [lambda: ChainMap({"a": 3}, {"a": 2})],
    ),
    "partial": (lambda v, x: v(x), lambda: functools.partial(torch.add, 1), None),
    "items": (
        lambda v, x: {k: x * i for k, i in v.items()},
        lambda: {"a": 1},
        [lambda: {"a": 2}, lambda: {"b": 1}],
    ),
    "star": (
        lambda v, x: (lambda *a: x * sum(a))(*v),
        lambda: [1, 2],
        [lambda: [1, 3], lambda: [3]],
    ),
    "double star": (
        lambda v, x: (lambda **k: x * sum(k.values()))(**v),
        lambda: {"a": 1},
        [lambda: {"a": 2}, lambda: {"a": 1, "b": 0}],
    ),
    "merged": (lambda v, x: {**v, "x": x}, lambda: {"a": 1}, [lambda: {"a": 2}, lambda: {"c": 1}]),
    "sorted": (lambda v, x: x * sorted(v)[0], lambda: {3, 1}, [lambda: {3, 2}]),
    "max": (lambda v, x: x * max(v), lambda: {3: 1, 1: 3}, [lambda: {4: 1, 1: 3}]),
    "zip": (
        lambda v, x: [x * a for a, _ in zip(v, "ab")],
        lambda: [1, 2],
        [lambda: [1, 3], lambda: [1]],
    ),
    "copy": (lambda v, x: (v.copy(), x), lambda: {"a": [1]}, [lambda: {"a": [1], "b": 2}]),
    "format": (lambda v, x: (f"{v['a']}", x + 1), lambda: {"a": [1, 2]}, [lambda: {"a": [1, 3]}]),
    "index of": (lambda v, x: x * v.index(2), lambda: [1, 2], [lambda: [2, 2]]),
    "count": (lambda v, x: x * v.count(1), lambda: [1, 1, 2], [lambda: [1, 2, 2]]),
    "reversed": (lambda v, x: x * next(reversed(v)), lambda: [1, 2], [lambda: [1, 3]]),
    "keys view": (
        lambda v, x: x if v.keys() == {"a"} else -x,
        lambda: {"a": 1},
        [lambda: {"b": 1}],
    ),
    "issubset": (lambda v, x: x if v <= {1, 2} else -x, lambda: {1}, [lambda: {3}]),
    "vars": (
        lambda v, x: x * vars(v)["a"],
        lambda: types.SimpleNamespace(a=2),
        [lambda: types.SimpleNamespace(a=3)],
    ),
    "identity": (lambda v, x: x if v[0] is v[1] else -x, lambda: [[], []], [lambda: [[]] * 2]),
}


@pytest.mark.parametrize("name", EXTERNAL)
def test_external_container_is_guarded_on_the_parts_read(name):
    program, make, others = EXTERNAL[name]
    x = lambda: tensor(1, 2, 3)
    if others is None:  # not recorded yet: only the results are compared
        check_results(lambda: program, lambda: (make(), x()))
    else:
        check(program, lambda: (make(), x()), other=[lambda o=o: (o(), x()) for o in others])


def test_parts_not_read_are_not_guarded():
    def program(table, x):
        return x * table["used"]

    twins = check(program, lambda: ({"used": 2, "other": 1}, tensor(1)))
    twins.call(lambda: ({"used": 2, "other": 5, "more": 1}, tensor(1)), hit=True)


def test_nested_containers_with_aliasing():
    def program(x):
        shared = [x]
        table = {"a": shared, "b": (shared, x + 1)}
        table["c"] = table["b"]
        shared.append(table["b"][1])
        return table, shared

    check(program, one())


def test_cycles_are_reconstructed():
    def lists(x):
        loop = [x + 1]
        loop.append(loop)
        return loop

    def tables(x):
        loop = {"x": x + 1}
        loop["self"] = [loop, {"deep": loop}]
        return loop

    check(lists, one())
    check(tables, one())


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []
        if parent is not None:
            parent.children.append(self)


def test_objects_that_refer_to_each_other():
    def program(x):
        root = Node(x)
        for i in range(2):
            Node(x + i, root)
        return root

    check(program, one())


def test_argument_that_is_passed_through_stays_the_same_object():
    def program(table, x):
        return table, [table["inner"]], x, (x, x + 1)

    check(program, lambda: ({"inner": [1]}, tensor(1, 2)))


def test_returned_container_holds_external_objects():
    def make():
        store = {"weights": [tensor(1, 2)], "names": ["a"]}

        def program(x):
            return store["weights"][0] + x, store["names"], store

        program.store = store
        return program

    check_stateful(make, one(1, 2), changes=[lambda p: p.store.update(names=["b"])])


def test_unexhausted_iterators_are_returned():
    for leave in (
        lambda x: iter([x, 1]),
        lambda x: zip([x], [1]),
        lambda x: enumerate([x]),
        lambda x: reversed([x, 1]),
        lambda x: map(len, [[1], [2, 3]]),
    ):
        twins = Twins(lambda: leave)
        for _ in range(3):
            result = twins.compiled(tensor(1, 2))
            assert type(result) is type(leave(tensor(1)))
            assert len(list(result)) == len(list(leave(tensor(1))))


def test_external_iterator_is_advanced_at_each_call():
    def make():
        numbers = iter(range(100))

        def program(x):
            return x * next(numbers)

        return program

    check_results(make, one())


def test_model_output():
    transformers = pytest.importorskip("transformers.modeling_outputs")

    def program(x, output):
        return transformers.BaseModelOutput(last_hidden_state=x + output[0], hidden_states=(x,))

    check(
        program,
        lambda: (tensor(1, 2), transformers.BaseModelOutput(last_hidden_state=tensor(3, 4))),
        other=[lambda: (tensor(1, 2), (tensor(3, 4),))],
    )


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {"scale": 2, "list": [1, 2]}
        self.names = {"a"}
        self.weight = nn.Parameter(matrix(3, 3))

    def forward(self, x):
        x = x @ self.weight * self.table["scale"] + sum(self.table["list"])
        return x + 1 if "a" in self.names else x


def test_containers_in_a_module_are_guarded():
    def append(m):
        m.table["list"].append(3)

    def replace(m):
        m.table["list"][0] = 7.5

    check_stateful(
        Holder,
        lambda: (matrix(2, 3),),
        changes=[
            lambda m: m.table.update(scale=3),
            append,
            replace,
            lambda m: m.names.add("b"),
            lambda m: m.names.discard("a"),
            lambda m: setattr(m, "table", {"scale": 5, "list": []}),
        ],
    )


def _looped(x, values):
    for value in values:
        x = x + float(value)
    return x


def _unpacked(x, values):
    first, second = values
    return x * float(first) - float(second)


ITERATIONS = {
    "loop": _looped,
    "unpacking": _unpacked,
    "comprehension": lambda x, values: [x * float(value) for value in values],
    "arguments": lambda x, values: (lambda *args: x * float(sum(args)))(*values),
    "a sum": lambda x, values: x * float(sum(values)),
}
KINDS = {"array": np.array, "set": set, "deque": deque, "keys": dict.fromkeys, "bytes": bytes}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ITERATIONS)
def test_iterated_elements_are_guarded(kind, name):
    makes = [lambda v=v: (tensor(1, 2), KINDS[kind](v)) for v in ([1, 2], [3, 5])]
    check(ITERATIONS[name], makes[0], other=[makes[1]])


def _doubled(x, values):
    values *= 2
    return x


def _with_a_changed_view(x, values):
    view = values[:1]
    view[0] = 9
    return x + float(values[1])


def _extended(x, values):
    values += [1]
    return x


@pytest.mark.parametrize(
    "program, make",
    [
        (_doubled, lambda: np.array([1.0, 2.0])),
        (_with_a_changed_view, lambda: np.array([1.0, 2.0])),
        (_extended, lambda: deque([1, 2])),
        (_extended, lambda: [1, 2]),
    ],
)
def test_external_container_changed_by_an_augmented_assignment(program, make):
    twins = Twins(lambda: program)
    eager, compiled = make(), make()
    for _ in range(4):
        x = tensor(1, 2)
        result = program(x, eager)
        assert torch.equal(twins.compiled(x, compiled), result)
        assert list(compiled) == list(eager)
