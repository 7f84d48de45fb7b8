"""Dispatcher: runs each call by the first record whose guard holds, else under the monitor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from magpy_like.active_run import is_monitoring
from magpy_like.compiler.graph_partition import make_interpreter
from magpy_like.config import config
from magpy_like.errors import ArgumentError, FullGraphError, RecompileError, shortened
from magpy_like.interruption import call_uninterrupted, is_interruption
from magpy_like.logs import topic
from magpy_like.monitor import instruction_events
from magpy_like.monitor.calls import torch_wrappers
from magpy_like.monitor.frame_observers import (
    OBSERVES_ITSELF,
    are_replaced,
    frame_observers,
)
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.variation import Variation, argument_path
from magpy_like.native import call_as_caller
from magpy_like.native.instance_checks import is_instance
from magpy_like.records import explain
from magpy_like.records.eager_switch import EagerSwitch
from magpy_like.records.fast_paths import FastPaths
from magpy_like.records.foreign_tracing import describe_observer, is_traced, is_watched
from magpy_like.records.graph_backend import GraphBackend
from magpy_like.records.interface import CacheInfo, Explanation, dispatchers, native_call, reset_all
from magpy_like.records.miss_analysis import Varying
from magpy_like.records.monitored_call import MonitoredCall
from magpy_like.records.profiled_calls import recording_region, run_in_region
from magpy_like.records.program_continuations import ProgramState
from magpy_like.records.record_cache import RecordCache
from magpy_like.records.record_limits import Limits
from magpy_like.records.reports import Kind, Reports
from magpy_like.records.reset_by_torch import call_on_reset
from magpy_like.refgraph.plain_values import callable_name
from magpy_like.split_points import (
    BranchRefused,
    SourcePosition,
    SpeculationRefused,
    Split,
    SplitPoint,
)
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.continuation import Continuation
from magpy_like.splitting.frame_layout import Layout
from magpy_like.synthesis.graph_compilation import GraphCompiler
from magpy_like.synthesis.mock.roll_back import GraphFailure, Misspeculation
from magpy_like.synthesis.record import Record, synthesise
from magpy_like.torch_compat.frame_evaluation import current_stance, forced_backend, skips_guards
from magpy_like.torch_compat.profiler import is_profiled
from magpy_like.torch_compat.tracing.symbolic_tracing import is_symbolically_traced
from magpy_like.torch_interop.error_texts import in_words
from magpy_like.torch_interop.own_fake_modes import transient_fake_modes
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import transient_graph_sources, untraced

_records_log = topic("records")
_guards_log = topic("guards")
_splits_log = topic("splits")


def _remedy(why: str) -> str:
    """How to have records match that failed for this condition."""
    if " is the same " in why:
        return "keep the object between calls, and change its contents"
    return "pass what differs between calls as a tensor or a number, or keep it the same"


class Dispatcher:
    """One compiled function or continuation: its records, and the decision how a call runs."""

    def __init__(
        self,
        target: Callable[..., Any],
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., Any] = "magpy",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        program: ProgramState | None = None,
    ) -> None:
        """Takes the arguments of ``compile``, and the ``program`` of a continuation.

        Raises:
            TypeError, ValueError: see ``compile``.
        """
        self.target = target
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.backend = backend
        self.mode = mode
        self.options = options
        self.is_continuation = program is not None
        self._limits, backend_options = Limits.of(options)
        self._graph_backend = GraphBackend(
            lambda: self.name,
            backend,
            mode,
            backend_options,
            fullgraph=fullgraph,
            is_continuation=self.is_continuation,
        )
        self.cache = RecordCache()
        self.program = program or self._new_program()
        self.on_miss: Callable[[], Callable[..., Any]] | None = None
        """See ``interface.native_call``."""
        self.owned_arguments: Collection[int] = ()
        """Positions of a continuation's arguments that only the program refers to."""
        self._begin()
        dispatchers.add(self)

    def _begin(self) -> None:
        """Reset the findings about the program."""
        self.eager = EagerSwitch()
        self.fast_paths = FastPaths()
        self.varying = Varying(self.dynamic, is_continuation=self.is_continuation)
        self.split_points: list[SplitPoint] = []
        self._graph_failures = 0
        if torch_wrappers.is_disabled(self.target):
            self.eager.turn_on("torch.compiler.disable has disabled it")
        self._obstacle = ""
        """The reason why the last run has no record."""

    def reset(self) -> None:
        """Discard all records and findings about the program."""
        with self.cache.lock:
            self.cache.clear()
            self.cache.forget_calls()
            if not self.is_continuation:
                self.program = self._new_program()
            self._begin()

    def _new_program(self) -> ProgramState:
        return ProgramState(self, self._new_continuation)

    def _new_continuation(self, rest: Continuation) -> Dispatcher:
        dispatcher = Dispatcher(
            rest,
            dynamic=self.dynamic,
            backend=self.backend,
            mode=self.mode,
            options=self.options,
            program=self.program,
        )
        if rest.layout.result_position is not None:
            dispatcher.varying.expect(argument_path(rest.layout.result_position))
        return dispatcher

    def following(self, layout: Layout) -> Dispatcher:
        """The dispatcher of the continuation from active frames with this layout."""
        return self.program.following(layout)

    def continuations(self) -> list[Dispatcher]:
        """The dispatchers of all continuations of a program; [] for a continuation's dispatcher."""
        return [] if self.is_continuation else list(self.program.dispatchers.values())

    @property
    def name(self) -> str:
        """The target's qualified name, for people."""
        target = self.target
        if is_instance(target, Continuation):
            return repr(target)
        return callable_name(target)

    @property
    def records(self) -> tuple[Record, ...]:
        """The records, the last that matched first."""
        return self.cache.records

    @property
    def hits(self) -> int:
        """Calls that a record matched."""
        return self.cache.hits

    @property
    def is_eager(self) -> bool:
        """True if the function runs eagerly from now on."""
        return bool(self.eager)

    # --- calls -----------------------------------------------------------------------------------

    @untraced
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program on these arguments, segment by segment."""
        profiled = False
        if is_watched():  # rarely
            if is_traced():
                return self._run_observed(args, kwargs)
            profiled = is_profiled()
        dispatcher, match = self, self.cache.match(args, kwargs)
        misspeculated: tuple[Record, ...] = ()
        compiled = interpreted = False
        while match is not None:
            record, found = match
            result = run_in_region(dispatcher, record, found) if profiled else record.mock(*found)
            if type(result) is GraphFailure:
                return dispatcher._run_after_failure(result, args, kwargs)
            if type(result) is Misspeculation:
                misspeculated = (*misspeculated, record)
                suspects = record.speculates if result.position is None else {result.position}
                dispatcher._note_misspeculation(suspects, result.why)
                match = dispatcher.cache.match(args, kwargs, misspeculated)
                continue
            if record.layout is None:
                return result
            layout, args, kwargs, misspeculated = record.layout, (), {}, ()
            compiled |= record.is_compiled
            interpreted |= record.is_interpreted
            del match, record, found  # finalizers of objects that the segment releases run here
            observers = frame_observers()
            following, args = self.program.run_dynamic_instruction(layout, result)
            if following is None:
                return args
            del result
            if are_replaced(observers):
                self.program.run_natively(OBSERVES_ITSELF)
                self.program.reports.emit()
                return call_as_caller(following.target, args, kwargs)
            if is_traced():  # since the dynamic instruction
                return call_as_caller(following.target, args, kwargs)
            profiled = is_profiled()
            dispatcher = following
            match = dispatcher.cache.match(args, kwargs)
            if match is not None and match[0].layout is None:
                interpreted |= match[0].is_interpreted
                self.cache.uncompiled += interpreted and not (compiled or match[0].is_compiled)
        return dispatcher._miss(args, kwargs)

    def _run_observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program as it is: somebody sees its operators, or the stance forces that."""
        if not is_monitoring():
            self.cache.native += 1
            if (observer := describe_observer()) is not None:
                self.program.reports.note(Kind.THIS_CALL, *observer)
                self.program.reports.emit()
        return call_as_caller(native_call(self), args, kwargs)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        native = native_call(self)
        if is_symbolically_traced():
            # Proxies match no record, and torch.fx replaces a method that all records of modules
            # watch.
            self.cache.native += 1
            return call_as_caller(native, args, kwargs)
        stance = current_stance()
        if self.eager or stance == "eager_on_recompile" or TRACING_LOCK.is_held_elsewhere():
            # If another thread traces, torch is not in the state that guards would describe.
            self.cache.native += 1
            return call_as_caller(self.target, args, kwargs)
        if stance == "fail_on_recompile":
            raise RecompileError(self.name, self.why_missed(args, kwargs))
        if self.records and _records_log.isEnabledFor(logging.INFO):
            for i, why in enumerate(self.why_missed(args, kwargs)):
                _records_log.info("%s: record %d does not match: %s", self.name, i, why)
        reports = self.program.reports
        if not self.is_continuation and len(self.records) >= self._limits.records:
            self._give_up(args, kwargs)
            self.cache.native += 1
            reports.emit()
            return call_as_caller(self.target, args, kwargs)
        if (obstacle := instruction_events.enable()) is not None:
            self.cache.native += 1
            reports.note(Kind.THIS_CALL, obstacle, "free one of them")
            reports.emit()
            return call_as_caller(self.target, args, kwargs)
        self.cache.misses += 1
        reports.note_torch_compile_around()
        _report_stance(reports)
        if self.cache.misses == config.misses_before_report:
            self._report_misses(args, kwargs)
            reports.emit()  # before the run, as it may raise
        with recording_region(self.name), transient_fake_modes():
            result = call_uninterrupted(lambda: MonitoredCall(self, args, kwargs).run())
        reports.emit()
        return result

    def _report_misses(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Report that no call of the program has hit, if it is so."""
        info = self.program.entry.cache_info()
        if info.hits or info.uncompiled:
            return
        why = next(iter(self.why_missed(args, kwargs)), self._obstacle or "there is no record")
        self.program.reports.note_misses(
            Kind.NO_HITS,
            f"{self.cache.misses} calls were monitored: {shortened(why)}",
            f"{_remedy(why)}; MAGPY_LOGS=records has the reason of each call",
        )

    def why_missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """For each record, the condition that failed for these arguments."""
        reasons = self.cache.why_missed(args, kwargs)
        if is_instance(self.target, Continuation):
            return [self.target.in_words(reason) for reason in reasons]
        return reasons

    def _give_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Too many records missed: warn, and run eagerly from now on."""
        why = "".join(self.why_missed(args, kwargs)[:1])
        reason = f"{len(self.records)} records did not match, the last because: {shortened(why)}"
        with self.cache.lock:
            if self.eager:
                return  # another thread was first, and has warned
            self.eager.turn_on(reason)
        remedy = f'{_remedy(why)}, or allow more records by options={{"record_limit": ...}}'
        self.program.reports.note_misses(Kind.NATIVE, reason, remedy)

    def _run_after_failure(
        self, failure: GraphFailure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the program itself after a record's graph has raised; it may raise as well."""
        _records_log.info("%s: the operator graph raised %s", self.name, failure.why)
        result = call_as_caller(self.target, args, kwargs)
        self._graph_failures += 1
        if self._graph_failures == 2:
            self.program.reports.note(
                Kind.FAILING,
                f"a record of {self.name} keeps raising where the program itself continues, so "
                f"such calls run eagerly: {failure.why}",
            )
            self.program.reports.emit()
        return result

    def _note_misspeculation(self, positions: Collection[SourcePosition], raised: str) -> None:
        """Split the program at these source positions from now on, unless ``fullgraph`` is set."""
        where = ", ".join("{0}:{2} in {1}".format(*position) for position in positions)
        because = f": the operator graph raised {raised}" if raised else ""
        _records_log.info("%s: a value was misspeculated at %s%s", self.name, where, because)
        with self.cache.lock:
            self.cache.hits -= 1
            if self.fullgraph:
                return
            self.program.misspeculations.update(positions)
        for other in {self, *list(self.program.dispatchers.values())}:
            other.discard_disproved_records()

    def may_speculate(self, position: SourcePosition) -> bool:
        """True if recordings may speculate on a value that decides control flow at a position."""
        misspeculations = self.program.misspeculations
        return (
            self.fast_paths.speculates
            and position not in misspeculations
            and len(misspeculations) <= config.misspeculation_limit
        )

    def discard_disproved_records(self) -> None:
        """Drop the records that speculate where values were misspeculated."""
        self.cache.discard(lambda record: not all(map(self.may_speculate, record.speculates)))

    # --- monitor runs ----------------------------------------------------------------------------

    def variation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variation:
        """The values that the monitor run of a call that missed must lift."""
        if len(self.records) >= self._limits.generalise_after:
            self.varying.learn(self.records, args, kwargs)
            self.cache.discard(self.varying.outdates)
        return self.varying.variation((*args, *kwargs.values()))

    def synthesise(
        self,
        rec: Recording,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        at_entry: Callable[[], Any],
    ) -> Record:
        """A record of a segment that began with these arguments and ends with ``result``.

        ``at_entry`` restores torch's global state at the segment's start.

        Raises:
            Split: no record can be made.
        """
        try:
            layout = self.target.layout if is_instance(self.target, Continuation) else None
            functions = None if layout is None else layout.function_positions
            compiler = GraphCompiler(self._compile_graph, make_interpreter, at_entry)
            with transient_graph_sources():
                return synthesise(rec, args, kwargs, result, compiler, functions)
        except (Split, FullGraphError, ArgumentError):
            raise
        except Exception as error:
            if is_interruption(error):
                raise
            _records_log.debug("synthesis failed", exc_info=error)
            detail = f"no record could be made: {in_words(error)}"
            raise Split(SplitReason.INTERNAL_ERROR, detail) from error

    def _compile_graph(self, graph: Any, inputs: Any) -> Any:
        return self._graph_backend.compile(graph, inputs, self.program)

    def add(self, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a record of a run on these arguments, unless too many records have the same
        objects."""
        similar = [r for r in self.records if r.bound == record.bound]
        if len(similar) >= self._limits.records:
            self._give_up(args, kwargs)
            return
        with self.cache.lock:
            self.varying.learn_from(record, similar)
            self.cache.insert(record)
        call_on_reset(reset_all)
        if _guards_log.isEnabledFor(logging.INFO):
            _guards_log.info(
                "%s:\n%s\n%s", self.name, "\n".join(record.guards), record.guard_source
            )
        _records_log.info("%s: new record, %d in all", self.name, len(self.records))
        _records_log.debug("%s", record.mock_source)

    def expose_autograd_graph(self) -> None:
        """Reproduce eager's autograd graph in earlier segments: this continuation inspects it."""
        if self.is_continuation and self.backend != "eager":
            self.program.expose_autograd_graph()

    def note_split(self, point: SplitPoint) -> None:
        """Note that the program splits at this point."""
        _splits_log.info("%s: %s: split at %s", self.name, point.reason.name, point)
        if point not in self.split_points:
            self.split_points.append(point)

    def note_unrecorded(self, point: SplitPoint, obstacle: str) -> None:
        """Note that the program splits at this point and the segment before it has no record."""
        self.note_split(point)
        if obstacle:
            _splits_log.info("%s: no segment ends there: %s", self.name, obstacle)
        self._obstacle = str(point)
        if self.eager.note_unrecorded(f"it splits at {point}"):
            self.program.reports.note_split(Kind.NATIVE, point)

    def note_escape(self) -> None:
        """Note that an exception has left the program: no record reproduces that."""
        self._obstacle = "it has raised an exception, which no record repeats"
        layout = self.target.layout if is_instance(self.target, Continuation) else None
        if layout is not None and (layout.raised or layout.handles_exception):
            if self.eager.note_unrecorded("its exceptions are not handled"):
                self.program.reports.note(Kind.NATIVE, self._obstacle, "handle it in the function")

    def note_native(self, reason: str) -> None:
        """Note that the whole program runs natively from now on."""
        _splits_log.info("%s: runs natively from now on: %s", self.name, reason)

    def skip_fast_path(self, obstacle: SpeculationRefused | BranchRefused, rec: Recording) -> None:
        """Skip the fast path that kept a program from being recorded."""
        self.fast_paths.skip(obstacle)
        if is_instance(obstacle, SpeculationRefused):
            *_, (filename, function, lineno, *_) = rec.lifted.speculated.values[0]
            self.note_split(SplitPoint(function, filename, lineno or 0, *obstacle.cause))

    # --- reports ---------------------------------------------------------------------------------

    def cache_info(self) -> CacheInfo:
        """Counters over the program and its continuations."""
        continuations = self.continuations()
        records = [r for d in (self, *continuations) for r in d.records]
        graphs = len({id(record.graph) for record in records if record.graph is not None})
        # A call whose later segment was monitored is a miss after all.
        monitored = min(self.hits, sum(d.cache.misses for d in continuations))
        native = min(self.hits - monitored, sum(d.cache.native for d in continuations))
        served = self.hits - monitored - native
        uncompiled = min(self.cache.uncompiled, served)
        return CacheInfo(
            hits=served - uncompiled,
            misses=self.cache.misses + monitored,
            records=len(records),
            graphs=graphs,
            native=self.cache.native + native,
            uncompiled=uncompiled,
        )

    def explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Dispatcher | None = None
    ) -> Explanation:
        """Run the program once and report its records: see :mod:`magpy_like.records.explain`."""
        return explain.explain(self, args, kwargs, known)


def _report_stance(reports: Reports) -> None:
    """Report the arguments of ``torch.compiler.set_stance`` that mean nothing here."""
    remedy = "it is for torch.compile alone"
    if forced_backend() is not None:
        reports.note(Kind.STANCE, "force_backend is ignored, as compile has the backend", remedy)
    if skips_guards():
        reports.note(Kind.STANCE, "skip_guard_eval_unsafe is ignored: guards are checked", remedy)
