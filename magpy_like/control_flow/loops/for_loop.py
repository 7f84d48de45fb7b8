"""Loops over a ``range`` or the rows of tensors, as one operator of the graph: ``for_loop``.

Before such a loop, one iteration runs in isolation on fake tensors, for any index and any carried
values. If it changes nothing else, every iteration records the same graph, and the operator is
valid for every trip count. Then the program runs through its loop unreported, and its values after
the loop are the operator's results. Lists that nothing else refers to may change: their elements
are carried, and the elements that iterations append to a list are gathered; so is the list that a
comprehension builds on the operand stack. Any other loop is recorded iteration by iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import fx

from magpy_like.config import config
from magpy_like.control_flow.loops import carried_attributes
from magpy_like.control_flow.loops.for_loop_node import (
    add_for_loop,
    check_windows,
    require_two_iterations,
)
from magpy_like.control_flow.loops.iteration_check import check_iteration
from magpy_like.control_flow.loops.loop_description import IterationSpace, LoopHead
from magpy_like.control_flow.loops.loop_exits import LoopExits
from magpy_like.control_flow.loops.loop_iteration import Iteration
from magpy_like.control_flow.loops.loop_outputs import LoopOutputs
from magpy_like.control_flow.loops.loop_plan import LoopPlan, PlanGrew
from magpy_like.control_flow.loops.loop_tensor_writes import ExternalWrite
from magpy_like.control_flow.paths.shared_parts import OperatorTools
from magpy_like.monitor.context import Context
from magpy_like.split_points import LoopNotMergeable


class ForLoop:
    """A loop that the program is about to begin."""

    def __init__(
        self, tools: OperatorTools, context: Context, head: LoopHead, space: IterationSpace
    ) -> None:
        self.plan = LoopPlan(tools, context, head, space)
        self.exits: LoopExits | None = None
        """The exits of the recorded loop, if it has several."""
        self._iteration: Iteration | None = None
        self._nodes: Sequence[fx.Node] = ()
        self._body_results: Sequence[Any] = ()

    @property
    def until(self) -> int:
        """The offset at which the loop is over, or ``RETURN``."""
        return self.plan.offsets.exit if self.exits is None else self.exits.until

    def record(self) -> None:
        """Add the operator to the graph.

        Raises:
            Split: the iterations differ, or no operator expresses them.
        """
        for _ in range(config.max_isolated_iterations):
            try:
                return self._attempt()
            except PlanGrew:
                continue
            except ExternalWrite as refused:
                self.plan.write_in_place(refused)
            finally:
                self.plan.context.account()
        raise LoopNotMergeable("each attempt finds more loop-carried values")

    def _attempt(self) -> None:
        """Run one isolated iteration, and make it the body of the operator.

        Raises:
            Split: it cannot be the body.
            PlanGrew: another attempt may succeed.
        """
        plan = self.plan
        for leaf in plan.inputs:
            leaf.symbol = leaf.result = None
        iteration = self._iteration = Iteration(plan)
        try:
            iteration.begin()
            iteration.run()
            check_iteration(iteration)
            exits = iteration.exits
            if exits is not None and exits.exits:
                if plan.locations or plan.shared:
                    raise LoopNotMergeable("a loop with an early exit stores values in objects")
                require_two_iterations(plan)
                check_windows(iteration)
                self._nodes, self.exits = exits.add_operator(iteration), exits
                return
            self._nodes, self._body_results = add_for_loop(iteration)
            for location in plan.locations:
                carried_attributes.begin(plan.context.recording, location)
        finally:
            iteration.discard()

    def receive(self, frame: FrameType) -> None:
        """Publish the operator's results in ``frame``, which has reached the end of the loop.

        Raises:
            Split: the program's values differ from those of the isolated iteration.
        """
        assert self._iteration is not None
        if self.exits is not None:
            self.exits.receive(self._iteration, self._nodes, frame)
        else:
            LoopOutputs(self._iteration, self._nodes, self._body_results).receive(frame)
        self.plan.context.account()
