"""Classes created inside: by a statement, a metaclass, a factory or a decorator."""

import abc
import collections
import dataclasses
import enum
import typing

import pytest
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import check_results, check_stateful, load, one, tensor


def _enumeration(x):
    class Mode(enum.Enum):
        A = 1
        B = 2

    return x * Mode.B.value, Mode["A"] is Mode.A, [mode.name for mode in Mode], len(Mode)


def _numbered(x):
    class Mode(enum.IntEnum):
        A = 1
        B = enum.auto()

    class Flags(enum.Flag):
        P = 1
        Q = 2

    return x * Mode.B + (Flags.P | Flags.Q).value


def _named_tuple(x):
    pair = collections.namedtuple("Pair", "left right", defaults=[4])(x + 1)
    return pair.left * pair.right, pair._asdict()["right"], len(pair)


def _typed_tuple(x):
    class Pair(typing.NamedTuple):
        left: object
        right: int = 2

    return Pair(x + 1).left * Pair(x).right


def _data_class(x):
    @dataclasses.dataclass(order=True)
    class Point:
        a: int
        b: list = dataclasses.field(default_factory=list)

    point = Point(2)
    point.b.append(x)
    return point.b[0] * point.a, Point(1) < Point(2), Point(1) == Point(1)


def _typed_dictionary(x):
    class Options(typing.TypedDict):
        a: int

    options: Options = Options(a=3)
    return x * options["a"]


class Counting(type):
    """Counts the names of a class body, resolves missing attributes and sets one on instances."""

    def __new__(cls, name, bases, names, **kwargs):
        created = super().__new__(cls, name, bases, names)
        created.count = len([n for n in names if not n.startswith("_")])
        return created

    def __call__(cls, *args):
        created = super().__call__(*args)
        created.argument_count = len(args)
        return created

    def __getattr__(cls, name):
        return name


def _meta_class(x):
    class New(metaclass=Counting):
        factor = 3

        def __init__(self, x):
            self.x = x

    return New(x).x * New.factor, New.count, New.unknown, New(x).argument_count


class NamedDescriptor:
    """A descriptor that sets an attribute on the class that it is defined in."""

    def __set_name__(self, owner, name):
        self.name = name
        owner.extra = 3

    def __get__(self, instance, owner):
        return 2 if instance is None else 5


def _descriptor(x):
    class New:
        field = NamedDescriptor()

    return x * New.field * New().field * New.extra


def _slots(x):
    class New:
        __slots__ = ("value",)

    created = New()
    created.value = x
    return created.value + 1


def _module(x):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = 3

        def forward(self, x):
            return x * self.factor

    return Scale()(x)


PROGRAMS = {
    f.__name__.strip("_"): f
    for f in (
        _enumeration, _numbered, _named_tuple, _typed_tuple, _data_class, _typed_dictionary,
        _meta_class, _descriptor, _slots, _module,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_new_class_is_part_of_the_record(name):
    program = PROGRAMS[name]
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for i in range(3):
        assert_same(fast(tensor(i, 2)), program(tensor(i, 2)))
    assert magpy.cache_info(fast).hits == 2


def test_new_abstract_class_is_part_of_the_record():
    def program(x):
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...

        class Square(Shape):
            def area(self):
                return x * 2

        try:
            Shape()
        except TypeError:
            return Square().area(), isinstance(Square(), Shape)

    check_results(lambda: program, one())


def test_returned_instances_of_a_new_class_have_distinct_classes():
    def program(x):
        class New:
            pass

        created = New()
        created.x = x + 1
        return created

    fast = magpy.compile(program, backend="eager")
    first, second = fast(tensor(1)), fast(tensor(2))
    assert type(first) is not type(second)
    assert_same((first.x, second.x), (tensor(2), tensor(3)))


def test_metaclass_call_to_type_is_followed():
    make = load(
        "class Adding(type):\n"
        "    def __call__(cls, *args):\n"
        "        created = super().__call__(*args)\n"
        "        created.argument_count = len(args)\n"
        "        return created\n"
        "class Box(metaclass=Adding):\n"
        "    factor = 2.0\n"
        "    def __init__(self, x):\n"
        "        self.x = x\n"
        "def program(x):\n"
        "    box = Box(x)\n"
        "    return box.x * box.factor * box.argument_count\n"
    )

    def change(program):
        program.__globals__["Box"].factor = 5.0

    check_stateful(make, one(), changes=[change])


def test_singleton_of_a_metaclass_is_guarded():
    make = load(
        "class Single(type):\n"
        "    known = {}\n"
        "    def __call__(cls):\n"
        "        if cls not in cls.known:\n"
        "            cls.known[cls] = type.__call__(cls)\n"
        "        return cls.known[cls]\n"
        "class Box(metaclass=Single):\n"
        "    def __init__(self):\n"
        "        self.factor = 2.0\n"
        "def program(x):\n"
        "    return x * Box().factor\n"
    )

    def change(program):
        program.__globals__["Box"]().factor = 5.0

    check_stateful(make, one(), changes=[change], max_recordings=2)


def test_external_base_of_a_new_class_is_guarded():
    make = load(
        "class Base:\n"
        "    factor = 2.0\n"
        "names = {'extra': 1.0}\n"
        "def program(x):\n"
        "    New = type('New', (Base,), names)\n"
        "    return x * New.factor * New().extra\n"
    )

    def base(program):
        program.__globals__["Base"].factor = 5.0

    def names(program):
        program.__globals__["names"]["extra"] = 2.0

    check_stateful(make, one(), changes=[base, names])


def test_external_class_is_decorated_inside():
    make = load(
        "import dataclasses\n"
        "def program(x):\n"
        "    return x * dataclasses.dataclass(Point)(3).a\n"
        "class Point:\n"
        "    a: int = 1\n"
    )
    check_results(make, one())
