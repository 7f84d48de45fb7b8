"""Splits of a monitor run: the recording ends, or the program is cut into segments."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from magpy_like.interruption import is_interruption
from magpy_like.logs import topic
from magpy_like.monitor.calls.operator_closures import refuse
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import EffectInsideOperator, Split, SplitPoint
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_interop.error_texts import in_words

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.run import MonitorRun

log = topic("monitor")


class SplitHandler:
    """Ends recordings of one run at splits, or cuts the program there (see ``protocols.Cut``)."""

    def __init__(self, run: MonitorRun) -> None:
        self._run = run

    def split(
        self, frame: types.FrameType, cause: SplitCause, before_instruction: bool = False
    ) -> None:
        """End the recording; the program continues natively.

        Args:
            frame: The innermost frame.
            cause: The cause of the split.
            before_instruction: True if the frame is about to execute an instruction.
        """
        run = self._run
        if run.context.isolation.branch_run is not None:
            run.context.isolation.branch_run.refuse(cause)
            return
        if run.context.recording.checkpointed is not None:
            run.context.recording.checkpointed.refuse()
            run.refused_checkpoint = cause
        if not before_instruction and run.branching is not None:
            run.branching.restore_locals(frame)
        run.end(frame if before_instruction else None)
        if run.context.recording.split is None:
            run.context.recording.split = SplitPoint.at(frame, cause)

    def fail(
        self, frame: types.FrameType, error: BaseException, before_instruction: bool = False
    ) -> None:
        """Handle an exception of a callback: an error ends the recording.

        Raises:
            BaseException: the exception itself, if it is an interruption.
        """
        if is_interruption(error):
            raise error
        rec = self._run.context.recording
        if is_instance(error, Split):
            # Fewer effects are allowed in a branch: it is refused, not the operator's functions.
            if rec.running.depth and self._run.context.isolation.branch_run is None:
                if not is_instance(error, EffectInsideOperator):
                    rec.running.keep_as_is(f"{frame.f_code.co_qualname} {error}")
                    return
                refuse(rec)
            self.split(frame, error.cause, before_instruction)
        else:
            log.debug("the monitor failed", exc_info=error)
            detail = f"the monitor could not follow: {in_words(error)}"
            self.split(frame, SplitCause(SplitReason.INTERNAL_ERROR, detail), before_instruction)

    def cut_at(self, frame: types.FrameType, split: Split, handled: BaseException | None) -> bool:
        """Cut the program before the instruction that ``frame`` is about to execute.

        Returns:
            True if the instruction runs natively and another recording begins after it.
        """
        run, rec = self._run, self._run.context.recording
        if (
            run.cut is None
            or run.context.isolation.branch_run is not None
            or rec.running.depth
            or run.context.suspension.depth
            or rec.split
            or rec.checkpointed is not None
        ):
            return False
        if run.branching is not None:
            run.branching.abandon_loops(run.context)
        run.context.flags.specialize_all()
        run.restore_containers()
        run.compiling.leave()  # backends and dynamic instructions do not belong to the region
        changed = rec.changed_objects()
        if run.cut.at_split(run, frame, split.cause, handled):
            run.restoration.restore_tensors(frame, changed)
            run.restoration.restore_reached_numbers(frame, changed)
            # Pending results in outer frames belong to the earlier recording.
            run.monitor.drop_pending()
            run.context.suspension.enter()
            return True
        run.compiling.enter()
        return False


def finish_dynamic(_: Context, payload: tuple[MonitorRun, types.FrameType], result: Any) -> None:
    """Continue after a dynamic instruction that has run natively."""
    run, frame = payload
    run.context.suspension.leave()
    run.compiling.enter()
    assert run.cut is not None
    run.cut.after_split(run, frame)


def finish_raising_dynamic(
    run: MonitorRun,
    frame: types.FrameType,
    exception: BaseException,
    traceback: types.TracebackType | None,
) -> None:
    """Continue after a dynamic instruction that has raised an exception."""
    run.context.suspension.leave()
    run.compiling.enter()
    assert run.cut is not None
    run.cut.after_raise(run, exception)
    if traceback is not None and traceback.tb_frame is frame:
        traceback = traceback.tb_next  # the continuation adds the frame
    run.context.recording.reads.note_raised(exception, traceback)
