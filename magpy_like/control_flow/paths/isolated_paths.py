"""Isolated runs of one path: a branch up to its join point, or one iteration of a loop.

A path runs on fake tensors, from a continuation of the program's frame. Its nodes stay on the
operator graph until the caller has made a subgraph of them; all other
changes of the recording and of torch are rolled back here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import fx

from magpy_like.bytecode.instruction_stream import instructions
from magpy_like.bytecode.post_dominators import RETURN, join_point
from magpy_like.config import config
from magpy_like.control_flow.loops.loop_exits import LoopExits
from magpy_like.control_flow.loops.loop_tensor_writes import ExternalWrite
from magpy_like.control_flow.paths.body_nodes import erase, last_node, nodes_after
from magpy_like.control_flow.paths.path_ends import ADVANCED, PathEnd, copy_iterator
from magpy_like.control_flow.paths.placeholder_tensors import PlaceholderTensors
from magpy_like.monitor.context import Context
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.instructions.truth_tests import decide
from magpy_like.monitor.isolated_runs import BranchRun
from magpy_like.monitor.objects.loop_written_locations import SubstitutedLocations
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.lifted_flags import BranchFlag
from magpy_like.monitor.symbolic.lists.loop_windows import IndexedReads
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import BranchNotMergeable, Split
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.splitting.continuation_functions import build_resumption
from magpy_like.splitting.frame_state import FrameState, origins
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks
from magpy_like.torch_patches import silent_fake_tensor_errors

Receiver = Callable[[Context, FrameType], None]
"""Publishes an operator's results in the frame that has reached its join point."""


@dataclass(frozen=True)
class PathOptions:
    """Permissions of one isolated path, and the collectors of its effects."""

    owned: Sequence[Any] = ()
    """Objects that the path may change."""
    requires_grad_differs: bool = False
    """Whether ``requires_grad`` may differ between iterations: then the path must not read it."""
    known_flag: BranchFlag = None
    """A lifted flag that has one value on this path."""
    exits: LoopExits | None = None
    """Collects loop exits."""
    draws: bool = False
    """Whether the path may draw random numbers: only if every call runs it."""
    substituted: SubstitutedLocations | None = None
    """Collects the locations of external objects to which the path writes."""
    reads: IndexedReads | None = None
    """Collects reads at an iteration's index."""
    copies: Collection[int] = ()
    """Ids of copied containers, whose identity the path must not test."""


_NO_OPTIONS = PathOptions()


class IsolatedPaths:
    """Runs paths of one monitor run in isolation."""

    def __init__(self, placeholders: PlaceholderTensors) -> None:
        self._placeholders = placeholders
        self.depth = 0
        """Number of nested isolated paths that are running."""
        self.receivers: list[Receiver] = []
        """Receivers of the operators whose join points the running path, or the program, has not
        reached."""
        self.exits: LoopExits | None = None
        """Collects the exits of the loop whose iteration is running."""
        self._visits: dict[tuple[int, int], int] = {}
        """Visits of each branch by isolated paths, by code and offset."""
        self._visited_too_often: set[tuple[int, int]] = set()
        """The branches that exceed ``config.max_branch_visits``."""

    def count_visit(self, state: FrameState) -> None:
        """Count a visit of a branch.

        Raises:
            Split: isolated paths have reached the branch too often.
        """
        branch = id(state.code), state.offset
        if self.depth:
            self._visits[branch] = visits = self._visits.get(branch, 0) + 1
            if visits > config.max_branch_visits:
                self._visited_too_often.add(branch)
        if branch in self._visited_too_often:
            raise BranchNotMergeable("both branches contain the remaining iterations of a loop")

    def ends_at(self, context: Context, step: Step) -> bool:
        """True if the running path ends at the jump of this test, which the test still precedes.

        The path then ends with the tested tensor as the operand of the jump.
        """
        path, test = context.isolation.branch_run, instructions(step.code)[step.frame.f_lasti]
        if path is None or path.code is not step.code or path.head != step.offset:
            return False
        if test.offset == step.offset:
            return False  # the jump itself tests
        path.tested_at_head = step.stack[-1]
        decide(step, True)
        return True

    def find_join(self, state: FrameState) -> int:
        """The offset of the join point of the branch that a frame is about to take.

        Raises:
            Split: there is no join point, or branches are nested too deeply.
        """
        if self.depth >= config.max_nested_branches:
            raise BranchNotMergeable(f"more than {config.max_nested_branches} branches are nested")
        until = join_point(state.code, state.instruction.offset)
        if until is None:
            raise BranchNotMergeable("no path leads from the branch to a join point or a return")
        return until

    def explore(
        self,
        context: Context,
        start: FrameState,
        until: int,
        head: int | None = None,
        options: PathOptions = _NO_OPTIONS,
    ) -> PathEnd:
        """Run one path in isolation, up to the offset ``until`` or the loop's ``head``.

        Raises:
            Split: the path has an effect that cannot be rolled back, or raises.
        """
        if start.instruction.offset == until:
            return PathEnd(start.locals, start.stack, None, [])
        if not self.depth:
            self._visits.clear()
        rec = context.recording
        start, copies, originals = _with_copied_iterators(start, rec)
        function = build_resumption(start)
        shift = origins[function.__code__].shift
        path = self._branch_run(context, function.__code__, shift, copies, options)

        def original(value: Any) -> Any:
            return ADVANCED if id(value) in path.advanced else originals.get(id(value), value)

        if options.exits is not None:
            options.exits.original = original
        checkpoint = _Checkpoint.take(rec)
        reached = None
        try:
            with (
                self._nested(context, function, start.code, shift, options),
                without_saved_tensor_hooks(),
                silent_fake_tensor_errors(),
                context.casts.of_fake_path(),
                self._placeholders.fake_mode,
                path.tensors,
            ):
                target = until if until == RETURN else until + shift
                shifted_head = path.head = -2 if head is None else head + shift
                reached = context.isolation.explore(function, target, shifted_head, path)
        except Exception as error:
            cause = path.refused or _not_mergeable(f"one branch raises {type(error).__name__}")
            raise checkpoint.discard(rec, cause, path) from None
        finally:
            obstacle = checkpoint.restore(rec)
        if reached is None or path.refused:
            cause = path.refused or _not_mergeable("one branch does not reach the join point")
            raise checkpoint.discard(rec, cause, path)
        if obstacle is not None:
            raise checkpoint.discard(rec, _not_mergeable(obstacle))
        nodes = nodes_after(rec, checkpoint.last)
        rec.operators.numbers.forget_numbers(set(nodes))
        offset, slots, stack = reached
        is_at_head = head is not None and offset == head + shift
        if is_at_head and path.tested_at_head is not None:
            stack = (*stack[:-1], path.tested_at_head)
        if until == RETURN and not is_at_head:
            stack = (_returned_value(function.__code__, offset, stack),)
        end = PathEnd(slots[:-1], stack, path, nodes, is_at_head)
        end.restore(original)
        return end

    def _branch_run(
        self,
        context: Context,
        code: CodeType,
        shift: int,
        copies: Collection[Any],
        options: PathOptions,
    ) -> BranchRun:
        """The isolated run of a path, with its permissions and collectors."""
        path = BranchRun(
            code,
            shift,
            self._placeholders.fake_mode,
            context.isolation.abandon,
            context.suspension,
        )
        path.gradients_differ, path.tensors.draws = options.requires_grad_differs, options.draws
        path.substituted = options.substituted
        path.reads = (
            options.reads
            if context.isolation.branch_run is None
            else context.isolation.branch_run.reads
        )
        path.copies = {
            *options.copies,
            *(
                context.isolation.branch_run.copies
                if context.isolation.branch_run is not None
                else ()
            ),
        }
        for value in (*copies, *options.owned):
            path.tensors.own(value) if is_instance(value, torch.Tensor) else path.own(value)
        return path

    @contextmanager
    def _nested(
        self,
        context: Context,
        function: FunctionType,
        code: CodeType,
        shift: int,
        options: PathOptions,
    ) -> Iterator[None]:
        """Nest an isolated path, with operators and loop exits of its own, for the context."""
        self.depth += 1
        receivers, self.receivers = self.receivers, []
        exits, self.exits = self.exits, options.exits
        context.flags.begin_branch(
            context.frame, function.__code__, code, shift, options.known_flag
        )
        try:
            yield
        finally:
            context.flags.end_branch(function.__code__, options.known_flag)
            self.depth -= 1
            self.receivers, self.exits = receivers, exits


@dataclass(frozen=True)
class _Checkpoint:
    """The recording, and torch's gradient mode, before an isolated path."""

    last: fx.Node | None
    """The last node of the graph."""
    alias_count: int
    """Number of tensors that the recording assumes unchanged."""
    limits: tuple[str | None, str | None, int]
    """Restrictions on the form in which a backend may receive the graph."""
    gradients: bool

    @classmethod
    def take(cls, rec: Recording) -> _Checkpoint:
        limits = _graph_limits(rec)
        return cls(
            last_node(rec), len(rec.inspections.possible_aliases), limits, torch.is_grad_enabled()
        )

    def restore(self, rec: Recording) -> str | None:
        """Roll back all changes except the nodes.

        Returns:
            The reason why the path cannot be part of an operator; None if it can.
        """
        is_unstable = rec.inspections.has_changed(self.alias_count)
        del rec.inspections.possible_aliases[self.alias_count :]
        limits = _graph_limits(rec)
        reason = next(
            iter(rec.graph.operators_as_is[self.limits[-1] :]),
            rec.graph.runs_as_is or rec.graph.stays_whole,
        )
        rec.graph.runs_as_is, rec.graph.stays_whole, _ = self.limits
        del rec.graph.operators_as_is[self.limits[-1] :]
        switches_gradients = torch.is_grad_enabled() is not self.gradients
        torch.set_grad_enabled(self.gradients)
        if switches_gradients:
            return "one branch leaves gradients switched off or on"
        if is_unstable:
            return "one branch changes a tensor that may be external"
        return f"one branch has an operator: {reason}" if limits != self.limits else None

    def discard(self, rec: Recording, cause: SplitCause, path: BranchRun | None = None) -> Split:
        """Erase the path's nodes. Returns the exception to raise."""
        nodes = nodes_after(rec, self.last)
        rec.operators.numbers.forget_numbers(set(nodes))
        erase(rec, nodes)
        if path is not None and path.tensors.refused is not None:
            return ExternalWrite(cause, path.tensors.refused)
        return Split(*cause)


def _not_mergeable(detail: str) -> SplitCause:
    return SplitCause(SplitReason.BRANCH_NOT_MERGEABLE, detail)


def _graph_limits(rec: Recording) -> tuple[str | None, str | None, int]:
    return rec.graph.runs_as_is, rec.graph.stays_whole, len(rec.graph.operators_as_is)


def _with_copied_iterators(
    state: FrameState, rec: Recording
) -> tuple[FrameState, list[Any], dict[int, Any]]:
    """The state with copies of the program's own iterators, which the path may advance.

    Returns:
        The state, the copies, and the original of each copy by the copy's id.
    """
    before = (*state.locals, *state.stack)
    state = replace(
        state,
        locals=tuple(copy_iterator(value, rec) for value in state.locals),
        stack=tuple(copy_iterator(value, rec) for value in state.stack),
    )
    after = (*state.locals, *state.stack)
    originals = {id(b): a for a, b in zip(before, after, strict=True) if a is not b}
    return state, [value for value in after if id(value) in originals], originals


def _returned_value(code: CodeType, offset: int, stack: tuple[Any, ...]) -> Any:
    at = instructions(code)[offset]
    return code.co_consts[at.arg] if at.name == "RETURN_CONST" else stack[-1]
