"""Index arithmetic: simplified expressions have the same values, checked on numbers."""

import itertools

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Div, Mod
from magpy_like.compiler.ir.ops import loop_symbol

X, Y, Z = (loop_symbol("x", k) for k in range(3))


def value(e, at):
    return int(e.xreplace({v: sympy.Integer(n) for v, n in at.items()}))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.lists(st.integers(0, 8), min_size=3, max_size=3),
    st.integers(1, 12),
    st.integers(1, 6),
)
def test_simplified_division_keeps_its_value(sizes, steps, divisor, modulus):
    ranges = dict(zip((X, Y, Z), map(sympy.Integer, sizes)))
    flat = sum(v * s for v, s in zip((X, Y, Z), steps))
    for e in (Div(flat, divisor), Mod(flat, modulus), Mod(Div(flat, divisor), modulus) * 3 + Y):
        simple = index_arithmetic.simplify(sympy.sympify(e), ranges)
        for point in itertools.product(*map(range, sizes)):
            at = dict(zip((X, Y, Z), point))
            assert value(simple, at) == value(sympy.sympify(e), at)


def test_flatten_and_unflatten_cancel():
    ranges = {X: sympy.Integer(6), Y: sympy.Integer(4)}
    flat = index_arithmetic.flatten([X, Y], [6, 4])
    assert [
        index_arithmetic.simplify(c, ranges) for c in index_arithmetic.unflatten(flat, [6, 4])
    ] == [X, Y]
    assert index_arithmetic.simplify(Div(X, 4) * 4 + Mod(X, 4), ranges) == X


def test_reshape_of_symbolic_sizes_has_no_division_between_equal_groups():
    s = sympy.Symbol("s0", integer=True, positive=True)
    reindex = index_arithmetic.reshape_index(
        [s, sympy.Integer(12)], [s, sympy.Integer(3), sympy.Integer(4)]
    )
    assert reindex([X, Y, Z]) == [X, 4 * Y + Z]


def test_strides_are_reshaped_if_memory_permits():
    i = sympy.Integer
    assert index_arithmetic.reshape_strides([i(2), i(12)], [i(12), i(1)], [i(2), i(3), i(4)]) == [
        12,
        4,
        1,
    ]
    assert index_arithmetic.reshape_strides([i(2), i(12)], [i(1), i(2)], [i(24)]) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_exact_quotient_is_exact(divisor, steps):
    n, m = sympy.symbols("n m", integer=True, positive=True)
    sums = n * steps[0] + m * steps[1] + steps[2]
    for size in (sums, m * sums, m * (n + steps[3]) ** 2, n * m * steps[3]):
        quotient = index_arithmetic.exact_quotient(sympy.Integer(divisor), sympy.sympify(size))
        if quotient is None:
            continue
        for at in itertools.product(range(1, 5), repeat=2):
            point = dict(zip((n, m), map(sympy.Integer, at)))
            assert quotient.xreplace(point) * divisor == sympy.sympify(size).xreplace(point)
            assert quotient.xreplace(point).is_Integer
