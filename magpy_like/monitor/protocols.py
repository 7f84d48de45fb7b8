"""Interfaces of a monitor run: cutting its program at splits, and merging its branches."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from magpy_like.split_reasons import SplitCause

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step
    from magpy_like.monitor.run import MonitorRun
    from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
    from magpy_like.refgraph import ShadowNode
    from magpy_like.split_points import SourcePosition


class Cut(Protocol):
    """Cuts a program at a split, while its frames are active."""

    def at_split(
        self,
        run: MonitorRun,
        frame: types.FrameType,
        cause: SplitCause,
        handled: BaseException | None,
    ) -> bool:
        """Cut the program before a dynamic instruction.

        Returns:
            True if the program is monitored again after the instruction.
        """

    def speculates(self, place: SourcePosition) -> bool:
        """True if tensors' values that decide control flow at ``place`` may be speculated on."""

    def after_split(self, run: MonitorRun, frame: types.FrameType) -> None:
        """The dynamic instruction has run natively: begin the next recording."""

    def after_raise(self, run: MonitorRun, exception: BaseException) -> None:
        """The dynamic instruction has raised an exception, which no handler has received yet."""

    def release(self) -> None:
        """Drop the program's objects: monitoring has ended."""

    def begins(self, function: Any) -> bool:
        """True if the program begins with this function; frames before it restore state."""

    def original_function(self, function: Any) -> Any:
        """The program's function whose continuation this is, or the function itself."""


class Branching(Protocol):
    """Makes operators of data-dependent branches and loops (see ``control_flow.branches``)."""

    def at_branch(self, context: Context, step: Step) -> None:
        """The program is about to branch on a tensor's value.

        Raises:
            Split: no operator expresses the branch.
        """

    def at_flag_branch(self, context: Context, step: Step, flag: ShadowNode) -> None:
        """The program is about to branch on a lifted flag.

        Raises:
            Split: no operator expresses both branches.
        """

    def at_join(self, context: Context, frame: types.FrameType | None) -> None:
        """The program, unreported since the branch or loop, has come to the join point.

        Args:
            frame: None if an exception has kept the program from coming there.

        Raises:
            Split: the program's values are not as the isolated paths have left them.
        """

    def at_loop(
        self,
        context: Context,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Callable[[int, list[torch.Tensor]], Any] | None,
    ) -> bool:
        """The program may be about to begin a loop over ``range(*bounds)``.

        Args:
            tensors: the tensors, or lists of the graph, over whose rows the loop iterates.
            element: the element that the iterator yields for an index and these rows; None for
                elements that a function computes from them.

        Returns:
            True if the loop is an operator now, or may become one: from its second iteration on, or
            in the polyfill of a function that consumes all elements.
        """

    def is_consumed_at_once(self, step: Step, functions: Collection[Any]) -> bool:
        """True if the result of the call at ``step`` goes straight to one of these functions."""

    def at_comparison(self, context: Context, step: Step, compared: Callable[..., bool]) -> bool:
        """The program is about to compare numbers, one of them lifted.

        Returns:
            True if this is the condition of a loop that counts, and the loop is an operator now.
        """

    def at_graph_condition(
        self,
        context: Context,
        step: Step,
        operation: Callable[..., bool],
        operands: tuple[Any, ...],
    ) -> bool:
        """An isolated path is about to apply a predicate to its topmost operands, numbers that only
        the graph computes.

        Returns:
            True if the path branches on the result, and the branch is an operator now.

        Raises:
            Split: no operator expresses the branch.
        """

    def list_element(self, context: Context, given: GraphList, at: Any) -> torch.Tensor:
        """A placeholder for an element of a list of the graph.

        Args:
            at: the index, a plain one or a node.

        Raises:
            Split: the elements are not alike.
        """

    def at_loop_head(self, context: Context, step: Step) -> None:
        """The program is at the head of a loop. After a first iteration that ran natively, the
        others may become an operator."""

    def abandon_loops(self, context: Context, frame: types.FrameType | None = None) -> None:
        """Give up loops, of one frame or all, that have not become operators."""

    def at_identity_test(self, context: Context, step: Step, depths: Sequence[int]) -> None:
        """The program is about to test the identity of the operands at these depths.

        Raises:
            Split: the identity depends on a branch or a loop.
        """

    def has_substitutes(self) -> bool:
        """True if the program holds substitutes for some of its tensors."""

    def restore_originals(self, frame: types.FrameType | None, changed: Sequence[Any] = ()) -> None:
        """A recording ends: replace all substitutes by the program's own tensors.

        The callers of ``frame``, and native code, may still hold substitutes: call this once more
        when each of them goes on.

        Args:
            frame: a frame before its next instruction.
            changed: the objects that the recording has changed.
        """

    def restore_locals(self, frame: types.FrameType) -> None:
        """Replace the substitutes in the local variables of a frame."""

    def release_restored(self) -> None:
        """All frames have gone on: release the replaced substitutes."""

    def recorded_truth(self, step: Step) -> bool:
        """The truth with which an isolated path goes on at a branch that is an operator."""
