"""No other class's answers depend on the classes that ``compile`` and ``disable`` make."""

import abc
import collections.abc
import gc
import inspect
import threading
import types
import weakref

import pytest
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor


class Members:
    __slots__ = ()

    def __init__(self, size=1):
        super().__init__()
        self.size = size

    def larger(self):
        return type(self)(self.size + 1)

    def blank(self):
        return type(self).__new__(type(self))

    def forward(self, x):
        return x * self.size

    def __call__(self, x):
        return self.forward(x)


class Net(Members, nn.Module):
    __call__ = nn.Module.__call__


class Plain(Members):
    pass


class Slotted(Members):
    __slots__ = ("size",)


class Abstract(abc.ABC, Plain):
    pass


CLASSES = [Net, Plain, Slotted, Abstract]
TARGETS = {"compiled": lambda made: magpy.compile(made, backend="eager"), "disabled": magpy.disable}


def pairs():
    """Each class, and what makes an object with a made class of its instance."""
    found = [(cls, TARGETS["compiled"]) for cls in CLASSES]
    return [*found, (Net, TARGETS["disabled"])]


@pytest.fixture(params=pairs(), ids=lambda pair: pair[0].__name__)
def fresh(request):
    """A class of its own for the test, and an object with a made class."""
    base, target = request.param
    cls = type(base)(base.__name__, (base,), {"__slots__": ()} if base is Slotted else {})
    return cls, target(cls())


def test_the_class_of_a_compiled_object_makes_what_the_original_class_makes(fresh):
    cls, fast = fresh
    assert type(fast.larger()) is cls and fast.larger().size == 2
    assert type(fast.blank()) is cls and not hasattr(fast.blank(), "size")
    assert inspect.signature(type(fast)) == inspect.signature(cls)


def test_made_classes_go_with_the_original_class():
    class Meta(type):
        pass

    class Temporary(Plain, metaclass=Meta):
        pass

    fast = magpy.compile(Temporary(), backend="eager")
    references = [weakref.ref(kind) for kind in (Meta, Temporary, type(fast), type(type(fast)))]
    del fast, Meta, Temporary
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


# --- subclasses of the program --------------------------------------------------------------------


@pytest.mark.parametrize("target", ["object", "class", "disabled"])
def test_a_class_derived_from_a_made_class_is_derived_from_the_original(target):
    events = []

    class Meta(type):
        @classmethod
        def __prepare__(metacls, name, bases, **kwargs):
            events.append((metacls, bases, kwargs))
            return {}

        def __new__(metacls, name, bases, namespace, **kwargs):
            return super().__new__(metacls, name, bases, namespace)

        def __init__(cls, name, bases, namespace, **kwargs):
            events.append((cls, bases, kwargs))

    class Base(nn.Module, metaclass=Meta):
        def __init_subclass__(cls):
            events.append(cls)

        def forward(self, x):
            return x + 1

    if target == "class":
        with pytest.warns(magpy.MagpyWarning):
            made = magpy.compile(Base, backend="eager")
    else:
        instance = Base()
        fast = magpy.compile(instance, backend="eager")
        made = type(fast if target == "object" else magpy.disable(instance))
    events.clear()

    class Mixin:
        pass

    class Derived(Mixin, made, tag=1):
        def forward(self, x):
            return super().forward(x) * 5

    bases = (Mixin, Base)
    assert events == [(Meta, bases, {"tag": 1}), Derived, (Derived, bases, {"tag": 1})]
    assert Derived.__bases__ == bases and type(Derived) is Meta
    one = Derived()
    assert type(one) is Derived and isinstance(one, Base) and isinstance(one, made)
    assert_same(one(tensor(1)), tensor(10))
    fast = magpy.compile(one, backend="eager")
    assert_same([fast(tensor(1)), fast(tensor(2))], [tensor(10), tensor(15)])
    assert types.new_class("Further", (made,)).__bases__ == (Base,)
    assert type("Further", (made,), {}).__bases__ == (Base,)


def test_the_class_of_a_compiled_object_is_compiled_and_assigned_as_the_original_class():
    class Other(Net):
        pass

    fast, other = (magpy.compile(cls(), backend="eager") for cls in (Net, Other))
    assert magpy.compile(type(fast), disable=True) is Net
    fast.__class__ = type(other)
    assert type(fast._orig_mod) is Other


# --- checks ---------------------------------------------------------------------------------------


def sequence():
    class Sequence(collections.abc.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

        def __call__(self, x):
            return x + 1

    return Sequence


def made_of(cls):
    """Three made classes of a class."""
    first, second = (magpy.compile(cls, backend="eager") for _ in range(2))
    return [first, second, type(magpy.compile(cls(), backend="eager"))]


def test_an_abstract_base_class_answers_as_without_made_classes():
    cls = sequence()
    made = made_of(cls)
    for kind in (collections.abc.Sequence, cls, *made):
        assert not isinstance({}, kind) and not issubclass(dict, kind)
        assert isinstance(cls(), kind) and issubclass(cls, kind)
        assert all(issubclass(one, kind) for one in made)
    assert not issubclass(list, cls) and not any(issubclass(list, kind) for kind in made)
    assert issubclass(list, collections.abc.Sequence)


@pytest.mark.parametrize("registering", range(4))
def test_virtual_subclasses_are_those_of_the_original(registering):
    cls = sequence()
    kinds = [cls, *made_of(cls)]

    class Virtual:
        pass

    assert not any(issubclass(Virtual, kind) for kind in [collections.abc.Sequence, *kinds])
    kinds[registering].register(Virtual)
    assert all(isinstance(Virtual(), kind) for kind in [collections.abc.Sequence, *kinds])


def test_checks_of_several_threads_do_not_meet():
    cls = sequence()
    kinds = [collections.abc.Sequence, cls, *made_of(cls)]
    faults = []

    def ask():
        for i in range(50):
            other = type("Other", (), {})
            if any(issubclass(other, kind) for kind in kinds):
                faults.append(i)
            cls.register(other)
            if not all(isinstance(other(), kind) for kind in kinds):
                faults.append(i)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_metaclass_that_asks_the_subclasses_gets_an_answer():
    class Asking(type):
        def __subclasscheck__(cls, other):
            below = type.__subclasses__(cls)
            return type.__subclasscheck__(cls, other) or any(issubclass(other, s) for s in below)

        def __instancecheck__(cls, value):
            below = type.__subclasses__(cls)
            return type.__instancecheck__(cls, value) or any(isinstance(value, s) for s in below)

    class Base(Plain, metaclass=Asking):
        pass

    class Derived(Base):
        pass

    of_base, of_derived = made_of(Base), made_of(Derived)
    for kind in (Base, *of_base):
        assert isinstance(Derived(), kind) and issubclass(Derived, kind)
        assert not isinstance(3, kind) and not issubclass(int, kind)
    for kind in (Derived, *of_derived):
        assert not isinstance(Base(), kind) and not issubclass(Base, kind)


def test_an_instance_of_the_original_class_is_one_of_the_compiled_objects_class():
    class Equal(Plain):
        __hash__ = None

        def __eq__(self, other):
            return isinstance(other, type(self)) and other.size == self.size

    fast = magpy.compile(Equal(), backend="eager")
    assert fast == Equal() and Equal() == fast and fast != Equal(2)


def test_records_notice_a_class_registered_with_the_original():
    cls = sequence()

    class Virtual:
        pass

    value = Virtual()
    for kind in made_of(cls):
        fast = magpy.compile(
            lambda x, kind=kind: x + 1 if isinstance(value, kind) else x - 1, backend="eager"
        )
        expected = 1 if isinstance(value, kind) else -1
        assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(1 + expected) for _ in "ab"])
        cls.register(Virtual)
        assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(2), tensor(2)])
