"""Names for sizes that are computed from others.

What comes out of a convolution or a pool is as wide as ``(width - 1)//2 + 1``, and behind a few of
them as a quotient of quotients. Addresses are products of such sizes, and SymPy compares, expands
and prints them slowly. So each is one symbol from the ATen graph on, and all expressions are
polynomials in symbols; the launcher computes it once, and kernels are given it. *Measured*, a small
DenseNet over images of any size: 2.4 seconds instead of 3.5 to lower and schedule.

So is a size that is a float rounded, as of an image that grows by 1.3: the launcher computes floats
as torch does, and kernels have no form for them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch

from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol, is_size_symbol
from magpy_like.torch_compat.symbolic_expressions import FloorDiv


class SizeNames:
    """The names of one graph. ``known``: does a relation hold for all sizes of the guards?"""

    def __init__(self, known: Callable[[Any], bool]) -> None:
        self.meanings: dict[Symbol, Expr] = {}
        self._known = known
        self._quotients: dict[Expr, Expr] = {}  # in terms of the names
        self._named: dict[Expr, Expr] = {}

    def named(self, e: Expr) -> Expr:
        """An expression of sizes in terms of the names."""
        found = self._named.get(e)
        if found is None:
            for quotient in _outermost(e):
                if quotient not in self._quotients:
                    self._quotients[quotient] = self._name(quotient, e)
            found = e.xreplace(self._quotients)
            found = self._named[e] = sympy.expand(found) if found != e else e
        return found

    def meaning(self, e: Any) -> Any:
        """An expression, or relation, without the names."""
        return e.xreplace(self.meanings) if self.meanings else e

    def _name(self, quotient: Expr, e: Expr) -> Expr:
        """Name ``e`` if that is a quotient and a number, else the quotient; the quotient then."""
        number = e - quotient
        whole = e if number.is_Integer else quotient
        if not all(map(is_size_symbol, quotient.free_symbols)):
            return quotient  # only a run tells what it is made of
        if self._known(sympy.Eq(whole, 1)):
            return 1 - number if whole is e else sympy.S.One
        least = next((n for n in (1, 0) if self._known(whole >= n)), None)
        sign = {1: {"positive": True}, 0: {"nonnegative": True}, None: {}}[least]
        name = sympy.Symbol(f"sz{len(self.meanings)}", integer=True, **sign)
        self.meanings[name] = whole
        return name - number if whole is e else name


def _outermost(e: Expr) -> Iterator[Expr]:
    """The quotients and rounded floats that an expression is made of."""
    rounds = e.is_Function and e.is_integer and not all(part.is_integer for part in e.args)
    if isinstance(e, FloorDiv) or rounds:
        yield e
    else:
        for part in e.args:
            yield from _outermost(part)


_names: contextvars.ContextVar[SizeNames | None] = contextvars.ContextVar("names", default=None)


@contextlib.contextmanager
def naming(names: SizeNames) -> Iterator[None]:
    """Have :func:`expr` use these names in the block."""
    before = _names.set(names)
    try:
        yield
    finally:
        _names.reset(before)


def expr(size: Any) -> Expr:
    """An int, SymInt or expression as a SymPy expression."""
    if isinstance(size, torch.SymInt):
        names = _names.get()
        return size.node.expr if names is None else names.named(size.node.expr)
    if isinstance(size, int):
        return sympy.Integer(size)
    return size
