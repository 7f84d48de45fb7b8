"""Interfaces that a monitor run uses: cutting its program at splits, and merging its branches."""

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

    def speculates(self, position: SourcePosition) -> bool:
        """True if tensors' values that decide control flow at ``position`` may be speculated on."""

    def after_split(self, run: MonitorRun, frame: types.FrameType) -> None:
        """Begin the next recording: the dynamic instruction has run natively."""

    def after_raise(self, run: MonitorRun, exception: BaseException) -> None:
        """Continue after a dynamic instruction that has raised; no handler has the exception
        yet."""

    def release(self) -> None:
        """Drop the program's objects: monitoring has ended."""

    def begins(self, function: Any) -> bool:
        """True if the program begins with this function; frames before it restore state."""

    def original_function(self, function: Any) -> Any:
        """The program's function whose continuation this is, or the function itself."""


class Branching(Protocol):
    """Merges data-dependent branches and loops into operators (see ``control_flow.branches``)."""

    def at_branch(self, context: Context, step: Step) -> None:
        """Merge the branches on a tensor's value, which the program is about to test.

        Raises:
            Split: no operator expresses the branch.
        """

    def at_flag_branch(self, context: Context, step: Step, flag: ShadowNode) -> None:
        """Merge the branches on a lifted flag, which the program is about to test.

        Raises:
            Split: no operator expresses both branches.
        """

    def at_join(self, context: Context, frame: types.FrameType | None) -> None:
        """Continue at the join point, which the program has reached unreported.

        Args:
            frame: The program's frame; None if an exception has prevented it from reaching the
                point.

        Raises:
            Split: the program's values differ from those of the isolated paths.
        """

    def at_loop(
        self,
        context: Context,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Callable[[int, list[torch.Tensor]], Any] | None,
    ) -> bool:
        """Try to make an operator of a loop over ``range(*bounds)`` that may be about to begin.

        Args:
            tensors: the tensors, or lists of the graph, over whose rows the loop iterates.
            element: the element that the iterator yields for an index and these rows; None for
                elements that a function computes from them.

        Returns:
            True if the loop is an operator now, or may become one later: at its second iteration,
            or in the polyfill of a function that consumes all elements.
        """

    def is_consumed_at_once(self, step: Step, functions: Collection[Any]) -> bool:
        """True if the result of the call at ``step`` is passed at once to one of these
        functions."""

    def at_comparison(self, context: Context, step: Step, compared: Callable[..., bool]) -> bool:
        """Try to make an operator of a counting loop, at a comparison with a lifted number.

        Returns:
            True if the comparison is the condition of a counting loop, which is an operator now.
        """

    def at_graph_condition(
        self,
        context: Context,
        step: Step,
        operation: Callable[..., bool],
        operands: tuple[Any, ...],
    ) -> bool:
        """Try to merge a branch in an isolated path on a predicate of its topmost operands, numbers
        that only the graph computes.

        Returns:
            True if the path branches on the result, and the branch is an operator now.

        Raises:
            Split: no operator expresses the branch.
        """

    def list_element(self, context: Context, graph_list: GraphList, index: Any) -> torch.Tensor:
        """A placeholder for an element of a list of the graph.

        Args:
            graph_list: the list.
            index: a plain index, or the node of one.

        Raises:
            Split: the elements differ in form.
        """

    def at_loop_head(self, context: Context, step: Step) -> None:
        """Try to make an operator of a loop at its head, after a first iteration that ran
        natively."""

    def abandon_loops(self, context: Context, frame: types.FrameType | None = None) -> None:
        """Drop pending loops, of one frame or all, that have not become operators."""

    def at_identity_test(self, context: Context, step: Step, depths: Sequence[int]) -> None:
        """Check a test of the identity of the operands at these depths.

        Raises:
            Split: the identity depends on a branch or a loop.
        """

    def has_substitutes(self) -> bool:
        """True if the program holds substitutes for some of its tensors."""

    def restore_originals(self, frame: types.FrameType | None, changed: Sequence[Any] = ()) -> None:
        """Replace all substitutes by the program's own tensors at the end of a recording.

        The callers of ``frame``, and native code, may still hold substitutes: call this again when
        each of them resumes.

        Args:
            frame: a frame before its next instruction.
            changed: the objects that the recording has changed.
        """

    def restore_locals(self, frame: types.FrameType) -> None:
        """Replace the substitutes in the local variables of a frame."""

    def release_restored(self) -> None:
        """Release the replaced substitutes: all frames have resumed."""

    def recorded_truth(self, step: Step) -> bool:
        """The truth value with which an isolated path continues at a branch that is an operator."""
