"""Attributes that a program sets on classes: recorded, guarded and set again by the mock.

Each case creates its classes anew and returns the program and the classes. One copy runs in eager
mode and one compiled; after each call their results and class attributes are compared.
"""

from __future__ import annotations

import abc
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor

Case = tuple[Callable[..., Any], Sequence[type]]
_DEFAULT = {"__dict__", "__weakref__", "__module__", "__doc__", "__abstractmethods__", "_abc_impl"}


def own_attributes(cls: type) -> dict[str, Any]:
    """A class's own attributes in order, with comparable values in place of functions."""
    return {name: _comparable(v) for name, v in vars(cls).items() if name not in _DEFAULT}


def _comparable(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return type(value).__name__, _comparable(value.__func__)
    if isinstance(value, property):
        return "property", _comparable(value.fget)
    if isinstance(value, types.FunctionType):
        closure = [_comparable(cell.cell_contents) for cell in value.__closure__ or ()]
        return value.__code__.co_code, value.__defaults__, closure
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, types.MemberDescriptorType | type):
        return value.__name__
    if type(value).__flags__ & 1 << 9 and not isinstance(value, torch.Tensor):
        return type(value).__name__, vars(value) if hasattr(value, "__dict__") else None
    return value


class Pair:
    """One program in eager mode and compiled, each with its own classes."""

    def __init__(self, make: Callable[[], Case]) -> None:
        (self.eager, self.eager_classes), (target, self.classes) = make(), make()
        self.compiled = magpy.compile(target, backend="eager")

    def call(self, *args: Any) -> bool:
        """Call both on equal arguments and compare them; True if the compiled one hit."""
        before = magpy.cache_info(self.compiled).hits
        outcomes = []
        for function in (self.compiled, self.eager):
            try:
                outcomes.append(function(*(a.clone() if hasattr(a, "clone") else a for a in args)))
            except Exception as error:
                outcomes.append((type(error), str(error)))
        assert_same(*outcomes)
        for own, other in zip(self.classes, self.eager_classes, strict=True):
            assert_same(own_attributes(own), own_attributes(other), what=own.__name__)
        return magpy.cache_info(self.compiled).hits > before

    def change(self, alter: Callable[..., Any]) -> None:
        alter(*self.classes)
        alter(*self.eager_classes)


# --- programs ------------------------------------------------------------------------------------


def counts() -> Case:
    class C:
        n = 0

    def program(x):
        C.n += 1
        return x * C.n

    return program, [C]


def counts_by_sum() -> Case:
    class C:
        n = 0

    def program(x):
        C.n = C.n + 2
        return x * C.n

    return program, [C]


def counts_from_instances() -> Case:
    class Base:
        count = 0

        def __init__(self):
            type(self).count += 1

    class Derived(Base):
        pass

    def program(x):
        Derived()
        Base()
        return x + Derived.count + Base.count

    return program, [Base, Derived]


def counts_where_inherited() -> Case:
    class Base:
        n = 0

    class Derived(Base):
        pass

    def program(x):
        Base.n += 1
        return x * Derived.n + Derived().n

    return program, [Base, Derived]


def counts_by_names() -> Case:
    class C:
        n = 0

    def program(x):
        setattr(C, "n", getattr(C, "n") + 1)  # noqa: B009, B010
        return x * C.n

    return program, [C]


def counts_from_nothing() -> Case:
    class C:
        pass

    def program(x):
        C.n = getattr(C, "n", 0) + 1
        return x * C.n

    return program, [C]


def counts_in_classmethods() -> Case:
    class C:
        n, last = 0, None

        @classmethod
        def step(cls, x):
            cls.n += 1
            cls.last = x * 2
            return cls.last + cls.n

    class D(C):
        pass

    def program(x):
        return C.step(x) + D.step(x)

    return program, [C, D]


def counts_in_a_module() -> Case:
    class Net(torch.nn.Module):
        calls = 0

        def forward(self, x):
            Net.calls += 1
            type(self).seen = x.shape
            return torch.relu(x) * self.calls

    net = Net()
    return lambda x: net(x), [Net]


def averages() -> Case:
    class C:
        mean = torch.zeros(3)

    def program(x):
        C.mean = C.mean * 0.5 + x
        return C.mean + 1

    return program, [C]


def registers_instances() -> Case:
    class C:
        instances: list[Any] = []  # noqa: RUF012

        def __init__(self, x):
            self.x = x
            type(self).instances.append(self)

    def program(x):
        return C(x * 2).x + 1

    return program, [C]


def replaces_a_list() -> Case:
    class C:
        seen = ()

    def program(x):
        C.seen = (*C.seen[-1:], x * 2)
        return sum(C.seen)

    return program, [C]


def caches_by_key() -> Case:
    class C:
        cache: dict[str, Any] = {}  # noqa: RUF012

        @classmethod
        def get(cls, key, x):
            if key not in cls.cache:
                cls.cache[key] = x.shape[0] + 1
            return cls.cache[key]

    def program(x):
        return x * C.get("a", x) + C.get("b", x)

    return program, [C]


def is_a_singleton() -> Case:
    class Single:
        _instance = None

        def __new__(cls):
            if cls._instance is None:
                cls._instance = super().__new__(cls)
                cls._instance.scale = 3.0
            return cls._instance

    def program(x):
        return x * Single().scale

    return program, [Single]


def sets_a_method() -> Case:
    class C:
        factor = 2.0

        def forward(self, x):
            return x

    class D(C):
        pass

    def program(x):
        C.forward = lambda self, y: y * self.factor + x
        return D().forward(x * 2)

    return program, [C, D]


def wraps_a_method_temporarily() -> Case:
    class C:
        def forward(self, x):
            return x + 1

    def program(x):
        before = C.forward
        C.forward = lambda self, y: before(self, y) * 2
        try:
            return C().forward(x)
        finally:
            C.forward = before

    return program, [C]


def sets_descriptors() -> Case:
    class C:
        pass

    def program(x):
        C.twice = property(lambda self: x * 2)
        C.fixed = staticmethod(lambda y: y + x)
        C.measured = classmethod(lambda cls, y: cls.__name__ + str(len(y)))
        return C().twice + C.fixed(x) + len(C.measured(x)), C

    return lambda x: program(x)[0], [C]


def sets_special_methods() -> Case:
    class C:
        def __init__(self, x):
            self.x = x

    def program(x):
        C.__len__ = lambda self: 4
        C.__call__ = lambda self, y: self.x * y
        C.__getitem__ = lambda self, i: self.x + i
        c = C(x)
        return c(x) * len(c) + c[1]

    return program, [C]


def deletes_a_shadowing_attribute() -> Case:
    class Base:
        n = 1

    class Derived(Base):
        n = 5

    def program(x):
        Derived.n = 7
        first = x * Derived.n
        del Derived.n
        return first + Derived.n

    return program, [Base, Derived]


def sets_an_attribute_found_by_super() -> Case:
    class Base:
        kind = "a"

    class Middle(Base):
        pass

    class Derived(Middle):
        kind = "d"

        def read(self):
            return super().kind

    def program(x):
        before = Derived().read()
        Middle.kind = "m"
        between = Derived().read()
        del Middle.kind
        return x * len(before + between), before + between + Derived().read()

    return program, [Base, Middle, Derived]


def has_a_metaclass_in_python() -> Case:
    class Meta(type):
        def __setattr__(cls, name, value):
            if name == "n":
                value *= 10
            super().__setattr__(name, value)

        @property
        def level(cls):
            return cls._level

        @level.setter
        def level(cls, value):
            cls._level = value + 1

    class C(metaclass=Meta):
        _level = 0

    def program(x):
        C.n = 3
        C.level = 5
        return x * C.n + C.level

    return program, [C]


def has_a_metaclass_that_ignores_writes() -> Case:
    class Meta(type):
        def __setattr__(cls, name, value):
            if not name.startswith("_"):
                super().__setattr__("log", name)

    class C(metaclass=Meta):
        _n = 3

    def program(x):
        C._n = 7
        setattr(C, "_n", 8)  # noqa: B010
        C.other = 1
        return x * C._n, C.log

    return program, [C]


def has_a_descriptor_in_the_metaclass() -> Case:
    class Stored:
        def __get__(self, instance, owner=None):
            return instance._stored * 2

        def __set__(self, instance, value):
            instance._stored = value

    class Meta(type):
        value = Stored()

    class C(metaclass=Meta):
        _stored = 0

    def program(x):
        C.value = 4
        return x * C.value

    return program, [C]


def has_an_abstract_class() -> Case:
    class Base(abc.ABC):
        n = 0

        @abc.abstractmethod
        def run(self, x): ...

    class Derived(Base):
        def run(self, x):
            Base.n += 1
            return x * Base.n

    def program(x):
        return Derived().run(x) if isinstance(Derived(), Base) else x

    return program, [Base, Derived]


def has_slots() -> Case:
    class C:
        __slots__ = ("x",)
        n = 0

    def program(x):
        c = C()
        c.x = x * 2
        C.n += 1
        C.default = c.x
        return c.x + c.n + C.default

    return program, [C]


def reads_the_class_dictionary() -> Case:
    class C:
        n = 1

    def program(x):
        before = C.__dict__["n"]
        C.n = 2
        C.m = 5
        return x * vars(C)["n"], "m" in vars(C), before

    return program, [C]


def has_two_bases() -> Case:
    class A:
        pass

    class B:
        kind = "b"

    class C(A, B):
        pass

    def program(x):
        first = C.kind
        A.kind = "aaa"
        second = C.kind
        del A.kind
        return x * len(first + second + C().kind)

    return program, [A, B, C]


def has_a_subclass_created_inside() -> Case:
    class Base:
        n = 0

    def program(x):
        class Inner(Base):
            pass

        Base.n += 1
        return x * Inner.n + Inner().n

    return program, [Base]


def restores_in_finally() -> Case:
    class C:
        level = 0
        log = ()

    def program(x):
        before = C.level
        C.level = 3
        try:
            C.log = ("tried",)
            return x + C.missing
        except AttributeError:
            C.log = (*C.log, "failed")
            return x * C.level
        finally:
            C.level = before

    return program, [C]


def has_invalid_assignments() -> Case:
    class C:
        n = 0

    def program(x):
        caught = []
        for attempt in (
            lambda: setattr(int, "n", 1),
            lambda: setattr(torch.Size, "n", 1),
            lambda: object.__setattr__(C, "n", 1),
            lambda: delattr(C, "missing"),
            lambda: setattr(C, "__dict__", {}),
        ):
            try:
                attempt()
            except (TypeError, AttributeError) as error:
                caught.append(type(error).__name__)
        return x * C.n, caught

    return program, [C]


def deletes_and_sets_again() -> Case:
    class C:
        a = 1

    def program(x):
        C.b = x
        del C.a
        C.a = 2
        return x * C.a

    return program, [C]


HITS = {
    counts: 4, counts_by_sum: 3, counts_from_instances: 3, counts_where_inherited: 4,
    counts_by_names: 2, counts_from_nothing: 2, counts_in_classmethods: 3, counts_in_a_module: 4,
    averages: 4, registers_instances: 4, replaces_a_list: 2, caches_by_key: 3, is_a_singleton: 3,
    sets_a_method: 3, wraps_a_method_temporarily: 3, sets_descriptors: 3, sets_special_methods: 3,
    deletes_a_shadowing_attribute: 3, sets_an_attribute_found_by_super: 4,
    has_a_metaclass_in_python: 3, has_a_metaclass_that_ignores_writes: 3,
    has_a_descriptor_in_the_metaclass: 3, has_an_abstract_class: 4, has_slots: 4,
    reads_the_class_dictionary: 3, has_two_bases: 4,
    has_a_subclass_created_inside: 3, restores_in_finally: 3,
    has_invalid_assignments: 4, deletes_and_sets_again: 3,
}  # fmt: skip
"""The least number of hits in five calls."""


@pytest.mark.parametrize("make", HITS, ids=lambda make: make.__name__)
def test_mock_sets_class_attributes(make):
    pair = Pair(make)
    hits = sum(pair.call(tensor(1, -2, 3) + i) for i in range(5))
    assert hits >= HITS[make], magpy.api._dispatcher(pair.compiled).split_points


def _set_numbers(value: Any) -> Callable[..., None]:
    def alter(*classes: type) -> None:
        for cls in classes:
            for name, found in list(vars(cls).items()):
                if type(found) in (int, float):
                    type.__setattr__(cls, name, value)

    return alter


def _shadow(*classes: type) -> None:
    """Set the attributes of the first class on the last class, with other values."""
    for name, found in list(vars(classes[0]).items()):
        if type(found) in (int, float, str, tuple):
            type.__setattr__(classes[-1], name, found * 3)


def _shadow_by_another_base(*classes: type) -> None:
    """Give the last class a further base with the attributes of the first class."""
    first, last = classes[0], classes[-1]
    shadowing = {n: v * 5 for n, v in vars(first).items() if type(v) in (int, float, str, tuple)}
    base = type(first)("Between", (), shadowing)
    if last.__bases__ != (object,) and type(first) is type:
        last.__bases__ = (base, *last.__bases__)


def _replace_methods(*classes: type) -> None:
    for cls in classes:
        for name, found in list(vars(cls).items()):
            if isinstance(found, types.FunctionType) and name in ("forward", "read", "run"):
                type.__setattr__(cls, name, lambda self, *args: args[0] * 7 if args else "7")


def _delete(*classes: type) -> None:
    for name, found in list(vars(classes[0]).items()):
        if type(found) in (int, float, str, tuple, dict, list) and not name.startswith("__"):
            type.__delattr__(classes[0], name)


CHANGES = (
    _set_numbers(40), _set_numbers(2.5), _set_numbers(True), _shadow, _replace_methods,
    _shadow_by_another_base, _delete,
)  # fmt: skip


@pytest.mark.parametrize("make", HITS, ids=lambda make: make.__name__)
def test_external_changes_of_classes_take_effect(make):
    for first, change in enumerate(CHANGES):
        pair = Pair(make)
        for i in range(3):
            pair.call(tensor(1, -2, 3) + i)
        pair.change(change)
        for i in range(2):
            pair.call(tensor(4, 5, -6) + i)
        pair.change(CHANGES[first - 1])
        pair.call(tensor(7, 8, -9))


@pytest.mark.parametrize("is_new_class", [False, True])
def test_descriptor_that_stores_on_new_objects_is_guarded(is_new_class):
    log = []

    class Logging:
        def __set__(self, instance, value):
            log.append(value)

    class Base:
        limit = Logging()

    def program(x):
        class Local(Base):
            pass

        (Local if is_new_class else Base)().limit = 1
        return x + 1

    fast = magpy.compile(program, backend="eager")
    fast(torch.ones(1))
    fast(torch.ones(1))
    assert log == [1, 1]
    assert magpy.cache_info(fast).hits == 1
    Base.limit = 2  # no descriptor any more
    fast(torch.ones(1))
    assert log == [1, 1]
    Base.limit = Logging()
    fast(torch.ones(1))
    assert log == [1, 1, 1]


@pytest.mark.parametrize("base", [object, Exception])
def test_getattr_that_a_class_gets_later_answers_for_an_unset_slot(base):
    class Slotted(base):
        __slots__ = ("unset",)

    def program(thing, x):
        return getattr(thing, "unset", 3), hasattr(thing, "unset"), x + 1

    fast, thing, x = magpy.compile(program, backend="eager"), Slotted(), torch.ones(2)
    assert [fast(thing, x)[:2] for _ in range(2)] == [(3, False)] * 2
    Slotted.__getattr__ = lambda self, name: 55
    assert fast(thing, x)[:2] == program(thing, x)[:2] == (55, True)
