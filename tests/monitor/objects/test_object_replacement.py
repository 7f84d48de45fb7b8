"""Replacement of the stand-ins of numbers by their originals, in all objects that hold them."""

import contextvars
import threading

import pytest
import torch

import magpy_like as magpy
from magpy_like.monitor.objects.object_replacement import replace_all
from magpy_like.native import fresh_plain
from tests.compare import assert_same


class Meta(type):
    def __setattr__(cls, name, value):
        raise AssertionError("the program's code must not run")


@pytest.mark.parametrize("base", [{}, {"metaclass": Meta}])
def test_attributes_of_classes_are_read_anew(base):
    """Python looks up an attribute of a class once, and keeps a pointer to it without a count."""

    class Holder(**base):
        number = fresh_plain(7)

    class Derived(Holder):
        pass

    original = 7
    stand_in = Holder.__dict__["number"]
    assert Holder.number is stand_in and Derived.number is stand_in
    assert stand_in is not original
    replace_all([stand_in], {id(stand_in): original}, ())
    del stand_in
    others = [int(str(1000 + k)) for k in range(2000)]
    assert Holder.number is original and Derived.number is original and Derived().number is original
    assert Holder.__dict__["number"] is original and len(others) == 2000


def test_entries_of_other_dictionaries_with_a_docstring_are_replaced():
    stand_in = fresh_plain(7)
    entries = {"__doc__": None, "number": stand_in, "tracked": []}
    replace_all([stand_in], {id(stand_in): 7}, ())
    assert entries["number"] is not stand_in and entries["number"] == 7


@pytest.mark.parametrize("thread", ["the same", "another"])
def test_context_variables_look_up_their_values_anew(thread):
    """A context variable keeps a pointer to its value without a count."""
    variable = contextvars.ContextVar("number")
    original = int("1000")
    stand_in = fresh_plain(original)
    context = contextvars.Context()
    context.run(variable.set, stand_in)
    begun, replaced, found = threading.Event(), threading.Event(), []

    def read_twice():
        assert variable.get() is stand_in
        begun.set()
        assert replaced.wait(60)
        found.append(variable.get())

    def replace():
        replace_all([stand_in], {id(stand_in): original}, ())
        replaced.set()

    if thread == "another":
        reader = threading.Thread(target=context.run, args=(read_twice,))
        reader.start()
        assert begun.wait(60)
        replace()
        reader.join()
    else:
        context.run(lambda: (variable.get(), replace(), found.append(variable.get())))
    assert found[0] is original


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
IN_CONTEXTS = {
    "an argument": lambda x, n: (VARIABLE.set(n), x * VARIABLE.get())[1],
    "a computed number": lambda x, n: (VARIABLE.set(n + 1), x * VARIABLE.get())[1],
    "a tensor": lambda x, n: (VARIABLE.set(x * n), VARIABLE.get() + 1)[1],
}


@pytest.mark.parametrize("kind", IN_CONTEXTS)
def test_a_context_variable_keeps_what_a_program_sets(kind):
    program = IN_CONTEXTS[kind]
    fast = magpy.compile(program, backend="eager")
    for number in range(1000, 1006):
        results = []
        for call in (program, fast):
            results.append((call(torch.ones(2), number), VARIABLE.get()))
            assert kind != "an argument" or VARIABLE.get() is number
        assert_same(results[1], results[0])


async def _waiting(number):
    return number


async def _numbers(number):
    yield number


@pytest.mark.parametrize("make", [_waiting, _numbers])
def test_number_in_a_coroutine_that_waits_is_the_programs_own(make):
    left = []

    def program(x, number, leaves_one):
        if leaves_one:
            left.append(make(number))
        return x * number

    fast, x = magpy.compile(program, backend="eager"), torch.ones(2)
    for number in range(1000, 1005):
        assert torch.equal(fast(x, number, False), x * number)
    for number in (2000, 2001):
        assert torch.equal(fast(x, number, True), x * number)
        (frame,) = [getattr(left[-1], name) for name in dir(left[-1]) if name.endswith("_frame")]
        assert frame.f_locals["number"] is number
        if make is _waiting:
            left[-1].close()
