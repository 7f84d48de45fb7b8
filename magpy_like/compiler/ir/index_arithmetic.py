"""Index arithmetic: sizes, strides and addresses as SymPy expressions.

Addresses divide by two functions defined here. ``Div`` and ``Mod`` take non-negative operands only,
for which C and Python agree, and evaluate cheaply where SymPy's ``floor`` and ``Mod`` are slow.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy

# SymPy is not typed.
Expr: TypeAlias = Any
Symbol: TypeAlias = Any


class Div(sympy.Function):
    """Quotient of non-negative integers, rounded down."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 1 or a == 0:
            return a
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) // int(b))
        if isinstance(a, Div):
            return Div(a.args[0], a.args[1] * b)
        return None


class Mod(sympy.Function):
    """Remainder of non-negative integers."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 1 or a == 0 or a == b:
            return sympy.S.Zero
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) % int(b))
        return None


def product(sizes: Iterable[Expr]) -> Expr:
    """The product of sizes; 1 for none."""
    return functools.reduce(operator.mul, sizes, sympy.S.One)


def contiguous_strides(sizes: Sequence[Expr]) -> list[Expr]:
    """Row-major strides; an empty dimension counts as one element, as in eager."""
    strides: list[Expr] = []
    step: Expr = sympy.S.One
    for size in reversed(sizes):
        strides.append(step)
        if size != 0:
            step = step * size
    return strides[::-1]


def is_nonnegative(difference: Expr) -> bool:
    """True if the expression is known to be >= 0, for sizes >= 1 and loop variables >= 0."""
    if difference.is_Integer:
        return int(difference) >= 0
    # Size symbols are at least 2 unless proven otherwise. After s -> s + 1, a polynomial with only
    # non-negative coefficients is certainly non-negative.
    shifted = {s: s + 1 for s in difference.free_symbols if is_size_symbol(s)}
    expanded = sympy.expand(difference.xreplace(shifted))
    return all(
        term.is_nonnegative or (not term.is_Number and _nonnegative_term(term))
        for term in sympy.Add.make_args(expanded)
    )


def _nonnegative_term(term: Expr) -> bool:
    coefficient, rest = term.as_coeff_Mul()
    return coefficient >= 0 and all(
        f.is_nonnegative or (f.is_Pow and f.base.is_nonnegative) for f in sympy.Mul.make_args(rest)
    )


def is_size_symbol(symbol: Symbol) -> bool:
    """True for a backed symbol of a ShapeEnv: named s<k> and positive."""
    return symbol.name.startswith("s") and bool(symbol.is_positive)


def upper_bound(e: Expr, ranges: Mapping[Symbol, Expr]) -> Expr | None:
    """Largest value of a sum of non-negative terms over the loops; None if unknown."""
    total: Expr = sympy.S.Zero
    for term in sympy.Add.make_args(e):
        bound: Expr = sympy.S.One
        for factor in sympy.Mul.make_args(term):
            if factor.is_Number or (factor.is_Symbol and factor not in ranges):
                if factor.is_Symbol and not is_size_symbol(factor):
                    return None
                if factor.is_negative:
                    return None
                bound *= factor
            elif factor in ranges:
                bound *= ranges[factor] - 1
            elif isinstance(factor, Mod):
                bound *= factor.args[1] - 1
            elif isinstance(factor, Div):
                inner = upper_bound(factor.args[0], ranges)
                if inner is None or not (inner.is_Integer and factor.args[1].is_Integer):
                    return None
                bound *= Div(inner, factor.args[1])
            elif factor.is_Pow and factor.base.is_Symbol and is_size_symbol(factor.base):
                bound *= factor
            else:
                return None
        total += bound
    return total


def exact_quotient(d: Expr, e: Expr) -> Expr | None:
    """``e / d`` if it is an integer expression, else None."""
    if d.is_Integer and e.is_Integer:
        return sympy.Integer(int(e) // int(d)) if int(e) % int(d) == 0 else None
    quotient = e / d
    return quotient if _has_integer_coefficients(quotient) else None


def _has_integer_coefficients(e: Expr) -> bool:
    """True if no coefficient is a fraction: SymPy writes ``(s + 1)/2`` as ``s/2 + 1/2``."""
    if e.is_Number:
        return bool(e.is_Integer)
    if e.is_Add or e.is_Mul:
        return all(map(_has_integer_coefficients, e.args))
    return not e.is_Pow or (bool(e.exp.is_nonnegative) and _has_integer_coefficients(e.base))


def simplify(e: Expr, ranges: Mapping[Symbol, Expr]) -> Expr:
    """Remove the divisions and remainders that the loop ranges make exact or void."""
    if e.is_Atom:
        return e
    if e.is_Add or e.is_Mul:
        if any(f.has(Div, Mod) for f in e.args):
            e = e.func(*(simplify(f, ranges) for f in e.args))
            e = _join_quotient_and_remainder(e)
        return sympy.expand(e) if _needs_expansion(e) else e
    if isinstance(e, (Div, Mod)):
        a, b = simplify(e.args[0], ranges), simplify(e.args[1], ranges)
        return simplify_div(a, b, ranges) if isinstance(e, Div) else simplify_mod(a, b, ranges)
    if e.args and e.has(Div, Mod):
        return e.func(*(simplify(f, ranges) if isinstance(f, sympy.Expr) else f for f in e.args))
    return e


def _needs_expansion(e: Expr) -> bool:
    factors = [f for term in sympy.Add.make_args(e) for f in sympy.Mul.make_args(term)]
    return any(f.is_Add for f in factors)


def _join_quotient_and_remainder(e: Expr) -> Expr:
    """``Div(a, b)*b*c + Mod(a, b)*c`` is ``a*c``."""
    if not e.is_Add:
        return e
    terms = list(e.args)
    for mod in [f for t in terms for f in sympy.Mul.make_args(t) if isinstance(f, Mod)]:
        a, b = mod.args
        quotient = Div(a, b)
        for low in terms:
            scale = low / mod
            if low.has(mod) and not scale.has(mod) and quotient * b * scale in terms:
                terms.remove(low)
                terms.remove(quotient * b * scale)
                terms.append(sympy.expand(a * scale))
                return _join_quotient_and_remainder(sympy.Add(*terms))
    return e


def _split_multiples(a: Expr, d: Expr) -> tuple[Expr, Expr]:
    """Split ``a`` term by term into ``d * quotient + rest``."""
    quotient: Expr = sympy.S.Zero
    rest: Expr = sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand(a) if _needs_expansion(a) else a):
        q = exact_quotient(d, term)
        if q is None:
            rest += term
        else:
            quotient += q
    return quotient, rest


def simplify_div(a: Expr, b: Expr, ranges: Mapping[Symbol, Expr]) -> Expr:
    """``Div(a, b)`` without the division where the loop ranges decide it."""
    if isinstance(a, Div):
        return simplify_div(a.args[0], a.args[1] * b, ranges)
    quotient, rest = _split_multiples(a, b)
    bound = upper_bound(rest, ranges)
    if bound is not None and is_nonnegative(b - 1 - bound):
        return quotient
    if quotient != 0 and bound is not None:  # The bound exists: rest >= 0.
        return quotient + Div(rest, b)
    return Div(a, b)


def simplify_mod(a: Expr, b: Expr, ranges: Mapping[Symbol, Expr]) -> Expr:
    """``Mod(a, b)`` without the remainder where the loop ranges decide it."""
    _, rest = _split_multiples(a, b)
    bound = upper_bound(rest, ranges)
    if bound is None:
        return Mod(a, b)
    if is_nonnegative(b - 1 - bound):
        return rest
    if isinstance(rest, Mod):
        if exact_quotient(b, rest.args[1]) is not None:
            return simplify_mod(rest.args[0], b, ranges)
    return Mod(rest, b)


def coefficients(e: Expr, variables: Iterable[Symbol]) -> tuple[dict[Symbol, Expr], Expr] | None:
    """``e`` as ``sum(coefficient * variable) + rest``; None if it is not affine in the
    variables."""
    form = _coefficients(e, frozenset(variables))
    return None if form is None else (dict(form[0]), form[1])


@functools.lru_cache(maxsize=1 << 14)
def _coefficients(e: Expr, wanted: frozenset[Symbol]) -> tuple[Mapping[Symbol, Expr], Expr] | None:
    """Cached: the scheduler analyses the same addresses for each candidate pair."""
    found: dict[Symbol, Expr] = {}
    rest: Expr = sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand(e) if _needs_expansion(e) else e):
        used = term.free_symbols & wanted
        if not used:
            rest += term
            continue
        if len(used) > 1:
            return None
        (variable,) = used
        factor = term / variable if term != variable else sympy.S.One
        if variable in factor.free_symbols:
            return None
        found[variable] = found.get(variable, sympy.S.Zero) + factor
    return found, rest


def is_injective(e: Expr, variable: Symbol, ranges: Mapping[Symbol, Expr]) -> bool:
    """True if distinct values of ``variable`` never yield the same ``e``, whatever the other
    variables.

    Sufficient condition: the other variables' terms either stay below one step of ``variable``, all
    together, or are multiples of its whole range, so that ``variable`` is a digit of ``e``. Each
    symbol of ``ranges`` runs from 0 to below its range; other symbols are constants.
    """
    form = coefficients(e, ranges)
    if form is None or variable not in form[0]:
        return False
    steps, _ = form
    step = steps.pop(variable)
    below: Expr = sympy.S.Zero
    for other, factor in steps.items():
        if exact_quotient(step * ranges[variable], factor) is None:
            if not is_nonnegative(factor):
                return False
            below += factor * (ranges[other] - 1)
    return is_nonnegative(step - 1 - below)


def mergeable_loops(
    variables: Sequence[Symbol], ranges: Mapping[Symbol, Expr], indices: Sequence[Expr]
) -> list[tuple[Symbol, Symbol]]:
    """Adjacent loops that every index addresses as one loop.

    Returns pairs (outer, inner), innermost first.
    """
    merged: list[tuple[Symbol, Symbol]] = []
    sizes = dict(ranges)
    forms = [coefficients(e, variables) for e in indices]
    if any(f is None for f in forms):
        nonaffine = {s for e, f in zip(indices, forms, strict=True) if f is None
                     for s in e.free_symbols}  # fmt: skip
    else:
        nonaffine = set()
    affine = [f[0] for f in forms if f is not None]
    order = list(variables)
    k = len(order) - 2
    while k >= 0:
        outer, inner = order[k], order[k + 1]
        if outer not in nonaffine and inner not in nonaffine:
            if all(
                f.get(outer, sympy.S.Zero) == f.get(inner, sympy.S.Zero) * sizes[inner]
                for f in affine
            ):
                merged.append((outer, inner))
                sizes[inner] = sizes[inner] * sizes[outer]
                del order[k]
        k -= 1
    return merged


def unflatten(flat: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """Row-major coordinates of a flat index."""
    coordinates: list[Expr] = []
    step: Expr = sympy.S.One
    for k in range(len(sizes) - 1, -1, -1):
        size = sizes[k]
        if size == 1 or size == 0:
            coordinates.append(sympy.S.Zero)
            continue
        position = Div(flat, step)
        outermost = all(s == 1 for s in sizes[:k])
        coordinates.append(position if outermost else Mod(position, size))
        step = step * size
    return coordinates[::-1]


def flatten(indices: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """Row-major flat index of coordinates."""
    flat: Expr = sympy.S.Zero
    for index, size in zip(indices, sizes, strict=True):
        flat = flat * size + index
    return sympy.expand(flat) if _needs_expansion(flat) else flat


def reshape_groups(
    old: Sequence[Expr], new: Sequence[Expr]
) -> list[tuple[list[int], list[int]]] | None:
    """Split two shapes of equal element count into minimal groups of dimensions of equal product.

    Returns (old dimensions, new dimensions) per group; None if symbolic sizes cannot be matched.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [], []
        p: Expr = sympy.S.One
        q: Expr = sympy.S.One
        if i < len(old):
            left.append(i)
            p *= old[i]
            i += 1
        if j < len(new):
            right.append(j)
            q *= new[j]
            j += 1
        while p != q:
            # Grow the product that divides the other; with symbols, it may be either.
            if j < len(new) and (
                i >= len(old) or exact_quotient(q, p) is not None or _is_less(q, p)
            ):
                right.append(j)
                q *= new[j]
                j += 1
            elif i < len(old):
                left.append(i)
                p *= old[i]
                i += 1
            elif j < len(new):
                right.append(j)
                q *= new[j]
                j += 1
            else:
                return None
        groups.append((left, right))
    return groups


def _is_less(a: Expr, b: Expr) -> bool:
    return bool(a.is_Integer and b.is_Integer and a < b)


def reshape_index(
    old: Sequence[Expr], new: Sequence[Expr]
) -> Callable[[Sequence[Expr]], list[Expr]]:
    """Function from new coordinates to old ones, for shapes of equal element count (row-major)."""
    groups = reshape_groups(old, new)
    if groups is None:
        everything = (list(range(len(old))), list(range(len(new))))
        groups = [everything]

    def reindex(indices: Sequence[Expr]) -> list[Expr]:
        result: list[Expr] = [sympy.S.Zero] * len(old)
        for left, right in groups:
            if len(left) == 1 and len(right) == 1:
                result[left[0]] = indices[right[0]]
                continue
            flat = flatten([indices[j] for j in right], [new[j] for j in right])
            for i, c in zip(left, unflatten(flat, [old[i] for i in left]), strict=True):
                result[i] = c
        return result

    return reindex


def reshape_strides(
    old: Sequence[Expr], strides: Sequence[Expr], new: Sequence[Expr]
) -> list[Expr] | None:
    """Strides of the memory of shape ``old`` viewed as shape ``new``; None if a copy is needed."""
    groups = reshape_groups(old, new)
    if groups is None:
        return None
    result: list[Expr] = [sympy.S.One] * len(new)
    for left, right in groups:
        live = [i for i in left if old[i] != 1]
        for a, b in itertools.pairwise(live):
            if strides[a] != strides[b] * old[b]:
                return None
        step = strides[live[-1]] if live else sympy.S.One
        for j in reversed(right):
            result[j] = step
            step = step * new[j]
    return result
