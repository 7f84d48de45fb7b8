"""Special methods that native code looks up, replaced or added between calls."""

import copy
import operator

import pytest

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor


def _subclass(cls):
    class Sub(cls):
        pass

    return Sub


def _owner(value):
    class Owner:
        attribute = value

    return Owner


def _create(meta):
    class Created(metaclass=meta):
        pass

    return Created


def _find(mapping):
    try:
        return mapping[5]
    except KeyError:
        return 9


def _sets(number):
    return classmethod(lambda cls: setattr(cls, "n", number))


def _names(number):
    return lambda self, owner, name: setattr(owner, "n", number)


def _base(number):
    return lambda self, bases: (type("Base", (), {"n": number}),)


def _prepares(number):
    return classmethod(lambda meta, name, bases: {"n": number})


def _makes(number):
    return lambda meta, name, bases, entries: type.__new__(
        meta, name, bases, {**entries, "n": number}
    )


def _item(number):
    return classmethod(lambda cls, key: key * number)


CLASSES = {
    "item of a class": ("__class_getitem__", _item, lambda x, c: x * c[2]),
    "slice of a class": (
        "__class_getitem__",
        lambda n: classmethod(lambda cls, key: key.start * n),
        lambda x, c: x * c[2:3],
    ),
    "item of a class by a function": (
        "__class_getitem__",
        _item,
        lambda x, c: x * operator.getitem(c, 2),
    ),
    "subclass": ("__init_subclass__", _sets, lambda x, c: x * _subclass(c).n),
    "subclass by type": ("__init_subclass__", _sets, lambda x, c: x * type("S", (c,), {}).n),
    "name": ("__set_name__", _names, lambda x, c: x * _owner(c()).n),
    "name by type": ("__set_name__", _names, lambda x, c: x * type("S", (), {"a": c()}).n),
    "base": ("__mro_entries__", _base, lambda x, c: x * _subclass(c()).n),
    "reduction": (
        "__reduce__",
        lambda n: lambda self: (int, (n,)),
        lambda x, c: x * copy.copy(c()),
    ),
    "state": ("__getstate__", lambda n: lambda self: {"n": n}, lambda x, c: x * copy.copy(c()).n),
}
METACLASSES = {
    "namespace": ("__prepare__", _prepares, lambda x, m: x * _create(m).n),
    "new": ("__new__", _makes, lambda x, m: x * _create(m).n),
}
MAPPINGS = {
    "missing": ("__missing__", lambda n: lambda self, key: n, lambda x, c: x * c()[5]),
    "missing by a function": (
        "__missing__",
        lambda n: lambda self, key: n,
        lambda x, c: x * operator.getitem(c(), 5),
    ),
}
REPLACED = {
    **{name: ((), type, *case) for name, case in CLASSES.items()},
    **{name: ((type,), type, *case) for name, case in METACLASSES.items()},
    **{name: ((dict,), type, *case) for name, case in MAPPINGS.items()},
}
CONSTANT = {"n": 3}
ADDED = {
    "item of a metaclass": (
        lambda x, c: x * c[2],
        {"__class_getitem__": _item(3)},
        lambda c: type(c),
        "__getitem__",
        lambda cls, key: 7,
    ),
    "subclass": (
        lambda x, c: x * _subclass(c).n, CONSTANT, None, "__init_subclass__", _sets(7),
    ),
    "name": (
        lambda x, c: x * getattr(_owner(c()), "n", 3), CONSTANT, None, "__set_name__", _names(7),
    ),
    "truth of a predicate": (
        lambda x, c: x * len(list(filter(lambda _: c(), [1]))), {}, None, "__bool__",
        lambda self: False,
    ),
    "truth in a generator": (
        lambda x, c: x * any(c() for _ in [1]), {}, None, "__bool__", lambda self: False,
    ),
    "equality in a generator": (
        lambda x, c: x * (3 in (c() for _ in [1])), {}, None, "__eq__", lambda self, other: True,
    ),
}  # fmt: skip


def _compare(use, cls, change):
    def program(x):
        return use(x, cls)

    compiled = magpy.compile(program, backend="eager")
    for n in range(1, 7):
        if n == 4:
            change()
        assert_same(compiled(tensor(n)), program(tensor(n)))


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_special_method_is_noticed(name):
    bases, meta, method, make, use = REPLACED[name]
    cls = meta("Class", bases, {method: make(3)})
    _compare(use, cls, lambda: setattr(cls, method, make(7)))


def test_missing_key_notices_the_method_that_is_added():
    cls = type("Mapping", (dict,), {})
    mapping = cls()
    _compare(
        lambda x, _: x * _find(mapping), cls, lambda: setattr(cls, "__missing__", lambda *_: 7)
    )


@pytest.mark.parametrize("name", ADDED)
def test_added_special_method_is_noticed(name):
    use, entries, owner, method, function = ADDED[name]
    cls = type("Meta", (type,), {})("Class", (), dict(entries))
    _compare(use, cls, lambda: setattr(owner(cls) if owner else cls, method, function))
