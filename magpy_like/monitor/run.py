"""The monitor run: the program runs natively, once, under the monitor (MagPy, section 3).

The native monitor reports frames, instructions and their results to `event_handlers`, which call
the rule of each (see `instructions.rule_table`). A rule that raises `Split` ends the recording, or
the segment (see `split_handling`).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from magpy_like.active_run import active
from magpy_like.logs import topic
from magpy_like.monitor import instruction_events
from magpy_like.monitor.calls.warning_and_log_calls import innermost_program_frame
from magpy_like.monitor.context import Context
from magpy_like.monitor.entering_frames import Entering
from magpy_like.monitor.event_handlers import EventHandlers
from magpy_like.monitor.frame_observers import unmark
from magpy_like.monitor.instructions.rule_table import WHEN, load_rules
from magpy_like.monitor.operator_graph.graph_nodes import nowhere
from magpy_like.monitor.program_arguments import ProgramArguments
from magpy_like.monitor.protocols import Branching, Cut
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region_entry import traceable_entry
from magpy_like.monitor.restoration import Restoration
from magpy_like.monitor.source_lines import SourceLines
from magpy_like.monitor.split_handling import SplitHandler
from magpy_like.monitor.symbolic.variation import NOTHING_VARIES, Variation
from magpy_like.native import (
    OWN_FOLDER,
    Monitor,
    dispatch_counter,
    start_counting,
    stop_counting,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import callable_name
from magpy_like.split_points import SourcePosition, source_position
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_patches import (
    Compiling,
)

log = topic("monitor")


class MonitorRun:
    """One native run of ``target(*args, **kwargs)`` under the monitor."""

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        varying: Variation = NOTHING_VARIES,
        cut: Cut | None = None,
        branching: Branching | None = None,
        reports_compiling: bool = True,
    ) -> None:
        """
        Args:
            target: The compiled function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            varying: The numbers and sizes to lift.
            cut: Begins a new record at a split; None if the first split ends the recording.
            branching: Merges branches and loops into operators; None if they split the program.
            reports_compiling: The answer of ``torch.compiler.is_compiling()``.
        """
        self.compiling = Compiling(reports_compiling)
        self.branching = branching
        self.name = callable_name(target)
        self.cut = cut
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.refused_checkpoint: SplitCause | None = None
        """The reason why a checkpointed function was not followed; the next run does not try."""
        self.splits = SplitHandler(self)
        events, reported = EventHandlers(self), load_rules().filter
        self.monitor = Monitor(
            on_frame=events.on_frame,
            on_instruction=events.on_instruction,
            on_result=events.on_result,
            on_exception=events.on_exception,
            on_return=events.on_return,
            on_unreported_operators=events.on_unreported_operators,
            on_join=events.on_join,
            on_interruption=events.on_interruption,
            on_observed_class=events.on_observed_class,
            filter=reported,
        )
        arguments = ProgramArguments(traceable_entry(target), args, kwargs)
        self.context = Context(self.monitor, arguments, branching, reported)
        self._source_lines = SourceLines(self.context)
        self._begin(varying)
        if varying.numbers:
            arguments.vary(self.context)
        self.restoration = Restoration(
            self.monitor,
            branching,
            self.context.originals,
            id(innermost_program_frame(sys._getframe())),
        )

    def _begin(self, varying: Variation) -> None:
        """Begin a recording."""
        context = self.context
        recording = Recording(varying, context.originals, self._speculation_position)
        context.record_into(recording, varying)
        recording.operators.nodes.graph.locate = self._source_lines
        if varying.dims is not None:
            recording.sizes.begin_twin(varying.dims, varying.strides, context.account, self._locate)
        self.entering = Entering(self.cut)

    def run(self) -> Any:
        """Run the program; return its result or raise its exception."""
        self.handled_outside = self.context.recording.state.handled_outside = sys.exception()
        if obstacle := instruction_events.enable():
            raise RuntimeError(obstacle)
        arguments = self.context.arguments
        with self.compiling:
            try:
                # Tracebacks hold this frame: no local of it must hold the arguments.
                return self.monitor.run(
                    active,
                    self,
                    self.context.suspension,
                    dispatch_counter(),
                    start_counting,
                    stop_counting,
                    (OWN_FOLDER, arguments.target, arguments.args, arguments.kwargs),
                )
            finally:
                log.info("%s: %d instructions, %d of interest", self.name, *self.monitor.counts())
                self._close()

    def _speculation_position(self) -> SourcePosition | None:
        if self.cut is None or self.context.frame is None:
            return None
        position = source_position(self.context.frame)
        return position if self.cut.speculates(position) else None

    def _locate(self) -> str:
        frame = self.context.frame
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def restore_containers(self) -> None:
        """Restore the original numbers in external containers that the program has not changed."""

        def is_changed(container: Any) -> bool:
            node = self.context.recording.variables.node(container)
            return node is not None and node.changed

        self.context.originals.restore_containers(is_changed)

    def _close(self) -> None:
        """Drop the program's objects, and break the cycle of the monitor and its callbacks."""
        self.restore_containers()
        self.entering.release()
        self.cut = self.branching = None
        if self.context.recording.sizes.twin is not None:
            self.context.recording.sizes.twin.account = _nobody_listens
            self.context.recording.sizes.twin.locate = _in_the_backend
        self.handled_outside = None
        self.context.recording.operators.nodes.graph.locate = nowhere
        self.context.close()
        del self.monitor, self.restoration, self.entering, self.splits

    def end(self, frame: types.FrameType | None = None) -> None:
        """End monitoring; the program continues natively.

        Args:
            frame: A frame that is about to execute an instruction. Its callers stay monitored
                while they may hold substitute tensors.
        """
        changed = self.context.recording.changed_objects()
        self.restoration.restore_tensors(frame, changed)
        self.restoration.restore_numbers(frame, changed)
        self.restoration.end(frame, bytes([WHEN["always"]]) * 256)
        if not self.context.compiling_read_by_user:
            self.compiling.leave()  # optimizers run as in eager mode
        split = self.context.recording.split
        self.context.release()  # the program's objects must not outlive its own references
        self.context.recording.split = split
        self.entering.release()
        if not self.restoration.over:
            unmark(sys._getframe() if frame is None else frame, self.context.root_frame)
        self.context.frame = self.context.root_frame = None
        self.context.arguments.take(())
        if self.cut is not None:
            self.cut.release()

    def restore_result(self, result: Any, changed: Sequence[Any]) -> Any:
        """The program's result with the original objects of lifted numbers, once all records are
        synthesised. They are restored in the objects it has ``changed``, and in all others."""
        self.context.release()
        return self.context.originals.restore_originals(result, changed)

    def release_segment(self) -> None:
        """Drop the program's objects that the next segment does not need."""
        self.context.recording.keep_results()
        self.entering.release()
        self.context.arguments.release()

    def end_recording(self, reason: SplitReason, detail: str) -> None:
        """End the recording at the caller's frame, for a reason that no event reports."""
        self.splits.split(sys._getframe(1), SplitCause(reason, detail))

    def begin_segment(
        self,
        values: tuple[Any, ...],
        functions: Sequence[Any],
        varying: Variation,
    ) -> None:
        """Begin another recording after a split.

        Args:
            values: The values in the active frames, as the arguments of the continuation. A lifted
                number is a distinct object already.
            functions: The functions of the active frames.
            varying: The numbers and sizes to lift.
        """
        self._begin(varying)
        self.context.recording.state.handled_outside = self.handled_outside
        self.context.arguments.take(values)
        self.monitor.set_root(None)
        self.context.arguments.read_all(self.context)
        for function in functions:
            if is_instance(function, types.FunctionType):
                self.entering.enter_function(self.context.recording, function)
        self.context.account()


def _nobody_listens() -> None:
    """Replaces ``SymbolicTwin.account`` after the run."""


def _in_the_backend() -> str:
    return "the backend"
