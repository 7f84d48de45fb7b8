"""Segments of programs that split: one monitor run cut into records.

The record of a segment ends in the state of the active frames. A call runs the segment's mock, then
the dynamic instruction natively, and passes the frames' state to the dispatcher of the
continuation, which has records of its own. One monitor run records all segments: where one ends,
the frames' state becomes the arguments of the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.logs import topic
from magpy_like.monitor.calls import special_methods
from magpy_like.monitor.frame_observers import (
    OBSERVES_ITSELF,
    are_replaced,
    frame_observers,
)
from magpy_like.monitor.objects import locks
from magpy_like.monitor.objects.finalizers import find_observed, has_destructor
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.expressions import distinct_copy, is_liftable
from magpy_like.monitor.symbolic.variation import argument_path
from magpy_like.monitor.torch_state import default_device
from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.native import StateCheck, frame_set_local, frame_set_operand, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.records.foreign_tracing import describe_observer
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
from magpy_like.splitting.frame_layout import Layout, UnresumableState, lay_out
from magpy_like.splitting.frame_state import FrameState, has_handler
from magpy_like.synthesis.record import Record
from magpy_like.torch_interop.random_states import restore_generators
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK

_splits_log = topic("splits")

if TYPE_CHECKING:
    from magpy_like.records.dispatcher import Dispatcher


class ObservableFinalizer(Exception):
    """A segment would keep an object alive although the program observes its finalizer."""


class SegmentRecording:
    """One segment of a program in a monitor run, with the state at its start."""

    def __init__(
        self, dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.dispatcher, self.args, self.kwargs = dispatcher, args, kwargs
        self.recorded = False
        """Whether it already has a record."""
        self.is_first = True
        """Whether the run began with it."""
        self._state_check = StateCheck()
        self._modes = Modes.now()
        self._devices = default_device.modes()
        self._foreign_traces = (
            None if TRACING_LOCK.is_held_elsewhere() else TRACING_LOCK.count_by_other_threads()
        )

    def is_disturbed(self) -> bool:
        """True if another thread has traced with torch since the start: reads may depend on it."""
        return TRACING_LOCK.count_by_other_threads() != self._foreign_traces

    def record(self, rec: Recording, result: Any) -> Record:
        """The segment's record, whose mock returns ``result``.

        Raises:
            Split: no record can be made.
        """
        if self.is_disturbed():
            raise Split(SplitReason.THREADS, "another thread traces with torch at the same time")
        if rec.autograd.reads_external:
            self.dispatcher.expose_autograd_graph()
        rec.operators.drawn_from = rec.state.drawn_from()
        special_methods.read_compared_special_methods(rec)
        self._note_modes(rec)
        return self.dispatcher.synthesise(rec, self.args, self.kwargs, result, self._at_entry)

    def _note_modes(self, rec: Recording) -> None:
        left, after = Modes.now(), default_device.modes()
        with self._at_entry():
            if not self._state_check():
                raise Split(SplitReason.MODE_CHANGE, "leaves torch's global state changed")
        if left != self._modes:
            rec.effects.modes_left = self._modes, left
        if after != self._devices:
            rec.effects.devices_left = default_device.mode_changes(self._devices, after)

    def is_held_outside(self, rec: Recording, value: Any) -> bool:
        """True if anything outside the program refers to the object."""
        node = rec.variables.node(value)
        if node is None or id(value) in rec.mutations.destroying:
            return False
        root, *path = rec.variables.path(node) or (None,)
        if root is None:
            return False
        is_owned = root.kind is RelationKind.LOCAL and root.key in self.dispatcher.owned_arguments
        return not is_owned or (bool(path) and is_instance(value, torch.nn.Module))

    def roll_back(self, rec: Recording) -> bool:
        """Roll back the segment's effects; True if that is possible.

        It is possible if the program has only drawn random numbers from torch.
        """
        if self.recorded or rec.split is not None or rec.has_effects() or not self.is_first:
            return False
        if not (self._state_check() and Modes.now() == self._modes):
            return False
        restore_generators(rec.state.random_states)
        return True

    @contextlib.contextmanager
    def _at_entry(self) -> Iterator[None]:
        """Restore torch's modes at the segment's start, for the context."""
        with self._modes.held(), default_device.held(self._devices):
            yield


class SegmentCut:
    """Cuts a monitored program into segments, each with a record: the monitor's ``Cut``."""

    def __init__(
        self, dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        target = dispatcher.target
        self._continues = is_instance(target, Continuation)
        self.segment = SegmentRecording(dispatcher, args, kwargs)
        self._frames: list[types.FrameType] = []
        self._states: list[FrameState] = []

    def release(self) -> None:
        """Release the state at the last segment's start.

        Otherwise the traceback of an exception in it would form a reference cycle through the
        callers of this frame.
        """
        self.segment.args, self.segment.kwargs = (), {}
        self._frames, self._states = [], []

    @property
    def awaits_instruction(self) -> bool:
        """True if no event has reported the end of the last dynamic instruction: it has set an
        observer that took the monitor's events away."""
        return bool(self._states)

    def note_unrecorded(self, point: SplitPoint, obstacle: str) -> None:
        """Note that the segment has no record, unless another thread has disturbed it."""
        if not self.segment.is_disturbed():
            self.segment.dispatcher.note_unrecorded(point, obstacle)

    def speculates(self, position: SourcePosition) -> bool:
        return self.segment.dispatcher.may_speculate(position)

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
        if cause.reason is SplitReason.TRACE_FUNCTION:
            dispatcher.note_split(SplitPoint.at(frame, cause))
            dispatcher.program.run_natively(OBSERVES_ITSELF)
            return False
        try:
            if run.context.root_frame is None:
                raise UnresumableState("the program has not begun")
            if locks.holds_any(run.context.recording):
                raise UnresumableState("it holds a lock that a mock does not take")
            run.context.arguments.read_rest(run.context)
            self._frames, states = active_frames(
                frame, run.context.root_frame, run.context.step_of, handled
            )
            run.context.recording.operators.inspect_all_lists()
            self._held = self._check_held_objects(run, states)
            layout, values = lay_out(states)
            if not self.segment.recorded:
                run.context.recording.continues = True
                record = self.segment.record(run.context.recording, tuple(values))
                record.layout, record.ends_at = layout, SplitPoint.at(frame, cause)
                dispatcher.add(record, self.segment.args, self.segment.kwargs)
                self.segment.recorded = True
        except (SpeculationRefused, BranchRefused) as obstacle:
            dispatcher.skip_fast_path(obstacle, run.context.recording)
            return False
        except ObservableFinalizer as obstacle:
            dispatcher.note_split(SplitPoint.at(frame, cause))
            dispatcher.program.run_natively(str(obstacle))
            return False
        except (UnresumableState, Split) as obstacle:
            if dispatcher.varying.keep_lengths():
                return False  # a varying length may be the only reason for the split
            self.note_unrecorded(SplitPoint.at(frame, cause), str(obstacle))
            return False
        dispatcher.note_split(SplitPoint.at(frame, cause))
        if dispatcher.fullgraph or dispatcher.is_eager:
            return False
        run.release_segment()
        self.segment.args = ()
        self._observers = frame_observers()
        self._states, self._joins = states, cause.reason is SplitReason.VARYING_LIST
        return True

    def _check_held_objects(self, run: MonitorRun, states: Sequence[FrameState]) -> set[int]:
        """The ids of objects in these states that anything outside the program refers to.

        Raises:
            ObservableFinalizer: the program observes the finalizer of one of the others.
        """
        held = {id(run.handled_outside)}

        def is_held(value: Any) -> bool:
            if self.segment.is_held_outside(run.context.recording, value):
                held.add(id(value))
            return id(value) in held

        for state in states:
            is_held(state.function)  # and with it its closure
        _check_finalizers(states, is_held)
        for state in states:
            for value in (*state.locals, *state.stack):
                if type(value) in weakref.ProxyTypes:
                    is_held(value)  # the dynamic instruction may read its object
        return held

    def after_split(self, run: MonitorRun, frame: types.FrameType) -> None:
        states, frames = self._states, self._frames
        self._states, self._frames = [], []
        if self._ends_observed(run):
            return
        try:
            states[0] = state_after(states[0], frame)
        except UnresumableState as obstacle:
            _splits_log.info("the rest runs natively: %s", obstacle)
            run.end()
            return
        self._begin_next(run, frames, states)

    def after_raise(self, run: MonitorRun, exception: BaseException) -> None:
        states, frames = self._states, self._frames
        self._states, self._frames = [], []
        if self._ends_observed(run):
            return
        if has_handler(states):
            self._begin_next(run, frames, states, exception)
        else:
            run.end()

    def _ends_observed(self, run: MonitorRun) -> bool:
        """End the run if the dynamic instruction has set a trace or profile function, or begun
        something that sees each operator, such as a mode: it would see the monitor's own."""
        if describe_observer() is not None:
            run.end()
            return True
        if not are_replaced(self._observers):
            return False
        self.segment.dispatcher.program.run_natively(OBSERVES_ITSELF)
        run.end()
        return True

    def _begin_next(
        self,
        run: MonitorRun,
        frames: Sequence[types.FrameType],
        states: Sequence[FrameState],
        raised: BaseException | None = None,
    ) -> None:
        """Begin the next segment in these states of the active frames."""
        held = self._held

        def is_held(value: Any) -> bool:
            return id(value) in held or _has_proxy_among(held, value)

        try:
            _check_finalizers(states, is_held, raised)
        except ObservableFinalizer as obstacle:
            self.segment.dispatcher.program.run_natively(str(obstacle))
            run.end()
            return
        layout, values = lay_out(states, raised)
        dispatcher = self.segment.dispatcher.following(layout)
        for position, value in enumerate(values):
            if run.context.lifted.expression(value) is not None:
                dispatcher.varying.expect(argument_path(position))
            elif is_instance(value, torch.Tensor):
                dims = run.context.recording.sizes.varying_dims(value)
                if self._joins and position == layout.result_position and value.dim():
                    dims = [0]  # the dimension that lists are most likely joined along
                dispatcher.varying.expect_sizes(argument_path(position), dims)
        arguments = tuple(values)
        covered = dispatcher.cache.covers(arguments)
        if dispatcher.is_eager and not covered:
            run.end()
            return
        variation = dispatcher.variation(arguments, {})
        varying = set(variation.numbers)
        for position in range(len(values)):
            path = argument_path(position)
            if path in varying and is_liftable(values[position]):
                number = distinct_copy(values[position])
                run.context.originals.note(number, values[position])
                if _replace(layout, position, frames, number):
                    values[position] = number
                else:
                    varying.discard(path)
        if varying:
            arguments = tuple(values)
        run.context.release()
        self.segment = SegmentRecording(dispatcher, arguments, {})
        self.segment.is_first = False
        dispatcher.owned_arguments = {
            i for i, value in enumerate(values) if not is_held(_receiver(value))
        }
        self.segment.recorded = covered
        functions = [state.function for state in states]
        variation = dataclasses.replace(variation, numbers=frozenset(varying))
        run.begin_segment(arguments, functions, variation)


def _replace(layout: Layout, position: int, frames: Sequence[types.FrameType], number: Any) -> bool:
    """Replace a number in an active frame by an equal one; False if that is impossible."""
    location = layout.slot_of(position)
    if location is None:
        return False
    frame, slot, depth = location
    if slot is not None:
        frame_set_local(frames[frame], slot, number)
    elif frame == 0 and not layout.raised:  # an instruction that raises has popped its operands
        frame_set_operand(frames[0], depth, number)
    else:
        return False  # the operand stack of a calling frame is not accessible
    return True


def _has_proxy_among(held: set[int], value: Any) -> bool:
    """True if an object has a weak proxy that is one of these external objects.

    The program reached the object by the proxy only, so anything outside the program refers to it.
    """
    return any(
        id(reference) in held and type(reference) in weakref.ProxyTypes
        for reference in weakref.getweakrefs(value)
    )


def _receiver(value: Any) -> Any:
    """The receiver of a method that its class defines: the bound method holds nothing else. Any
    other value itself."""
    if type(value) is not types.MethodType:
        return value
    function = value.__func__
    defined = lookup_in_type(type(value.__self__), getattr(function, "__name__", ""))
    return value.__self__ if defined is function else value


def _check_finalizers(
    states: Sequence[FrameState],
    is_held: Callable[[Any], bool],
    raised: BaseException | None = None,
) -> None:
    """Check the objects that a segment keeps alive from its start to its end.

    Raises:
        ObservableFinalizer: the program observes the finalizer of one of them.
    """
    values: list[Any] = [raised]
    for state in states:
        if state.code in _RUN_GENERATOR:
            continue  # runs to its `yield` in a `with` block, or to its end
        values += [*state.locals, state.handled_exception, state.pending and state.pending.complete]
        values += [value for value in state.stack if not _is_exit_method(value)]
    observed = find_observed(values, is_held)
    if observed is not None:
        raise ObservableFinalizer(
            f"the program observes the finalizer of a {type(observed).__qualname__}"
        )


_RUN_GENERATOR = (
    contextlib._GeneratorContextManager.__enter__.__code__,
    contextlib._GeneratorContextManager.__exit__.__code__,
)


def _is_exit_method(value: Any) -> bool:
    """True for the ``__exit__`` of a ``with`` block whose object has no destructor of its own."""
    method = is_instance(value, types.MethodType | types.BuiltinMethodType)
    return method and value.__name__ == "__exit__" and not has_destructor(value.__self__)
