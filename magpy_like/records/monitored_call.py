"""A call that misses: one native run under the monitor, and a record of each segment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magpy_like.control_flow.branches import Branches
from magpy_like.errors import FullGraphError
from magpy_like.interruption import is_interruption
from magpy_like.monitor.frame_observers import OBSERVES_ITSELF
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.torch_state.cached_casts import USES_OLD_CAST
from magpy_like.native import call_as_caller
from magpy_like.records.reports import Kind, Location, code_of
from magpy_like.records.segments import SegmentCut
from magpy_like.split_points import BranchRefused, SpeculationRefused, Split, SplitPoint

if TYPE_CHECKING:
    from magpy_like.records.dispatcher import Dispatcher


class MonitoredCall:
    """One call of a dispatcher's target under the monitor."""

    def __init__(
        self, dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._dispatcher, self._args, self._kwargs = dispatcher, args, kwargs
        self._cut = cut = SegmentCut(dispatcher, args, kwargs)
        self._branches = Branches(lambda: cut.segment.dispatcher.fast_paths.merges_branches)
        variation = dispatcher.variation(args, kwargs)
        reports_compiling = dispatcher.program.reports_compiling
        self._run = MonitorRun(
            dispatcher.target,
            args,
            dict(kwargs),
            variation,
            cut,
            self._branches,
            reports_compiling,
        )

    def run(self) -> Any:
        """The program's result, or the exception that it raises.

        Raises:
            FullGraphError: the program splits, and must not.
            DynamicDimensionError: a dimension marked as dynamic is specialized.
        """
        run, cut, program = self._run, self._cut, self._dispatcher.program
        try:
            result = run.run()
        except Exception as error:
            cut.segment.dispatcher.note_escape()
            # The program may raise only because `is_compiling` returned True, which it does not
            # in a native run.
            may_repeat = run.context.compiling_read and not is_interruption(error)
            if not (may_repeat and cut.segment.roll_back(run.context.recording)):
                program.reports_compiling &= not run.context.compiling_read
                self._restore_changed()
                raise
        except BaseException:
            cut.segment.dispatcher.note_escape()
            self._restore_changed()
            raise
        else:
            return self._finish(result)
        self._branches.restore_result(None)
        run.context.release()
        cut.release()
        result = call_as_caller(self._dispatcher.target, self._args, self._kwargs)
        program.reports_compiling = False
        return result

    def _restore_changed(self) -> None:
        """Restore the program's own numbers and tensors in the objects that it has changed."""
        changed = self._run.context.recording.changed_objects()
        self._run.restore_result(None, changed)
        self._branches.restore_result(None, changed)

    def _finish(self, result: Any) -> Any:
        """Record the last segment, and restore the program's own objects in the result."""
        dispatcher, run, cut = self._dispatcher, self._run, self._cut
        self._report_torch_compile()
        changed = run.context.recording.changed_objects()
        if cut.awaits_instruction:
            dispatcher.program.run_natively(OBSERVES_ITSELF)
        if run.context.casts.uses_old_one:
            self._refuse_old_casts()
        else:
            self._record_last_segment(result)
        result = run.restore_result(result, changed)
        cut.release()
        if dispatcher.fullgraph and dispatcher.split_points:
            point = dispatcher.split_points[-1]
            raise FullGraphError(point.function, point.filename, point.lineno, point.cause)
        return self._branches.restore_result(result, changed)

    def _refuse_old_casts(self) -> None:
        """Run the program natively from now on: its earlier segments must keep casts, too."""
        dispatcher, code = self._dispatcher, code_of(self._dispatcher.target)
        dispatcher.note_split(SplitPoint.of(dispatcher.name, code, USES_OLD_CAST))
        dispatcher.program.run_natively(str(USES_OLD_CAST))

    def _report_torch_compile(self) -> None:
        """Report that torch.compile has compiled a callee."""
        if (found := self._run.context.compiled_by_torch) is not None:
            name, position = found
            self._dispatcher.program.reports.note(
                Kind.TORCH_COMPILE,
                f"it calls {name}, which torch.compile has compiled, as a part of its own record",
                "compile only one of them",
                Location(*position),
            )

    def _record_last_segment(self, result: Any) -> None:
        run, cut, segment = self._run, self._cut, self._cut.segment
        last = segment.dispatcher
        if run.refused_checkpoint is not None:
            last.fast_paths.disproved.append(str(run.refused_checkpoint))
        elif run.context.recording.split is not None:
            cut.note_unrecorded(run.context.recording.split, "")
        elif not segment.recorded:
            try:
                record = segment.record(run.context.recording, result)
                last.add(record, segment.args, segment.kwargs)
                self._dispatcher.varying.check_marks(record)
            except (SpeculationRefused, BranchRefused) as obstacle:
                last.skip_fast_path(obstacle, run.context.recording)
            except Split as split:
                code = code_of(self._dispatcher.target)
                point = SplitPoint.of(self._dispatcher.name, code, split.cause)
                cut.note_unrecorded(point, "")
