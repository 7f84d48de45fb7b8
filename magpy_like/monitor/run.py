"""The monitor run: the program runs natively, once, and every instruction is seen (section 3)."""

from __future__ import annotations

import functools
import opcode
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.weak

from magpy_like.bytecode.code_facts import current_opname, keyword_names
from magpy_like.logs import topic
from magpy_like.monitor.calls import native_calls, replayed_calls
from magpy_like.monitor.calls.argument_kinds import is_followed
from magpy_like.monitor.calls.checkpoint_runs import CheckpointRun
from magpy_like.monitor.calls.checkpointed_functions import CheckpointCall
from magpy_like.monitor.calls.operator_closures import refuse
from magpy_like.monitor.calls.passthrough_results import is_passed_through
from magpy_like.monitor.calls.replayed_calls import innermost_program_frame
from magpy_like.monitor.entering_frames import Entering
from magpy_like.monitor.instructions.rule_table import WHEN, Rules, load_rules
from magpy_like.monitor.instructions.step import Step, finish_without_result
from magpy_like.monitor.isolated_runs import (
    MAKES,
    BranchRun,
    IsolatedRun,
    finish_in_side,
    side_filter,
)
from magpy_like.monitor.object_replacement import FoundNumbers
from magpy_like.monitor.program_arguments import ProgramArguments
from magpy_like.monitor.protocols import Branching, Cut
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region_entry import ask_for_instructions, seen_entry
from magpy_like.monitor.suspension import Suspension
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.monitor.symbolic.gathered_lists import inspected_lists
from magpy_like.monitor.symbolic.lifted_flags import LiftedFlags
from magpy_like.monitor.symbolic.lifted_number_rules import SPECIALIZED_BY
from magpy_like.monitor.symbolic.variation import NOTHING_VARIES, Variation
from magpy_like.monitor.tensor_restoration import TensorRestoration
from magpy_like.monitor.torch_state import tensor_attributes
from magpy_like.native import (
    Monitor,
    call_as_caller,
    dispatch_counter,
    frame_locals,
    frame_set_operand,
    frame_stack,
    start_counting,
    stop_counting,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import PLAIN_TYPES
from magpy_like.split_points import (
    EffectInsideOperator,
    SourcePosition,
    Split,
    SplitPoint,
    UnguardableRead,
    active,
    source_position,
)
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_patches import (
    Compiling,
    add_collection_callbacks,
    remove_collection_callbacks,
)

log = topic("monitor")

_PASSES_THROUGH = {
    "CALL", "CALL_FUNCTION_EX", "LOAD_ATTR", "LOAD_METHOD", "BINARY_SUBSCR", "BINARY_OP",
    "FOR_ITER", "SEND", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "RETURN_VALUE",
}  # fmt: skip
"""Instructions that leave what a Python function returns to them on the stack as it is."""


@functools.cache
def _rules() -> Rules:
    return load_rules()


class MonitorRun:
    """One native run of ``target(*args, **kwargs)`` under the monitor."""

    simple_types = PLAIN_TYPES | {
        list, tuple, dict, set, frozenset, slice, type(iter([])), type(iter(())), type(iter({})),
        zip, enumerate, map, filter, reversed,
    }  # fmt: skip
    """Types whose attributes are native and tell nothing that the guard does not know."""

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        varying: Variation = NOTHING_VARIES,
        cut: Cut | None = None,
        branching: Branching | None = None,
        says_compiling: bool = True,
    ) -> None:
        """``cut`` is told of a split while the program stands at it."""
        self.told_compiling = False
        """Whether the program has heard that it is in a compiled region."""
        self._compiling = Compiling(says_compiling)
        self.branching = branching
        self.side: BranchRun | None = None
        """The side of a branch that is running beside the program."""
        self.skipping = False
        """Whether a side goes through a branch inside it, whose operator is on the graph."""
        self.arguments = ProgramArguments(seen_entry(target), args, kwargs)
        self.name = getattr(target, "__qualname__", type(target).__qualname__)
        self.cut = cut
        self.found = FoundNumbers()
        self._begin(varying)
        if varying.numbers:
            self.arguments.vary(self)
        self.root_frame: types.FrameType | None = None
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.at: types.FrameType | None = None
        """Where the program was last seen."""
        self._collects = False
        """Whether the garbage collector is at work."""
        self.called_instead: replayed_calls.Call | None = None
        """The call to make in place of the one that is about to run."""
        self.refrained: SplitCause | None = None
        """Why a checkpointed function could not be followed, which the next run will not do."""
        self.suspension = Suspension()
        self._rules = _rules()
        self._monitor = Monitor(
            on_frame=self._on_frame,
            on_instruction=self._on_instruction,
            on_result=self._on_result,
            on_exception=self._on_exception,
            on_return=self._on_return,
            on_hidden=self._on_hidden,
            on_join=self._on_join,
            on_interruption=self._on_interruption,
            filter=self._rules.filter,
        )
        self._own = TensorRestoration(
            self._monitor, branching, id(innermost_program_frame(sys._getframe()))
        )
        self.updates: dict[types.CodeType, set[int]] = {}
        self._keywords: dict[types.CodeType, dict[int, tuple[str, ...]]] = {}

    def _begin(self, varying: Variation) -> None:
        """A recording begins, of which nothing is known yet."""
        self._record_into(Recording(varying, self.found, self._speculation_position))
        self.varying = varying
        if varying.dims is not None:
            self.recording.sizes.begin_twin(varying.dims, self.account, self._locate)
        self.globals_read: set[tuple[int, str]] = set()
        self._entering = Entering()

    def _record_into(self, recording: Recording) -> None:
        self.recording, self.lifted = recording, recording.lifted
        self.flags = LiftedFlags(recording)

    def release(self) -> None:
        """Drop the recording, and with it every object of the program that it holds."""
        self.recording.release()
        self._record_into(Recording(found=self.found))

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Any:
        """Run the program; what it returns or raises is what it would have without the monitor."""
        outer = getattr(active, "run", None)
        previous = sys.gettrace()
        self.handled_outside = self.recording.state.handled_outside = sys.exception()
        ask_for_instructions()
        active.run = self
        with self._compiling:
            counting = start_counting()
            add_collection_callbacks(self._suspend, self._resume)
            self._monitor.start(dispatch_counter())
            try:
                # No local of this frame, which tracebacks hold, has them.
                return call_as_caller(
                    self.arguments.target, self.arguments.args, self.arguments.kwargs
                )
            finally:
                self._monitor.stop()
                remove_collection_callbacks(self._suspend, self._resume)
                stop_counting(counting)
                sys.settrace(previous)
                active.run = outer
                log.info("%s: %d instructions, %d of interest", self.name, *self._monitor.counts())
                self._close()

    def _speculation_position(self) -> SourcePosition | None:
        if self.cut is None or self.at is None:
            return None
        place = source_position(self.at)
        return place if self.cut.speculates(place) else None

    def _locate(self) -> str:
        frame = self.at
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def _suspend(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins amid a program: what it ends, and who listens, are no part of it."""
        if phase == "start" and not self._collects and getattr(active, "run", None) is self:
            self._collects = True
            self.suspension.enter()

    def _resume(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and self._collects:
            self._collects = False
            self.suspension.leave()

    def _recall(self) -> None:
        """Containers have what they had before, but for those that the mock is to change."""

        def is_changed(container: Any) -> bool:
            node = self.recording.variables.node(container)
            return node is not None and node.changed

        self.found.recall(is_changed)

    def _close(self) -> None:
        """Let go of the program: the monitor and its callbacks refer to each other."""
        self._recall()
        self._entering.let_go()
        self.root_frame = self.cut = self.branching = None
        if self.recording.sizes.twin is not None:
            self.recording.sizes.twin.account = _nobody_listens
            self.recording.sizes.twin.locate = _in_the_backend
        self.at = self.handled_outside = None
        del self._monitor, self._own, self.arguments

    def end(self, frame: types.FrameType | None = None) -> None:
        """Watch no more; the program goes on natively.

        ``frame`` stands before an instruction. What has called it is waited for where it may have
        tensors that are not the program's own.
        """
        self._own.hand_back(frame, self.recording.changed_objects())
        self._own.end(frame, bytes([WHEN["always"]]) * 256)
        if not self.told_compiling:
            self._compiling.leave()  # it is not, and nothing has told the program otherwise
        split = self.recording.split
        self.release()  # objects that the program drops from here on die at once
        self.recording.split = split
        self._entering.let_go()
        self.at = self.root_frame = None
        self.arguments.take(())
        if self.cut is not None:
            self.cut.release()

    def give_back(self, result: Any, changed: Sequence[Any]) -> Any:
        """The run is over, and all records are made: the program's result, with the objects that
        it has found for numbers, which it must not have others for elsewhere either, as in what it
        has ``changed``."""
        self.release()
        return self.found.give_back(result, changed)

    def let_go(self) -> None:
        """Hold no more of the program than what follows a split needs to know."""
        self.recording.keep_results()
        self._entering.let_go()
        self.arguments.let_go()

    def give_up(self, reason: SplitReason, detail: str) -> None:
        """The program does something that no instruction or call reports."""
        self._split(sys._getframe(1), SplitCause(reason, detail))

    def _split(self, frame: types.FrameType, cause: SplitCause, stands: bool = False) -> None:
        """End the recording here; the program goes on natively.

        ``stands`` says that the frame stands before an instruction.
        """
        if self.side is not None:
            self.side.refuse(cause)
            return
        if self.recording.checkpointed is not None:
            self.recording.checkpointed.refuse()
            self.refrained = cause
        if not stands and self.branching is not None:
            self.branching.restore_locals(frame)
        self.end(frame if stands else None)
        if self.recording.split is None:
            self.recording.split = SplitPoint.at(frame, cause)

    def _fail(self, frame: types.FrameType, error: BaseException, stands: bool = False) -> None:
        """A callback has raised: its own errors end the recording, an interruption the program."""
        if not is_instance(error, Exception):
            raise error
        ends = is_instance(error, EffectInsideOperator) or self.side is not None
        if is_instance(error, Split) and self.recording.running.depth and not ends:
            self.recording.running.keep_as_is(f"{frame.f_code.co_qualname} {error}")
        elif is_instance(error, Split):
            if self.recording.running.depth:
                refuse(self.recording)
            self._split(frame, error.cause, stands)
        else:
            log.debug("the monitor failed", exc_info=error)
            detail = f"the monitor could not follow: {type(error).__name__}: {error}"
            self._split(frame, SplitCause(SplitReason.INTERNAL_ERROR, detail), stands)

    # --- events ----------------------------------------------------------------------------------

    def _on_instruction(
        self, frame: types.FrameType, number: int, oparg: int, offset: int, stack: tuple[Any, ...]
    ) -> Any:
        handled = sys.exception()
        self.at = frame
        try:
            if self._own.goes_on(frame):
                stack = frame_stack(frame)
            if self._own.over:
                return None
            step = Step(frame, number, oparg, offset, stack)
            if self.skipping:
                jumps = "JUMP" in opcode.opname[number]
                if jumps and self.branching is not None and is_instance(stack[-1], torch.Tensor):
                    frame_set_operand(frame, 1, self.branching.recorded_truth(step))
                return None
            operators = self.recording.operators
            if operators.lists:
                for value in inspected_lists(step, operators.lists, is_followed):
                    operators.inspect_list(value)
            step = self.flags.on_instruction(self, step)
            if (confined := self.confined()) is not None:
                return self._on_confined_instruction(confined, step)
            if self.lifted and number in SPECIALIZED_BY:
                done = SPECIALIZED_BY[number](self, step)
                if done is not None:
                    return done
            return self._rules.rules[number](self, step)
        except BaseException as error:
            if is_instance(error, Split) and self._cut_here(frame, error, handled):
                return _finish_dynamic, (frame,)
            self._fail(frame, error, stands=True)
            return None

    def confined(self) -> IsolatedRun | None:
        """The part of the program that may change nothing but what is its own."""
        return self.recording.checkpointed if self.side is None else self.side

    def choose_filter(self) -> None:
        """Let those instructions be announced that somebody has rules for."""
        ordinary = self._rules.filter
        confined = self.confined() is not None
        self._monitor.set_filter(side_filter(ordinary, WHEN) if confined else ordinary)

    def enter_checkpoint(self, call: CheckpointCall) -> None:
        """A function under a checkpoint begins."""
        self.recording.checkpointed = CheckpointRun(call, self.recording)
        self.choose_filter()

    def _on_confined_instruction(self, confined: IsolatedRun, step: Step) -> Any:
        if confined.is_restored_by(step):
            return None
        confined.check(self, step)
        token = None
        if self.lifted and step.opcode in SPECIALIZED_BY:
            token = SPECIALIZED_BY[step.opcode](self, step)
        rule = self._rules.rules.get(step.opcode)
        if token is None and rule is not None:
            token = rule(self, step)
        return (finish_in_side, (confined, token)) if step.opcode in MAKES else token

    def _on_join(self, frame: types.FrameType | None) -> None:
        self.skipping = False
        try:
            if self.branching is not None:
                self.branching.at_join(self, frame)
        except BaseException as error:
            self._fail(frame or sys._getframe(), error)

    def go_on(
        self,
        values: tuple[Any, ...],
        functions: Sequence[Any],
        varying: Variation,
    ) -> None:
        """Behind a split another recording begins, with the values of the open frames as arguments.

        ``functions`` are those of the open frames. A number at a varying place has an identity of
        its own already.
        """
        self._begin(varying)
        self.recording.state.handled_outside = self.handled_outside
        self.arguments.take(values)
        self._monitor.set_root(None)
        self.arguments.read_all(self)
        for function in functions:
            if is_instance(function, types.FunctionType):
                self._entering.enter_function(self.recording, function)
        self.account()

    def _cut_here(
        self, frame: types.FrameType, split: Split, handled: BaseException | None
    ) -> bool:
        """Whether the program is cut at the instruction it stands at, and watched beyond that."""
        rec = self.recording
        if (
            self.cut is None
            or self.side is not None
            or rec.running.depth
            or self.suspension.depth
            or rec.split
        ):
            return False
        if rec.checkpointed is not None:
            return False
        if self.branching is not None:
            self.branching.abandon_loops(self)
        self.flags.specialize_all()
        self._recall()
        self._compiling.leave()  # neither a backend nor a dynamic function is part of the region
        changed = rec.changed_objects()
        if self.cut.at_split(self, frame, split.cause, handled):
            self._own.hand_back(frame, changed)
            # What outer frames wait for is the earlier recording's business.
            self._monitor.drop_pending()
            self.suspension.enter()
            return True
        self._compiling.enter()
        return False

    def _on_result(self, token: Any, frame: types.FrameType, stack: tuple[Any, ...]) -> None:
        self.at = frame
        try:
            if self._own.goes_on(frame):
                stack = frame_stack(frame)
            finish, payload = token
            given: Any = stack if finish is finish_in_side else stack[-1] if stack else None
            replacement = finish(self, payload, given)
            if replacement is not None:
                frame_set_operand(frame, 1, replacement)
                self._monitor.watch_numbers()
            return
        except BaseException as raised:
            error = raised
        try:
            if is_instance(error, UnguardableRead) and self._cut_here(
                frame, error, sys.exception()
            ):
                self._on_result((_finish_dynamic, (frame,)), frame, ())
            else:
                self._fail(frame, error, stands=True)
        finally:
            del error  # whose traceback holds this frame, and the program's

    def _on_exception(self, token: Any, frame: types.FrameType, raised: Any) -> None:
        finish, payload = token
        if finish is _finish_dynamic:
            self.at = frame
            try:
                _finish_raising(self, frame, *raised[1:])
            except BaseException as error:
                self._fail(frame, error)
            return
        if finish is finish_in_side:
            if payload[1] is None:
                return
            finish, payload = payload[1]
        if finish is finish_without_result:
            finish, payload = payload
        try:
            cause = native_calls.finish_raising(self, finish, payload)
        except BaseException as error:
            self._fail(frame, error)
            return
        if cause is not None:
            self._split(frame, cause)

    def _on_return(self, frame: types.FrameType, value: Any) -> None:
        """A lifted number that a Python function gives to native code is looked at there.

        To hold the frame any longer would keep its variables alive.
        """
        self._own.left(frame)
        if self._own.over:
            return
        if self.at is frame:
            self.at = None
        is_root = self.root_frame is frame
        if is_root:
            self.root_frame = None
        if self.branching is not None:
            self.branching.abandon_loops(self, frame)
        caller = None if is_root else frame.f_back
        if not self.lifted.any_lifted((value,)) or caller is None:
            return
        try:
            native = self._monitor.waits(caller) or current_opname(caller) not in _PASSES_THROUGH
            _, operands = (native and self.step_of(caller)) or (0, ())
            if native and not is_passed_through(frame.f_code, caller, operands, value):
                self.lifted.specialize(value)
        except BaseException as error:
            self._fail(frame, error)

    def _on_interruption(self, frame: types.FrameType, kind: type[BaseException]) -> None:
        """A callback has raised what is meant for the program, which will have it."""
        detail = f"was interrupted by {kind.__name__}"
        self._split(frame, SplitCause(SplitReason.INTERRUPTED, detail))

    def _on_hidden(self, frame: types.FrameType) -> None:
        """Torch has dispatched operators that no instruction or call has told of."""
        if not (self.recording.running.depth or self._own.over):
            detail = "runs native code that applies tensor operators itself"
            self._split(frame, SplitCause(SplitReason.HIDDEN_NATIVE_OPERATORS, detail))

    def explore(
        self, function: types.FunctionType, until: int, again: int, side: BranchRun
    ) -> tuple[int, tuple[Any, ...], tuple[Any, ...]] | None:
        """Run a part of the program beside it, up to the offset ``until`` or ``again`` of its code.

        Gives the offset, the locals and the operands there, and None when ``side`` has refused.
        Raises what the program does there. What it has recorded up to then stays.
        """
        rec = self.recording
        before = self.side, rec.running.depth, self.suspension.depth, self.skipping
        at = self.at
        self.side, self.skipping, rec.operators.is_isolated = side, False, True
        self.choose_filter()
        try:
            return self._monitor.explore(function, until, again)
        finally:
            self.side, rec.running.depth, self.suspension.depth, self.skipping = before
            self.at = at
            if self.side is None:
                self.choose_filter()
                rec.operators.is_isolated = False

    def lift(self, value: Any, expression: Expression) -> Any:
        """A new object for a number that the program is about to have, known by ``expression``."""
        self._monitor.watch_numbers()
        return self.lifted.lift(value, expression)

    def abandon(self) -> None:
        """Unwind the side that is running."""
        self._monitor.abandon()

    def skip(self, frame: types.FrameType, until: int) -> None:
        """Announce nothing until ``frame`` is at the offset ``until``, -1 for where it returns."""
        self.skipping = self.side is not None
        self._monitor.skip(frame, until, self.skipping)

    def step_of(self, frame: types.FrameType) -> tuple[int, tuple[Any, ...]] | None:
        """Offset and operands of the instruction that an open frame is in."""
        return self._monitor.step(frame)

    def account(self) -> None:
        """The operators that torch has dispatched up to now are on the graph."""
        self._monitor.account()

    def _on_frame(self, frame: types.FrameType) -> bool:
        try:
            self._own.entered(frame)
            return not self._own.over and self._entering.enter(self, frame)
        except BaseException as error:
            self._fail(frame, error)
            return False

    def enter_root(self, frame: types.FrameType, function: Any) -> None:
        """The compiled function's own frame is entered."""
        self._monitor.set_root(frame)
        self.root_frame = frame
        self.arguments.enter(self, frame, function)

    def watch_numbers(self) -> None:
        """Instructions count from now on that look at plain values: some of them are lifted."""
        self._monitor.watch_numbers()

    def watch_iterators(self) -> None:
        """Steps of loops count from now on: some iterators come from outside."""
        self._monitor.watch_iterators()

    varies = varying_reads.varies
    has_varied = varying_reads.has_varied
    substitute = varying_reads.substitute
    lift_element = varying_reads.lift_element
    lift_read = varying_reads.lift_read

    # --- what the rules ask ----------------------------------------------------------------------

    def cell(self, frame: types.FrameType, slot: int) -> types.CellType | None:
        found = frame_locals(frame)[slot]
        return found if is_instance(found, types.CellType) else None

    def keyword_names(self, step: Step) -> tuple[str, ...]:
        """The names of the keyword arguments of a CALL instruction."""
        found = self._keywords.get(step.code)
        if found is None:
            found = self._keywords[step.code] = keyword_names(step.code)
        return found.get(step.offset, ())

    read_tensor_attribute = tensor_attributes.read
    write_tensor_attribute = tensor_attributes.write


def _nobody_listens() -> None:
    """The run is over."""


def _in_the_backend() -> str:
    return "the backend"


def _finish_dynamic(run: MonitorRun, payload: tuple[types.FrameType], result: Any) -> None:
    """A dynamic instruction has run natively."""
    run.suspension.leave()
    run._compiling.enter()
    assert run.cut is not None
    run.cut.after_split(run, *payload)


def _finish_raising(
    run: MonitorRun,
    frame: types.FrameType,
    exception: BaseException,
    traceback: types.TracebackType | None,
) -> None:
    """It has raised an exception."""
    run.suspension.leave()
    run._compiling.enter()
    assert run.cut is not None
    run.cut.after_raise(run, exception)
    if traceback is not None and traceback.tb_frame is frame:
        traceback = traceback.tb_next  # the frame will be entered again
    run.recording.reads.note_raised(exception, traceback)
