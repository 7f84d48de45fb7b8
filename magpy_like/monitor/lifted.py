"""Lifted numbers may differ at the next call; the mock computes them again (section 6.2).

A lifted number is told from its equals by identity: when the program reads it, the monitor puts a
new ``int`` or ``float`` object of the same value on the operand stack, one that no cache of small
numbers shares. Wherever Python moves that object, the monitor knows it again. Arithmetic on it is
recorded as an expression; anything else that looks at its value makes the value a guard, or splits
the program where no guard can know it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from magpy_like.monitor.recording import CONTAINERS, Recording, elements
from magpy_like.monitor.split import Split
from magpy_like.native import fresh_number
from magpy_like.refgraph import Fact, ShadowNode
from magpy_like.refgraph.values import is_plain


@dataclass(frozen=True, eq=False)
class Read:
    """A number at a place outside, when the region is entered."""

    node: ShadowNode


@dataclass(frozen=True, eq=False)
class Draw:
    """A random number, drawn again by the mock; ``index`` counts the draws of a run."""

    index: int


@dataclass(frozen=True, eq=False)
class Computed:
    """``operation(*operands)``, each operand an expression or a plain value."""

    operation: Callable[..., Any]
    operands: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class InGraph:
    """A number that the operator graph computes, from a tensor's value."""

    node: fx.Node


Expression = Read | Draw | Computed | InGraph

NUMBERS = (int, float)


class LiftedNumbers:
    """The lifted numbers of a run, by the identity of their objects."""

    def __init__(self, rec: Recording, foretells: bool = False) -> None:
        self.rec = rec
        self._foretells = foretells
        self.foretold: list[tuple[Expression, Any]] = []
        """Expressions that the mock computes and that must give these values, or else it has no
        effect and the program runs as it is written."""
        self.nodes: set[int] = set()
        """Ids of the nodes whose numbers are lifted at every read."""
        self._known: dict[int, tuple[Any, Expression]] = {}
        self.conditions: list[tuple[Expression, Any]] = []
        """Expressions that must give these values, for the program looked at them."""
        self.draws: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._known) or bool(self.draws)

    def expression(self, value: Any) -> Expression | None:
        known = self._known.get(id(value))
        return known[1] if known is not None else None

    def lift(self, value: Any, expression: Expression) -> Any:
        """A new object for a number, known by ``expression`` from here on."""
        number = fresh_number(value)
        self._known[id(number)] = (number, expression)
        return number

    def read(self, node: ShadowNode, value: Any) -> Any:
        """Lift the number at a place outside; the guard asks for its type only."""
        self._free(node)
        return self.lift(value, Read(node))

    def adopt(self, value: Any, node: ShadowNode) -> None:
        """Know an argument whose object is no other's already."""
        self._free(node)
        self._known[id(value)] = (value, Read(node))

    def _free(self, node: ShadowNode) -> None:
        if node.node_id not in self.nodes:
            self.nodes.add(node.node_id)
            node.facts.discard(Fact.VALUE)
            node.facts.add(Fact.TYPE)

    def draw(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
    ) -> Any:
        self.draws.append((operation, args, kwargs))
        return self.lift(value, Draw(len(self.draws) - 1))

    def compute(self, operation: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        parts = tuple(self.expression(operand) or operand for operand in operands)
        if any(isinstance(part, InGraph) for part in parts):
            node = self.rec.operators.compute(operation, operands)
            return self.lift(value, InGraph(node))
        return self.lift(value, Computed(operation, parts))

    def item(self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """A tensor's value became a number: it stays one of the graph."""
        self.rec.runs_as_is = "a tensor's value becomes a number"
        return self.lift(value, InGraph(self.rec.item(operation, args)))

    def any(self, values: tuple[Any, ...]) -> bool:
        return any(id(value) in self._known for value in values)

    def settle(self, values: Any) -> None:
        """The program looks at these values in a way that is not recorded: they must not differ.

        Raises:
            Split: a value is only known when the region runs.
        """
        for value in _numbers_in(values):
            expression = self.expression(value)
            if expression is None:
                continue
            if not known_at_entry(expression):
                self.foretell(expression, value)
            elif not any(known is expression for known, _ in self.conditions):
                self.conditions.append((expression, value))

    def may_foretell(self, reason: str) -> None:
        """Ask whether the mock could still undo everything when a value is foretold wrongly.

        Raises:
            Split: it could not; the program splits for ``reason``.
        """
        rec = self.rec
        undoable = not (rec.inside or self.draws or rec.operators.sets_modes)
        if not (self._foretells and undoable) or rec.changed_inputs():
            raise Split(reason)

    def foretell(self, expression: Expression, value: Any) -> None:
        """The program looks at a value that is only known when its operators have run.

        Raises:
            Split: it cannot be foretold.
        """
        if self.draws:
            raise Split("a random number steers the program")
        self.may_foretell("a tensor's value, read as a number, steers the program")
        if not any(known is expression for known, _ in self.foretold):
            self.foretold.append((expression, value))


def _numbers_in(value: Any, depth: int = 4) -> Iterator[Any]:
    if type(value) in NUMBERS:
        yield value
    elif isinstance(value, slice):
        yield from _numbers_in((value.start, value.stop, value.step))
    elif isinstance(value, CONTAINERS) and depth:
        for item in elements(value):
            yield from _numbers_in(item, depth - 1)


def known_at_entry(expression: Any) -> bool:
    """Whether a guard can compute an expression, before anything of the program has run."""
    if isinstance(expression, Computed):
        return all(known_at_entry(operand) for operand in expression.operands)
    return not isinstance(expression, Draw | InGraph)


ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor,
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow, operator.ilshift, operator.irshift, operator.iand, operator.ior,
    operator.ixor, operator.neg, operator.pos, operator.invert,
}  # fmt: skip

PURE_FUNCTIONS = {
    abs, min, max, round, pow, int, float, math.sqrt, math.exp, math.log, math.log2, math.log10,
    math.sin, math.cos, math.tan, math.tanh, math.floor, math.ceil, math.pow, math.fabs,
}  # fmt: skip


def is_number(value: Any) -> bool:
    return type(value) in NUMBERS


def computes(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call on lifted numbers can be repeated as an expression."""
    return operation in PURE_FUNCTIONS and all(is_plain(arg) for arg in args)
