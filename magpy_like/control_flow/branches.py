"""Branches on a tensor's value, as one operator of the graph: ``cond`` (MagPy, section 6.2.2).

Before the program jumps, both branches run in isolation on fake tensors, from the jump to its
join point, and their nodes become the operator's two graphs. Then the program itself continues to
the join point unreported, and its tensors there are the operator's results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import fx

from magpy_like.bytecode.instruction_stream import instructions
from magpy_like.bytecode.post_dominators import RETURN, can_reach
from magpy_like.bytecode.tested_jumps import CONDITIONAL_JUMPS, tested_jump
from magpy_like.control_flow.branch_outcomes import Outcomes, number_chosen_by
from magpy_like.control_flow.loops.generator_consumers import is_consumed_at_once
from magpy_like.control_flow.loops.loop_heads import LoopHeads
from magpy_like.control_flow.loops.while_loop import find_loop
from magpy_like.control_flow.paths.body_nodes import erase, last_node
from magpy_like.control_flow.paths.captured_frames import capture_state, check_resumable, shift_of
from magpy_like.control_flow.paths.frame_locations import OperatorOutput
from magpy_like.control_flow.paths.isolated_paths import PathOptions
from magpy_like.control_flow.paths.operator_results import Result
from magpy_like.control_flow.paths.path_ends import PathEnd, begin_branch
from magpy_like.control_flow.paths.shared_parts import OperatorTools
from magpy_like.logs import topic
from magpy_like.monitor.context import Context
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.instructions.truth_tests import decide
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.monitor.symbolic.lists.loop_ranges import Element
from magpy_like.native import frame_set_operand
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.split_points import BranchNotMergeable, LoopNotMergeable, Split, source_location
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.frame_layout import UnresumableState
from magpy_like.splitting.frame_state import FrameState, origins

_log = topic("splits")


class Branches:
    """The ``Branching`` of one monitor run: merges branches and loops into operators."""

    def __init__(self, merges: Callable[[], bool]) -> None:
        self._merges = merges
        """True if branches may become operators at the program's present position."""
        self._tools = OperatorTools.create()
        self._heads = LoopHeads(self._tools)
        self._exit_truth: dict[tuple[int, int], bool] = {}
        """By code and offset, the truth value that ends a ``while`` loop which is an operator."""

    # --- branches --------------------------------------------------------------------------------

    def at_branch(self, context: Context, step: Step) -> None:
        """See ``Branching.at_branch``."""
        try:
            self._merge(context, step)
        except (Split, UnresumableState) as why:
            _log_no_operator(step, why)
            raise Split(
                SplitReason.DATA_DEPENDENT_BRANCH,
                f"branches on a tensor's value; no operator for this branch: {why}",
            ) from None

    def at_flag_branch(self, context: Context, step: Step, flag: ShadowNode) -> None:
        """See ``Branching.at_flag_branch``."""
        try:
            self._merge(context, step, flag)
        except (Split, UnresumableState) as why:
            _log_no_operator(step, why)
            raise BranchNotMergeable(str(why)) from None

    def _merge(self, context: Context, step: Step, flag: ShadowNode | None = None) -> None:
        """Merge the branches on the topmost operand, or on a lifted ``flag``, into one operator.

        Raises:
            Split: no operator expresses them.
            UnresumableState: the frame cannot be resumed from here.
        """
        paths, step = self._tools.paths, _at_jump(step)
        if paths.ends_at(context, step):
            return
        if not self._merges():
            raise BranchNotMergeable("a tensor that one branch leaves is changed in place later")
        state = _branch_state(context, step, nested=paths.depth > 0)
        if flag is None and step.stack[-1].numel() != 1:
            raise BranchNotMergeable("the tensor has several elements")
        if flag is None and self._record_exit(context, step, state):
            return
        paths.count_visit(state)
        until = paths.find_join(state)
        context.arguments.read_rest(context)
        found = self._while_loop(context, state, until) if flag is None else None
        if found is None:
            predicate = state.stack[-1] if flag is None else context.flags.condition(flag)
            rec = context.recording
            add_test = functools.partial(
                rec.operators.control.add_truth, rec.graph.value(predicate), predicate
            )
            found = self._cond(context, state, until, add_test, flag)
        self._skip_to_join(context, step, until, found)
        if paths.depth and flag is None:
            decide(step, self.recorded_truth(step))

    def at_graph_condition(
        self, context: Context, step: Step, operation: Any, operands: tuple[Any, ...]
    ) -> bool:
        """See ``Branching.at_graph_condition``."""
        paths = self._tools.paths
        jump, rest = instructions(step.code)[step.offset], step.stack[: -len(operands)]
        if jump.name not in CONDITIONAL_JUMPS:
            jump = instructions(step.code)[jump.end]
        if jump.name not in CONDITIONAL_JUMPS or jump.name.endswith("_OR_POP"):
            return False
        step_at_jump = replace(step, offset=jump.offset, stack=(*rest, None))
        state = _branch_state(context, step_at_jump, nested=True)
        if (
            paths.exits is not None
            and context.isolation.branch_run is not None
            and context.isolation.branch_run.code is step.code
        ):
            if paths.exits.exit_truth(state) is not None:
                raise BranchNotMergeable("the truth of a lifted number ends a loop")
        paths.count_visit(state)
        until = paths.find_join(state)
        for truth in (True, False):
            begin = begin_branch(state, truth).offset
            if can_reach(state.code, begin, state.instruction.offset, until):
                raise BranchNotMergeable("a lifted number decides whether a loop continues")
        add_test = functools.partial(
            context.recording.operators.control.add_condition, operation, operands
        )
        self._skip_to_join(context, step, until, self._cond(context, state, until, add_test, None))
        return True

    def _skip_to_join(
        self,
        context: Context,
        step: Step,
        until: int,
        results: Sequence[tuple[OperatorOutput, Result]],
    ) -> None:
        """Run the program to the join point unreported, and publish the results there."""
        publish = self._tools.results.publish
        self._tools.paths.receivers.append(lambda context, frame: publish(context, frame, results))
        context.isolation.skip(
            step.frame, until if until == RETURN else until + shift_of(step.frame)
        )

    def _cond(
        self,
        context: Context,
        state: FrameState,
        until: int,
        add_test: Callable[[], fx.Node],
        flag: ShadowNode | None,
    ) -> Sequence[tuple[OperatorOutput, Result]]:
        """Record both branches as the graphs of one ``cond``.

        Args:
            add_test: adds the predicate to the graph.
            flag: the lifted flag that decides, if a flag does.

        Raises:
            Split: a branch has an effect that no operator expresses.
        """
        rec = context.recording
        holders = {
            slot for slot, node in context.flags.in_frame(context.frame).items() if node is flag
        }
        ends: list[PathEnd] = []
        try:
            for truth in (True, False):
                begun = begin_branch(state, truth)
                slots = [truth if i in holders else v for i, v in enumerate(begun.locals)]
                begun = replace(begun, locals=tuple(slots))
                options = PathOptions(known_flag=None if flag is None else (flag, truth))
                ends.append(self._tools.paths.explore(context, begun, until, options=options))
            outcomes = Outcomes(context, state, until, ends[0], ends[1], self._tools.results)
            outputs = outcomes.compare(ignored=holders)
            if flag is not None:
                for output in outputs:
                    output.number = number_chosen_by(context, flag, *output.values)
            compute_lifted = [output for output in outputs if output.number is None]
            nodes = outcomes.add_cond(add_test, compute_lifted)
            chosen = [(output, output.number) for output in outputs if output.number is not None]
            return [*zip(compute_lifted, nodes, strict=True), *chosen]
        finally:
            erase(rec, [node for end in ends for node in end.nodes])
            context.account()

    def _while_loop(
        self, context: Context, state: FrameState, until: int
    ) -> Sequence[tuple[OperatorOutput, Result]] | None:
        """The results of one ``while_loop``, if the branch is the condition of such a loop."""
        found = find_loop(self._tools, context, state, until)
        if found is None:
            return None
        stays, results = found
        self._exit_truth[id(state.code), state.instruction.offset] = not stays
        return results

    def _record_exit(self, context: Context, step: Step, state: FrameState) -> bool:
        """Record a branch that leaves the loop of the running iteration as a loop exit.

        Returns:
            True if there is one; the iteration continues with the other branch.
        """
        paths = self._tools.paths
        exits = paths.exits
        if (
            exits is None
            or context.isolation.branch_run is None
            or context.isolation.branch_run.code is not step.code
        ):
            return False
        truth = exits.exit_truth(state)
        if truth is None:
            return False
        if torch.is_grad_enabled() is not exits.gradients:
            raise LoopNotMergeable("the loop is left where gradients are switched off or on")
        rec, predicate = context.recording, state.stack[-1]
        test = rec.operators.control.add_truth(rec.graph.value(predicate), predicate)
        last = last_node(rec)
        end = paths.explore(context, begin_branch(state, truth), exits.until)
        end.restore(exits.original)
        exits.note(truth, test, last, end)
        # After this branch, an iteration that leaves the loop must not draw numbers.
        context.isolation.branch_run.tensors.draws = False
        context.account()
        decide(step, not truth)
        return True

    def at_join(self, context: Context, frame: FrameType | None) -> None:
        """See ``Branching.at_join``."""
        publish = self._tools.paths.receivers.pop()
        if frame is None:
            raise BranchNotMergeable("a branch or loop that is an operator raises an exception")
        publish(context, frame)
        context.account()

    def recorded_truth(self, step: Step) -> bool:
        """See ``Branching.recorded_truth``."""
        origin, offset = origins.get(step.code), _at_jump(step).offset
        if origin is None:
            return self._exit_truth.get((id(step.code), offset), True)
        return self._exit_truth.get((id(origin.code), offset - origin.shift), True)

    # --- loops -----------------------------------------------------------------------------------

    def at_loop(
        self,
        context: Context,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Element | None,
    ) -> bool:
        """See ``Branching.at_loop``."""
        is_isolated = self._tools.paths.depth > 0
        if is_isolated and varying_reads.has_varied(context, bounds):
            # The inner loop alone becomes an operator.
            raise BranchNotMergeable("it contains a loop whose trip count is lifted")
        if is_isolated or not self._merges():
            return False
        return self._heads.at_loop(context, step, bounds, tensors, element)

    def is_consumed_at_once(self, step: Step, functions: Collection[Any]) -> bool:
        """See ``Branching.is_consumed_at_once``."""
        return is_consumed_at_once(step, functions)

    def at_comparison(self, context: Context, step: Step, compared: Callable[..., bool]) -> bool:
        """See ``Branching.at_comparison``."""
        if self._tools.paths.depth or not self._merges():
            return False
        return self._heads.at_comparison(context, step, compared)

    def at_loop_head(self, context: Context, step: Step) -> None:
        """See ``Branching.at_loop_head``."""
        if not self._tools.paths.depth:
            self._heads.at_loop_head(context, step)

    def abandon_loops(self, context: Context, frame: FrameType | None = None) -> None:
        """See ``Branching.abandon_loops``."""
        self._heads.abandon_loops(context, frame)

    def list_element(self, context: Context, graph_list: GraphList, index: Any) -> torch.Tensor:
        """See ``Branching.list_element``."""
        return self._tools.placeholders.list_element(context, graph_list, index)

    # --- substitutes -----------------------------------------------------------------------------

    def at_identity_test(self, context: Context, step: Step, depths: Sequence[int]) -> None:
        """See ``Branching.at_identity_test``."""
        operands = [(depth, step.stack[-depth]) for depth in depths]
        if not all(is_instance(value, torch.Tensor) for _, value in operands):
            return
        if any(self._tools.placeholders.includes(value) for _, value in operands):
            raise Split(SplitReason.OBJECT_IDENTITY, "tests the identity of a loop-carried tensor")
        for depth, tensor in operands:
            original = self._tools.substitutes.original(tensor)
            if original is not tensor:
                frame_set_operand(step.frame, depth, original)
        for _, tensor in operands:
            context.recording.inspections.check_no_alias(tensor, "tests the identity of")

    def has_substitutes(self) -> bool:
        """See ``Branching.has_substitutes``."""
        return bool(self._tools.substitutes)

    def restore_originals(self, frame: FrameType | None, changed: Sequence[Any] = ()) -> None:
        """See ``Branching.restore_originals``."""
        if self._tools.substitutes:
            self._tools.substitutes.restore(frame, changed)

    def restore_locals(self, frame: FrameType) -> None:
        """See ``Branching.restore_locals``."""
        self._tools.substitutes.restore_locals(frame)

    def release_restored(self) -> None:
        """See ``Branching.release_restored``."""
        self._tools.substitutes.release()

    def restore_result(self, result: Any, changed: Sequence[Any] = ()) -> Any:
        """The program's result after the run, with the original of each substitute, in it and in
        the objects that the program has ``changed``."""
        self._tools.results.clear()
        return self._tools.substitutes.restore_result(result, changed)


def _at_jump(step: Step) -> Step:
    """The test of a tensor as part of the jump that follows, as up to Python 3.12."""
    jump = tested_jump(step.code, step.offset)
    return step if jump is None else replace(step, offset=jump.offset)


def _branch_state(context: Context, step: Step, nested: bool) -> FrameState:
    """The state of the frame that is about to branch.

    Raises:
        Split: the frame cannot be resumed from there.
    """
    state = capture_state(context, step)
    name = state.instruction.name
    if name not in CONDITIONAL_JUMPS or (nested and name.endswith("_OR_POP")):
        raise BranchNotMergeable("the truth of the tensor is used as a value")
    check_resumable(state)
    return state


def _log_no_operator(step: Step, why: Exception) -> None:
    _log.info("%s: no operator for a branch: %s", source_location(step.frame), why)
