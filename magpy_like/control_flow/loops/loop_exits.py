"""Exits of a loop: ``break`` and ``return`` on a tensor's value.

An isolated iteration reaches a branch with one path that leads back to the loop's head and one that
does not. The exiting path, up to the join point of all exits, becomes a graph of its own, which the
operator runs when it leaves the loop there; so does the path after the last iteration. The isolated
iteration continues. In the iteration that leaves, the results of all operators after such a branch
are unused, so these operators must not write to tensors created before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.bytecode.post_dominators import can_reach, join_point
from magpy_like.control_flow.loops.exit_join_values import find_outputs
from magpy_like.control_flow.loops.for_loop_with_exits_node import add_loop_with_exits
from magpy_like.control_flow.loops.loop_outputs import add_gathered
from magpy_like.control_flow.paths.body_nodes import nodes_after
from magpy_like.control_flow.paths.frame_locations import OperatorOutput
from magpy_like.control_flow.paths.path_ends import PathEnd, begin_branch
from magpy_like.graph_operators.control_operators import may_write
from magpy_like.monitor.symbolic.expressions import GraphNumber
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.native import frame_locals
from magpy_like.split_points import LoopNotMergeable
from magpy_like.splitting.frame_state import FrameState

if TYPE_CHECKING:
    from magpy_like.control_flow.loops.loop_iteration import Iteration


@dataclass
class Exit:
    """One exit of a loop."""

    end: PathEnd
    """The state in which this exit reaches the join point."""
    appended: tuple[int, ...]
    """Number of elements that the iteration has appended to each list before the exit."""
    truth: bool | None = None
    """The value of ``test`` that leaves the loop; None for the exit after the last iteration."""
    test: fx.Node | None = None
    results: list[Any] = field(default_factory=list)
    """The nodes of the operator's outputs in the exit's graph."""
    operands: list[fx.Node] = field(default_factory=list)
    """The nodes of the iteration that the exit's graph uses."""


@dataclass
class LoopExits:
    """The exits of a loop: ``head`` is the state at its head, ``until`` the join point of all."""

    head: FrameState
    until: int
    lists: Sequence[list[Any]]
    """The lists that the iteration has received and may append to."""
    exits: list[Exit] = field(default_factory=list)
    original: Callable[[Any], Any] = field(default=lambda value: value)
    """Maps the iteration's values to the program's."""
    gradients: bool = field(default_factory=torch.is_grad_enabled)
    """Whether gradients are enabled where iterations begin."""
    _last: fx.Node | None = None
    """The last node before the first branch that leaves."""

    def __post_init__(self) -> None:
        self._lengths = [len(value) for value in self.lists]
        self.outputs: list[OperatorOutput] = []
        self.element_twins: list[torch.Tensor | None] = []
        """The symbolic twins of the elements that an iteration appends to all lists."""
        self.have_ends: list[bool] = []
        """For each list, whether it has an element for every trip count."""

    def exit_truth(self, state: FrameState) -> bool | None:
        """The value of the tested operand that leaves the loop; None if neither path of the branch
        does.

        Args:
            state: the frame at a conditional jump.

        Raises:
            Split: one path of the branch may, but need not, leave the loop.
        """
        if state.code is not self.head.code:
            return None
        stays = [self._stays(begin_branch(state, truth).offset) for truth in (False, True)]
        if stays[False] is not stays[True]:
            return not stays[True]
        meet = join_point(state.code, state.instruction.offset)
        if stays[True] and (meet is None or not self._stays(meet)):
            raise LoopNotMergeable("a nested branch may leave the loop")
        return None

    def _stays(self, offset: int) -> bool:
        """True if a path leads from ``offset`` to the next iteration."""
        return can_reach(self.head.code, offset, self.head.offset, self.until)

    def appended(self) -> tuple[int, ...]:
        """Numbers of elements that the running iteration has appended to the lists."""
        return tuple(
            len(value) - begin for value, begin in zip(self.lists, self._lengths, strict=True)
        )

    def note(self, truth: bool, test: fx.Node, last: fx.Node | None, end: PathEnd) -> None:
        """Add the exit of a branch on ``test``.

        Args:
            truth: the value of ``test`` that leaves the loop.
            last: the last node before the branch.
            end: the end of the exiting path.
        """
        if not self.exits:
            self._last = last
        self.exits.append(Exit(end, self.appended(), truth, test))

    # --- the operator ----------------------------------------------------------------------------

    def add_operator(self, iteration: Iteration) -> list[fx.Node]:
        """Add the operator to the graph; its body is an iteration that does not leave the loop.

        Returns:
            The nodes of its results: one for each of ``outputs``, then the lengths of the lists,
            then the lists.

        Raises:
            Split: no operator expresses the differences of the exits, or the iteration has an
                effect after an exiting branch.
        """
        plan, end = iteration.plan, iteration.end
        rec = plan.context.recording
        if plan.written:
            raise LoopNotMergeable("iterations write to a tensor, and the loop has an early exit")
        if plan.requires_grad_differs():
            raise LoopNotMergeable(
                "the first iteration of a loop with an early exit differs in gradients"
            )
        if any(map(may_write, set(nodes_after(rec, self._last)) & {*end.nodes})):
            raise LoopNotMergeable("an iteration changes a tensor after an early exit")
        self._explore_last(iteration)
        inner = {node for exit in self.exits for node in exit.end.nodes}
        body = [node for node in end.nodes if node not in inner]
        tail = self.exits[-1].end
        # The nodes of the last exit are erased with the iteration's.
        end.nodes += [node for node in tail.nodes if node not in end.nodes]
        for carried_list, appended in zip(iteration.growing.values(), self.appended(), strict=True):
            iteration.check_look_ups(carried_list, appended)
            unexpected = carried_list.elements_read > carried_list.carried
            if appended and (unexpected or carried_list.assumed_constant_length):
                raise LoopNotMergeable(
                    "the code after the loop reads a list that the loop appends to"
                )
        self.outputs = find_outputs(self, iteration)
        return add_loop_with_exits(self, iteration, body)

    def _explore_last(self, iteration: Iteration) -> None:
        """Add the exit after the last iteration."""
        plan, end = iteration.plan, iteration.end
        stack = end.stack[: -plan.offsets.operands]
        left = replace(self.head, offset=plan.offsets.exit, locals=end.locals, stack=stack)
        tail = plan.tools.paths.explore(plan.context, left, self.until)
        self.exits.append(Exit(tail, self.appended()))

    # --- results ---------------------------------------------------------------------------------

    def receive(self, iteration: Iteration, nodes: Sequence[fx.Node], frame: FrameType) -> None:
        """Publish the operator's results in ``frame``, which has reached the join point.

        Raises:
            Split: the program's values differ from those of the isolated paths.
        """
        tools, context, count = iteration.plan.tools, iteration.plan.context, len(self.outputs)
        tools.results.publish(context, frame, list(zip(self.outputs, nodes[:count], strict=True)))
        slots, first = frame_locals(frame), 0
        lengths = nodes[count : count + len(iteration.lists)]
        gathered = nodes[count + len(iteration.lists) :]
        for appended_list, length, node, is_never_empty in zip(
            iteration.lists, lengths, gathered, self.have_ends, strict=True
        ):
            value = slots[appended_list.slot]
            if type(value) is not list:
                raise LoopNotMergeable("a list that a loop appends to has been replaced")
            number = context.lift(len(value), GraphNumber(length))

            def specialize_length(number: int = number) -> None:
                context.lifted.specialize((number,))

            is_uniform = len(appended_list.appended) == 1 and not appended_list.initial
            twin = self.element_twins[first] if is_uniform else None
            first += len(appended_list.appended)
            graph_list = GraphList(
                value, node, number, twin, specialize_length, has_data_dependent_length=True
            )
            graph_list.substitute, graph_list.is_never_empty = (
                tools.substitutes.make,
                is_never_empty,
            )
            add_gathered(context.recording, graph_list, appended_list)
