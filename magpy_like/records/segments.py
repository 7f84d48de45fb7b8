"""Records of programs that split: a segment, the dynamic instruction, and what follows.

The record of a segment ends in the state of the program's open frames. A call runs the segment's
mock, then the dynamic instruction natively, and hands the frames on to the dispatcher of the
continuation, which has records of its own. One monitor run records all segments that it comes
through: where one ends, the frames' state becomes the arguments of the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.logs import topic
from magpy_like.monitor.calls import special_methods
from magpy_like.monitor.objects import locks
from magpy_like.monitor.objects.finalizers import has_destructor, noticed_in
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.expressions import distinct_copy, is_liftable
from magpy_like.monitor.symbolic.variation import argument_path
from magpy_like.monitor.torch_state import default_device
from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.native import StateCheck, frame_set_local, frame_set_operand
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import restore_generators
from magpy_like.split_points import (
    BranchRefused,
    SourcePosition,
    SpeculationRefused,
    Split,
    SplitPoint,
)
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.splitting.continuation import (
    Continuation,
    active_frames,
    original_function,
    state_after,
)
from magpy_like.splitting.dynamic_instruction import DynamicInstruction
from magpy_like.splitting.frame_layout import Layout, UnresumableState, lay_out
from magpy_like.splitting.frame_state import FrameState, has_handler
from magpy_like.splitting.resumption import Raised, run_chain
from magpy_like.synthesis.record import Record
from magpy_like.synthesis.shared_graphs import SharedGraphs
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK

_splits_log = topic("splits")

if TYPE_CHECKING:
    from magpy_like.records.dispatcher import Dispatcher


class Ends(Exception):
    """An object may die that a segment would hold for too long; the text says which."""


class Segment:
    """One segment of a program in a monitor run, from the state that it was entered in."""

    def __init__(
        self, dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.dispatcher, self.args, self.kwargs = dispatcher, args, kwargs
        self.recorded = False
        """Whether there is a record of it already."""
        self.is_first = True
        """Whether no other one came before in this run."""
        self._is_as_before = StateCheck()
        self._modes = Modes.now()
        self._devices = default_device.modes()
        self._turns = (
            None if TRACING_LOCK.is_held_elsewhere() else TRACING_LOCK.count_by_other_threads()
        )

    def is_disturbed(self) -> bool:
        """Whether torch has traced in another thread since, so that what was read may be its."""
        return TRACING_LOCK.count_by_other_threads() != self._turns

    def record(self, rec: Recording, result: Any) -> Record:
        """The record of what has been recorded since, with ``result`` as what its mock returns.

        Raises:
            Split: no record can be made.
        """
        if self.is_disturbed():
            raise Split(SplitReason.THREADS, "another thread traces with torch at the same time")
        if rec.autograd.reads_external:
            self.dispatcher.show_nodes()
        rec.operators.drawn_from = rec.state.drawn_from()
        special_methods.read_compared_special_methods(rec)
        self._note_modes(rec)
        return self.dispatcher.synthesise(rec, self.args, self.kwargs, result, self._at_entry)

    def _note_modes(self, rec: Recording) -> None:
        left, after = Modes.now(), default_device.modes()
        with self._at_entry():
            if not self._is_as_before():
                raise Split(SplitReason.MODE_CHANGE, "leaves torch's global state changed")
        if left != self._modes:
            rec.effects.modes_left = self._modes, left
        if after != self._devices:
            rec.effects.devices_left = default_device.mode_changes(self._devices, after)

    def has_from_outside(self, rec: Recording, value: Any) -> bool:
        """Whether somebody else than the program holds something."""
        node = rec.variables.node(value)
        if node is None or id(value) in rec.mutations.losing:
            return False
        begin, *way = rec.variables.path(node) or (None,)
        if begin is None:
            return False
        own = begin.kind is RelationKind.LOCAL and begin.key in self.dispatcher.own
        return not own or (bool(way) and is_instance(value, torch.nn.Module))

    def take_back(self, rec: Recording) -> bool:
        """Whether what the program has done since the segment began is as if it had not been: it
        has only drawn random numbers from torch, which is undone."""
        if self.recorded or rec.split is not None or rec.has_effects() or not self.is_first:
            return False
        if not (self._is_as_before() and Modes.now() == self._modes):
            return False
        restore_generators(rec.state.random_states)
        return True

    @contextlib.contextmanager
    def _at_entry(self) -> Iterator[None]:
        """Torch's modes as they were when the segment began."""
        with self._modes.held(), default_device.held(self._devices):
            yield


class SegmentCut:
    """Cuts a monitored program into segments and makes a record of each: a monitor's ``Cut``."""

    def __init__(
        self, dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        target = dispatcher.target
        self._continues = is_instance(target, Continuation)
        self.segment = Segment(dispatcher, args, kwargs)
        self._frames: list[types.FrameType] = []
        self._states: list[FrameState] = []

    def release(self) -> None:
        """Let go of what the last segment began with: the frames that an exception there came
        through would hold this frame's callers, and so the exception, until they are collected."""
        self.segment.args, self.segment.kwargs = (), {}
        self._frames, self._states = [], []

    def no_record(self, point: SplitPoint, obstacle: str) -> None:
        """No record of the segment could be made, which says nothing of one that was disturbed."""
        if not self.segment.is_disturbed():
            self.segment.dispatcher.no_record(point, obstacle)

    def speculates(self, place: SourcePosition) -> bool:
        return self.segment.dispatcher.may_speculate(place)

    def begins(self, function: Any) -> bool:
        return not self._continues or original_function(function) is not function

    def original_function(self, function: Any) -> Any:
        return original_function(function)

    def at_split(
        self,
        run: MonitorRun,
        frame: types.FrameType,
        cause: SplitCause,
        handled: BaseException | None,
    ) -> bool:
        dispatcher = self.segment.dispatcher
        try:
            if run.root_frame is None:
                raise UnresumableState("the program has not begun")
            if locks.holds_any(run.recording):
                raise UnresumableState("it holds a lock that a mock does not take")
            run.arguments.read_rest(run)
            self._frames, states = active_frames(frame, run.root_frame, run.step_of, handled)
            run.recording.operators.inspect_all_lists()
            self._held = self._look_at_ends(run, states)
            layout, values = lay_out(states)
            if not self.segment.recorded:
                run.recording.continues = True
                record = self.segment.record(run.recording, tuple(values))
                record.layout, record.ends_at = layout, SplitPoint.at(frame, cause)
                dispatcher.add(record, self.segment.args, self.segment.kwargs)
                self.segment.recorded = True
        except (SpeculationRefused, BranchRefused) as obstacle:
            dispatcher.refrain(obstacle, run.recording)
            return False
        except Ends as obstacle:
            dispatcher.note_split(SplitPoint.at(frame, cause))
            dispatcher.run_natively(str(obstacle))
            return False
        except (UnresumableState, Split) as obstacle:
            if dispatcher.varying.keep_lengths():
                return False  # it may have been cut for that alone
            self.no_record(SplitPoint.at(frame, cause), str(obstacle))
            return False
        dispatcher.note_split(SplitPoint.at(frame, cause))
        if dispatcher.fullgraph or dispatcher.is_eager:
            return False
        run.let_go()
        self.segment.args = ()
        self._states, self._joins = states, cause.reason is SplitReason.VARYING_LIST
        return True

    def _look_at_ends(self, run: MonitorRun, states: Sequence[FrameState]) -> set[int]:
        """The ids of what others than the program hold of these states.

        Raises:
            Ends: the program may end the life of an object, and notice that.
        """
        held = {id(run.handled_outside)}

        def is_held(value: Any) -> bool:
            if self.segment.has_from_outside(run.recording, value):
                held.add(id(value))
            return id(value) in held

        for state in states:
            is_held(state.function)  # and with it what its closure has
        _look_at_ends(states, is_held)
        return held

    def after_split(self, run: MonitorRun, frame: types.FrameType) -> None:
        states, frames = self._states, self._frames
        self._states, self._frames = [], []
        try:
            states[0] = state_after(states[0], frame)
        except UnresumableState as obstacle:
            _splits_log.info("what follows runs natively: %s", obstacle)
            run.end()
            return
        self._go_on(run, frames, states)

    def after_raise(self, run: MonitorRun, exception: BaseException) -> None:
        states, frames = self._states, self._frames
        self._states, self._frames = [], []
        if has_handler(states):
            self._go_on(run, frames, states, exception)
        else:
            run.end()

    def _go_on(
        self,
        run: MonitorRun,
        frames: Sequence[types.FrameType],
        states: Sequence[FrameState],
        raised: BaseException | None = None,
    ) -> None:
        """The next segment begins, in these states of the open frames."""
        held = self._held
        try:
            _look_at_ends(states, lambda value: id(value) in held, raised)
        except Ends as obstacle:
            self.segment.dispatcher.run_natively(str(obstacle))
            run.end()
            return
        layout, values = lay_out(states, raised)
        dispatcher = self.segment.dispatcher.following(layout)
        for position, value in enumerate(values):
            if run.lifted.expression(value) is not None:
                dispatcher.varying.expect(argument_path(position))
            elif is_instance(value, torch.Tensor):
                dims = run.recording.sizes.varying_dims(value)
                if self._joins and position == layout.result_position and value.dim():
                    dims = [0]  # along which lists are joined, most likely
                dispatcher.varying.expect_sizes(argument_path(position), dims)
        arguments = tuple(values)
        covered = dispatcher.covers(arguments)
        if dispatcher.is_eager and not covered:
            run.end()
            return
        variation = dispatcher.variation(arguments, {})
        varying = set(variation.numbers)
        for position in range(len(values)):
            place = argument_path(position)
            if place in varying and is_liftable(values[position]):
                number = distinct_copy(values[position])
                run.found.note(number, values[position])
                if _replace(layout, position, frames, number):
                    values[position] = number
                else:
                    varying.discard(place)
        if varying:
            arguments = tuple(values)
        run.release()
        self.segment = Segment(dispatcher, arguments, {})
        self.segment.is_first = False
        dispatcher.own = {i for i, value in enumerate(values) if id(value) not in held}
        self.segment.recorded = covered
        functions = [state.function for state in states]
        variation = dataclasses.replace(variation, numbers=frozenset(varying))
        run.go_on(arguments, functions, variation)


def _replace(layout: Layout, position: int, frames: Sequence[types.FrameType], number: Any) -> bool:
    """Put a number where an open frame has an equal one; whether that can be done."""
    found = layout.slot_of(position)
    if found is None:
        return False
    frame, slot, depth = found
    if slot is not None:
        frame_set_local(frames[frame], slot, number)
    elif frame == 0 and not layout.raised:  # an instruction that raises has taken its operands
        frame_set_operand(frames[0], depth, number)
    else:
        return False  # the operand stack of a frame that called another cannot be seen
    return True


class Segments:
    """The continuations of one compiled function, by where they go on."""

    def __init__(
        self,
        make: Callable[[Continuation], Dispatcher],
        run_natively: Callable[[str], None],
        forget: Callable[[], None],
    ) -> None:
        self._make = make
        self.run_natively, self._forget = run_natively, forget
        self.dispatchers: dict[Layout, Dispatcher] = {}
        self.graphs = SharedGraphs()
        self.misspeculations: set[SourcePosition] = set()
        """Where the program has gone another way than speculated."""
        self.says_compiling = True
        """Whether the program hears in monitored runs that it is in a compiled region."""
        self.shows_nodes = False
        """Whether the program looks at the autograd graph of what an earlier segment has made, so
        that each runs operator by operator."""
        self.eager_with_gradients = False
        """Whether a segment writes to what an earlier one may have saved for the backward pass, so
        that each runs operator by operator when gradients are recorded."""
        self._dynamic_instructions: dict[int, DynamicInstruction] = {}

    def following(self, layout: Layout) -> Dispatcher:
        """The dispatcher of what is to be run from a state of this layout."""
        found = self.dispatchers.get(layout)
        if found is None:
            found = self.dispatchers[layout] = self._make(Continuation(layout))
        return found

    def show_nodes(self) -> None:
        if not self.shows_nodes:
            self.shows_nodes = True
            self._forget()

    def run_eagerly_with_gradients(self) -> None:
        if not self.eager_with_gradients:
            self.eager_with_gradients = True
            self._forget()

    def cross(self, layout: Layout, values: Sequence[Any]) -> tuple[Dispatcher | None, Any]:
        """Run the dynamic instruction at the end of a segment.

        Returns the dispatcher of what follows, with its arguments; or None and the program's
        result, when the rest had to run natively.
        """
        # Every record has a layout object of its own, which lives as long as these segments.
        instruction = self._dynamic_instructions.get(id(layout))
        if instruction is None:
            instruction = self._dynamic_instructions[id(layout)] = DynamicInstruction(layout)
        outcome = instruction.run(values)
        if not is_instance(outcome, Raised):
            ahead, following = outcome
        elif instruction.raising is not None:
            ahead, following = instruction.raising, (*values, outcome.exception)
        else:
            return None, run_chain(layout.build(values), outcome.exception)
        if ahead.following is None:
            ahead.following = self.following(ahead.layout)
        return ahead.following, following


def _look_at_ends(
    states: Sequence[FrameState],
    is_held: Callable[[Any], bool],
    raised: BaseException | None = None,
) -> None:
    """A segment keeps what it begins with until it ends.

    Raises:
        Ends: the program may end the life of an object in these states, and notice that.
    """
    values: list[Any] = [raised]
    for state in states:
        if state.code in _RUN_GENERATOR:
            continue  # to where it waits in a `with` block, or to its end
        values += [*state.locals, state.handled_exception, state.pending and state.pending.complete]
        values += [value for value in state.stack if not _ends_a_with(value)]
    noticed = noticed_in(values, is_held)
    if noticed is not None:
        raise Ends(f"the end of a {type(noticed).__qualname__} is noticed")


_RUN_GENERATOR = (
    contextlib._GeneratorContextManager.__enter__.__code__,
    contextlib._GeneratorContextManager.__exit__.__code__,
)


def _ends_a_with(value: Any) -> bool:
    """Whether it is the method that a ``with`` block calls at its end, and its object finishes
    then what it would do when it dies."""
    method = is_instance(value, types.MethodType | types.BuiltinMethodType)
    return method and value.__name__ == "__exit__" and not has_destructor(value.__self__)
