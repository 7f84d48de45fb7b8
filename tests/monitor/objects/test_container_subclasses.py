"""Container subclasses: their methods run when the program calls them, not when it is monitored."""

import collections
import operator

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import Twins, one, tensor

LOG = []


class Listed(list):
    def __iter__(self):
        LOG.append("iter")
        return super().__iter__()

    def __len__(self):
        LOG.append("len")
        return super().__len__()

    def __getitem__(self, key):
        LOG.append("get")
        return super().__getitem__(key)

    def __add__(self, other):
        LOG.append("add")
        return Listed(list.__add__(self, other))


class Mapped(dict):
    def __iter__(self):
        LOG.append("iter")
        return super().__iter__()

    def __len__(self):
        LOG.append("len")
        return super().__len__()

    def keys(self):
        LOG.append("keys")
        return super().keys()


class Gathered(set):
    def __iter__(self):
        LOG.append("iter")
        return super().__iter__()

    def __len__(self):
        LOG.append("len")
        return super().__len__()


class Queued(collections.deque):
    def __iter__(self):
        LOG.append("iter")
        return super().__iter__()

    def __len__(self):
        LOG.append("len")
        return super().__len__()


class Sized:
    def __len__(self):
        LOG.append("len")
        return 2

    def __iter__(self):
        return iter("ab")

    def __hash__(self):
        LOG.append("hash")
        return 1

    def __eq__(self, other):
        LOG.append("eq")
        return True

    def __length_hint__(self):
        LOG.append("hint")
        return 2

    def __float__(self):
        LOG.append("float")
        return 2.0


def first(*values):
    return values[0]


EXPRESSIONS = {
    "listed": [
        "len(v)", "[i for i in v]", "v + [1]", "v[0]", "v[-1]", "v[0:2]", "max(v)", "sorted(v)",
        "tuple(v)", "[*v]", "sum(v)", "set(v)", "dict(enumerate(v))", "list(zip(v, v))", "2.0 in v",
        "v == [1]", "bool(v)", "first(*v)", "list(map(float, v))", "any(v)", "[].extend(v)",
        "v * 2", "list(reversed(v))", "','.join(map(str, v))", "torch.tensor(v)", "str(v)",
        "next(iter(v))", "v.index(2.0)", "v.copy()", "v.append(len(v))", "v.sort(reverse=True)",
    ],
    "mapped": [
        "len(v)", "list(v)", "list(v.items())", "{**v}", "dict(v)", "bool(v)", "'a' in v",
        "v.update(b=1)", "v == {}", "sorted(v)", "list(v.keys())", "v | {'z': 1}", "str(v)",
        "dict(**v)", "v.get('a')", "v.pop('a', None)", "max(v.values())", "v['a']",
    ],
    "gathered": [
        "len(v)", "list(v)", "sorted(v)", "1.0 in v", "v | {9.0}", "bool(v)", "v.add(5.0)",
        "v == {1.0}", "sum(v)", "v & {1.0}", "v.discard(1.0)", "frozenset(v)",
    ],
    "queued": [
        "len(v)", "list(v)", "v[0]", "v.append(1.0)", "v.popleft()", "bool(v)", "sum(v)",
        "v.rotate(1)", "sorted(v)", "2.0 in v",
    ],
    "sized": [
        "len(v)", "list(v)", "v in [w]", "{v} == {w}", "{v: 1}[w]", "bool(v)", "hash(v)",
        "operator.length_hint(v)", "[v].index(w)", "dict.fromkeys(v)", "(v,) == (w,)", "float(v)",
        "torch.tensor([float(v)])", "x * float(v)",
    ],
}  # fmt: skip
MAKERS = {
    "listed": lambda: Listed([1.0, 2.0, 3.0]),
    "mapped": lambda: Mapped(a=1.0, c=3.0),
    "gathered": lambda: Gathered([1.0, 2.0]),
    "queued": lambda: Queued([1.0, 2.0, 3.0, 4.0]),
    "sized": Sized,
}
CASES = [
    (kind, expression) for kind, expressions in EXPRESSIONS.items() for expression in expressions
]


@pytest.mark.parametrize(("kind", "expression"), CASES)
def test_expression_runs_the_same_methods_as_in_eager(kind, expression):
    names = {"torch": torch, "operator": operator, "first": first}

    def make():
        own = {**names, "v": MAKERS[kind](), "w": MAKERS[kind]()}
        exec(f"def program(x):\n    found = {expression}\n    return x * 2, found", own)
        return own["program"], own["v"]

    (eager, eager_value), (target, value) = make(), make()
    compiled = magpy.compile(target, backend="eager")
    for i in range(3):
        del LOG[:]
        expected = eager(tensor(1, 2))
        ran = list(LOG)
        del LOG[:]
        actual = compiled(tensor(1, 2))
        assert list(LOG) == ran, f"call {i}"
        assert_same((actual, value), (expected, eager_value), what=f"call {i}")


def test_iteration_may_yield_other_elements_than_stored():
    class Doubled(list):
        def __iter__(self):
            return (2 * item for item in list.__iter__(self))

    def make():
        values = Doubled([1.0, 2.0])

        def program(x):
            return x * sum(values), first(*values), list(values), [*values], max(values), values[0]

        program.values = values
        return program

    twins = Twins(make)
    for i in range(3):
        twins.call(one(1.0, float(i)), hit=i > 0)
    twins.change(lambda program: program.values.append(5.0))
    twins.call(one(1.0), hit=False)
