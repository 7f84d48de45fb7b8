"""Special methods that Python looks up in classes by itself: guarded like any other read."""

import copy
import functools
import itertools
import math
import operator
import types

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor

OPERATIONS = {
    "add": (lambda a: a + 2, "__add__"),
    "reflected": (lambda a: 2 + a, "__radd__"),
    "in place": (lambda a: _add_in_place(a), "__iadd__"),
    "negative": (lambda a: -a, "__neg__"),
    "invert": (lambda a: ~a, "__invert__"),
    "less": (lambda a: a < 2, "__lt__"),
    "reflected greater": (lambda a: 2 > a, "__lt__"),
    "equal": (lambda a: a == 2, "__eq__"),
    "unequal": (lambda a: a != 2, "__ne__"),
    "unequal by equal": (lambda a: a != 2, "__eq__"),
    "contains": (lambda a: 2 in a, "__contains__"),
    "item": (lambda a: a[2], "__getitem__"),
    "length": (lambda a: len(a), "__len__"),
    "truth": (lambda a: not a, "__bool__"),
    "text": (lambda a: str(a), "__str__"),
    "format": (lambda a: f"{a}", "__format__"),
    "hash": (lambda a: hash(a), "__hash__"),
    "absolute": (lambda a: abs(a), "__abs__"),
    "iterate": (lambda a: [*a], "__iter__"),
    "call": (lambda a: a(2), "__call__"),
    "number": (lambda a: int(a), "__int__"),
    "context": (lambda a: _enter(a), "__enter__"),
}


def _add_in_place(value):
    value += 2
    return value


def _enter(manager):
    with manager as entered:
        return entered


def _special_method(name, number):
    """A new function object of that name at each call, which returns ``number``."""
    method = _function(name, number)
    method.__name__ = name
    return method


def _function(name, number):
    answers = {
        "__lt__": bool(number % 2), "__eq__": bool(number % 2), "__ne__": bool(number % 2),
        "__contains__": bool(number % 2), "__bool__": bool(number % 2), "__str__": f"is {number}",
        "__format__": f"is {number}",
    }  # fmt: skip
    if name == "__iter__":
        return lambda self: (i for i in range(number))
    # An argument that an inner function uses is kept in a cell.
    return lambda self, *_: (lambda: (self, answers.get(name, number))[1])()


def _leave(*_):
    return None


@pytest.mark.parametrize("operation, method", OPERATIONS.values(), ids=list(OPERATIONS))
def test_replaced_special_method_takes_effect(operation, method):
    Holder = type("Holder", (), {method: _special_method(method, 3), "__exit__": _leave})
    holder = Holder()

    def program(x):
        return x * 2, operation(holder)

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        setattr(Holder, method, _special_method(method, 3))
        expected, found = program(tensor(1, 2)), fast(tensor(1, 2))
        assert found[1] == expected[1]
    setattr(Holder, method, _special_method(method, 4))
    expected, found = program(tensor(1, 2)), fast(tensor(1, 2))
    assert found[1] == expected[1]
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("operation, method", OPERATIONS.values(), ids=list(OPERATIONS))
def test_special_method_may_be_a_function_of_another_name(operation, method):
    """Native code finds it by the name in the class, regardless of the name of the function."""
    Holder = type("Holder", (), {method: _function(method, 3), "__exit__": _leave})
    holder = Holder()
    fast = magpy.compile(lambda x: (x * 2, operation(holder)), backend="eager")
    for _ in range(2):
        assert fast(tensor(1, 2))[1] == operation(holder)
    setattr(Holder, method, _function(method, 4))
    assert fast(tensor(1, 2))[1] == operation(holder)


ADDED = {
    "text for a representation": (str, {"__repr__": lambda self: "a"}, "__str__", "b"),
    "float for an index": (float, {"__index__": lambda self: 1}, "__float__", 2.0),
    "iteration for items": (list, {"__getitem__": lambda self, i: [1][i]}, "__iter__", iter("a")),
    "equality": (lambda a: a in [3], {}, "__eq__", True),
    "equality of elements": (lambda a: 3 in [a], {}, "__eq__", True),
    "hash": (lambda a: len({a, 3}), {}, "__hash__", None),
    "truth": (bool, {}, "__bool__", False),
    "truth of elements": (lambda a: any([a]), {}, "__bool__", False),
    "call": (callable, {}, "__call__", None),
    "default": (lambda a: a.x, {"x": 1}, "__getattribute__", 2),
}


@pytest.mark.parametrize("operation, has, name, result", ADDED.values(), ids=list(ADDED))
def test_added_special_method_takes_effect(operation, has, name, result):
    Holder = type("Holder", (), dict(has))
    holder = Holder()
    fast = magpy.compile(lambda x: (x * 2, _outcome(operation, holder)), backend="eager")
    for _ in range(2):
        before = _outcome(operation, holder)
        assert fast(tensor(1, 2))[1] == before
    setattr(Holder, name, lambda *_: copy.copy(result))
    after = _outcome(operation, holder)
    assert after != before
    assert fast(tensor(1, 2))[1] == after


def _outcome(operation, holder):
    try:
        return operation(holder)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("operation", [len, sum, bool, lambda a: [*a], lambda a: 1 if a else 0])
def test_special_method_added_to_a_list_subclass_takes_effect(operation):
    class Items(list):
        pass

    items = Items([1, 2])
    fast = magpy.compile(lambda x: (x * 2, operation(items)), backend="eager")
    for _ in range(2):
        assert fast(tensor(1, 2))[1] == operation(items)
    Items.__len__ = lambda self: 0
    Items.__iter__ = lambda self: iter([5])
    assert fast(tensor(1, 2))[1] == operation(items)


LOOKED_UP_BY_NATIVE_CODE = {
    "abs": (abs, "__abs__"),
    "power": (lambda a: pow(a, 2), "__pow__"),
    "quotient and rest": (lambda a: divmod(a, 2), "__divmod__"),
    "sum": (lambda a: sum([1, a]), "__radd__"),
    "product": (lambda a: math.prod([a, 2]), "__rmul__"),
    "operator's sum": (lambda a: operator.add(a, 1), "__add__"),
    "operator's negation": (operator.neg, "__neg__"),
    "operator's comparison": (lambda a: operator.lt(a, 3), "__lt__"),
    "operator's item": (lambda a: operator.getitem(a, 0), "__getitem__"),
    "reduction": (lambda a: functools.reduce(operator.add, [a, a]), "__add__"),
    "accumulation": (lambda a: list(itertools.accumulate([a, 1])), "__add__"),
    "number in a text": (lambda a: "%.1f" % (a,), "__float__"),
    "index in a text": (lambda a: "%x" % (a,), "__index__"),
    "elements in a text": (lambda a: "%s" % [[a]], "__repr__"),
    "elements at depth": (lambda a: str([[a]]), "__repr__"),
    "iterator": (lambda a: list(iter(a)), "__iter__"),
    "iteration by items": (lambda a: [*a], "__getitem__"),
    "unpacked": (lambda a: (lambda *b: b)(*a), "__iter__"),
    "repetition": (lambda a: [0] * a, "__index__"),
    "torch function": (lambda a: torch.add(torch.ones(1), a), "__torch_function__"),
}
ADDED_LATER = {
    "__float__": lambda self: 7.0,
    "__getitem__": lambda self, key: [4, 5][key],
    "__index__": lambda self: 2,
    "__iter__": lambda self: iter([8]),
    "__repr__": lambda self: "new",
    "__torch_function__": classmethod(lambda *_: 29),
}


@pytest.mark.parametrize("base, value", [(object, ()), (int, (3,)), (list, ([1],)), (str, ("ab",))])
@pytest.mark.parametrize(
    "operation, name", LOOKED_UP_BY_NATIVE_CODE.values(), ids=list(LOOKED_UP_BY_NATIVE_CODE)
)
def test_special_method_that_native_code_looks_up_may_be_added(operation, name, base, value):
    Kind = type("Kind", (base,), {})
    instance = Kind(*value)
    fast = magpy.compile(lambda x: (x * 2, _outcome(operation, instance)), backend="eager")
    for _ in range(2):
        assert_same(fast(tensor(1, 2))[1], _outcome(operation, instance))
    setattr(Kind, name, ADDED_LATER.get(name, lambda self, *_: 77))
    assert_same(fast(tensor(1, 2))[1], _outcome(operation, instance))


def test_instance_check_added_to_a_metaclass_takes_effect():
    class Meta(type):
        pass

    Kind = Meta("Kind", (), {})
    fast = magpy.compile(lambda x: x * 2 if isinstance(x, Kind) else x * 3, backend="eager")
    for _ in range(2):
        assert torch.equal(fast(tensor(1, 2)), tensor(3, 6))
    Meta.__instancecheck__ = lambda cls, value: True
    assert torch.equal(fast(tensor(1, 2)), tensor(2, 4))


def test_replaced_call_method_of_the_compiled_object_takes_effect():
    class Scale:
        def __call__(self, x):
            return x * 2

    scale = Scale()
    fast = magpy.compile(scale, backend="eager")
    for call in (lambda self, x: x * 3, lambda self, x: x * 4):
        for _ in range(2):
            assert torch.equal(fast(tensor(1, 2)), scale(tensor(1, 2)))
        Scale.__call__ = call
    assert torch.equal(fast(tensor(1, 2)), tensor(4, 8))


def test_added_in_place_method_takes_effect():
    class Total:
        def __init__(self, value):
            self.value = value

        def __add__(self, other):
            return Total(self.value + other)

    def program(x, total):
        total += 1
        return x * total.value

    fast = magpy.compile(program, backend="eager")
    for _ in range(2):
        assert torch.equal(fast(tensor(1, 2), Total(1)), tensor(2, 4))
    Total.__iadd__ = lambda self, other: Total(self.value + 10 * other)
    assert torch.equal(fast(tensor(1, 2), Total(1)), tensor(11, 22))


class Offset:
    """Implements operators with tensors in Python."""

    def __init__(self, value):
        self.value = value

    def __radd__(self, other):
        return other + self.value

    def __add__(self, other):
        return self.value * other

    def __abs__(self):
        return self.value.abs() * 2


def _add_to(x, offset):
    x = x * 1
    x += offset
    return x


@pytest.mark.parametrize(
    "program",
    [
        lambda x, offset: x + offset,
        lambda x, offset: operator.add(x, offset),
        lambda x, offset: operator.add(offset, x),
        lambda x, offset: sum([offset, offset], x),
        lambda x, offset: abs(offset) + x,
        lambda x, offset: abs(Offset(x + 1)),
        _add_to,
    ],
    ids=["reflected", "function", "first", "sum", "abs", "created inside", "in place"],
)
def test_operators_implemented_in_python_are_followed(program):
    fast = magpy.compile(program, backend="eager")
    for factor in (1, 1, 2, 3):
        x, offset = tensor(1, -2) * factor, Offset(tensor(3, 4) * factor)
        assert torch.equal(fast(x, offset), program(x, offset))
    assert magpy.cache_info(fast).hits == 3


@pytest.mark.parametrize("holder_first", [False, True])
def test_tensor_may_also_be_an_attribute_of_a_later_argument(holder_first):
    def program(x, holder):
        first = holder.value if holder_first else x
        return first + 1, x * holder.value

    fast = magpy.compile(program, backend="eager")
    x = tensor(1, 2)
    for holder in (Offset(x), Offset(x), Offset(x * 7), Offset(x)):
        for found, expected in zip(fast(x, holder), program(x, holder), strict=True):
            assert torch.equal(found, expected)


def test_module_may_also_be_an_attribute_of_a_later_argument():
    identity, relu = torch.nn.Identity(), torch.nn.ReLU()

    def program(x, module, holder):
        return module(x), holder.value(x)

    fast = magpy.compile(program, backend="eager")
    x = tensor(1, -2)
    for holder in (Offset(identity), Offset(identity), Offset(relu)):
        for found, expected in zip(fast(x, identity, holder), program(x, identity, holder)):
            assert torch.equal(found, expected)


def test_power_that_becomes_complex_matches_eager():
    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.value = 1.5

        def forward(self, x):
            self.value -= 1.0
            return x * 2, self.value**0.5

    module, twin = Root(), Root()
    fast = magpy.compile(twin, backend="eager")
    for _ in range(5):
        assert fast(tensor(1, 2))[1] == module(tensor(1, 2))[1]


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def _assign_at(x, index):
    x = x.clone()
    x[index] = 7.0
    return x


@pytest.mark.parametrize(
    "program",
    [
        lambda x, index: x * torch.ones(index, 1),
        lambda x, index: x.expand(index, 2),
        lambda x, index: x[index],
        _assign_at,
    ],
    ids=["factory", "method", "item", "assignment"],
)
def test_index_methods_provide_numbers_of_operators(program):
    fast = magpy.compile(program, backend="eager")
    for number in (0, 0, 1, 0):
        x = tensor(1, 2)
        assert torch.equal(fast(x, Index(number)), program(x, Index(number)))


class _Observed:
    """A callable object that notes the uses of its other methods."""

    def __init__(self):
        self.__dict__["used"] = []

    def __call__(self, *values):
        return values[0]

    def __hash__(self):
        self.__dict__["used"].append("__hash__")
        return 1

    def __eq__(self, other):
        self.__dict__["used"].append("__eq__")
        return self is other

    def __getattr__(self, name):
        self.__dict__["used"].append(name)
        raise AttributeError(name)

    def __repr__(self):
        self.__dict__["used"].append("__repr__")
        return "observed"


def _decorated(x, call):
    @call
    def program():
        return x

    return program()


CALLS = {
    "call": lambda x, call: call(x),
    "decorator": _decorated,
    "map": lambda x, call: list(map(call, [x])),
    "map of numbers": lambda x, call: [x * n for n in map(call, [1, 2])],
    "filter": lambda x, call: list(filter(call, [1, 2])),
    "reduce": lambda x, call: functools.reduce(call, [x, x]),
    "accumulate": lambda x, call: list(itertools.accumulate([x, x], call)),
    "take while": lambda x, call: list(itertools.takewhile(call, [1, 2])),
    "sorted": lambda x, call: sorted([2, 1], key=call),
    "largest": lambda x, call: max([2, 1], key=call),
    "partial": lambda x, call: functools.partial(call, x)(),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_the_call_method_of_a_callable_object_runs(name):
    compiled = magpy.compile(CALLS[name], backend="eager")
    for _ in range(3):
        call = _Observed()
        assert_same(compiled(tensor(1, 2), call), CALLS[name](tensor(1, 2), _Observed()))
        assert call.used == []


def test_miss_does_not_write_the_text_of_a_changed_object():
    holder = types.SimpleNamespace(value=_Observed(), values=[_Observed()], by_name={})

    def program(x):
        return x * len([holder.value, holder.values, holder.by_name])

    compiled = magpy.compile(program, backend="eager")
    found = []
    for _ in range(3):
        found += [_Observed() for _ in range(3)]
        holder.value, holder.values, holder.by_name = found[-1], [found[-2]], {1: found[-3]}
        assert_same(compiled(tensor(1, 2)), program(tensor(1, 2)))
    assert [one.used for one in found] == [[]] * 9
