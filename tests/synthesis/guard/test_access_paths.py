"""Access paths: a program that follows one relies on the objects along it."""

import collections
import functools
import itertools
import weakref

import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, check, check_results, check_stateful, matrix, one, tensor


class Holder:
    def __init__(self):
        self.scale = 2.0


def _reads_attribute(holder, x):
    return x * holder.scale


def _reads_dictionary(holder, x):
    return x * vars(holder)["scale"] * holder.__dict__.get("other", 1.0)


@pytest.mark.parametrize("reads", [_reads_attribute, _reads_dictionary])
def test_replaced_instance_dictionary_must_miss(reads):
    def make():
        holder = Holder()

        def program(x):
            return reads(holder, x)

        program.holder = holder
        return program

    check_stateful(
        make,
        one(),
        changes=[lambda program: setattr(program.holder, "__dict__", {"scale": 5.0})],
    )


def test_module_with_another_modules_dictionary_must_miss():
    def make():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 3)

    def change(module):
        torch.manual_seed(1)
        module.__dict__ = torch.nn.Linear(3, 3).__dict__

    twins = Twins(make)
    inputs = lambda: (matrix(),)  # noqa: E731
    twins.call(inputs, hit=False)
    twins.call(inputs, hit=True)
    twins.change(change)
    twins.call(inputs, hit=False)


def _view_and_base():
    base = matrix()
    return base, base[0]


def test_base_of_a_view_is_guarded():
    check(
        lambda a, b: (b._base is a, a.sum() + b),
        _view_and_base,
        other=[lambda: (matrix(), matrix()[0])],
    )


def test_is_view_is_guarded():
    check(
        lambda a: (a._is_view(), a * 2),
        lambda: (torch.ones(2, 3)[1:],),
        other=[lambda: (torch.ones(1, 3),)],
    )


def test_maxlen_of_a_deque_is_guarded():
    def queue(maxlen):
        return lambda: (collections.deque([1, 2], maxlen=maxlen), tensor(1.0, 2.0))

    def program(items, x):
        return x * (items.maxlen or 7)

    check_results(lambda: program, queue(2), queue(5), queue(None))


def test_attribute_behind_a_weak_proxy_is_read_at_each_call():
    def make():
        holder = Holder()
        proxy = weakref.proxy(holder)

        def program(x):
            proxy.scale += 1
            return x * proxy.scale

        program.holder = holder
        return program

    check_results(make, one(), one(2.0))


def test_object_of_a_native_class_is_not_created_by_a_mock():
    def program(x):
        reverse = functools.cmp_to_key(lambda a, b: b - a)
        return x * 2, reverse(1) < reverse(2), sorted([3, 1, 2], key=reverse)

    check_results(lambda: program, one(), one(2.0))


NATIVE_CALLS = {
    "running sums": lambda x: list(itertools.accumulate([x, x * 2, x])),
    "running products": lambda x: list(itertools.accumulate([x, x * 2], torch.mul, initial=x)),
    "running results of a function": lambda x: list(
        itertools.accumulate([x, x * 2, x], lambda a, b: a * 2 + b)
    ),
    "no items": lambda x: (x * 2, list(itertools.accumulate(iter(()), torch.mul))),
    "keys of tensors in order": lambda x: (sorted({"b": x, "a": x * 2}), max({"b": x, "a": x})),
    "methods of containers": lambda x: (x * 2, list(map({"a": 1}.get, "ab"))),
    "a field of a named tuple replaced": lambda x: Pair(1, 2)._replace(second=x * 2),
}
Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize("name", NATIVE_CALLS)
def test_native_code_that_iterates_over_tensors_or_calls_methods_is_recorded(name):
    check(NATIVE_CALLS[name], one())


def test_external_named_tuple_with_a_replaced_field():
    check(lambda pair, x: pair._replace(second=x * 2), lambda: (Pair(1, 2), tensor(1.0)))


class Index(int):
    def __add__(self, other):
        return 100


def test_number_of_an_int_subclass_in_a_closure():
    index = Index(3)
    check(lambda x: (x * (index + 1), x[:index], range(index), [1, 2, 3, 4][index]), one())


class Hidden:
    """An instance that shows other attributes than it has."""

    @property
    def __dict__(self):
        return {}


class Refusing(dict):
    """A dictionary with overridden methods, which storing an attribute does not call."""

    def __setitem__(self, key, value):
        raise AssertionError("called")

    def pop(self, *args):
        raise AssertionError("called")

    update = pop


class Plain:
    pass


def _refusing():
    box = Plain()
    box.__dict__ = Refusing(old=1)
    return box


def _hidden():
    box = Hidden()
    box.old = 1
    return box


@pytest.mark.parametrize("make", [_hidden, _refusing])
def test_attributes_are_stored_where_python_stores_them(make):
    def program(x, box):
        box.new = x * box.old
        del box.old
        return box

    fast = magpy.compile(program, backend="eager")
    for i in range(3):
        box = fast(tensor(i), make())
        assert torch.equal(box.new, tensor(i))
        assert not hasattr(box, "old")
    assert magpy.cache_info(fast).hits == 2


def test_attributes_of_a_new_instance_are_stored_where_python_stores_them():
    def program(x):
        box = Hidden()
        box.new = x * 2
        return box

    fast = magpy.compile(program, backend="eager")
    for i in range(3):
        assert torch.equal(fast(tensor(i)).new, tensor(2 * i))
    assert magpy.cache_info(fast).hits == 2
