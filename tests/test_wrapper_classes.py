"""The classes that ``compile`` and ``disable`` make hold no state, and no other class's answers
depend on them."""

import abc
import collections.abc
import copy
import gc
import inspect
import io
import pickle
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor


class OfClass:
    """A descriptor of the program that receives the class."""

    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return self.function(owner)


class Registry(type):
    """Sees what is set on its classes, and whom they make."""

    log = []

    def __setattr__(cls, name, value):
        Registry.log.append((cls, name))
        super().__setattr__(name, value)

    def __delattr__(cls, name):
        Registry.log.append((cls, f"del {name}"))
        super().__delattr__(name)

    def __call__(cls, *args):
        Registry.log.append((cls, "called"))
        return super().__call__(*args)


class Members:
    __slots__ = ()

    n = 0
    known = {}

    def __init__(self, size=1):
        super().__init__()
        self.size = size

    @classmethod
    def register(cls, name):
        cls.known = {**cls.known, name: 1}
        return cls

    @classmethod
    def make(cls, size):
        return cls(size)

    @OfClass
    def owner(cls):
        return cls

    def count(self):
        type(self).n += 1

    def forget(self):
        del type(self).n

    def larger(self):
        return type(self)(self.size + 1)

    def blank(self):
        return type(self).__new__(type(self))

    def note_class(self):
        self.kind = type(self)

    def step(self, x):
        type(self).n += 1
        return x + self.n

    def forward(self, x):
        return x * type(self).n

    def __call__(self, x):
        return self.forward(x)


class Net(Members, nn.Module):
    __call__ = nn.Module.__call__


class Plain(Members):
    pass


class Slotted(Members):
    __slots__ = ("size",)


class Registered(Plain, metaclass=Registry):
    pass


class Abstract(abc.ABC, Plain):
    pass


CLASSES = [Net, Plain, Slotted, Registered, Abstract]
TARGETS = {"compiled": lambda cls: magpy.compile(cls, backend="eager"), "disabled": magpy.disable}


def pairs():
    """Each class, and what makes an object with a wrapper class of its instance."""
    found = [(cls, TARGETS["compiled"]) for cls in CLASSES]
    return [*found, (Net, TARGETS["disabled"])]


@pytest.fixture(params=pairs(), ids=lambda pair: pair[0].__name__)
def fresh(request):
    """A class of its own for the test, and an object with a wrapper class."""
    base, target = request.param
    cls = type(base)(base.__name__, (base,), {"__slots__": ()} if base is Slotted else {})
    return cls, target(cls())


# --- state ----------------------------------------------------------------------------------------


def test_what_methods_set_on_the_class_is_set_on_the_original_class(fresh):
    cls, fast = fresh
    fast.count()
    assert cls.n == cls().n == fast.n == 1
    assert fast.register("a") is cls and cls.known == {"a": 1}
    cls.n = 5
    assert fast.n == 5
    fast.count()
    assert cls.n == 6 and cls.__mro__[1].n == 0
    fast.forget()
    assert "n" not in vars(cls) and fast.n == 0


def test_class_methods_and_descriptors_receive_the_original_class(fresh):
    cls, fast = fresh
    assert fast.owner is cls and type(fast).owner is cls and type(fast).register("b") is cls
    assert type(fast.make(3)) is type(type(fast).make(3)) is cls and fast.make(3).size == 3
    cls.register = classmethod(lambda cls, name: ("replaced", cls))
    assert fast.register("c") == ("replaced", cls)
    cls.register = lambda self, name: self
    assert fast.register("c") is fast
    cls.own = 3
    del cls.register
    assert fast.register("d") is cls


def test_the_class_of_a_compiled_object_makes_what_the_original_class_makes(fresh):
    cls, fast = fresh
    assert type(fast.larger()) is cls and fast.larger().size == 2
    assert type(fast.blank()) is cls and not hasattr(fast.blank(), "size")
    assert inspect.signature(type(fast)) == inspect.signature(cls)
    cls.__annotations__ = {"size": int}
    assert type(fast).__annotations__ == {"size": int}


def test_a_metaclass_of_the_program_sees_the_original_class():
    fast = magpy.compile(Registered(), backend="eager")
    Registry.log.clear()
    fast.count()
    fast.larger()
    fast.forget()
    assert Registry.log == [(Registered, "n"), (Registered, "called"), (Registered, "del n")]


def test_records_read_what_is_set_on_the_class_between_calls():
    cls = type("Counted", (Net,), {"n": 0})
    fast = magpy.compile(cls(), backend="eager")
    for i in range(5):
        cls.n = 2 * i
        fast.count()
        assert_same(fast(tensor(1)), tensor(2 * i + 1))
    assert magpy.cache_info(fast).hits >= 2


@pytest.mark.parametrize("base", [Net, Plain])
def test_a_compiled_method_sets_attributes_of_the_original_class(base):
    cls = type("Counted", (base,), {"n": 0})
    step = magpy.compile(magpy.compile(cls(), backend="eager").step, backend="eager")
    for i in range(1, 5):
        assert_same(step(tensor(1)), tensor(1 + i))
        assert cls.n == i
    assert magpy.cache_info(step).hits >= 2


def test_a_program_sets_attributes_of_the_class_of_a_compiled_object_on_each_call():
    cls = type("Counted", (Net,), {"n": 0})
    inner = magpy.compile(cls(), backend="eager")

    def program(x):
        type(inner).n += 1
        inner.count()
        found = inner.make(2)
        type(found).n += 1
        return x * cls.n, inner.owner is cls

    fast = magpy.compile(program, backend="eager")
    for i in range(1, 5):
        assert_same(fast(tensor(1)), (tensor(3 * i), True))
        assert cls.n == 3 * i
    assert magpy.cache_info(fast).hits == 3


def test_a_program_sets_attributes_of_a_compiled_class_on_each_call():
    cls = type("Counted", (Plain,), {"n": 0, "extra": 1})
    wrapper = magpy.compile(cls, backend="eager")

    def program(x):
        wrapper.n += 1
        return x * wrapper.n

    def forgets(x):
        del wrapper.extra
        return x + 1

    fast = magpy.compile(program, backend="eager")
    assert_same([fast(tensor(1)) for _ in range(4)], [tensor(i) for i in range(1, 5)])
    assert cls.n == 4 and magpy.cache_info(fast).hits == 3
    fast = magpy.compile(forgets, backend="eager")
    for _ in range(3):
        cls.extra = 1
        fast(tensor(1))
        assert not hasattr(cls, "extra")
    assert magpy.cache_info(fast).hits == 2


@pytest.mark.parametrize("write", [pickle.dump, lambda fast, file: torch.save(fast, file)])
def test_a_state_that_holds_the_class_is_pickled_with_the_original_class(write):
    fast = magpy.compile(Net(), backend="eager")
    fast.note_class()
    assert copy.deepcopy(fast).kind is type(fast)
    file = io.BytesIO()
    write(fast, file)
    file.seek(0)
    loaded = pickle.load(file) if write is pickle.dump else torch.load(file, weights_only=False)
    assert loaded.kind is Net and type(loaded._orig_mod) is Net


def test_wrapper_classes_go_with_the_original_class():
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
def test_a_class_derived_from_a_wrapper_class_is_derived_from_the_original(target):
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
            wrapper = magpy.compile(Base, backend="eager")
    else:
        instance = Base()
        fast = magpy.compile(instance, backend="eager")
        wrapper = type(fast if target == "object" else magpy.disable(instance))
    events.clear()

    class Mixin:
        pass

    class Derived(Mixin, wrapper, tag=1):
        def forward(self, x):
            return super().forward(x) * 5

    bases = (Mixin, Base)
    assert events == [(Meta, bases, {"tag": 1}), Derived, (Derived, bases, {"tag": 1})]
    assert Derived.__bases__ == bases and type(Derived) is Meta
    one = Derived()
    assert type(one) is Derived and isinstance(one, Base) and isinstance(one, wrapper)
    assert_same(one(tensor(1)), tensor(10))
    fast = magpy.compile(one, backend="eager")
    assert_same([fast(tensor(1)), fast(tensor(2))], [tensor(10), tensor(15)])
    assert types.new_class("Further", (wrapper,)).__bases__ == (Base,)
    assert type("Further", (wrapper,), {}).__bases__ == (Base,)


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


def wrappers_of(cls):
    """Three wrapper classes of a class."""
    first, second = (magpy.compile(cls, backend="eager") for _ in range(2))
    return [first, second, type(magpy.compile(cls(), backend="eager"))]


def test_an_abstract_base_class_answers_as_without_wrapper_classes():
    cls = sequence()
    wrappers = wrappers_of(cls)
    for kind in (collections.abc.Sequence, cls, *wrappers):
        assert not isinstance({}, kind) and not issubclass(dict, kind)
        assert isinstance(cls(), kind) and issubclass(cls, kind)
        assert all(issubclass(one, kind) for one in wrappers)
    assert not issubclass(list, cls) and not any(issubclass(list, kind) for kind in wrappers)
    assert issubclass(list, collections.abc.Sequence)


@pytest.mark.parametrize("registering", range(4))
def test_virtual_subclasses_are_those_of_the_original(registering):
    cls = sequence()
    kinds = [cls, *wrappers_of(cls)]

    class Virtual:
        pass

    assert not any(issubclass(Virtual, kind) for kind in [collections.abc.Sequence, *kinds])
    kinds[registering].register(Virtual)
    assert all(isinstance(Virtual(), kind) for kind in [collections.abc.Sequence, *kinds])


def test_checks_of_several_threads_do_not_meet():
    cls = sequence()
    kinds = [collections.abc.Sequence, cls, *wrappers_of(cls)]
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

    of_base, of_derived = wrappers_of(Base), wrappers_of(Derived)
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
    for kind in wrappers_of(cls):
        fast = magpy.compile(
            lambda x, kind=kind: x + 1 if isinstance(value, kind) else x - 1, backend="eager"
        )
        expected = 1 if isinstance(value, kind) else -1
        assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(1 + expected) for _ in "ab"])
        cls.register(Virtual)
        assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(2), tensor(2)])
