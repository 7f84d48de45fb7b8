"""Where a recording ends, the program holds its own numbers again: their identities are eager's."""

import functools
import types

import pytest
import torch

import magpy_like as magpy

ONE = 1  # the object of all numbers 1
SPLIT = print  # a call that splits the program


# Each program returns first a tensor that a branch may or may not compute. A test of its identity
# in a generator ends the recording: the program continues natively.


def local_variable(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    return y, sum(1 for v in [x] if v is x) is b


def containers(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    tests = (v is x for v in [x])
    kept = [b, (b,), {1: b}]
    list(tests)
    return y, b is ONE, kept[0] is ONE, kept[1][0] is ONE, kept[2][1] is ONE


def operand_of_a_caller(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    return y, b is sum(1 for v in [x] if v is x), (b if any(v is x for v in [x]) else 3) is ONE


def attributes(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    o = types.SimpleNamespace()
    o.n, o.t = b, (b, b)
    any(v is x for v in [x])
    return y, o.n is ONE, o.t[0] is ONE


def computed_numbers(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    n = b + 1
    m = [n - 1]
    any(v is x for v in [x])
    return y, n - 1 is ONE, m[0] is ONE


def cells_and_defaults(x, b):
    def inner(c=b):
        return b is ONE, c is ONE, c is b

    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    any(v is x for v in [x])
    return y, inner(), inner.__defaults__[0] is ONE


def frame_of_a_caller(x, b):
    def inner(c):
        found = sum(1 for v in [x] if v is x)
        return b is found, c is found, c is b

    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    return y, inner(b), b is ONE


def after_an_exception(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    try:
        list(1 // (0 if v is x else 1) for v in [x])
    except ZeroDivisionError:
        return y, b is ONE


def calls_of_native_code(x, b):
    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    return y, [v for v in map(lambda v: v is x, [x])], b is ONE


def class_and_suspended_generator(x, b):
    def generator():
        kept = b
        yield
        yield kept is ONE

    class Holder:
        n, t, f = b, (b,), functools.partial(abs, b)

    y = x
    if x.mean() > 0:
        y = (lambda v: v + b)(x)
    it = generator()
    next(it)
    functools.reduce(lambda a, t: a + (t is x), [x], 0)
    return y, next(it), Holder.n is ONE, Holder.t[0] is ONE, Holder.f.args[0] is ONE


ENDED = [
    local_variable, containers, operand_of_a_caller, attributes, computed_numbers,
    cells_and_defaults, frame_of_a_caller, after_an_exception, calls_of_native_code,
    class_and_suspended_generator,
]  # fmt: skip


def operand_of_a_caller_of_a_split(x, b):
    def one():
        SPLIT(end="")
        return 1

    return x + b, b is one()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [*ENDED, operand_of_a_caller_of_a_split])
def test_numbers_are_the_objects_of_eager_mode_after_a_recording(program):
    fast = magpy.compile(program, backend="eager")
    for number, size in [(0, 0), (1, 4), (2, 3), (1, 3), (1, 4)]:
        x = torch.zeros(size, 1) - 1
        (expected, *tests), (found, *ours) = program(x, number), fast(x, number)
        assert torch.equal(found, expected)
        assert ours == tests


def test_number_of_an_earlier_segment_is_compared_as_the_program_s_own_object():
    state = torch.zeros(3)

    def program(x, b):
        y = (lambda v: v + b)(x)
        state[1] = 1
        return y, True if x.sum() > 0 else ONE is b  # a segment ends at the branch

    fast = magpy.compile(program, backend="eager")
    for number, value in [(0, 1), (1, -1), (2, -1), (1, -1)]:
        x = torch.full((2,), value)
        assert fast(x, number)[1] is program(x, number)[1]


def test_computed_numbers_that_a_call_leaves_are_the_objects_of_eager_mode():
    def program(x, o):
        o.n = o.n + 1
        o.listed.append(o.n)
        o.pair, o.entries["n"], o.function = (o.n, 2), o.n, lambda n=o.n: n
        return x * o.n

    small = list(range(20))
    fast = magpy.compile(program, backend="eager")
    o = types.SimpleNamespace(n=0, listed=[], entries={})
    for _ in range(6):
        fast(torch.ones(2), o)
        for number in (o.n, *o.listed, o.pair[0], o.entries["n"], o.function()):
            assert number is small[number]
