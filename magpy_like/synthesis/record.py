"""A record: guard, mock and operator graph (MagPy, section 2.2), synthesised from one recording."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from magpy_like.graph_operators.node_origins import ProfilerRegion
from magpy_like.monitor.objects.access_paths import follow
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.refgraph import ABSENT, Fact, ShadowNode
from magpy_like.split_points import SourcePosition, Split, SplitPoint
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.graph_compilation import GraphCompiler, compile_graph
from magpy_like.synthesis.guard.conditions import Condition
from magpy_like.synthesis.guard.expected_values import ExpectedValues
from magpy_like.synthesis.guard.guard_builder import GuardBuilder
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables
from magpy_like.synthesis.mock.mock_builder import MockBuilder
from magpy_like.synthesis.shared_graphs import CompiledGraph

_record_numbers = itertools.count()


@dataclass
class Record:
    """Guard, mock and operator graph, which a matching call runs instead of the program."""

    guard: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    """``guard(args, kwargs)`` returns the mock's arguments, or the number of a failed condition."""
    mock: Callable[..., Any]
    compiled: CompiledGraph | None
    """None if the program runs no operator with an observable result or effect."""
    conditions: list[Condition]
    """All conditions of the guard, in order."""
    numbered: list[Condition]
    """The conditions by the number that the guard returns."""
    side_effects: list[str]
    """Side effects as text, for ``explain``."""
    guard_source: str
    mock_source: str
    expected: ExpectedValues
    """Sizes and numbers of the recorded run, and their ranges."""
    rewritten: frozenset[Path]
    """Access paths of numbers that the program itself overwrites."""
    bound: frozenset[int]
    """Ids of the fixed objects that a call must pass, such as the module of a loop's iteration."""
    lifted: list[str]
    """Labels of the lifted sizes and numbers."""
    modes: tuple[int, ...]
    """Torch's modes in which the record serves calls."""
    objects: frozenset[tuple[str, int]]
    """Objects compared by identity: description of the condition, and ``id``."""
    number: int
    """Counts the records of the process in the order of their creation."""
    layout: Any = None
    """Layout of the active frames if the record ends at a split: the mock returns their values."""
    ends_at: SplitPoint | None = None
    """The split that the record ends at."""
    watch: Any = None
    """The native watch of fixed objects."""
    watch_number: int = -1
    """The number of the condition that calls the watch; -1 if there is none."""
    regions: tuple[ProfilerRegion, ...] = ()
    """The regions of ``record_function`` of a program without a graph."""
    speculates: frozenset[SourcePosition] = frozenset()
    """Source positions for which the mock may return a ``Misspeculation``."""

    @property
    def graph(self) -> fx.GraphModule | None:
        return None if self.compiled is None else self.compiled.graph

    @property
    def is_compiled(self) -> bool:
        """True if it runs a graph that the backend has compiled."""
        return self.compiled is not None and self.compiled.is_compiled

    @property
    def is_interpreted(self) -> bool:
        """True if it runs a graph operator by operator, which the backend has not compiled."""
        return self.compiled is not None and not self.compiled.is_compiled

    @property
    def guards(self) -> list[str]:
        """The conditions as text."""
        return [sentence for condition in self.conditions for sentence in condition.sentences]

    def covers(self, other: Record) -> bool:
        """True if this record provably serves all calls that another one serves."""
        lifted = {s for c in self.conditions if c.is_about_lifted for s in c.sentences}
        sentences = set(self.guards) - lifted
        return (
            bool(self.lifted)
            and self.layout == other.layout
            and self.bound == other.bound
            and self.modes == other.modes
            and {pair for pair in self.objects if pair[0] in sentences} <= other.objects
            and sentences <= set(other.guards)
            and self.expected.admits(other.expected)
        )

    def why_not(self, number: int) -> str:
        """The condition that failed for a call, as text."""
        if number == self.watch_number:
            return self.watch.why() or "a variable that the program read has changed since"
        return f"not {self.numbered[number].description}"


def synthesise(
    rec: Recording,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    compiler: GraphCompiler,
    functions: frozenset[int] | None = None,
) -> Record:
    """Guard, mock and compiled graph from a recording that has ended.

    ``functions`` is for continuations: see :class:`GuardBuilder`.

    Raises:
        Split: a guard cannot check what the program relied on, or a mock cannot repeat an effect.
    """
    if any(map(_is_relied_on, rec.reads.drawn)):
        raise Split(SplitReason.RANDOM_VALUE_DECIDES, "depends on the value of a random object")
    if not rec.lifted.look_ups.are_unchanged():
        raise Split(SplitReason.CACHED_FUNCTION, "changes what a cache of a function holds")
    guarded = GuardedVariables(rec)
    guard = GuardBuilder(rec, guarded, args, kwargs, functions)
    with compiler.at_entry():
        guard.build()
    mock = MockBuilder(rec, guarded, guard)
    try:
        return _assemble(rec, guarded, guard, mock, result, compiler)
    finally:
        mock.forget()


def _assemble(
    rec: Recording,
    guarded: GuardedVariables,
    guard: GuardBuilder,
    mock: MockBuilder,
    result: Any,
    compiler: GraphCompiler,
) -> Record:
    mock.write(result)
    compiled, inputs = compile_graph(rec, guard, mock, compiler)
    guard.finish()
    mock.finish(compiled, inputs)
    writer, parameters = guard.writer, ", ".join(mock.interface.parameters.values())
    writer.source.emit(f"return ({parameters}{',' if parameters else ''})")
    return Record(
        guard=writer.source.build("guard", "args, kwargs"),
        mock=mock.source.build("mock", parameters),
        compiled=compiled,
        conditions=writer.conditions,
        numbered=writer.numbered,
        side_effects=mock.effects.descriptions,
        guard_source=writer.source.text("guard", "args, kwargs"),
        mock_source=mock.source.text("mock", parameters),
        expected=guard.lifted.expected,
        rewritten=_rewritten(rec, guarded, guard.lifted.expected.numbers),
        bound=frozenset(guard.fixed.bound),
        modes=guard.state.modes,
        objects=frozenset(writer.objects),
        number=next(_record_numbers),
        lifted=guard.lifted.lifted,
        watch=writer.watch,
        watch_number=guard.watch_number,
        regions=rec.operators.nodes.graph.labels.left if compiled is None else (),
        speculates=frozenset(location for *_, location in rec.lifted.speculated.values),
    )


def _is_relied_on(node: ShadowNode) -> bool:
    """True if the program relied on more than type and length of a variable."""
    has_parts = any(target != ABSENT for target in node.first.refs.values())
    return has_parts or node.changed or bool(node.facts - {Fact.TYPE, Fact.LENGTH})


def _rewritten(
    rec: Recording, guarded: GuardedVariables, numbers: dict[Path, Any]
) -> frozenset[Path]:
    """Access paths of the numbers that the program has overwritten."""
    rewritten = set()
    for node in guarded.order:
        parent, relation = guarded.edges[node.node_id][0]
        if relation not in parent.written:
            continue
        path = rec.variables.location(parent, relation)
        if path not in numbers:
            continue
        try:
            now = follow(parent.variable, relation)
        except (LookupError, AttributeError, ValueError):
            continue
        if type(now) is type(numbers[path]) and now != numbers[path]:
            rewritten.add(path)
    return frozenset(rewritten)
