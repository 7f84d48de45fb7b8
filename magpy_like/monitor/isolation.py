"""Isolation: the part of the program that runs without external effects, if any."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.calls.checkpoints.checkpoint_runs import CheckpointRun
from magpy_like.monitor.instructions.rule_table import WHEN
from magpy_like.monitor.isolated_runs import BranchRun, IsolatedRun, isolated_filter
from magpy_like.native import Monitor

if TYPE_CHECKING:
    from magpy_like.monitor.calls.checkpoints.checkpoint_calls import CheckpointCall
    from magpy_like.monitor.context import Context


class Isolation:
    """The present isolated run of a monitor run, if any."""

    def __init__(self, context: Context, monitor: Monitor, ordinary_filter: bytes) -> None:
        """``ordinary_filter`` selects the instructions reported outside isolated runs."""
        self._context, self._monitor = context, monitor
        self._ordinary_filter = ordinary_filter
        self.branch_run: BranchRun | None = None
        """The branch or loop body that runs in isolation."""
        self.is_skipping = False
        """Whether a branch run passes a nested branch that is already an operator."""

    def current(self) -> IsolatedRun | None:
        """The innermost part of the program that must have no external effects."""
        if self.branch_run is not None:
            return self.branch_run
        return self._context.recording.checkpointed

    def update_filter(self) -> None:
        """Set the native monitor's filter to the instructions that have rules at present."""
        reported = self._ordinary_filter
        if self.current() is not None:
            reported = isolated_filter(reported, WHEN)
        self._monitor.set_filter(reported)

    def enter_checkpoint(self, call: CheckpointCall) -> None:
        """Begin a function under a checkpoint."""
        recording = self._context.recording
        recording.checkpointed = CheckpointRun(call, recording)
        self.update_filter()

    def explore(
        self, function: types.FunctionType, until: int, head: int, branch_run: BranchRun
    ) -> tuple[int, tuple[Any, ...], tuple[Any, ...]] | None:
        """Run a part of the program in isolation, up to offset ``until`` or the loop's ``head``.

        The nodes and facts of the part stay in the recording.

        Returns:
            The offset reached, the locals and the operand stack; None if ``branch_run`` was
            refused.

        Raises:
            BaseException: the exception that the part of the program raises.
        """
        context, recording = self._context, self._context.recording
        running, suspension = recording.running, context.suspension
        before = self.branch_run, running.depth, suspension.depth, self.is_skipping
        frame = context.frame
        self.branch_run, self.is_skipping = branch_run, False
        recording.operators.is_isolated = True
        self.update_filter()
        try:
            return self._monitor.explore(function, until, head)
        finally:
            self.branch_run, running.depth, suspension.depth, self.is_skipping = before
            context.frame = frame
            if self.branch_run is None:
                self.update_filter()
                recording.operators.is_isolated = False

    def abandon(self) -> None:
        """Unwind the branch run."""
        self._monitor.abandon()

    def skip(self, frame: types.FrameType, until: int) -> None:
        """Report nothing until ``frame`` reaches the offset ``until``; -1 denotes its return."""
        self.is_skipping = self.branch_run is not None
        self._monitor.skip(frame, until, self.is_skipping)
