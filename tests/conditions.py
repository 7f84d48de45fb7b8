"""Recording and forcing of guard conditions, for the mutation test of guards (tests.soundness)."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from magpy_like.monitor.symbolic.expressions import Size
from magpy_like.native import Watch
from magpy_like.records.dispatcher import Dispatcher
from magpy_like.records.graph_backend import GraphBackend
from magpy_like.synthesis import record
from magpy_like.synthesis.guard import guard_builder, lifted_conditions
from magpy_like.synthesis.guard.conditions import Condition, Kind, Part
from magpy_like.synthesis.guard.guard_writer import GuardWriter
from magpy_like.synthesis.guard.lifted_conditions import LiftedConditions
from magpy_like.synthesis.guard.size_conditions import MAX_SIZE
from magpy_like.synthesis.mock import speculation_checks
from magpy_like.synthesis.shared_graphs import CompiledGraph
from tests.promises import Promise


@dataclass(frozen=True)
class Check:
    """One condition of one guard."""

    where: str
    place: str
    """The program or continuation that the guard belongs to."""
    kinds: tuple[Kind, ...]
    reason: str

    @property
    def kind(self) -> str:
        return f"{self.where}, {self.kinds[0]}"


@dataclass
class Run:
    """One run of a test: the conditions of the records made in it, and those forced to hold."""

    forced: Collection[int | str | tuple[str, str]] = ()
    """Numbers of conditions, kinds, programs, or programs with a condition's description."""
    checks: list[Check] = field(default_factory=list)
    failed: dict[int, None] = field(default_factory=dict)
    raised: int = 0
    """Number of records that raised, so that the program ran natively or was split."""
    broken: list[str] = field(default_factory=list)
    """Inputs of operator graphs that broke a promise."""
    where: str = "at entry"
    place: str = ""

    def note(self, kinds: tuple[Kind, ...], reason: str) -> tuple[int, bool]:
        """Records a condition. Returns its number, and whether it is forced to hold."""
        reason = re.sub(r" at 0x[0-9a-f]+", "", reason)  # the address differs in the next run
        self.checks.append(Check(self.where, self.place, kinds, reason))
        number = len(self.checks) - 1
        known = {number, *kinds, self.place, (self.place, reason)}
        return number, not known.isdisjoint(self.forced)


_run = Run()


class _Watch:
    """A watch that reports which of its conditions fails, and leaves the forced ones out."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Any]] = []
        self._why = ""

    def add(self, condition: Condition, method: str, *args: Any) -> bool:
        """Add a condition; False if the native watch does not need it."""
        part = Watch()
        if getattr(part, method)(*args) is False:
            return False
        number, forced = _run.note(condition.kinds, "")
        if not forced:
            self._parts.append((number, part))
        return True

    def counts(self) -> tuple[int, ...]:
        return (1, 1, 1)

    def why(self) -> str | None:
        return self._why

    def __call__(self) -> bool:
        for number, part in self._parts:
            if not part():
                _run.failed[number] = None
                self._why = part.why()
                return False
        return True


class _NumberingWriter(GuardWriter):
    """Numbers the conditions, and leaves the forced ones out."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.watch = _Watch()
        self.numbers: dict[int, int] = {}
        _numbers[id(self.numbered)] = self.numbered, self.numbers

    def add(self, condition: Condition, parts: tuple[Part, ...] = ()) -> None:
        kinds = tuple(part.kind for part in parts)
        number, forced = _run.note((*condition.kinds, *kinds), condition.description)
        self.numbers[len(self.numbered)] = number
        source = condition.source
        if set(kinds) & set(_run.forced):
            # A part may assign the value that another part tests.
            held = [f"(({p.source}) or True)" if p.kind in _run.forced else p.source for p in parts]
            source = " and ".join(held)
        elif forced:
            source = "True"
        condition.source = source
        super().add(condition, parts)

    def add_watched(self, condition: Condition, method: str, *args: Any) -> None:
        if self.watch.add(condition, method, *args):
            self.conditions.append(condition)


class _NumberingLiftedConditions(LiftedConditions):
    """Numbers the ranges of sizes, which are part of the checks of tensors."""

    def sizes(self, twin: Any, dynamic: Any) -> None:
        bounds, relations = lifted_conditions.size_guards(twin)
        ranges: dict[int, list[tuple[int, Any, int]]] = collections.defaultdict(list)
        for i, bound in enumerate(bounds):
            if not isinstance(bound.number, Size):
                continue  # a condition of its own
            node, dim = bound.number.node, bound.number.dim
            label = self._writer.label(node)
            description = f"{label}.size({dim}) is {bound.least} to {bound.most}"
            number, forced = _run.note((Kind.SIZE_RANGE,), description)
            ranges[node.node_id].append((dim, bound, number))
            if forced:
                bounds[i] = bound._replace(least=0, most=MAX_SIZE)
        with mock.patch.object(lifted_conditions, "size_guards", lambda twin: (bounds, relations)):
            super().sizes(twin, dynamic)
        names = self._writer.source.names
        for node_id, found in ranges.items():
            for name in [n for n, value in names.items() if value is twin.checks[node_id]]:
                names[name] = _sees_ranges(names[name], found)


def _sees_ranges(
    check: Callable[[Any], bool], ranges: list[tuple[int, Any, int]]
) -> Callable[[Any], bool]:
    """Wraps the check of a tensor so that a failure records the sizes outside of their ranges."""

    def seen(tensor: Any) -> bool:
        if check(tensor):
            return True
        sizes = dict(enumerate(getattr(tensor, "shape", ())))
        for dim, bound, number in ranges:
            if dim in sizes and not bound.least <= sizes[dim] <= bound.most:
                _run.failed[number] = None
        return False

    return seen


_numbers: dict[int, tuple[list[Condition], dict[int, int]]] = {}
"""By the id of a guard's numbered conditions, the number in the run by the guard's number."""


class _MockBuilder(record.MockBuilder):
    """Numbers the speculated values, and accepts the forced ones unchecked."""

    def speculated(self) -> list[str]:
        conditions = super().speculated()
        for i, condition in enumerate(conditions):
            number, forced = _run.note((Kind.SPECULATED_VALUE,), condition)
            if forced:
                conditions[i] = "True"
                continue
            seen = self.source.constant(_see(number), "seen")
            conditions[i] = f"{seen}({condition})"
        return conditions


def _see(number: int) -> Callable[[bool], bool]:
    def seen(holds: bool) -> bool:
        if not holds:
            _run.failed[number] = None
        return holds

    return seen


_synthesise, _check_function = Dispatcher.synthesise, speculation_checks._check_function
_compile = GraphBackend.compile
_run_after_failure = Dispatcher._run_after_failure
_note_misspeculation = Dispatcher._note_misspeculation


def _synthesise_noted(dispatcher: Dispatcher, *args: Any) -> Any:
    _run.where = "after a split" if dispatcher.is_continuation else "at entry"
    _run.place = dispatcher.name
    made = _synthesise(dispatcher, *args)
    guard, numbers = made.guard, _numbers.get(id(made.numbered), (None, {}))[1]

    def noted_guard(args: Any, kwargs: Any) -> Any:
        result = guard(args, kwargs)
        if type(result) is int and result in numbers:
            _run.failed[numbers[result]] = None
        return result

    made.guard = noted_guard
    return made


def _run_after_noted(dispatcher: Dispatcher, *args: Any) -> Any:
    _run.raised += 1
    return _run_after_failure(dispatcher, *args)


def _misspeculated_noted(dispatcher: Dispatcher, places: Any, raised: str) -> None:
    _run.raised += bool(raised)
    _note_misspeculation(dispatcher, places, raised)


def _compile_noted(backend: GraphBackend, graph: Any, inputs: Any, program: Any) -> CompiledGraph:
    compiled, promise = _compile(backend, graph, inputs, program), Promise(inputs)

    def run(*given: Any) -> Any:
        broken = promise.find_violation(given)
        if broken is not None:
            _run.broken.append(f"{backend.name}: {broken}")
        return compiled.run(*given)

    return CompiledGraph(compiled.graph, run, compiled.may_fail)


def _check_function_noted(expression: Any, value: Any, place: Any, nodes: Any) -> Any:
    number, forced = _run.note((Kind.EARLY_SPECULATED_VALUE,), f"{value!r}")
    check = _check_function(expression, value, place, nodes)

    def seen(*given: Any) -> None:
        try:
            check(*given)
        except Exception:
            _run.failed[number] = None
            if not forced:
                raise

    seen.__module__ = check.__module__
    return seen


@contextlib.contextmanager
def noted(run: Run) -> Iterator[None]:
    """Numbers the conditions of all records made inside the block; ``run.forced`` hold by force."""
    global _run
    before, _run = _run, run
    _numbers.clear()
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (guard_builder, "GuardWriter", _NumberingWriter),
            (guard_builder, "LiftedConditions", _NumberingLiftedConditions),
            (record, "MockBuilder", _MockBuilder),
            (speculation_checks, "_check_function", _check_function_noted),
            (Dispatcher, "synthesise", _synthesise_noted),
            (Dispatcher, "_run_after_failure", _run_after_noted),
            (Dispatcher, "_note_misspeculation", _misspeculated_noted),
            (GraphBackend, "compile", _compile_noted),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        try:
            yield
        finally:
            _run = before
