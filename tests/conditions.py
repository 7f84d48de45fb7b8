"""The conditions that guards are made of, by the place in the source that makes them, and guards in
which some of them hold by force."""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from magpy_like.monitor.symbolic.expressions import Size
from magpy_like.native import Watch
from magpy_like.records.dispatcher import Dispatcher
from magpy_like.synthesis import record
from magpy_like.synthesis.guard import lifted_conditions
from magpy_like.synthesis.guard.guard_builder import GuardBuilder
from magpy_like.synthesis.guard.size_conditions import LARGEST
from magpy_like.synthesis.mock import early_checks
from magpy_like.synthesis.shared_graphs import CompiledGraph
from tests.promises import Promise

MODES = "modes: torch's modes"
RANGE = "sizes: range of a size"
SPECULATED = "speculated: a value"
SPECULATED_EARLY = "speculated: a value, in the graph"
_PARTS = ("equals: its type", "equals: its text", "equals: its value")
"""What a comparison with a plain value is made of."""
_ELSEWHERE = (MODES, RANGE, SPECULATED, SPECULATED_EARLY, *_PARTS)
"""Conditions that no call in the guard builder makes by itself."""
_ROOMS = [sys.modules[cls.__module__] for cls in GuardBuilder.__mro__[:-1]]
"""The modules that the guard builder is spread over."""
_FILES = {room.__file__ for room in _ROOMS}
_MAKERS = ("_check", "_call", "_once", "_keys", "_watch", "_holds")
"""Methods of the guard builder that make the condition that they are given."""
_HAND_ON = ("_check", "_call", "_once", "_keys")
"""Those that make but one."""


@functools.cache
def _places() -> dict[str, list[tuple[int, int, str]]]:
    """For each function of the guard builder, the lines and names of calls that make conditions."""
    found: dict[str, list[tuple[int, int, str]]] = collections.defaultdict(list)
    nodes = (ast.walk(ast.parse(inspect.getsource(room))) for room in _ROOMS)
    for function in itertools.chain.from_iterable(nodes):
        if not isinstance(function, ast.FunctionDef) or function.name in _HAND_ON:
            continue
        for call in sorted(ast.walk(function), key=lambda node: getattr(node, "lineno", 0)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                name = _name(call, call.func)
                if name is not None:
                    made = found[function.name]
                    name = f"{function.name.strip('_')}: {name}"
                    again = sum(other.startswith(name) for *_, other in made)
                    name += f" ({again + 1})" if again else ""
                    made.append((call.lineno, call.end_lineno or 0, name))
    return found


def _name(call: ast.Call, method: ast.Attribute) -> str | None:
    """What a call makes, in words: the sentence about it, or else its arguments."""
    watches = isinstance(method.value, ast.Attribute) and method.value.attr == "watch"
    if watches and method.attr != "counts":
        return f"watch {method.attr} {', '.join(map(_text, call.args))}"
    if method.attr in ("_check", "_call"):
        said = isinstance(call.args[1], ast.JoinedStr | ast.Constant)
        return _text(call.args[1 if said else 0])
    if method.attr in _MAKERS:
        return f"{method.attr.strip('_')} {', '.join(map(_text, call.args))}"
    return None


def _text(source: ast.expr) -> str:
    """An argument; of a text that is put together only what does not vary."""
    if isinstance(source, ast.Constant):
        return str(source.value)
    if isinstance(source, ast.JoinedStr):
        return "".join(_text(p) if isinstance(p, ast.Constant) else "…" for p in source.values)
    return ast.unparse(source)


def kinds() -> set[str]:
    """Every kind of condition that guards may be made of."""
    return {name for places in _places().values() for *_, name in places} | {*_ELSEWHERE}


def _made_by() -> tuple[str, ...]:
    """The kinds of the condition that the guard builder is about to make, the narrowest first."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in _FILES:
            for first, last, name in _places().get(frame.f_code.co_name, ()):
                if first <= frame.f_lineno <= last:
                    found.append(name)
        frame = frame.f_back
    return tuple(found)


@dataclass(frozen=True)
class Check:
    """One condition of one guard."""

    where: str
    place: str
    """The program or continuation whose guard it is in."""
    kinds: tuple[str, ...]
    reason: str

    @property
    def kind(self) -> str:
        return f"{self.where}, {self.kinds[0]}"


@dataclass
class Run:
    """A time in which records are made, and the conditions that hold by force in them."""

    forced: Collection[int | str | tuple[str, str]] = ()
    """Numbers of conditions, kinds, places, or places with what a condition there says."""
    checks: list[Check] = field(default_factory=list)
    failed: dict[int, None] = field(default_factory=dict)
    raised: int = 0
    """How often a record has raised, so that the program ran natively, or was cut."""
    broken: list[str] = field(default_factory=list)
    """What operator graphs were given that was not promised to them."""
    where: str = "at entry"
    place: str = ""

    def note(self, names: tuple[str, ...], reason: str) -> tuple[int, bool]:
        """The number of a condition, and whether it holds by force."""
        reason = re.sub(r" at 0x[0-9a-f]+", "", reason)  # it is another one in the next run
        self.checks.append(Check(self.where, self.place, names, reason))
        number = len(self.checks) - 1
        known = {number, *names, self.place, (self.place, reason)}
        return number, not known.isdisjoint(self.forced)


_run = Run()


class _Watch:
    """A watch that knows which of its checks fails, and has some hold by force."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Any]] = []
        self._why = ""

    def _add(self, kind: str, *args: Any) -> Any:
        part = Watch()
        given = getattr(part, kind)(*args)
        if given is False:
            return given
        number, forced = _run.note(_made_by(), "")
        if not forced:
            self._parts.append((number, part))
        return given

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        return functools.partial(self._add, kind)

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


class _NumberingBuilder(GuardBuilder):
    """Numbers the conditions, and leaves the forced ones out."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.watch = _Watch()
        self.numbers: dict[int, int] = {}
        _numbers[id(self.reasons)] = self.reasons, self.numbers

    def _check(self, condition: str, reason: str) -> None:
        parts = _parts(condition)
        number, forced = _run.note((*_made_by(), *parts), reason)
        self.numbers[len(self.reasons)] = number
        if parts.keys() & set(_run.forced):
            # A part may name the value that another is about.
            held = [f"({t} or True)" if kind in _run.forced else t for kind, t in parts.items()]
            condition = " and ".join(held)
        elif forced:
            condition = "True"
        super()._check(condition, reason)

    def build(self) -> None:
        number, forced = _run.note((MODES,), "torch's modes")
        self.numbers[0] = number
        super().build()
        if forced:
            self.source.names["state"] = lambda: True

    def _sizes(self, twin: Any) -> None:
        bounds, conditions = lifted_conditions.size_guards(twin)
        ranges: dict[int, list[tuple[int, Any, int]]] = collections.defaultdict(list)
        for i, bound in enumerate(bounds):
            if not isinstance(bound.number, Size):
                continue  # a check of its own
            node, dim = bound.number.node, bound.number.dim
            said = f"{self.label(node)}.size({dim}) is {bound.least} to {bound.most}"
            number, forced = _run.note((RANGE,), said)
            ranges[node.node_id].append((dim, bound, number))
            if forced:
                bounds[i] = bound._replace(least=0, most=LARGEST)
        with mock.patch.object(lifted_conditions, "size_guards", lambda twin: (bounds, conditions)):
            super()._sizes(twin)
        names = self.source.names
        for node_id, found in ranges.items():
            for name in [n for n, value in names.items() if value is twin.checks[node_id]]:
                names[name] = _sees_ranges(names[name], found)


def _sees_ranges(
    check: Callable[[Any], bool], ranges: list[tuple[int, Any, int]]
) -> Callable[[Any], bool]:
    """The check of a tensor, that tells which sizes are not in their ranges where it fails."""

    def seen(tensor: Any) -> bool:
        if check(tensor):
            return True
        sizes = dict(enumerate(getattr(tensor, "shape", ())))
        for dim, bound, number in ranges:
            if dim in sizes and not bound.least <= sizes[dim] <= bound.most:
                _run.failed[number] = None
        return False

    return seen


def _parts(condition: str) -> dict[str, str]:
    """The parts of a comparison with a plain value, by kind."""
    whole = ast.parse(condition, mode="eval").body
    if not isinstance(whole, ast.BoolOp) or ":=" not in condition:
        return {}
    texts = [f"({ast.unparse(value)})" for value in whole.values]
    kinds_of = {"(type(": _PARTS[0], "(repr(": _PARTS[1]}
    return {kinds_of.get(text[:6], _PARTS[2]): text for text in texts}


_numbers: dict[int, tuple[list[str], dict[int, int]]] = {}


class _MockBuilder(record.MockBuilder):
    """Numbers the values that are speculated on, and takes the forced ones for right."""

    def speculated(self) -> list[str]:
        conditions = super().speculated()
        for i, condition in enumerate(conditions):
            number, forced = _run.note((SPECULATED,), condition)
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


_synthesise, _try, _look = Dispatcher.synthesise, Dispatcher._try, early_checks._look
_run_after, _backend = Dispatcher._run_after, Dispatcher._backend
_misspeculated = Dispatcher._misspeculated


def _synthesise_noted(dispatcher: Dispatcher, *args: Any) -> Any:
    _run.where = "at entry" if dispatcher._is_program else "behind a split"
    _run.place = dispatcher.name
    return _synthesise(dispatcher, *args)


def _try_noted(dispatcher: Dispatcher, found: Any, args: Any, kwargs: Any) -> Any:
    result = _try(dispatcher, found, args, kwargs)
    numbers = _numbers.get(id(found.reasons), (None, {}))[1]
    if type(result) is int and result in numbers:
        _run.failed[numbers[result]] = None
    return result


def _run_after_noted(dispatcher: Dispatcher, *args: Any) -> Any:
    _run.raised += 1
    return _run_after(dispatcher, *args)


def _misspeculated_noted(dispatcher: Dispatcher, places: Any, raised: str) -> None:
    _run.raised += bool(raised)
    _misspeculated(dispatcher, places, raised)


def _backend_noted(dispatcher: Dispatcher, graph: Any, inputs: Any) -> CompiledGraph:
    compiled, promise = _backend(dispatcher, graph, inputs), Promise(inputs)

    def run(*given: Any) -> Any:
        broken = promise.broken_by(given)
        if broken is not None:
            _run.broken.append(f"{dispatcher.name}: {broken}")
        return compiled.run(*given)

    return CompiledGraph(compiled.graph, run, compiled.may_fail)


def _look_noted(expression: Any, value: Any, place: Any, nodes: Any) -> Any:
    number, forced = _run.note((SPECULATED_EARLY,), f"{value!r}")
    look = _look(expression, value, place, nodes)

    def seen(*given: Any) -> None:
        try:
            look(*given)
        except Exception:
            _run.failed[number] = None
            if not forced:
                raise

    seen.__module__ = look.__module__
    return seen


@contextlib.contextmanager
def noted(run: Run) -> Iterator[None]:
    """The conditions of what is recorded meanwhile are numbered, and forced as ``run`` says."""
    global _run
    before, _run = _run, run
    _numbers.clear()
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (record, "GuardBuilder", _NumberingBuilder),
            (record, "MockBuilder", _MockBuilder),
            (early_checks, "_look", _look_noted),
            (Dispatcher, "synthesise", _synthesise_noted),
            (Dispatcher, "_try", _try_noted),
            (Dispatcher, "_run_after", _run_after_noted),
            (Dispatcher, "_misspeculated", _misspeculated_noted),
            (Dispatcher, "_backend", _backend_noted),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        try:
            yield
        finally:
            _run = before
