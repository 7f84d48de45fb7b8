"""Symbols for sizes that are computed from other sizes.

The output of a convolution or pooling is ``(width - 1)//2 + 1`` wide, and after a few of them a
quotient of quotients. Addresses are products of such sizes, which SymPy compares, expands and
prints slowly. So each such size is one symbol from lowering on, and all expressions are polynomials
in symbols; the launcher computes it once and passes it to kernels. *Measured*, a small DenseNet
over images of any size: 2.4 seconds instead of 3.5 to lower and schedule.

A rounded float size (an image enlarged by 1.3) also becomes a symbol: the launcher computes floats
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
from magpy_like.torch_compat.tracing.symbolic_expressions import FloorDiv


class SizeNames:
    """The size symbols of one graph.

    ``known(relation)``: does a relation hold for all sizes that the guards admit?
    """

    def __init__(self, known: Callable[[Any], bool]) -> None:
        self.definitions: dict[Symbol, Expr] = {}
        self._known = known
        self._quotients: dict[Expr, Expr] = {}  # quotient -> its symbol, or an expression of it
        self._named: dict[Expr, Expr] = {}

    def abbreviate(self, e: Expr) -> Expr:
        """An expression of sizes, with its quotients replaced by size symbols."""
        found = self._named.get(e)
        if found is None:
            for quotient in _outermost(e):
                if quotient not in self._quotients:
                    self._quotients[quotient] = self._name(quotient, e)
            found = e.xreplace(self._quotients)
            found = self._named[e] = sympy.expand(found) if found != e else e
        return found

    def expand(self, e: Any) -> Any:
        """An expression or relation, with the size symbols replaced by their definitions."""
        return e.xreplace(self.definitions) if self.definitions else e

    def _name(self, quotient: Expr, e: Expr) -> Expr:
        """The expression to replace ``quotient`` by.

        Names ``e`` as a whole if it is the quotient plus a number, else the quotient alone.
        """
        number = e - quotient
        whole = e if number.is_Integer else quotient
        if not all(map(is_size_symbol, quotient.free_symbols)):
            return quotient  # depends on a number known at run time only
        if self._known(sympy.Eq(whole, 1)):
            return 1 - number if whole is e else sympy.S.One
        least = next((n for n in (1, 0) if self._known(whole >= n)), None)
        sign = {1: {"positive": True}, 0: {"nonnegative": True}, None: {}}[least]
        name = sympy.Symbol(f"sz{len(self.definitions)}", integer=True, **sign)
        self.definitions[name] = whole
        return name - number if whole is e else name


def _outermost(e: Expr) -> Iterator[Expr]:
    """The outermost quotients and rounded floats of an expression."""
    rounds = e.is_Function and e.is_integer and not all(part.is_integer for part in e.args)
    if isinstance(e, FloorDiv) or rounds:
        yield e
    else:
        for part in e.args:
            yield from _outermost(part)


_names: contextvars.ContextVar[SizeNames | None] = contextvars.ContextVar("names", default=None)


@contextlib.contextmanager
def using_size_names(names: SizeNames) -> Iterator[None]:
    """Let :func:`expr` use these symbols within the block."""
    before = _names.set(names)
    try:
        yield
    finally:
        _names.reset(before)


def expr(size: Any) -> Expr:
    """An int, SymInt or expression as a SymPy expression."""
    if isinstance(size, torch.SymInt):
        names = _names.get()
        return size.node.expr if names is None else names.abbreviate(size.node.expr)
    if isinstance(size, int):
        return sympy.Integer(size)
    return size
