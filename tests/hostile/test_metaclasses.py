"""Metaclasses that count every use of their classes, and instances that lie about their class.

The monitor, guards and mocks call none of their methods: the counts of all calls equal eager's.
"""

import collections

import pytest
import torch

import magpy_like as magpy

COUNTS = collections.Counter()
METHODS = {
    "__eq__": lambda cls, other: cls is other,
    "__ne__": lambda cls, other: cls is not other,
    "__hash__": lambda cls: 12345,
    "__bool__": lambda cls: True,
    "__len__": lambda cls: 3,
    "__instancecheck__": type.__instancecheck__,
    "__subclasscheck__": type.__subclasscheck__,
    "__getattribute__": type.__getattribute__,
    "__repr__": lambda cls: "C",
    "__call__": type.__call__,
    "__iter__": lambda cls: iter(()),
    "__contains__": lambda cls, value: False,
    "__dir__": lambda cls: [],
}
OBSERVING = {"__eq__", "__ne__", "__hash__", "__getattribute__"}


def counted(name, method):
    def count(*args, **kwargs):
        COUNTS[name] += 1
        return method(*args, **kwargs)

    return count


def make_world(names):
    """Classes whose metaclass counts the calls of these methods, and objects that hold them."""
    methods = {name: counted(name, METHODS[name]) for name in names}
    # A class that defines `__eq__` alone has no hash.
    metaclass = type("Meta", (type,), {"__hash__": type.__hash__} | methods)

    class C(metaclass=metaclass):
        k = 3

        def __init__(self, v=1):
            self.v = v

        def go(self, x):
            return x * self.v

    class D(C):
        pass

    class Liar:
        @property
        def __class__(self):
            COUNTS["__class__"] += 1
            return dict

    class Net(torch.nn.Module, metaclass=metaclass):
        def forward(self, x):
            return x * self.factor

    net = Net()
    net.factor, net.kind = 3, C
    holder = type("Holder", (), {})()
    holder.c, holder.i, holder.liar = C, C(), Liar()
    return {
        "C": C, "D": D, "holder": holder, "liar": holder.liar, "keyed": {C: 2, D: 3},
        "listed": [C, D], "by_name": {"a": C}, "i": C(2), "net": net,
    }  # fmt: skip


PROGRAMS = [
    "def f(x, c=C): return x * 2",
    "def f(x, c=C): return x * c.k",
    "def f(x): return x * keyed[C]",
    "def f(x): return x * keyed.get(D), {**keyed}",
    "def f(x): return x * {C: 4}[C]",
    "def f(x): return x * (2 if isinstance(i, C) else 3) * (2 if isinstance(3, C) else 3)",
    "def f(x): return x * 2 if isinstance(i, (int, D, C)) else x",
    "def f(x): return x * 2 if issubclass(D, C) else x",
    "def f(x): return x * by_name['a'].k * holder.c.k",
    "def f(x): return x * 2 if holder.c is C and holder.c == C else x",
    "def f(x): return x * 2 if type(i) is C and type(i) == C else x",
    "def f(x): return C(2).go(x), C(3)",
    "def f(x): return x * 2, C, {C: x}, [C]",
    "def f(x):\n    holder.last = C\n    return x * holder.last.k",
    "def f(x): return x * 2 if D in listed and D in keyed else x",
    "def f(x):\n    for c in listed: x = x * c.k\n    return x",
    "def f(x): return x * 2 if C else x",
    "def f(x): return (x * 2 if isinstance(liar, dict) else x), [liar], {'a': liar}",
    "def f(x): return holder.i.go(x) * len({i: 1})",
    "def f(x): return x * len({C, D, C})",
    "def f(x):\n    try: raise KeyError(C)\n    except KeyError as e: return x * 2, e.args",
    "def f(x):\n    c = C\n    def g(): return c.k\n    return x * g(), g",
    "def f(x):\n    C.z = 5\n    return x * C.z * getattr(C, 'k', 0), hasattr(C, 'nope')",
    "def f(x): return super(D, D(3)).go(x)",
    "def f(x):\n    y = x * 2\n    repr(y)\n    return y * i.v, C, keyed[C]",
    "def f(x):\n    keyed[D] = keyed[D]\n    return x",
    "def f(x):\n    match i:\n        case C(v=2): return x * 2\n    return x",
    "def f(x):\n    c = C if x.sum() > 0 else D\n    return x * c.k",
    "def f(x): return x * len(C.__name__), list(map(lambda c: x * c.k, [C]))",
    "def f(x): return x * 2 if (C, 1) == (D, 1) else x",
    "f = net",
]


def counts_of(function):
    COUNTS.clear()
    function(torch.ones(3))
    return dict(COUNTS)


@pytest.mark.parametrize("source", PROGRAMS)
@pytest.mark.parametrize("names", [*((n,) for n in METHODS), tuple(METHODS)], ids="+".join)
def test_methods_are_called_as_often_as_in_eager_mode(source, names):
    world = make_world(names)
    exec(source, world)
    fast = magpy.compile(world["f"], backend="eager")
    for _ in range(4):
        assert counts_of(fast) == counts_of(world["f"])


@pytest.mark.parametrize("name", METHODS)
def test_only_observing_metaclasses_prevent_a_record(name):
    world = make_world([name])
    exec("def f(x): return x * i.v", world)
    fast = magpy.compile(world["f"], backend="eager")
    for _ in range(3):
        fast(torch.ones(3))
    assert (magpy.cache_info(fast).hits == 0) == (name in OBSERVING)


def test_explanation_names_the_metaclass():
    world = make_world(["__eq__"])
    exec("def f(x): return x * i.v", world)
    (point,) = magpy.explain(world["f"], torch.ones(3)).split_points
    assert point.reason is magpy.SplitReason.OBSERVING_METACLASS


def test_metaclasses_of_libraries_do_not_observe():
    """Enumerations and abstract classes are compiled, and so are keys of enumerations."""
    import abc
    import enum

    class Color(enum.Enum):
        RED = 1

    class Base(abc.ABC):
        @abc.abstractmethod
        def go(self, x): ...

    class Child(Base):
        def go(self, x):
            return x * 2

    child, table = Child(), {Color.RED: 3}
    fast = magpy.compile(lambda x: child.go(x) * table[Color.RED], backend="eager")
    for _ in range(3):
        fast(torch.ones(2))
    assert magpy.cache_info(fast).hits == 2
