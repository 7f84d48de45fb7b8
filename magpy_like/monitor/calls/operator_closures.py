"""Functions among the arguments of an operator, which calls them whenever the graph runs.

A later run must not use the values of this run. So the tensors and lifted numbers that such a
function refers to become operands of the operator, and its other references must lead to the same
objects in later calls. A function created inside the region is created again for each run of the
graph, in its state at the beginning of the operator.
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
from magpy_like.graph_operators.wrapped_functions import REPLAYED
from magpy_like.monitor.calls.checkpoints.checkpoint_calls import refusal_key
from magpy_like.monitor.objects.containers import CONTAINERS
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

Created = dict[int, Any]
"""The functions and cells created for one run of the graph, each once, by number."""
Maker = Callable[[Sequence[Any], Created], Any]
"""Creates a value from the operands, for one run of the graph."""


class Closure:
    """A callable argument of an operator, and the tensors and lifted numbers that it refers to."""

    def __init__(self, rec: Recording, function: Any) -> None:
        """
        Raises:
            Split: the function refers to an object that a later call may not reach.
        """
        self.operands: list[Any] = []
        makers = _Makers(rec, self.operands)
        self._make = makers.of(function)
        self.code = next(iter(makers.codes), None)
        """The code of the program's outermost function, which torch may have wrapped."""

    def rebuild(self, operands: Sequence[Any]) -> Any:
        """The callable with other operands."""
        return self._make(operands, {})

    def take_operands(self) -> tuple[Any, ...]:
        """Returns the operands and releases them."""
        operands, self.operands = tuple(self.operands), []
        return operands


_refused: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules, classes and code of functions that no operator of the graph may call."""


def close_over(rec: Recording, value: Any) -> Any:
    """The closure of a callable argument; any other argument unchanged.

    Raises:
        Split: see :class:`Closure`; or the function has had effects inside an earlier operator.
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
        rec.running.callees.append(called)
    return value


def _refers(value: Any) -> bool:
    """True for callables that may refer to other objects, and for tuples of them."""
    if type(value) is tuple:
        return any(map(_refers, value))
    has_rule = is_instance(value, (torch.Tensor, torch.nn.Module, *CONTAINERS))
    return not (has_rule or is_plain(value) or is_identity(value)) and callable(value)


def refuse(rec: Recording) -> None:
    """Refuse the functions that the running operator calls: they do more than compute.

    In the next run the program splits at the operator.
    """
    _refused.update(rec.running.callees)


def expand_closures(
    operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """The operation and its arguments with the operands of each closure in place of the closure."""
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    closures = {position: value for position, value in arguments if is_instance(value, Closure)}
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
    """Makers of the objects that functions refer to, in their present state.

    A maker must not keep alive an object created inside the region.
    """

    def __init__(self, rec: Recording, operands: list[Any]) -> None:
        self._rec, self._operands = rec, operands
        self.codes: list[types.CodeType] = []
        self._makers: dict[int, Maker] = {}
        self._numbers = itertools.count()

    def of(self, value: Any) -> Maker:
        maker = self._makers.get(id(value))
        return self._new(value) if maker is None else maker

    def _new(self, value: Any) -> Maker:
        if is_instance(value, torch.Tensor):
            if (
                self._rec.variables.node(value) is None
                and self._rec.operators.nodes.node_of(value) is None
            ):
                raise Split(
                    SplitReason.FUNCTION_OPERAND,
                    "passes a function that refers to a tensor of unknown origin to an operator",
                )
            return self._operand(value)
        if self._rec.operators.numbers.expression(value) is not None:
            return self._operand(value)
        if is_plain(value) or is_identity(value):
            return lambda operands, created: value
        kind, is_own = type(value), self._rec.variables.node(value) is None
        if kind is types.MethodType:
            function, receiver = self.of(value.__func__), self.of(value.__self__)
            return lambda *run: types.MethodType(function(*run), receiver(*run))
        if kind is types.FunctionType:
            if not _is_torchs(value):
                self.codes.append(value.__code__)
            if self._rec.variables.is_new_object(value):
                return self._function(value)
        if kind is functools.partial and is_own:
            called, positional = self.of(value.func), self._all(value.args)
            keywords = self._each(value.keywords)
            return lambda *run: functools.partial(
                called(*run), *_all(positional, run), **_each(keywords, run)
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
        position = len(self._operands)
        self._operands.append(value)
        self._makers[id(value)] = lambda operands, created: operands[position]
        return self._makers[id(value)]

    def _same(self, value: Any) -> Maker:
        """A maker that returns the object itself.

        Raises:
            Split: a later call may find another object.
        """
        node = self._rec.variables.node(value)
        if node is None:
            if type(value) is types.FunctionType and _is_torchs(value):
                # Created by torch, inside a call that the monitor treats as one operator.
                return lambda operands, created: value
            raise Split(
                SplitReason.FUNCTION_OPERAND,
                "passes a function that refers to objects created inside the region to an operator",
            )
        path, is_one = (
            self._rec.variables.path(node),
            is_instance(value, types.FunctionType | torch.nn.Module),
        )
        if path and path[0].kind is RelationKind.LOCAL and not is_one:
            raise Split(
                SplitReason.FUNCTION_OPERAND,
                "passes a function that refers to an argument of the region to an operator",
            )
        node.facts.add(Fact.IDENTITY)
        return lambda operands, created: value

    def _function(self, function: types.FunctionType) -> Maker:
        code, names, name = function.__code__, function.__globals__, function.__name__
        number = next(self._numbers)

        def make(operands: Sequence[Any], created: Created) -> Any:
            held = tuple(cell(operands, created) for cell in cells)
            if number not in created:  # a cell may hold the function itself
                new = types.FunctionType(code, names, name, None, held)
                created[number] = new
                new.__qualname__, new.__module__ = qualified, module
                new.__defaults__ = tuple(_all(defaults, (operands, created))) or None
                new.__kwdefaults__ = _each(keywords, (operands, created)) or None
                new.__dict__.update(_each(attributes, (operands, created)))
            return created[number]

        self._makers[id(function)] = make
        qualified, module = function.__qualname__, function.__module__
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        defaults = self._all(function.__defaults__ or ())
        keywords = self._each(function.__kwdefaults__)
        attributes = self._each(function.__dict__)
        return make

    def _cell(self, cell: types.CellType) -> Maker:
        maker = self._makers.get(id(cell))
        if maker is not None:
            return maker
        node = self._rec.variables.node(cell)
        if node is not None:  # external: its contents may differ in the next call
            node.facts.add(Fact.IDENTITY)
            return lambda operands, created: cell
        number = next(self._numbers)

        def make(operands: Sequence[Any], created: Created) -> Any:
            if number not in created:
                created[number] = types.CellType()
                if content is not None:
                    created[number].cell_contents = content(operands, created)
            return created[number]

        self._makers[id(cell)] = make
        content: Maker | None = None
        try:
            held = cell.cell_contents
        except ValueError:  # still empty
            return make
        content = self.of(held)
        return make


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__module__ or "").startswith("torch.")


Run = tuple[Sequence[Any], Created]


def _all(makers: Iterable[Maker], run: Run) -> list[Any]:
    return [make(*run) for make in makers]


def _each(makers: Mapping[str, Maker], run: Run) -> dict[str, Any]:
    return {name: make(*run) for name, make in makers.items()}
