"""Expressions of lifted numbers: entry values, draws, numbers of the operator graph, arithmetic."""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import sympy
import torch
from torch import fx

from magpy_like.native import fresh_plain
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.torch_compat.tracing.symbolic_expressions import sympy_functions


@dataclass(frozen=True, eq=False)
class EntryValue:
    """The value of an external variable when the region is entered."""

    node: ShadowNode


@dataclass(frozen=True, eq=False)
class Size:
    """The size of one dimension of an external tensor when the region is entered."""

    node: ShadowNode
    dim: int


@dataclass(frozen=True, eq=False)
class Stride:
    """The stride of one dimension of an external tensor when the region is entered."""

    node: ShadowNode
    dim: int


@dataclass(frozen=True, eq=False)
class Address:
    """``function``, such as ``id``, applied to an external object: depends on its address only.

    Another object may have the same address later; it then serves as well as the first."""

    node: ShadowNode
    function: Callable[[Any], int]


@dataclass(frozen=True, eq=False)
class DrawnValue:
    """The result of a call that the mock repeats, or one item of it.

    ``index`` counts the repeated calls of a run."""

    index: int
    item: int | None = None


@dataclass(frozen=True, eq=False)
class Computed:
    """``operation(*operands)``, each operand an expression or a plain value."""

    operation: Callable[..., Any]
    operands: tuple[Any, ...]
    leaves: frozenset[Any] = field(init=False, repr=False)
    """The expressions without operands that it is computed from. Stored, because an operand may be
    shared: the number of paths to a leaf can double at each step."""
    length: int = field(init=False, repr=False)
    """The number of operations when it is written out, without sharing operands."""

    def __post_init__(self) -> None:
        parts = frozenset[Any]().union(*map(leaves_of, self.operands))
        object.__setattr__(self, "leaves", parts)
        object.__setattr__(self, "length", 1 + sum(map(_length, self.operands)))


@dataclass(frozen=True, eq=False)
class GraphNumber:
    """A number that the operator graph computes from a tensor's value."""

    node: fx.Node


@dataclass(frozen=True, eq=False)
class PythonScalar:
    """The Python number equal to a NumPy scalar."""

    number: Any


Expression = (
    EntryValue | Size | Stride | Address | DrawnValue | Computed | GraphNumber | PythonScalar
)


def is_number(value: Any) -> bool:
    """True for Python numbers that can be lifted. Bools cannot: there are only two objects."""
    kind = type(value)
    return kind is int or kind is float  # a metaclass may define equality


def is_number_or_flag(value: Any) -> bool:
    """True for values that are tracked through the program where they vary between calls: numbers
    by their identity, flags by their location."""
    kind = type(value)
    return kind is int or kind is float or kind is bool


def is_array_number(value: Any) -> bool:
    """True for a NumPy scalar that equals a Python number."""
    return is_instance(value, np.integer | np.floating) and not is_instance(value, np.longdouble)


def is_liftable(value: Any) -> bool:
    """True if an equal object can have an identity of its own: numbers, and text not empty."""
    return is_number(value) or (type(value) is str and bool(value)) or is_array_number(value)


def distinct_copy(value: Any) -> Any:
    """An equal object that is shared with no other use of the value."""
    return value.copy() if is_instance(value, np.generic) else fresh_plain(value)


def leaves_of(expression: Any) -> frozenset[Expression]:
    """The expressions without operands in an expression; none for a plain value."""
    if is_instance(expression, Computed):
        return expression.leaves
    if is_instance(expression, PythonScalar):
        return leaves_of(expression.number)
    return frozenset((expression,)) if is_instance(expression, Expression) else frozenset()


def _length(expression: Any) -> int:
    return expression.length if is_instance(expression, Computed) else 0


_MAX_LENGTH = 64


def is_too_long(expression: Any) -> bool:
    """True if no further number should be computed from an expression.

    A loop that computes a number from itself, such as a hash or the bits of a mask, makes an
    expression that grows in each iteration, and doubles where it uses the number twice. SymPy, the
    guard and the mock write it out.
    """
    if is_instance(expression, sympy.Basic):
        parts = itertools.islice(sympy.preorder_traversal(expression), 2 * _MAX_LENGTH + 1)
        return sum(1 for _ in parts) > 2 * _MAX_LENGTH  # an operation and a constant
    return _length(expression) > _MAX_LENGTH


def is_computable_at_entry(expression: Any) -> bool:
    """True if a guard can compute the expression before the region runs."""
    return not any(is_instance(part, DrawnValue | GraphNumber) for part in leaves_of(expression))


def is_computable_before_graph(expression: Any) -> bool:
    """True if the mock can compute the expression before it runs the operator graph."""
    return not any(is_instance(part, GraphNumber) for part in leaves_of(expression))


def depends_on_tensor(expression: Any) -> bool:
    """True if an expression depends on the data of external tensors, which is likely to differ."""
    parts = (part.node.type for part in leaves_of(expression) if is_instance(part, EntryValue))
    return any(issubclass(kind, torch.Tensor) for kind in parts)


def needs_python_list(expression: Any) -> bool:
    """True if a number is computed from a list and the operator graph's results: only Python can,
    after the graph has run, so the graph cannot use it."""
    if not is_instance(expression, Computed) or is_computable_before_graph(expression):
        return False
    return any(
        is_instance(p, EntryValue) and p.node.type in (list, deque) for p in expression.leaves
    )


def is_drawn(expression: Any) -> bool:
    """True if an expression depends on random numbers that the mock draws again."""
    return any(is_instance(part, DrawnValue) for part in leaves_of(expression))


def flag_as_number(flag: bool) -> int:
    """The number that a bool is in arithmetic."""
    return int(flag)


def flag_as_tensor(flag: bool) -> torch.Tensor:
    """The predicate of a conditional operator: ``bool``, no dimensions."""
    return _TRUE if flag else _FALSE


_TRUE, _FALSE = (torch.tensor(flag, device="cpu") for flag in (True, False))


def choose_branch_value(flag: bool, one: Any, other: Any) -> Any:
    """The value of a number after the two branches of a flag."""
    return one if flag else other


def sum_of(*numbers: Any) -> Any:
    """``sum`` of a list of these numbers."""
    return sum(numbers)


class Untranslatable(Exception):
    """A symbolic expression has a part without an exact counterpart in Python."""


def _fold(operation: Callable[..., Any]) -> Callable[..., Any]:
    def build(*parts: Any) -> Any:
        return reduce(lambda a, b: Computed(operation, (a, b)), parts)

    return build


def _call(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *parts: Computed(operation, parts)


def _modular(base: Any, divisor: Any, modulus: Any) -> Any:
    return Computed(operator.mod, (Computed(operator.floordiv, (base, divisor)), modulus))


_TRANSLATION: dict[Any, Callable[..., Any]] = {
    sympy.Add: _fold(operator.add),
    sympy.Mul: _fold(operator.mul),
    sympy.Pow: _call(operator.pow),
    sympy.Max: _call(max),
    sympy.Min: _call(min),
    sympy.Abs: _call(abs),
    sympy.Eq: _call(operator.eq),
    sympy.Ne: _call(operator.ne),
    sympy.Lt: _call(operator.lt),
    sympy.Le: _call(operator.le),
    sympy.Gt: _call(operator.gt),
    sympy.Ge: _call(operator.ge),
    sympy.And: _fold(operator.and_),
    sympy.Or: _fold(operator.or_),
    sympy.Not: _call(operator.not_),
    sympy_functions.FloorDiv: _call(operator.floordiv),
    sympy_functions.CleanDiv: _call(operator.floordiv),
    sympy_functions.Mod: _call(operator.mod),
    sympy_functions.PythonMod: _call(operator.mod),
    sympy_functions.ModularIndexing: _modular,
    sympy_functions.PowByNatural: _call(operator.pow),
    sympy_functions.LShift: _call(operator.lshift),
    sympy_functions.RShift: _call(operator.rshift),
    sympy_functions.IntTrueDiv: _call(operator.truediv),
    sympy_functions.FloatTrueDiv: _call(operator.truediv),
    sympy_functions.ToFloat: _call(float),
    sympy_functions.TruncToInt: _call(int),
    sympy_functions.CeilToInt: _call(math.ceil),
    sympy_functions.FloorToInt: _call(math.floor),
    sympy_functions.RoundToInt: _call(round),
    sympy_functions.Max: _call(max),
    sympy_functions.Min: _call(min),
}


def from_sympy(expression: Any, symbol: Callable[[sympy.Symbol], Any]) -> Any:
    """The expression of a SymPy expression; a plain value if it has no symbols.

    ``symbol`` returns the expression of a symbol.

    Raises:
        Untranslatable: a part of it has no exact counterpart in Python.
    """
    if is_instance(expression, sympy.Symbol):
        return symbol(expression)
    if is_instance(expression, sympy.Integer):
        return int(expression)
    if is_instance(expression, sympy.Float):
        return float(expression)
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    build = _TRANSLATION.get(expression.func)
    if build is None:
        raise Untranslatable(str(expression))
    return build(*(from_sympy(part, symbol) for part in expression.args))
