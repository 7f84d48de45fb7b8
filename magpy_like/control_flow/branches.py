"""Branches on a tensor become one operator of the graph, ``cond`` (MagPy, section 6.2.2).

Before the program jumps, both sides run beside it on fake tensors, from the branch to the place
where they meet, and what they record becomes the operator's two graphs. Then the program itself
goes on to that place, with nothing announced on the way, and the tensors that it has there are the
operator's results.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import fx

from magpy_like.bytecode.data_flow import instructions
from magpy_like.bytecode.post_dominators import RETURN, can_reach, join_point
from magpy_like.control_flow.branch_outcomes import Outcomes, chosen_by
from magpy_like.control_flow.carried_places import (
    MOVED,
    End,
    Output,
    begin_side,
    check_like,
    copied,
    erase,
    nodes_after,
)
from magpy_like.control_flow.loop_exits import Exits
from magpy_like.control_flow.loop_heads import (
    LoopHeads,
    captured,
    check_resumable,
    is_consumed_at_once,
    shift_of,
)
from magpy_like.control_flow.loop_tensor_writes import Written
from magpy_like.control_flow.substitute_tensors import SubstituteTensors
from magpy_like.control_flow.while_loop import find_loop
from magpy_like.logs import topic
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.isolated_runs import BranchRun
from magpy_like.monitor.objects.loop_written_places import Filled
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.expressions import Expression, GraphNumber, is_number
from magpy_like.monitor.symbolic.gathered_lists import GraphList
from magpy_like.monitor.symbolic.lifted_flags import BranchFlag
from magpy_like.monitor.symbolic.loop_ranges import Element
from magpy_like.monitor.symbolic.loop_windows import IndexedReads
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.native import (
    frame_locals,
    frame_set_local,
    frame_set_operand,
    frame_stack,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import MonitorWeakRef, VersionCheck
from magpy_like.split_points import BranchNotMergeable, LoopNotMergeable, Split, source_location
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.splitting.frame_layout import UnresumableState
from magpy_like.splitting.frame_state import FrameState, origins
from magpy_like.splitting.resumption import CONDITIONAL_JUMPS, resumption
from magpy_like.torch_compat.dispatch import disable_current_modes
from magpy_like.torch_compat.fake_tensors import FakeTensor, FakeTensorMode
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks

_log = topic("splits")
_MOST_NESTED = 12
"""Branches inside a side of a branch, and so on."""
_MOST_TIMES = 32
"""How often sides may come to one place where they branch, inside one side of the program: where
both sides go through the rest of a loop before they meet, as with ``continue`` in ``while``, each
round comes there twice as often as the one before."""


Received: TypeAlias = fx.Node | Expression
"""What gives the program a tensor or number where an operator ends."""


class Branches:
    """Makes operators of the branches of one monitor run: its ``Branching``."""

    def __init__(self, merges: Callable[[], bool]) -> None:
        self._merges = merges
        """Whether branches may become operators where the program is."""
        self._waiting: list[Callable[[MonitorRun, FrameType], None]] = []
        """What is to be done where operators end that the program has yet to go through."""
        self._depth = 0
        self._stand_ins = SubstituteTensors()
        self._may_be: dict[int, tuple[MonitorWeakRef, list[MonitorWeakRef]]] = {}
        """By id, results of branches, with what they may be that was there before."""
        self._any: list[MonitorWeakRef] = []
        """What stands for any tensor that rounds of a loop hand on."""
        self._heads = LoopHeads(self)
        self._exits: Exits | None = None
        """What the ways out are noted in of the loop of which a round runs."""
        self._times: dict[tuple[int, int], int] = {}
        """By code and offset, how often sides have come to a branch beside the program."""
        self._too_often: set[tuple[int, int]] = set()
        """Those to which they have come too often."""
        self._ways: dict[tuple[int, int], bool] = {}
        """By code and offset, the way out of a loop that is an operator already."""

    @functools.cached_property
    def _fake(self) -> FakeTensorMode:
        """Most programs need none, and torch keeps the whole stack of each."""
        return FakeTensorMode(allow_non_fake_inputs=True)

    def at_branch(self, run: MonitorRun, step: Step) -> None:
        try:
            self._merge(run, step)
        except (Split, UnresumableState) as why:
            _log_no_operator(step, why)
            raise Split(
                SplitReason.DATA_DEPENDENT_BRANCH,
                f"branches on a tensor's value; no operator for this branch: {why}",
            ) from None

    def at_flag_branch(self, run: MonitorRun, step: Step, flag: ShadowNode) -> None:
        try:
            self._merge(run, step, flag)
        except (Split, UnresumableState) as why:
            _log_no_operator(step, why)
            raise BranchNotMergeable(str(why)) from None

    def _merge(self, run: MonitorRun, step: Step, flag: ShadowNode | None = None) -> None:
        if not self._merges():
            raise BranchNotMergeable("a tensor that one branch leaves is changed in place later")
        state = _state(run, step, nested=self._depth > 0)
        if flag is None and step.stack[-1].numel() != 1:
            raise BranchNotMergeable("the tensor has several elements")
        if flag is None and self._leave(run, step, state):
            return
        self._count(state)
        until = self._join(state)
        run.arguments.read_rest(run)
        found = self._loop(run, state, until) if flag is None else None
        if found is None:
            predicate = state.stack[-1] if flag is None else run.flags.condition(flag)
            rec = run.recording
            test = functools.partial(rec.operators.add_truth, rec.graph.value(predicate), predicate)
            found = self._cond(run, state, until, test, flag)
        self._go_on(run, step, until, found)
        if self._depth and flag is None:
            frame_set_operand(step.frame, 1, self.recorded_truth(step))

    def _go_on(
        self,
        run: MonitorRun,
        step: Step,
        until: int,
        found: Sequence[tuple[Output, Received]],
    ) -> None:
        """The program is about to go to where the sides meet."""
        self._waiting.append(lambda run, frame: self.receive(run, frame, found))
        run.skip(step.frame, until if until == RETURN else until + shift_of(step.frame))

    def at_graph_condition(
        self, run: MonitorRun, step: Step, operation: Any, operands: tuple[Any, ...]
    ) -> bool:
        """See ``Branching.at_graph_condition``."""
        at, rest = instructions(step.code)[step.offset], step.stack[: -len(operands)]
        if at.name not in CONDITIONAL_JUMPS:
            at = instructions(step.code)[at.end]
        if at.name not in CONDITIONAL_JUMPS or at.name.endswith("_OR_POP"):
            return False
        state = _state(run, replace(step, offset=at.offset, stack=(*rest, None)), nested=True)
        if self._exits is not None and run.side is not None and run.side.code is step.code:
            if self._exits.way_out(state) is not None:
                raise BranchNotMergeable("the truth of a lifted number ends a loop")
        self._count(state)
        until = self._join(state)
        for side in (True, False):
            begin = begin_side(state, side).offset
            if can_reach(state.code, begin, state.instruction.offset, until):
                raise BranchNotMergeable("a lifted number decides whether a loop continues")
        test = functools.partial(run.recording.operators.add_condition, operation, operands)
        self._go_on(run, step, until, self._cond(run, state, until, test, None))
        return True

    def _join(self, state: FrameState) -> int:
        """Where the ways from a branch meet.

        Raises:
            Split: they do not, or there are too many branches inside each other.
        """
        if self._depth >= _MOST_NESTED:
            raise BranchNotMergeable(f"more than {_MOST_NESTED} branches are nested")
        until = join_point(state.code, state.instruction.offset)
        if until is None:
            raise BranchNotMergeable("no path leads from the branch to a join point or a return")
        return until

    def _count(self, state: FrameState) -> None:
        """Raises Split: sides have come to this branch too often."""
        place = id(state.code), state.offset
        if self._depth:
            self._times[place] = times = self._times.get(place, 0) + 1
            if times > _MOST_TIMES:
                self._too_often.add(place)
        if place in self._too_often:
            raise BranchNotMergeable("both branches contain the remaining iterations of a loop")

    def _leave(self, run: MonitorRun, step: Step, state: FrameState) -> bool:
        """Whether one way leads out of the loop of which a round runs; then it goes the other."""
        exits = self._exits
        if exits is None or run.side is None or run.side.code is not step.code:
            return False
        way = exits.way_out(state)
        if way is None:
            return False
        if torch.is_grad_enabled() is not exits.gradients:
            raise LoopNotMergeable("the loop is left where gradients are switched off or on")
        rec, predicate = run.recording, state.stack[-1]
        test = rec.operators.add_truth(rec.graph.value(predicate), predicate)
        behind = next(iter(reversed(rec.operators.graph.nodes)), None)
        end = self.explore(run, begin_side(state, way), exits.until)
        end.put_back(exits.original)
        exits.note(way, test, behind, end)
        run.side.tensors.draws = False  # behind it, the round that leaves would draw for nothing
        run.account()
        frame_set_operand(step.frame, 1, not way)
        return True

    def row(self, run: MonitorRun, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """A row of a tensor without data, known as ``node``."""
        with self._fake:
            made = torch.select(self._fake.from_tensor(tensor), 0, 0)
        return self._known(run, made, node)

    def at_loop(
        self,
        run: MonitorRun,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Element | None,
    ) -> bool:
        if self._depth and run.has_varied(bounds):
            raise BranchNotMergeable("it contains a loop whose trip count is lifted")
        if self._depth or not self._merges():
            return False
        return self._heads.begins(run, step, bounds, tensors, element)

    def is_consumed_at_once(self, step: Step, functions: Collection[Any]) -> bool:
        return is_consumed_at_once(step, functions)

    def at_comparison(self, run: MonitorRun, step: Step, compared: Callable[..., bool]) -> bool:
        if self._depth or not self._merges():
            return False
        return self._heads.counts(run, step, compared)

    def at_loop_head(self, run: MonitorRun, step: Step) -> None:
        if not self._depth:
            self._heads.at_loop_head(run, step)

    def abandon_loops(self, run: MonitorRun, frame: FrameType | None = None) -> None:
        self._heads.abandon_loops(run, frame)

    def wait(self, receive: Callable[[MonitorRun, FrameType], None]) -> None:
        """Call this where the operator ends that the program is about to go through."""
        self._waiting.append(receive)

    def recorded_truth(self, step: Step) -> bool:
        origin = origins.get(id(step.code))
        if origin is None:
            return self._ways.get((id(step.code), step.offset), True)
        return self._ways.get((id(origin.code), step.offset - origin.shift), True)

    def _cond(
        self,
        run: MonitorRun,
        state: FrameState,
        until: int,
        test: Callable[[], fx.Node],
        flag: ShadowNode | None,
    ) -> Sequence[tuple[Output, Received]]:
        """Both sides, as the graphs of one ``cond`` on the ``test`` that this puts on the graph.
        With a ``flag``, its value is what steers.

        Raises:
            Split: there is something about them that no operator can do.
        """
        rec = run.recording
        holders = {slot for slot, node in run.flags.in_frame(run.at).items() if node is flag}
        ends: list[End] = []
        try:
            for taken in (True, False):
                begun = begin_side(state, taken)
                slots = [taken if i in holders else v for i, v in enumerate(begun.locals)]
                begun = replace(begun, locals=tuple(slots))
                ends.append(
                    self.explore(run, begun, until, known=None if flag is None else (flag, taken))
                )
            outcomes = Outcomes(run, state, until, ends[0], ends[1], self._may_be)
            outputs = outcomes.compare(but=holders)
            if flag is not None:
                for output in outputs:
                    output.number = chosen_by(run, flag, *output.values)
            made = [output for output in outputs if output.number is None]
            nodes = outcomes.operator(test, made)
            chosen = [(output, output.number) for output in outputs if output.number is not None]
            return [*zip(made, nodes, strict=True), *chosen]
        finally:
            erase(rec, [node for end in ends for node in end.nodes])
            run.account()

    def _loop(
        self, run: MonitorRun, state: FrameState, until: int
    ) -> Sequence[tuple[Output, Received]] | None:
        found = find_loop(self, run, state, until)
        if found is None:
            return None
        stays, outputs = found
        self._ways[id(state.code), state.instruction.offset] = not stays
        return outputs

    def at_identity_test(self, run: MonitorRun, step: Step, depths: Sequence[int]) -> None:
        operands = [(depth, step.stack[-depth]) for depth in depths]
        if not all(is_instance(value, torch.Tensor) for _, value in operands):
            return
        if any(reference() is value for reference in self._any for _, value in operands):
            raise Split(SplitReason.OBJECT_IDENTITY, "tests the identity of a loop-carried tensor")
        unsure = {id(check.tensor()) for check in run.recording.inspections.unchanged}
        for depth, tensor in operands:
            original = self._stand_ins.original(tensor)
            if original is not tensor:
                frame_set_operand(step.frame, depth, original)
        if any(id(tensor) in unsure for _, tensor in operands):
            raise Split(
                SplitReason.OBJECT_IDENTITY, "tests the identity of a tensor that a branch returns"
            )

    def has_substitutes(self) -> bool:
        return bool(self._stand_ins)

    def restore_originals(self, frame: FrameType | None, changed: Sequence[Any] = ()) -> None:
        if self._stand_ins:
            self._stand_ins.restore(frame, changed)

    def restore_locals(self, frame: FrameType) -> None:
        self._stand_ins.restore_locals(frame)

    def release_restored(self) -> None:
        self._stand_ins.release()

    def restore_result(self, result: Any, changed: Sequence[Any] = ()) -> Any:
        """The program's result, after the run, with the tensors that the program has handed on:
        in the objects, too, that it has ``changed``."""
        self._may_be.clear()
        return self._stand_ins.restore_result(result, changed)

    # --- running the sides -----------------------------------------------------------------------

    def explore(
        self,
        run: MonitorRun,
        start: FrameState,
        until: int,
        again: int | None = None,
        own: Sequence[Any] = (),
        gradients_differ: bool = False,
        known: BranchFlag = None,
        exits: Exits | None = None,
        draws: bool = False,
        filled: Filled | None = None,
        reads: IndexedReads | None = None,
        stand_ins: Collection[int] = (),
    ) -> End:
        """Run a side beside the program, until it comes to ``until`` or to ``again``.

        It may change what is in ``own``, and put something into objects that are ``filled`` then.
        Where ``gradients_differ`` it must not ask what takes part in them. The flag ``known`` has
        one value there. Ways out of a loop are noted in ``exits``.
        Random numbers it ``draws`` only where the program is sure to go through it.
        What it reads by the index of a round is noted in ``reads``.
        ``stand_ins`` are the ids of containers of which it must not ask which ones they are.

        Raises:
            Split: it has an effect that cannot be taken back, or raises.
        """
        if start.instruction.offset == until:
            return End(start.locals, start.stack, None, [])
        if not self._depth:
            self._times.clear()
        rec = run.recording
        before = (*start.locals, *start.stack)
        start = replace(
            start,
            locals=tuple(copied(value, rec) for value in start.locals),
            stack=tuple(copied(value, rec) for value in start.stack),
        )
        after = (*start.locals, *start.stack)
        copies = {id(b): a for a, b in zip(before, after, strict=True) if a is not b}
        function = resumption(start)
        shift = origins[id(function.__code__)].shift
        side = BranchRun(function.__code__, shift, self._fake, run.abandon)
        side.gradients_differ, side.tensors.draws, side.filled = gradients_differ, draws, filled
        side.reads = reads if run.side is None else run.side.reads
        side.copies = {*stand_ins, *(run.side.copies if run.side is not None else ())}

        def original(value: Any) -> Any:
            return MOVED if id(value) in side.advanced else copies.get(id(value), value)

        if exits is not None:
            exits.original = original
        for value in (*(v for v in after if id(v) in copies), *own):
            side.tensors.own(value) if is_instance(value, torch.Tensor) else side.own(value)
        last = next(iter(reversed(rec.operators.graph.nodes)), None)
        watched, as_is = len(rec.inspections.unchanged), _as_is(rec)
        self._depth += 1
        pending, self._waiting = self._waiting, []
        outer, self._exits = self._exits, exits
        gradients = torch.is_grad_enabled()
        run.flags.begin_branch(run.at, function.__code__, start.code, shift, known)
        try:
            with without_saved_tensor_hooks(), self._fake, side.tensors:
                place = until if until == RETURN else until + shift
                reached = run.explore(function, place, -2 if again is None else again + shift, side)
        except Exception as error:
            cause = side.refused or _not_mergeable(f"one branch raises {type(error).__name__}")
            raise self._undo(rec, last, cause, side) from None
        finally:
            run.flags.end_branch(function.__code__, known)
            self._depth -= 1
            self._waiting, self._exits = pending, outer
            unstable = rec.inspections.has_changed(watched)
            del rec.inspections.unchanged[watched:]
            becomes = _as_is(rec)
            reasons = rec.graph.operators_as_is[as_is[-1] :]
            reason = next(iter(reasons), rec.graph.runs_as_is or rec.graph.stays_whole)
            rec.graph.runs_as_is, rec.graph.stays_whole, _ = as_is
            del rec.graph.operators_as_is[as_is[-1] :]
            leaves_switched = torch.is_grad_enabled() is not gradients
            torch.set_grad_enabled(gradients)
        if reached is None or side.refused:
            cause = side.refused or _not_mergeable("one branch does not reach the join point")
            raise self._undo(rec, last, cause, side)
        if leaves_switched:
            cause = _not_mergeable("one branch leaves gradients switched off or on")
            raise self._undo(rec, last, cause)
        if unstable:
            cause = _not_mergeable("one branch changes a tensor that may be external")
            raise self._undo(rec, last, cause)
        if becomes != as_is:
            raise self._undo(rec, last, _not_mergeable(f"one branch has an operator: {reason}"))
        nodes = nodes_after(rec, last)
        rec.operators.forget_numbers(set(nodes))
        offset, slots, stack = reached
        comes_again = again is not None and offset == again + shift
        if until == RETURN and not comes_again:
            stack = (_returned(function.__code__, offset, stack),)
        end = End(slots[:-1], stack, side, nodes, comes_again)

        end.put_back(original)
        return end

    def _undo(
        self, rec: Recording, last: fx.Node | None, cause: SplitCause, side: BranchRun | None = None
    ) -> Split:
        nodes = nodes_after(rec, last)
        rec.operators.forget_numbers(set(nodes))
        erase(rec, nodes)
        if side is not None and side.tensors.refused is not None:
            return Written(cause, side.tensors.refused)
        return Split(*cause)

    def share_memory(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors have one memory, which those without data only stand for."""
        storages = [
            (t if is_instance(t, FakeTensor) else self._fake.from_tensor(t)).untyped_storage()
            for t in (one, other)
        ]
        return bool(storages[0]._cdata == storages[1]._cdata)

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the program has instead of a tensor that is another value of the graph, too."""
        return self._stand_ins.make(tensor)

    # --- what stands for any tensor --------------------------------------------------------------

    def any_tensor(
        self, run: MonitorRun, like: torch.Tensor, symbol: fx.Node, gradients: bool
    ) -> torch.Tensor:
        """A tensor without data, known as ``symbol``, for any that rounds of a loop hand on."""
        # It is none of those that the side has made in which the program may be.
        with disable_current_modes(), self._fake:
            made = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device,
                requires_grad=gradients,
            )  # fmt: skip
        return self._known(run, made, symbol)

    def list_element(self, run: MonitorRun, given: GraphList, at: Any) -> torch.Tensor:
        """See ``Branching.list_element``."""
        rec, (first, *others) = run.recording, given.value
        for item in given.value:
            if type(item) is not torch.Tensor:
                raise LoopNotMergeable("a list has elements that are not plain tensors")
        for other in others:
            check_like(other, first)
        if rec.sizes.twin is not None and given.twin is None:
            raise LoopNotMergeable("the sizes of a list's elements are unknown")
        node = rec.operators.graph.call_function(operator.getitem, (given.node, at))
        if given.twin is not None:
            node.meta[TWIN] = given.twin
        return self.any_tensor(run, first, node, first.requires_grad)

    def _known(self, run: MonitorRun, made: torch.Tensor, node: fx.Node) -> torch.Tensor:
        self._any.append(MonitorWeakRef(made))
        run.recording.operators.set_node(made, node)
        return made

    # --- where the sides meet --------------------------------------------------------------------

    def at_join(self, run: MonitorRun, frame: FrameType | None) -> None:
        receive = self._waiting.pop()
        if frame is None:
            raise BranchNotMergeable("a branch or loop that is an operator raises an exception")
        receive(run, frame)
        run.account()

    def receive(
        self, run: MonitorRun, frame: FrameType, outputs: Sequence[tuple[Output, Received]]
    ) -> None:
        """Let the program have the results of an operator."""
        slots, stack = frame_locals(frame), frame_stack(frame)
        changed: dict[tuple[bool, int], Any] = {}
        for output, node in outputs:
            place = output.place
            key = (place.local, place.slot)
            value = changed.get(key, (slots if place.local else stack)[place.slot])
            changed[key] = self._received(run, value, place.path, output, node)
        for (local, slot), value in changed.items():
            if value is (slots if local else stack)[slot]:
                continue
            if local:
                frame_set_local(frame, slot, value)
            else:
                frame_set_operand(frame, len(stack) - slot, value)

    def _received(
        self, run: MonitorRun, value: Any, path: tuple[int, ...], output: Output, node: Received
    ) -> Any:
        """The program has ``value``, or has a tensor in it, as a result of the operator."""
        rec = run.recording
        if path:
            item = self._received(run, value[path[0]], path[1:], output, node)
            if item is value[path[0]]:
                return value
            return (*value[: path[0]], item, *value[path[0] + 1 :])
        if is_number(output.values[0]):
            if type(value) is not type(output.values[0]):
                raise BranchNotMergeable(
                    "a branch leaves a number of another type than its branch run"
                )
            return run.lift(value, GraphNumber(node) if is_instance(node, fx.Node) else node)
        assert is_instance(node, fx.Node)
        check_like(value, output.values[0])
        if rec.operators.node_of(value) is not None or rec.variables.node(value) is not None:
            value = self._stand_ins.make(value)
        rec.operators.set_node(value, node)
        if output.sources:
            self._may_be[id(value)] = MonitorWeakRef(value), [*map(MonitorWeakRef, output.sources)]
        for tensor in (value, *output.sources) if output.sources else ():
            rec.inspections.unchanged.append(VersionCheck(tensor))
        return value


def _not_mergeable(detail: str) -> SplitCause:
    return SplitCause(SplitReason.BRANCH_NOT_MERGEABLE, detail)


def _state(run: MonitorRun, step: Step, nested: bool) -> FrameState:
    """The state of the frame that branches.

    Raises:
        Split: it cannot be run on from there.
    """
    state = captured(run, step)
    name = state.instruction.name
    if name not in CONDITIONAL_JUMPS or (nested and name.endswith("_OR_POP")):
        raise BranchNotMergeable("the truth of the tensor is used as a value")
    check_resumable(state)
    return state


def _log_no_operator(step: Step, why: Exception) -> None:
    _log.info("%s: no operator for a branch: %s", source_location(step.frame), why)


def _as_is(rec: Recording) -> tuple[str | None, str | None, int]:
    """What of the graph, by now, no backend may be given or given in parts."""
    return rec.graph.runs_as_is, rec.graph.stays_whole, len(rec.graph.operators_as_is)


def _returned(code: Any, offset: int, stack: tuple[Any, ...]) -> Any:
    at = instructions(code)[offset]
    return code.co_consts[at.arg] if at.name == "RETURN_CONST" else stack[-1]
