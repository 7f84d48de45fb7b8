"""What a monitor run asks of those who cut its program and make operators of its branches."""

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
    from magpy_like.monitor.symbolic.gathered_lists import GraphList
    from magpy_like.refgraph import ShadowNode
    from magpy_like.split_points import SourcePosition


class Cut(Protocol):
    """What cuts a program at a split, while all its frames are open."""

    def at_split(
        self,
        run: MonitorRun,
        frame: types.FrameType,
        cause: SplitCause,
        handled: BaseException | None,
    ) -> bool:
        """The program stands before a dynamic instruction: is it to be watched beyond that?"""

    def speculates(self, place: SourcePosition) -> bool:
        """Whether values of tensors that steer the program there may be speculated on."""

    def after_split(self, run: MonitorRun, frame: types.FrameType) -> None:
        """The instruction has run natively, and the program stands behind it."""

    def after_raise(self, run: MonitorRun, exception: BaseException) -> None:
        """The instruction has raised an exception, which no handler has seen yet."""

    def release(self) -> None:
        """The program is watched no more: hold nothing of it."""

    def begins(self, function: Any) -> bool:
        """Whether the program begins with this function; before that, its state is restored."""

    def original_function(self, function: Any) -> Any:
        """The program's function that a frame's function runs the rest of, or the function."""


class Branching(Protocol):
    """What makes operators of branches on tensors."""

    def at_branch(self, context: Context, step: Step) -> None:
        """The program is about to jump, or not, on a tensor's value.

        Raises:
            Split: the branch cannot be part of a record.
        """

    def at_flag_branch(self, context: Context, step: Step, flag: ShadowNode) -> None:
        """The program is about to jump, or not, on a bool that varies between calls.

        Raises:
            Split: both ways cannot be part of one record.
        """

    def at_join(self, context: Context, frame: types.FrameType | None) -> None:
        """The program, of which nothing was announced since the branch, is where its sides meet.

        ``frame`` is None when it has not come there.

        Raises:
            Split: it is not as the sides have recorded.
        """

    def at_loop(
        self,
        context: Context,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Callable[[int, list[torch.Tensor]], Any] | None,
    ) -> bool:
        """The program may be about to begin a loop over ``range(*bounds)``, which takes
        ``element(index, rows)`` of its iterator, the rows being those of ``tensors``, or what a
        function makes of these; whether it does, and is an operator now, or may be one from its
        second round on, or from when all elements are taken at once."""

    def is_consumed_at_once(self, step: Step, functions: Collection[Any]) -> bool:
        """Whether what a call is about to make goes to one of these functions at once."""

    def at_comparison(self, context: Context, step: Step, compared: Callable[..., bool]) -> bool:
        """The program is about to compare numbers of which one varies, maybe to go on with a loop
        that counts; whether it is, and that is an operator now."""

    def at_graph_condition(
        self,
        context: Context,
        step: Step,
        operation: Callable[..., bool],
        operands: tuple[Any, ...],
    ) -> bool:
        """Beside the program, ``operation`` is about to ask something of numbers of the graph,
        which are the topmost operands; whether the program branches on that, and the branch is an
        operator now.

        Raises:
            Split: no operator does.
        """

    def list_element(self, context: Context, given: GraphList, at: Any) -> torch.Tensor:
        """What stands for the element of a list of the graph at an index: a plain one, or a node.

        Raises:
            Split: the elements are not alike.
        """

    def at_loop_head(self, context: Context, step: Step) -> None:
        """The program is at the head of a loop, maybe for the second time: if the first round has
        kept it from being an operator, the others may be one."""

    def abandon_loops(self, context: Context, frame: types.FrameType | None = None) -> None:
        """The loops of a frame, or all, end here, and have not become operators."""

    def at_identity_test(self, context: Context, step: Step, depths: Sequence[int]) -> None:
        """The program is about to ask which objects the operands at these depths are.

        Raises:
            Split: a branch decides that.
        """

    def has_substitutes(self) -> bool:
        """Whether the program has tensors that are not its own."""

    def restore_originals(self, frame: types.FrameType | None, changed: Sequence[Any] = ()) -> None:
        """A recording ends, which has ``changed`` these objects: the program is to have its own
        tensors there, and elsewhere, also ``frame``, which stands before an instruction. Frames
        that have called it, and native code, may still have others: this is done once more when
        each of them goes on."""

    def restore_locals(self, frame: types.FrameType) -> None:
        """The local variables of a frame are to be the program's own tensors, too."""

    def release_restored(self) -> None:
        """All frames have gone on."""

    def recorded_truth(self, step: Step) -> bool:
        """Which way a side goes whose record is made already."""
