"""Functions that an operator is given, and calls again whenever the graph runs.

What such a function refers to beside its arguments must not be what this run has found: tensors
and lifted numbers are operands of the operator, and of the rest a later call must find the same
objects. A function that the region has made is made anew for each run of the graph, as it was when
the operator began.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.calls.checkpointed_functions import refusal_key
from magpy_like.monitor.objects.containers import CONTAINERS
from magpy_like.monitor.operator_graph.function_nodes import REPLAYED
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

Made = dict[int, Any]
"""What was made for one run of the graph, by number: each function and cell is made once."""
Maker = Callable[[Sequence[Any], Made], Any]
"""Makes a value of the operands, for one run of the graph."""


class Closure:
    """A callable argument of an operator, and the tensors and lifted numbers that it refers to."""

    def __init__(self, rec: Recording, function: Any) -> None:
        """
        Raises:
            Split: it refers to something that only this run has, or that another call may not find.
        """
        self.operands: list[Any] = []
        makers = _Makers(rec, self.operands)
        self._make = makers.of(function)
        self.code = next(iter(makers.codes), None)
        """That of the program's outermost function, which torch may have wrapped."""

    def rebuild(self, operands: Sequence[Any]) -> Any:
        """The callable, with ``operands`` in place of its own."""
        return self._make(operands, {})

    def take_operands(self) -> tuple[Any, ...]:
        """The operands, which it does not hold from here on."""
        operands, self.operands = tuple(self.operands), []
        return operands


_refused: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules, classes and the code of functions that an operator is not to call on the graph."""


def close_over(rec: Recording, value: Any) -> Any:
    """The closure of a callable argument; any other argument as it is.

    Raises:
        Split: see :class:`Closure`; or it has had effects inside an operator.
    """
    called = None
    if is_instance(value, torch.nn.Module):
        called = refusal_key(value)
    elif is_instance(value, torch.autograd.function.FunctionMeta):
        called = value
    elif _refers(value):
        value = Closure(rec, value)
        called = value.code
    if called is not None:
        if called in _refused:
            raise Split(
                SplitReason.FUNCTION_OPERAND,
                "passes a function that does more than compute to an operator",
            )
        rec.called.append(called)
    return value


def _refers(value: Any) -> bool:
    """Whether an argument is, or holds, an object by which an operator may find others."""
    if type(value) is tuple:
        return any(map(_refers, value))
    known = is_instance(value, (torch.Tensor, torch.nn.Module, *CONTAINERS))
    return not (known or is_plain(value) or is_identity(value)) and callable(value)


def refuse(rec: Recording) -> None:
    """What the running operator calls does more than to compute: from the next run on, the program
    splits there."""
    _refused.update(rec.called)


def expand_closures(
    operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """``operation`` as a function that is given, where it takes a closure, the operands of that;
    and its arguments."""
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    closures = {place: value for place, value in given if is_instance(value, Closure)}
    if not closures:
        return operation, args, kwargs

    def run(*args: Any, **kwargs: Any) -> Any:
        return operation(
            *(closures[i].rebuild(v) if i in closures else v for i, v in enumerate(args)),
            **{k: closures[k].rebuild(v) if k in closures else v for k, v in kwargs.items()},
        )

    run.__name__ = run.__qualname__ = getattr(operation, "__name__", "operator")
    setattr(run, REPLAYED, operation)
    return run, [*map(_operands, args)], {name: _operands(v) for name, v in kwargs.items()}


def _operands(value: Any) -> Any:
    return value.take_operands() if is_instance(value, Closure) else value


class _Makers:
    """How to make what functions refer to, as it is now: a variable may hold something else later.

    What a maker knows must not keep alive what the region has made.
    """

    def __init__(self, rec: Recording, operands: list[Any]) -> None:
        self._rec, self._operands = rec, operands
        self.codes: list[types.CodeType] = []
        self._known: dict[int, Maker] = {}
        self._numbers = itertools.count()

    def of(self, value: Any) -> Maker:
        known = self._known.get(id(value))
        return self._new(value) if known is None else known

    def _new(self, value: Any) -> Maker:
        if is_instance(value, torch.Tensor):
            if self._rec.node(value) is None and self._rec.operators.node_of(value) is None:
                raise Split(
                    SplitReason.FUNCTION_OPERAND,
                    "passes a function that refers to a tensor of unknown origin to an operator",
                )
            return self._operand(value)
        if self._rec.operators.expression(value) is not None:
            return self._operand(value)
        if is_plain(value) or is_identity(value):
            return lambda operands, made: value
        kind, is_own = type(value), self._rec.node(value) is None
        if kind is types.MethodType:
            function, receiver = self.of(value.__func__), self.of(value.__self__)
            return lambda *run: types.MethodType(function(*run), receiver(*run))
        if kind is types.FunctionType:
            if not _is_torchs(value):
                self.codes.append(value.__code__)
            if self._rec.is_born(value):
                return self._function(value)
        if kind is functools.partial and is_own:
            called, given = self.of(value.func), self._all(value.args)
            named = self._each(value.keywords)
            return lambda *run: functools.partial(
                called(*run), *_all(given, run), **_each(named, run)
            )
        if kind is tuple and is_own:
            items = self._all(value)
            return lambda *run: tuple(_all(items, run))
        return self._same(value)

    def _all(self, values: Iterable[Any]) -> list[Maker]:
        return [self.of(value) for value in values]

    def _each(self, values: Mapping[str, Any] | None) -> dict[str, Maker]:
        return {name: self.of(value) for name, value in (values or {}).items()}

    def _operand(self, value: Any) -> Maker:
        place = len(self._operands)
        self._operands.append(value)
        self._known[id(value)] = lambda operands, made: operands[place]
        return self._known[id(value)]

    def _same(self, value: Any) -> Maker:
        """The very object.

        Raises:
            Split: another call may find another one.
        """
        node = self._rec.node(value)
        if node is None:
            if type(value) is types.FunctionType and _is_torchs(value):
                # Made by what the monitor takes for one operator.
                return lambda operands, made: value
            raise Split(
                SplitReason.FUNCTION_OPERAND,
                "passes a function that refers to objects created inside the region to an operator",
            )
        path, is_one = (
            self._rec.path(node),
            is_instance(value, types.FunctionType | torch.nn.Module),
        )
        if path and path[0].kind is RelationKind.LOCAL and not is_one:
            raise Split(
                SplitReason.FUNCTION_OPERAND,
                "passes a function that refers to an argument of the region to an operator",
            )
        node.facts.add(Fact.IDENTITY)
        return lambda operands, made: value

    def _function(self, function: types.FunctionType) -> Maker:
        code, names, name = function.__code__, function.__globals__, function.__name__
        number = next(self._numbers)

        def make(operands: Sequence[Any], made: Made) -> Any:
            held = tuple(cell(operands, made) for cell in cells)
            if number not in made:  # a cell may hold the function itself
                found = types.FunctionType(code, names, name, None, held)
                made[number] = found
                found.__qualname__, found.__module__ = qualified, module
                found.__defaults__ = tuple(_all(defaults, (operands, made))) or None
                found.__kwdefaults__ = _each(keywords, (operands, made)) or None
                found.__dict__.update(_each(attributes, (operands, made)))
            return made[number]

        self._known[id(function)] = make
        qualified, module = function.__qualname__, function.__module__
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        defaults = self._all(function.__defaults__ or ())
        keywords = self._each(function.__kwdefaults__)
        attributes = self._each(function.__dict__)
        return make

    def _cell(self, cell: types.CellType) -> Maker:
        known = self._known.get(id(cell))
        if known is not None:
            return known
        node = self._rec.node(cell)
        if node is not None:  # it was there before, and may hold something else at the next call
            node.facts.add(Fact.IDENTITY)
            return lambda operands, made: cell
        number = next(self._numbers)

        def make(operands: Sequence[Any], made: Made) -> Any:
            if number not in made:
                made[number] = types.CellType()
                if content is not None:
                    made[number].cell_contents = content(operands, made)
            return made[number]

        self._known[id(cell)] = make
        content: Maker | None = None
        try:
            held = cell.cell_contents
        except ValueError:  # still empty
            return make
        content = self.of(held)
        return make


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__module__ or "").startswith("torch.")


Run = tuple[Sequence[Any], Made]


def _all(makers: Iterable[Maker], run: Run) -> list[Any]:
    return [make(*run) for make in makers]


def _each(makers: Mapping[str, Maker], run: Run) -> dict[str, Any]:
    return {name: make(*run) for name, make in makers.items()}
