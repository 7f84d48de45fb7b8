"""External objects that native code returns: reads of their attributes are guarded."""

import collections
import contextvars
import copy
import functools
import gc
import inspect
import operator
import threading
import types
import weakref

import pytest

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor


class Base:
    scale = 2.0

    def __init__(self):
        self.k = 3.0
        self.entries = [1.0]

    def times(self, x):
        return x * self.k


def _weak_reference(box):
    reference = weakref.ref(box)
    return lambda x: x * reference().k


def _weak_reference_and_object(box):
    reference = weakref.ref(box)
    return lambda x: x * reference().k + box.k


def _weak_method(box):
    method = weakref.WeakMethod(box.times)
    return lambda x: method()(x)


def _weak_values(box):
    found = weakref.WeakValueDictionary({"box": box})
    return lambda x: x * found["box"].k


def _unwrapped(box):
    def inner(x):
        return x * box.k

    outer = functools.wraps(inner)(lambda x: x)
    return lambda x: inspect.unwrap(outer)(x)


def _of_thread(box):
    local = threading.local()
    local.box = box
    return lambda x: x * local.box.k


def _context(box):
    variable = contextvars.ContextVar("variable", default=box)
    return lambda x: x * variable.get().k


def _closure(box):
    def inner():
        return box

    return lambda x: x * inner.__closure__[0].cell_contents.k


SOURCES = {
    "class of an object": (lambda box: lambda x: x * type(box).scale, "class"),
    "__class__": (lambda box: lambda x: x * box.__class__.scale, "class"),
    "__mro__": (lambda box: lambda x: x * type(box).__mro__[0].scale, "class"),
    "mro()": (lambda box: lambda x: x * type(box).mro()[0].scale, "class"),
    "class dictionary": (lambda box: lambda x: x * type(box).__dict__["scale"], "class"),
    "class dictionary by get": (lambda box: lambda x: x * type(box).__dict__.get("scale"), "class"),
    "class vars": (
        lambda box: lambda x: [x * v for k, v in vars(type(box)).items() if k == "scale"],
        "class",
    ),
    "weak reference": (_weak_reference, "object"),
    "weak reference to a held object": (_weak_reference_and_object, "object"),
    "weak method": (_weak_method, "object"),
    "weak values": (_weak_values, "object"),
    "unwrap": (_unwrapped, "object"),
    "thread's own": (_of_thread, "object"),
    "context variable": (_context, "object"),
    "cell contents": (_closure, "object"),
    "arguments of an exception": (
        lambda box: (lambda error: lambda x: x * error.args[0].k)(ValueError(box)),
        "object",
    ),
    "receiver of a method": (
        lambda box: (lambda method: lambda x: x * method.__self__.k)(box.times),
        "object",
    ),
    "arguments of a partial": (
        lambda box: (lambda p: lambda x: x * p.args[0].k)(functools.partial(Base.times, box)),
        "object",
    ),
    "default argument": (
        lambda box: (lambda f: lambda x: x * f.__defaults__[0].k)(lambda a=box: a),
        "object",
    ),
    "function of the same code": (
        lambda box: (lambda f: lambda x: f(box, x))(
            types.FunctionType(Base.times.__code__, globals())
        ),
        "object",
    ),
    "getter of a property": (
        lambda box: (lambda p: lambda x: x * p.fget(box))(property(lambda b: b.k)),
        "object",
    ),
    "copy": (lambda box: lambda x: x * copy.copy(box).k, "object"),
    "deep copy": (lambda box: lambda x: x * len(copy.deepcopy(box).entries), "list"),
    "item getter": (
        lambda box: (lambda get, t: lambda x: x * get(t).k)(operator.itemgetter(0), (box,)),
        "object",
    ),
    "next": (lambda box: (lambda t: lambda x: x * next(iter(t)).k)([box]), "object"),
    "minimum by a key": (
        lambda box: (lambda t: lambda x: x * min(t, key=lambda b: b.k).k)([box]),
        "object",
    ),
    "chain of mappings": (
        lambda box: (lambda m: lambda x: x * m["box"].k)(collections.ChainMap({}, {"box": box})),
        "object",
    ),
}

CHANGES = {
    "class": lambda box: setattr(type(box), "scale", type(box).scale + 1),
    "object": lambda box: setattr(box, "k", box.k + 1),
    "list": lambda box: box.entries.append(1.0),
}


@pytest.mark.parametrize("name", SOURCES)
def test_changes_of_objects_returned_by_native_code_take_effect(name):
    make, change = SOURCES[name]

    class Box(Base):
        scale = 2.0

    box = Box()
    program = make(box)
    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        for _ in range(2):
            assert_same(fast(tensor(1, 2)), program(tensor(1, 2)))
        CHANGES[change](box)


def test_record_keeps_weakly_referenced_objects_collectable():
    box = Base()
    reference = weakref.ref(box)

    def program(x):
        found = reference()
        return x if found is None else x * found.k

    fast = magpy.compile(program, backend="eager")
    for _ in range(2):
        assert_same(fast(tensor(1)), tensor(3))
    del box
    gc.collect()
    assert reference() is None
    for _ in range(2):
        assert_same(fast(tensor(1)), tensor(1))


def test_thread_local_attribute_is_read_in_each_thread():
    local = threading.local()
    local.k = 2.0
    fast = magpy.compile(lambda x: x * local.k, backend="eager")
    for _ in range(2):
        assert_same(fast(tensor(1)), tensor(2))
    results = []

    def work():
        local.k = 5.0
        results.append(fast(tensor(1)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert_same(results, [tensor(5)])
