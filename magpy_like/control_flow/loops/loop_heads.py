"""Loop heads: the decision whether the iterations of a loop become one operator.

If the first iteration differs from the others, as in ``h = None`` or ``if t == 0``, the program
runs it natively, and the iterations after it may become an operator.
"""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass, replace
from types import FrameType

import torch

from magpy_like.bytecode.instruction_stream import instructions
from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.post_dominators import RETURN
from magpy_like.config import config
from magpy_like.control_flow.loops.counting_loops import for_loop_offsets, while_loop_offsets
from magpy_like.control_flow.loops.for_head_bytecode import find_head, unwrap_range
from magpy_like.control_flow.loops.for_loop import ForLoop
from magpy_like.control_flow.loops.generator_consumers import replace_consumer
from magpy_like.control_flow.loops.loop_description import (
    Bounds,
    Comparison,
    Counter,
    IterationSpace,
    LoopHead,
)
from magpy_like.control_flow.paths.captured_frames import capture_state, check_resumable, shift_of
from magpy_like.control_flow.paths.shared_parts import OperatorTools
from magpy_like.logs import topic
from magpy_like.monitor.call_operands import CALLEE_DISTANCE
from magpy_like.monitor.context import Context
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.lists import unbound_tensors
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList, LiftedRange
from magpy_like.monitor.symbolic.lists.loop_ranges import Element, compute_lifted, index_element
from magpy_like.monitor.symbolic.numbers.lower_bounds import MIRRORED
from magpy_like.native import frame_function, frame_set_operand
from magpy_like.split_points import LoopNotMergeable, Split, source_location
from magpy_like.splitting.frame_layout import UnresumableState
from magpy_like.splitting.frame_state import origins

_log = topic("splits")


@dataclass
class _PeeledLoop:
    """A loop whose first iteration runs natively; the others may become an operator."""

    space: IterationSpace
    """Its bounds are not yet specialized: the program has created a ``range`` of them, or iterates
    over ``rows``."""
    rows: list[GraphList | LiftedRange]
    head_visits: int = 0
    """Number of times that the program has reached the loop's head."""

    def has_unread_rows(self, context: Context) -> bool:
        """True if the program has not inspected the rows as a list."""
        lists = context.recording.operators.lists
        return all(lists.get(id(rows.value)) is rows for rows in self.rows)

    def abandon(self, context: Context) -> None:
        """Record the loop iteration by iteration: its trip count is specialized."""
        for rows in self.rows:
            context.recording.operators.inspect_list(rows.value)
        if not self.rows:
            context.lifted.specialize(self.space.bounds)


class LoopHeads:
    """The loops of one monitor run that have not become operators yet."""

    def __init__(self, tools: OperatorTools) -> None:
        # A loop that waits for its results is among the tools, and holds the call's arguments: a
        # strong reference would be a cycle.
        self._tools: OperatorTools = weakref.proxy(tools)
        self._peeled: dict[tuple[int, int], _PeeledLoop] = {}
        """By frame and offset of the loop's head."""
        self._attempts: dict[tuple[int, int], int] = {}
        """By frame and offset of the body, how often a ``while`` loop was no operator."""

    def at_loop(
        self,
        context: Context,
        step: Step,
        bounds: Bounds,
        tensors: tuple[torch.Tensor, ...],
        element: Element | None,
    ) -> bool:
        """See ``Branching.at_loop``."""
        count = len(range(*bounds))
        if count < 2 or context.lifted.any_lifted(bounds[2:]):
            return False
        varies = varying_reads.has_varied(context, bounds)
        if count < config.min_loop_iterations and not varies:
            return False
        if varies and replace_consumer(context, step, bounds):
            return True
        if element is None:
            return False
        try:
            head = find_head(context, step)
        except (Split, UnresumableState) as why:
            _log_no_operator(step, why)
            return False
        if head is None or (head.wraps is not None and bounds[2] != 1):
            return False
        if head.wraps is not None:
            bounds, element = unwrap_range(context, head.wraps, bounds, element)
        is_plain = head.wraps is None and head.list_operand is None
        may_peel = is_plain and count >= 3 and context.lifted.guards.are_computable_at_entry(bounds)
        space = IterationSpace(bounds, tensors, element, may_skip_first=may_peel)
        if self._record(context, step, head, space):
            return True
        rows = (
            _iterate_over_rows(context, step) if may_peel and element is not index_element else []
        )
        if not may_peel or rows is None:
            return False
        key = id(step.frame), head.state.offset + shift_of(step.frame)
        if key in self._peeled:  # the program left it in its first iteration, and begins again
            self._peeled.pop(key).abandon(context)
        self._peeled[key] = _PeeledLoop(space, rows)
        context.watch_iterators()
        return True

    def at_loop_head(self, context: Context, step: Step) -> None:
        """See ``Branching.at_loop_head``."""
        key = id(step.frame), instructions(step.code)[step.offset].offset
        loop = self._peeled.get(key)
        if loop is None:
            return
        loop.head_visits += 1
        if loop.head_visits < 2:
            return
        del self._peeled[key]
        start, stop, by = loop.space.bounds
        rest = compute_lifted(context, operator.add, start, by), stop, by
        try:
            if not loop.has_unread_rows(context):
                raise LoopNotMergeable("the first iteration has read all rows")
            state = capture_state(context, step)
            at = instructions(state.code)[state.offset]
            stack = (*state.stack[:-1], iter(range(1)))
            state = replace(state, offset=at.offset, stack=stack)
            check_resumable(state)
            at = state.instruction
            until = at.exhaustion_target + shift_of(step.frame)
            head = LoopHead(state, until, for_loop_offsets(at))
            is_operator = self._record(
                context, step, head, replace(loop.space, bounds=rest, may_skip_first=False)
            )
        except (Split, UnresumableState) as why:
            _log_no_operator(step, why)
            is_operator = False
        if not is_operator:
            loop.abandon(context)

    def at_comparison(self, context: Context, step: Step, compared: Comparison) -> bool:
        """See ``Branching.at_comparison``."""
        operands = step.stack[-2:]
        if any(type(operand) is not int for operand in operands):
            return False
        shift = shift_of(step.frame)
        origin = origins.get(step.code)
        code = step.code if origin is None else origin.code
        found = while_loop_offsets(code, step.offset - shift) if step.offset >= shift else None
        if found is None or context.lifted.any_lifted(operands) is False:
            return False
        offsets, stays = found
        key = id(step.frame), offsets.body
        attempts = self._attempts.get(key, 0)
        if attempts >= config.max_while_loop_attempts or compared(*operands) is not stays:
            return False
        holds = compared if stays else _OPPOSITE.get(compared)
        for at in (0, 1) if holds is not None else ():
            first, last = operands[at], operands[1 - at]
            comparison = holds if at == 0 else MIRRORED.get(holds)
            if comparison is None or not varying_reads.has_varied(context, (first, last)):
                continue
            try:
                state = capture_state(context, step)
                state = replace(state, offset=instructions(state.code)[state.offset].offset)
                check_resumable(state)
            except (Split, UnresumableState) as why:
                _log_no_operator(step, why)
                return False
            head = LoopHead(state, offsets.exit + shift, offsets)
            space = IterationSpace((first, last, 1), (), None, Counter(comparison, at))
            if self._record(context, step, head, space):
                return True
        self._attempts[key] = self._attempts.get(key, 0) + 1
        return False

    def abandon_loops(self, context: Context, frame: FrameType | None = None) -> None:
        """See ``Branching.abandon_loops``."""
        for key in [key for key in self._peeled if frame is None or key[0] == id(frame)]:
            self._peeled.pop(key).abandon(context)

    def _record(self, context: Context, step: Step, head: LoopHead, space: IterationSpace) -> bool:
        """True if the loop that the program is about to begin is an operator now."""
        raising = len(context.lifted.arithmetic.may_raise)
        try:
            state = head.state
            if step.frame is context.root_frame and state.function is frame_function(step.frame):
                for slot in live_locals(state.code, state.offset):
                    context.arguments.read_local(context, step.frame, slot)
            loop = ForLoop(self._tools, context, head, space)
            loop.record()
        except (Split, UnresumableState) as why:
            del context.lifted.arithmetic.may_raise[raising:]
            _log_no_operator(step, why)
            return False
        self._tools.paths.receivers.append(lambda context, frame: loop.receive(frame))
        until = head.until if loop.exits is None else loop.until
        is_in_frame = until != RETURN and loop.exits is not None
        context.isolation.skip(step.frame, until + shift_of(step.frame) if is_in_frame else until)
        return True


_OPPOSITE: dict[Comparison, Comparison] = {
    operator.lt: operator.ge, operator.ge: operator.lt, operator.le: operator.gt,
    operator.gt: operator.le, operator.eq: operator.ne, operator.ne: operator.eq,
}  # fmt: skip
"""The comparison that holds of two integers if another one does not."""


def _iterate_over_rows(context: Context, step: Step) -> list[GraphList | LiftedRange] | None:
    """Replace tensors over which the program is about to iterate by the lists of their rows, as
    lists of the graph whose first elements are known.

    Returns:
        The lists; None if the program iterates over something else.
    """
    at, stack = instructions(step.code)[step.offset], step.stack
    spread = at.name == "CALL_FUNCTION_EX" and not at.arg & 1
    operands, called = list(stack[-1:]), iter
    if at.name != "GET_ITER":
        operands = list(stack[-1] if spread else stack[len(stack) - at.arg :])
        called = stack[-CALLEE_DISTANCE - (1 if spread else at.arg)]
    if not any(called is known for known in (iter, enumerate, zip)):
        return None
    lists = context.recording.operators.lists
    found: list[GraphList | LiftedRange] = []
    for i, value in enumerate(operands):
        if type(value) is int:  # the start of `enumerate`
            continue
        if isinstance(value, torch.Tensor):
            operands[i] = value.unbind(0)
            context.account()
            if not unbound_tensors.unbind_into_list(
                context, torch.unbind, (value,), {}, operands[i]
            ):
                return None
        rows = lists.get(id(operands[i]))
        if isinstance(rows, LiftedRange) and not context.lifted.any_lifted(rows.bounds[:1]):
            found.append(rows)
            continue
        if not isinstance(rows, GraphList) or not (rows.elements_are_new and rows.is_never_empty):
            return None
        if not rows.holds_only_tensors():
            return None
        found.append(rows)
    for rows in found:
        if isinstance(rows, GraphList):
            rows.know(context.recording.operators, 0)
    replacements = [tuple(operands)] if spread else operands
    for depth, value in enumerate(reversed(replacements), start=1):
        frame_set_operand(step.frame, depth, value)
    return found


def _log_no_operator(step: Step, why: Exception) -> None:
    _log.info("%s: no operator for a loop: %s", source_location(step.frame), why)
