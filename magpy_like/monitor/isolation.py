"""Isolation: whether the program runs as usual, or a part of it without external effects."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.calls.checkpoint_runs import CheckpointRun
from magpy_like.monitor.instructions.rule_table import WHEN
from magpy_like.monitor.isolated_runs import BranchRun, IsolatedRun, isolated_filter
from magpy_like.native import Monitor

if TYPE_CHECKING:
    from magpy_like.monitor.calls.checkpoint_calls import CheckpointCall
    from magpy_like.monitor.context import Context


class Isolation:
    """The isolated run that is going on, if any."""

    def __init__(self, context: Context, monitor: Monitor, ordinary_filter: bytes) -> None:
        """``ordinary_filter`` selects the instructions reported outside isolated runs."""
        self._context, self._monitor = context, monitor
        self._ordinary_filter = ordinary_filter
        self.branch_run: BranchRun | None = None
        """The branch or loop body that runs in isolation."""
        self.is_skipping = False
        """Whether a branch run passes a nested branch whose operator is on the graph already."""

    def current(self) -> IsolatedRun | None:
        """The innermost part of the program that must have no external effects."""
        if self.branch_run is not None:
            return self.branch_run
        return self._context.recording.checkpointed

    def update_filter(self) -> None:
        """Have the native monitor report the instructions that have rules at present."""
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
        self, function: types.FunctionType, until: int, again: int, branch_run: BranchRun
    ) -> tuple[int, tuple[Any, ...], tuple[Any, ...]] | None:
        """Run a part of the program in isolation, up to offset ``until`` or ``again`` of its code.

        The recording keeps all that the part has recorded.

        Returns:
            The offset, the locals and the operands there; None if ``branch_run`` has refused.

        Raises:
            BaseException: the part of the program has raised it.
        """
        context, recording = self._context, self._context.recording
        running, suspension = recording.running, context.suspension
        before = self.branch_run, running.depth, suspension.depth, self.is_skipping
        frame = context.frame
        self.branch_run, self.is_skipping = branch_run, False
        recording.operators.is_isolated = True
        self.update_filter()
        try:
            return self._monitor.explore(function, until, again)
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
        """Report nothing until ``frame`` is at the offset ``until``; -1 for where it returns."""
        self.is_skipping = self.branch_run is not None
        self._monitor.skip(frame, until, self.is_skipping)
