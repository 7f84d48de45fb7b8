"""Calls of a compiled function: the first record whose guard holds, else a monitor run."""

from __future__ import annotations

import copy
import logging
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection
from typing import Any, cast

import torch

from magpy_like.compiler.autograd.overwritten_saved_values import (
    find_nonleaf_inputs,
    may_overwrite_saved_tensors,
)
from magpy_like.compiler.graph_parts import compile_in_parts, eager_under_autograd, make_interpreter
from magpy_like.control_flow.branches import Branches
from magpy_like.errors import FullGraphError
from magpy_like.graph_operators.checkpoint_operator import mark_eager_checkpoints
from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.logs import topic
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.variation import Variation, argument_path
from magpy_like.monitor.torch_state import default_device
from magpy_like.native import call_as_caller
from magpy_like.native.instance_checks import is_instance
from magpy_like.records.backends import RELIABLE, resolve_backend
from magpy_like.records.interface import CacheInfo, Explanation, Segment
from magpy_like.records.miss_analysis import Limits, Varying
from magpy_like.records.segments import SegmentCut, Segments
from magpy_like.split_points import (
    BranchRefused,
    SourcePosition,
    SpeculationRefused,
    Split,
    SplitPoint,
    is_monitoring,
)
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.continuation import Continuation
from magpy_like.splitting.frame_layout import Layout
from magpy_like.synthesis.graph_compilation import GraphCompiler
from magpy_like.synthesis.mock.roll_back import GraphFailure, Misspeculation
from magpy_like.synthesis.mock.unused_results import compile_with_unused_results
from magpy_like.synthesis.record import Record, synthesise
from magpy_like.synthesis.shared_graphs import CompiledGraph, compile_assumptions
from magpy_like.torch_compat.autograd import saved_tensor_hooks
from magpy_like.torch_compat.dispatch import dispatch_mode_count, function_mode_count, tracing_state
from magpy_like.torch_compat.functorch import is_under_transform
from magpy_like.torch_compat.operators import make_dual, unpack_dual
from magpy_like.torch_interop.symbols import is_symbolic
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import untraced

_records_log = topic("records")
_guards_log = topic("guards")
_graph_log = topic("graph")
_splits_log = topic("splits")

MISSPECULATION_LIMIT = 8
"""Misspeculated places of one program after which it speculates no more."""
SPLIT_LIMIT = 3
"""Monitor runs that end in a split before the function runs eagerly without further tries."""

_all: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


class Dispatcher:
    """The records of one compiled function, and the decision what a call runs."""

    def __init__(
        self,
        target: Callable[..., Any],
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., Any] = "magpy",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        segments: Segments | None = None,
    ) -> None:
        """``segments`` are those of the program that the target is a continuation of."""
        self.target = target
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.backend = backend
        self.mode = mode
        self.options = options
        self._limits, for_backend = Limits.of(options)
        self._compile = resolve_backend(backend, mode, for_backend)
        self._lock = threading.RLock()
        self.records: tuple[Record, ...] = ()
        self.hits = self.misses = self._given_up = self._failures = 0
        self.split_points: list[SplitPoint] = []
        self._eager: str | None = None
        self._is_program = segments is None
        self._segments = segments or self._new_segments()
        self.speculates = True
        """Whether values of tensors that steer the program are speculated on."""
        self.merges = True
        """Whether branches on tensors become operators."""
        self.learnt: list[str] = []
        """Why runs were not recorded as they went, which the next ones take into account."""
        self.varying = Varying(dynamic, inner=not self._is_program)
        self.own: Collection[int] = ()
        """The positions of a continuation's arguments that nobody but the program holds."""
        _all.add(self)

    @untraced
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program on these arguments, by a record if one matches."""
        if _is_traced():
            return call_as_caller(self.target, args, kwargs)
        dispatcher, match = self, self._match(args, kwargs)
        misspeculated: tuple[Record, ...] = ()
        while match is not None:
            record, found = match
            given = record.mock(*found)
            if type(given) is GraphFailure:
                return dispatcher._run_after(given, args, kwargs)
            if type(given) is Misspeculation:
                misspeculated = (*misspeculated, record)
                suspects = record.speculates if given.place is None else {given.place}
                dispatcher._misspeculated(suspects, given.why)
                match = dispatcher._match(args, kwargs, misspeculated)
                continue
            if record.layout is None:
                return given
            layout, args, kwargs, misspeculated = record.layout, (), {}, ()
            del match, record, found  # an open file that the segment lets go of is written here
            following, args = self._segments.cross(layout, given)
            if following is None:
                return args
            del given
            if _is_traced():  # by the program itself, where it was split
                return call_as_caller(following.target, args, kwargs)
            dispatcher = following
            match = dispatcher._match(args, kwargs)
        return dispatcher._miss(args, kwargs)

    def covers(self, args: tuple[Any, ...]) -> bool:
        """Whether there is a record for these arguments."""
        return any(type(self._try(record, args, {})) is tuple for record in self.records)

    def _try(self, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return record.guard(args, kwargs)
        except Exception:
            # A guard meets objects that the recorded run never saw, whose classes may raise
            # anything; the record is not for them, and `why_missed` says what it was.
            return None

    def _run_after(
        self, failure: GraphFailure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A record has raised: what the program does is seen when it runs natively."""
        _records_log.info("%s: the operator graph raised %s", self.name, failure.why)
        result = call_as_caller(self.target, args, kwargs)
        self._failures += 1
        if self._failures == 2:
            warnings.warn(
                f"magpy_like: a record of {self.name} keeps raising where the program itself goes "
                f"on, so such calls run eagerly: {failure.why}",
                stacklevel=4,
            )
        return result

    def _misspeculated(self, places: Collection[SourcePosition], raised: str) -> None:
        """From now on the program is split at these places, unless it must not be."""
        where = ", ".join("{0}:{2} in {1}".format(*place) for place in places)
        because = f": the operator graph raised {raised}" if raised else ""
        _records_log.info("%s: a value was misspeculated at %s%s", self.name, where, because)
        misspeculations = self._segments.misspeculations
        with self._lock:
            self.hits -= 1
            if self.fullgraph:
                return
            misspeculations.update(places)
        for other in {self, *list(self._segments.dispatchers.values())}:
            with other._lock:
                other.records = tuple(
                    r for r in other.records if all(map(other.may_speculate, r.speculates))
                )

    def may_speculate(self, place: SourcePosition) -> bool:
        """Whether a tensor's value that steers the program at a place may be speculated on."""
        misspeculations = self._segments.misspeculations
        return (
            self.speculates
            and place not in misspeculations
            and len(misspeculations) <= MISSPECULATION_LIMIT
        )

    def _match(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], misspeculated: tuple[Record, ...] = ()
    ) -> tuple[Record, tuple[Any, ...]] | None:
        """The first record whose guard holds, with what its mock needs."""
        for i, record in enumerate(self.records):
            if misspeculated and any(record is other for other in misspeculated):
                continue
            found = self._try(record, args, kwargs)
            if type(found) is tuple:
                self.hits += 1
                if i:
                    self._promote(record)
                return record, found
        return None

    def _promote(self, record: Record) -> None:
        """Most recently matched first."""
        with self._lock:
            if record in self.records:
                self.records = (record, *(r for r in self.records if r is not record))

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._eager is not None:
            self.misses += 1
            return call_as_caller(self.target, args, kwargs)
        if self.records and _records_log.isEnabledFor(logging.INFO):
            for i, why in enumerate(self.why_missed(args, kwargs)):
                _records_log.info("%s: record %d does not match: %s", self.name, i, why)
        self.misses += 1
        if TRACING_LOCK.is_held_elsewhere():
            return call_as_caller(self.target, args, kwargs)  # torch is not what a guard may find
        if self._is_program and len(self.records) >= self._limits.records:
            self._give_up(args, kwargs)
            return call_as_caller(self.target, args, kwargs)
        return self._monitor(args, kwargs)

    def _give_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        why = self.why_missed(args, kwargs)[:1]
        reason = f"{len(self.records)} records did not match, the last because: {''.join(why)}"
        with self._lock:
            if self._eager is not None:
                return  # another thread was first, and has warned
            self._eager = reason
        warnings.warn(
            f"magpy_like: {self.name} runs eagerly from now on: {self._eager}", stacklevel=4
        )

    def why_missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """For each record, the check that turned these arguments away."""
        reasons = []
        for record in self.records:
            try:
                found = record.guard(args, kwargs)
            except Exception as error:
                reasons.append(f"the guard met something else: {type(error).__name__}: {error}")
                continue
            reasons.append(record.why_not(found) if is_instance(found, int) else "it matches")
        return reasons

    @property
    def name(self) -> str:
        target = self.target
        if is_instance(target, Continuation):
            return repr(target)
        named = getattr(target, "__qualname__", None)
        return named if is_instance(named, str) else type(target).__qualname__

    # --- monitor runs ----------------------------------------------------------------------------

    def _continue(self, rest: Continuation) -> Dispatcher:
        """The dispatcher for what follows a split."""
        following = Dispatcher(
            rest,
            dynamic=self.dynamic,
            backend=self.backend,
            mode=self.mode,
            options=self.options,
            segments=self._segments,
        )
        if rest.layout.result_position is not None:
            following.varying.expect(argument_path(rest.layout.result_position))
        return following

    def following(self, layout: Layout) -> Dispatcher:
        """The dispatcher of what the program does from a state of this layout."""
        return self._segments.following(layout)

    @property
    def is_eager(self) -> bool:
        """Whether the function is not recorded any more."""
        return self._eager is not None

    def _monitor(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program natively; each of the segments that it comes through gets a record."""
        cut = SegmentCut(self, args, kwargs)
        branches = Branches(lambda: cut.segment.dispatcher.merges)
        varying = self.variation(args, kwargs)
        says = self._segments.says_compiling
        run = MonitorRun(self.target, args, dict(kwargs), varying, cut, branches, says)
        try:
            result = run.run()
        except Exception:
            cut.segment.dispatcher.note_escape()
            # The program may raise only because it has heard so, which a native run has not.
            if not (run.told_compiling and cut.segment.take_back(run.recording)):
                self._segments.says_compiling &= not run.told_compiling
                run.give_back(None, run.recording.changed_objects())
                raise
        except BaseException:
            cut.segment.dispatcher.note_escape()
            raise
        else:
            return self._finish(run, cut, branches, result)
        branches.restore_result(None)
        run.release()
        cut.release()
        result = call_as_caller(self.target, args, kwargs)
        self._segments.says_compiling = False
        return result

    def _finish(self, run: MonitorRun, cut: SegmentCut, branches: Branches, result: Any) -> Any:
        """The program has come to its end, and what was not recorded before is now."""
        last, changed = cut.segment.dispatcher, run.recording.changed_objects()
        if run.refrained is not None:
            last.learnt.append(str(run.refrained))
        elif run.recording.split is not None:
            cut.no_record(run.recording.split, "")
        elif not cut.segment.recorded:
            try:
                record = cut.segment.record(run.recording, result)
                last.add(record, cut.segment.args, cut.segment.kwargs)
                self.varying.check_marks(record)
            except (SpeculationRefused, BranchRefused) as obstacle:
                last.refrain(obstacle, run.recording)
            except Split as split:
                cut.no_record(SplitPoint.of(self.name, _code_of(self.target), split.cause), "")
        result = run.give_back(result, changed)
        cut.release()
        if self.fullgraph and self.split_points:
            point = self.split_points[-1]
            raise FullGraphError(point.function, point.filename, point.lineno, point.cause)
        return branches.restore_result(result, changed)

    def variation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variation:
        """What the monitor run of a call that has missed must not rely on."""
        if len(self.records) >= self._limits.generalise_after:
            self.varying.learn(self.records, args, kwargs)
            with self._lock:
                self.records = tuple(r for r in self.records if not self.varying.outdates(r))
        return self.varying.variation()

    def synthesise(
        self,
        rec: Recording,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        entry: Callable[[], Any],
    ) -> Record:
        """A record of a segment that began with these arguments and ends with ``result``.

        Raises:
            Split: no record can be made.
        """
        try:
            layout = self.target.layout if is_instance(self.target, Continuation) else None
            known = None if layout is None else layout.function_positions
            compiler = GraphCompiler(self._backend, make_interpreter, entry)
            return synthesise(rec, args, kwargs, result, compiler, known)
        except (Split, FullGraphError):
            raise
        except Exception as error:
            _records_log.debug("synthesis failed", exc_info=error)
            detail = f"no record could be made: {type(error).__name__}: {error}"
            raise Split(SplitReason.INTERNAL_ERROR, detail) from error

    def _backend(self, graph: torch.fx.GraphModule, inputs: Any) -> CompiledGraph:
        if _graph_log.isEnabledFor(logging.INFO):
            _graph_log.info("%s: operator graph\n%s", self.name, graph.print_readable(False))
        may_fail = self.backend not in RELIABLE
        if self._segments.shows_nodes:
            return CompiledGraph(graph, make_interpreter(graph))
        before = [] if self._is_program else find_nonleaf_inputs(graph, inputs)
        if self.backend != "eager" and may_overwrite_saved_tensors(graph, before):
            self._segments.run_eagerly_with_gradients()
        eagerly = self._segments.eager_with_gradients
        mark_eager_checkpoints(graph, unfolds=self.backend == "magpy")
        if has_parts(graph):
            varying = [is_symbolic(given) for given in inputs]
            run = compile_in_parts(
                graph, self._compile_graph, varying, eager_with_gradients=eagerly
            )
            return CompiledGraph(graph, run, may_fail)
        compiled = self._segments.graphs.compiled(
            graph,
            () if self.backend == "eager" else compile_assumptions(inputs),
            lambda: CompiledGraph(graph, self._compile_graph(graph, inputs), may_fail),
        )
        if not eagerly:
            return compiled
        return CompiledGraph(
            compiled.graph, eager_under_autograd(compiled.graph, compiled.run), may_fail
        )

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        if any(node.target in _OF_TANGENTS for node in graph.graph.nodes):
            return cast(Callable[..., Any], graph.forward)  # in a level that it has not opened
        try:
            return compile_with_unused_results(graph, lambda whole: self._compile(whole, inputs))
        except Exception as error:
            if self.fullgraph:
                raise
            warnings.warn(
                f"magpy_like: backend {self.backend!r} could not compile the operator graph of "
                f"{self.name}; it runs operator by operator: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            return cast(Callable[..., Any], graph.forward)

    def add(self, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a record of a run on these arguments, unless there are too many like it."""
        alike = [r for r in self.records if r.bound == record.bound]
        if len(alike) >= self._limits.records:
            self._give_up(args, kwargs)
            return
        with self._lock:
            self.varying.learn_from(record, alike)
            self.records = (record, *(r for r in self.records if not record.covers(r)))
        if _guards_log.isEnabledFor(logging.INFO):
            _guards_log.info(
                "%s:\n%s\n%s", self.name, "\n".join(record.guards), record.guard_source
            )
        _records_log.info("%s: new record, %d in all", self.name, len(self.records))
        _records_log.debug("%s", record.mock_source)

    def show_nodes(self) -> None:
        """From now on this continuation finds eager mode's autograd graph in what came before."""
        if not self._is_program and self.backend != "eager":
            self._segments.show_nodes()

    def _forget_program(self) -> None:
        for dispatcher in (self, *self._following()):
            with dispatcher._lock:
                dispatcher.records = ()

    def note_split(self, point: SplitPoint) -> None:
        """The program splits there."""
        _splits_log.info("%s: %s: split at %s", self.name, point.reason.name, point)
        if point not in self.split_points:
            self.split_points.append(point)

    def no_record(self, point: SplitPoint, obstacle: str) -> None:
        """The program splits there, and no record of the segment before could be made."""
        self.note_split(point)
        if obstacle:
            _splits_log.info("%s: no segment ends there: %s", self.name, obstacle)
        self._given_up += 1
        if self._given_up >= SPLIT_LIMIT:
            self._eager = f"it splits at {point}"

    def run_natively(self, reason: str) -> None:
        """The program, of which this may be a continuation, is not to be recorded any more."""
        self._segments.run_natively(reason)

    def _new_segments(self) -> Segments:
        return Segments(self._continue, self._give_up_program, self._forget_program)

    def _give_up_program(self, reason: str) -> None:
        _splits_log.info("%s: runs natively from now on: %s", self.name, reason)
        for dispatcher in (self, *self._following()):
            with dispatcher._lock:
                dispatcher.records, dispatcher._eager = (), reason

    def note_escape(self) -> None:
        """An exception has left the program, which no record does."""
        layout = self.target.layout if is_instance(self.target, Continuation) else None
        if layout is not None and (layout.raised or layout.handles_exception):
            self._given_up += 1
            if self._given_up >= SPLIT_LIMIT:
                self._eager = "its exceptions are not handled"

    def _following(self) -> list[Dispatcher]:
        """The dispatchers of all that follows splits."""
        return list(self._segments.dispatchers.values()) if self._is_program else []

    def cache_info(self) -> CacheInfo:
        following = self._following()
        records = [r for d in (self, *following) for r in d.records]
        graphs = len({id(record.graph) for record in records if record.graph is not None})
        # A call that was monitored in a later segment has needed a monitor run after all.
        late = min(self.hits, sum(d.misses for d in following))
        return CacheInfo(self.hits - late, self.misses + late, len(records), graphs)

    def explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Dispatcher | None = None
    ) -> Explanation:
        """Run the program once and report what its record consists of.

        ``known`` has run the same program already, and has learnt what varies.
        """
        if known is not None:
            self._take_over(known)
        self.call(args, kwargs)
        everywhere = [self, *self._following()]
        report = Explanation()
        for point in (point for d in everywhere for point in d.split_points):
            if point not in report.split_points:
                report.split_points.append(point)
        report.learnt = [reason for d in everywhere for reason in d.learnt]
        report.generalised = self.varying.in_words()
        found = [(record, d.name) for d in everywhere for record in d.records]
        for record, name in sorted(found, key=lambda entry: entry[0].number):
            report.segments.append(Segment(name, record.graph, record.ends_at))
            if record.graph is not None and record.graph not in report.graphs:
                report.graphs.append(record.graph)
            report.lifted += record.lifted
            report.guards += record.guards
            report.side_effects += record.side_effects
            report.source += f"{record.guard_source}\n{record.mock_source}"
        return report

    def _take_over(self, known: Dispatcher) -> None:
        """Begin with what another dispatcher has learnt about the same program."""
        self.dynamic, self.varying = known.dynamic, copy.deepcopy(known.varying)
        self._segments.misspeculations |= known._segments.misspeculations
        self._segments.says_compiling = known._segments.says_compiling
        pairs = [(self, known)]
        for layout, other in list(known._segments.dispatchers.items()):
            if not (other.speculates and other.merges):
                pairs.append((self.following(layout), other))
        for mine, other in pairs:
            mine.speculates, mine.merges = other.speculates, other.merges

    def refrain(self, obstacle: SpeculationRefused | BranchRefused, rec: Recording) -> None:
        """Do without what has kept a program from being recorded, from the next run on."""
        self.learnt.append(str(obstacle))
        if is_instance(obstacle, BranchRefused):
            self.merges = False
            return
        self.speculates = False
        *_, (filename, function, lineno, *_) = rec.lifted.speculated.values[0]
        self.note_split(SplitPoint(function, filename, lineno or 0, *obstacle.cause))

    def reset(self) -> None:
        """Forget all records and what was learnt about the program."""
        with self._lock:
            self.records = ()
            self.hits = self.misses = self._given_up = self._failures = 0
            self.split_points = []
            self.varying = Varying(self.dynamic, inner=not self._is_program)
            self.speculates = self.merges = True
            self.learnt = []
            if self._is_program:
                self._segments = self._new_segments()
            self._eager = None


_OF_TANGENTS = {make_dual, unpack_dual}


def _is_traced() -> bool:
    """Whether somebody else watches the program's operators: then it runs as it is written.

    Hooks on saved tensors are given those of each operator; `torch.utils.checkpoint` counts them,
    and raises from one of them when it has seen enough. While a level of forward-mode AD is open,
    each operator makes tangents; under `vmap`, `grad` and the like tensors are not what they seem.
    """
    return (
        is_monitoring()
        or (function_mode_count() > 0 and not default_device.are_all_modes())
        or dispatch_mode_count() > 0
        or tracing_state() is not None
        or (torch.is_grad_enabled() and saved_tensor_hooks(True) is not None)
        or is_under_transform()
    )


def _code_of(target: Any) -> types.CodeType | None:
    if is_instance(target, torch.nn.Module):
        target = type(target).forward
    target = getattr(target, "__func__", target)
    return getattr(target, "__code__", None)


def reset_all() -> None:
    """Forget the records of every compiled function."""
    for dispatcher in list(_all):
        dispatcher.reset()
