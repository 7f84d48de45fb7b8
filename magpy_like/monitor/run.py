"""The monitor run: the program runs natively, once, under the monitor (MagPy, section 3).

The native monitor reports frames, instructions and their results. A rule handles each (see
`instructions.rule_table`); a rule that raises `Split` ends the recording.
"""

from __future__ import annotations

import functools
import opcode
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.weak

from magpy_like.bytecode.instruction_facts import current_opname
from magpy_like.logs import topic
from magpy_like.monitor.calls import native_calls
from magpy_like.monitor.calls.argument_kinds import is_followed
from magpy_like.monitor.calls.conversion_results import is_passed_through
from magpy_like.monitor.calls.operator_closures import refuse
from magpy_like.monitor.calls.warning_and_log_calls import innermost_program_frame
from magpy_like.monitor.context import Context
from magpy_like.monitor.entering_frames import Entering
from magpy_like.monitor.instructions.rule_table import WHEN, Rules, load_rules
from magpy_like.monitor.instructions.step import Step, finish_without_result
from magpy_like.monitor.isolated_runs import (
    MAY_CREATE,
    IsolatedRun,
    finish_isolated,
)
from magpy_like.monitor.program_arguments import ProgramArguments
from magpy_like.monitor.protocols import Branching, Cut
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region_entry import enable_instruction_events, traceable_entry
from magpy_like.monitor.suspension import CollectionSuspension
from magpy_like.monitor.symbolic.lists.graph_lists import inspected_lists
from magpy_like.monitor.symbolic.numbers.lifted_number_rules import LIFTED_NUMBER_RULES
from magpy_like.monitor.symbolic.values_to_lift import NOTHING_VARIES, Variation
from magpy_like.monitor.tensor_restoration import TensorRestoration
from magpy_like.native import (
    Monitor,
    call_as_caller,
    dispatch_counter,
    frame_set_operand,
    frame_stack,
    start_counting,
    stop_counting,
)
from magpy_like.native.instance_checks import is_instance
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
)

log = topic("monitor")

_PASSES_THROUGH = {
    "CALL", "CALL_FUNCTION_EX", "LOAD_ATTR", "LOAD_METHOD", "BINARY_SUBSCR", "BINARY_OP",
    "FOR_ITER", "SEND", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "RETURN_VALUE",
}  # fmt: skip
"""Instructions that leave the result of a Python function that they call on the stack."""


@functools.cache
def _rules() -> Rules:
    return load_rules()


class MonitorRun:
    """One native run of ``target(*args, **kwargs)`` under the monitor."""

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        varying: Variation = NOTHING_VARIES,
        cut: Cut | None = None,
        branching: Branching | None = None,
        reports_compiling: bool = True,
    ) -> None:
        """
        Args:
            target: The compiled function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            varying: The numbers and sizes to lift.
            cut: Begins a new record at a split; None if the first split ends the recording.
            branching: Merges branches and loops into operators; None if they split the program.
            reports_compiling: The answer of ``torch.compiler.is_compiling()``.
        """
        self._compiling = Compiling(reports_compiling)
        self.branching = branching
        self.name = getattr(target, "__qualname__", type(target).__qualname__)
        self.cut = cut
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.refused_checkpoint: SplitCause | None = None
        """Why a checkpointed function could not be followed; the next run does not try."""
        self._rules = _rules()
        self._monitor = Monitor(
            on_frame=self._on_frame,
            on_instruction=self._on_instruction,
            on_result=self._on_result,
            on_exception=self._on_exception,
            on_return=self._on_return,
            on_unreported_operators=self._on_unreported_operators,
            on_join=self._on_join,
            on_interruption=self._on_interruption,
            filter=self._rules.filter,
        )
        arguments = ProgramArguments(traceable_entry(target), args, kwargs)
        self.context = Context(self._monitor, arguments, branching, self._rules.filter)
        self._begin(varying)
        if varying.numbers:
            arguments.vary(self.context)
        self._restoration = TensorRestoration(
            self._monitor, branching, id(innermost_program_frame(sys._getframe()))
        )

    def _begin(self, varying: Variation) -> None:
        """Begin a recording."""
        context = self.context
        recording = Recording(varying, context.originals, self._speculation_position)
        context.record_into(recording, varying)
        if varying.dims is not None:
            recording.sizes.begin_twin(varying.dims, context.account, self._locate)
        self._entering = Entering(self.cut)

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Any:
        """Run the program, and return or raise what it does without the monitor."""
        outer = getattr(active, "run", None)
        previous = sys.gettrace()
        self.handled_outside = self.context.recording.state.handled_outside = sys.exception()
        enable_instruction_events()
        active.run = self
        with self._compiling, CollectionSuspension(self, self.context.suspension):
            counting = start_counting()
            self._monitor.start(dispatch_counter())
            try:
                # Tracebacks hold this frame: no local of it must hold the arguments.
                return call_as_caller(
                    self.context.arguments.target,
                    self.context.arguments.args,
                    self.context.arguments.kwargs,
                )
            finally:
                self._monitor.stop()
                stop_counting(counting)
                sys.settrace(previous)
                active.run = outer
                log.info("%s: %d instructions, %d of interest", self.name, *self._monitor.counts())
                self._close()

    def _speculation_position(self) -> SourcePosition | None:
        if self.cut is None or self.context.frame is None:
            return None
        position = source_position(self.context.frame)
        return position if self.cut.speculates(position) else None

    def _locate(self) -> str:
        frame = self.context.frame
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def _restore_containers(self) -> None:
        """Restore the numbers in external containers, except those that the mock is to change."""

        def is_changed(container: Any) -> bool:
            node = self.context.recording.variables.node(container)
            return node is not None and node.changed

        self.context.originals.restore_containers(is_changed)

    def _close(self) -> None:
        """Drop the program's objects: the monitor and its callbacks refer to each other."""
        self._restore_containers()
        self._entering.release()
        self.cut = self.branching = None
        if self.context.recording.sizes.twin is not None:
            self.context.recording.sizes.twin.account = _nobody_listens
            self.context.recording.sizes.twin.locate = _in_the_backend
        self.handled_outside = None
        self.context.close()
        del self._monitor, self._restoration, self._entering

    def end(self, frame: types.FrameType | None = None) -> None:
        """End monitoring; the program continues natively.

        Args:
            frame: A frame that stands before an instruction. Its callers stay monitored as long
                as they may hold substitute tensors.
        """
        self._restoration.restore(frame, self.context.recording.changed_objects())
        self._restoration.end(frame, bytes([WHEN["always"]]) * 256)
        if not self.context.compiling_read:
            self._compiling.leave()  # the program has not read that it is compiled
        split = self.context.recording.split
        self.context.release()  # objects that the program drops from here on die at once
        self.context.recording.split = split
        self._entering.release()
        self.context.frame = self.context.root_frame = None
        self.context.arguments.take(())
        if self.cut is not None:
            self.cut.release()

    def restore_result(self, result: Any, changed: Sequence[Any]) -> Any:
        """The program's result with the original objects of lifted numbers, once all records are
        made. They are restored in the objects it has ``changed``, and wherever else they are."""
        self.context.release()
        return self.context.originals.restore_originals(result, changed)

    def release_segment(self) -> None:
        """Drop the program's objects that the part after a split does not need."""
        self.context.recording.keep_results()
        self._entering.release()
        self.context.arguments.release()

    def end_recording(self, reason: SplitReason, detail: str) -> None:
        """End the recording: the program does something that no reported event shows."""
        self._split(sys._getframe(1), SplitCause(reason, detail))

    def _split(
        self, frame: types.FrameType, cause: SplitCause, before_instruction: bool = False
    ) -> None:
        """End the recording here; the program continues natively.

        ``before_instruction`` is true if the frame stands before an instruction.
        """
        if self.context.isolation.branch_run is not None:
            self.context.isolation.branch_run.refuse(cause)
            return
        if self.context.recording.checkpointed is not None:
            self.context.recording.checkpointed.refuse()
            self.refused_checkpoint = cause
        if not before_instruction and self.branching is not None:
            self.branching.restore_locals(frame)
        self.end(frame if before_instruction else None)
        if self.context.recording.split is None:
            self.context.recording.split = SplitPoint.at(frame, cause)

    def _fail(
        self, frame: types.FrameType, error: BaseException, before_instruction: bool = False
    ) -> None:
        """Handle an exception of a callback: an error ends the recording, an interruption the
        program."""
        if not is_instance(error, Exception):
            raise error
        ends = (
            is_instance(error, EffectInsideOperator)
            or self.context.isolation.branch_run is not None
        )
        if is_instance(error, Split) and self.context.recording.running.depth and not ends:
            self.context.recording.running.keep_as_is(f"{frame.f_code.co_qualname} {error}")
        elif is_instance(error, Split):
            if self.context.recording.running.depth:
                refuse(self.context.recording)
            self._split(frame, error.cause, before_instruction)
        else:
            log.debug("the monitor failed", exc_info=error)
            detail = f"the monitor could not follow: {type(error).__name__}: {error}"
            self._split(frame, SplitCause(SplitReason.INTERNAL_ERROR, detail), before_instruction)

    # --- events ----------------------------------------------------------------------------------

    def _on_instruction(
        self, frame: types.FrameType, number: int, oparg: int, offset: int, stack: tuple[Any, ...]
    ) -> Any:
        handled = sys.exception()
        context = self.context
        context.frame = frame
        try:
            if self._restoration.resumes(frame):
                stack = frame_stack(frame)
            if self._restoration.over:
                return None
            step = Step(frame, number, oparg, offset, stack)
            isolation = context.isolation
            if isolation.is_skipping:
                jumps = "JUMP" in opcode.opname[number]
                if jumps and self.branching is not None and is_instance(stack[-1], torch.Tensor):
                    frame_set_operand(frame, 1, self.branching.recorded_truth(step))
                return None
            operators = context.recording.operators
            if operators.lists:
                for value in inspected_lists(step, operators.lists, is_followed):
                    operators.inspect_list(value)
            step = context.flags.on_instruction(context, step)
            if (isolated := isolation.current()) is not None:
                return self._on_isolated_instruction(isolated, step)
            if context.lifted and number in LIFTED_NUMBER_RULES:
                done = LIFTED_NUMBER_RULES[number](context, step)
                if done is not None:
                    return done
            return self._rules.rules[number](context, step)
        except BaseException as error:
            if is_instance(error, Split) and self._cut_at(frame, error, handled):
                return _finish_dynamic, (self, frame)
            self._fail(frame, error, before_instruction=True)
            return None

    def _on_isolated_instruction(self, isolated: IsolatedRun, step: Step) -> Any:
        if isolated.is_restored_by(step):
            return None
        context = self.context
        isolated.check(context, step)
        token = None
        if context.lifted and step.opcode in LIFTED_NUMBER_RULES:
            token = LIFTED_NUMBER_RULES[step.opcode](context, step)
        rule = self._rules.rules.get(step.opcode)
        if token is None and rule is not None:
            token = rule(context, step)
        return (finish_isolated, (isolated, token)) if step.opcode in MAY_CREATE else token

    def _on_join(self, frame: types.FrameType | None) -> None:
        self.context.isolation.is_skipping = False
        try:
            if self.branching is not None:
                self.branching.at_join(self.context, frame)
        except BaseException as error:
            self._fail(frame or sys._getframe(), error)

    def begin_segment(
        self,
        values: tuple[Any, ...],
        functions: Sequence[Any],
        varying: Variation,
    ) -> None:
        """Begin another recording after a split.

        Args:
            values: The values in the active frames, as the arguments of the continuation. A lifted
                number is a distinct object already.
            functions: The functions of the active frames.
            varying: The numbers and sizes to lift.
        """
        self._begin(varying)
        self.context.recording.state.handled_outside = self.handled_outside
        self.context.arguments.take(values)
        self._monitor.set_root(None)
        self.context.arguments.read_all(self.context)
        for function in functions:
            if is_instance(function, types.FunctionType):
                self._entering.enter_function(self.context.recording, function)
        self.context.account()

    def _cut_at(self, frame: types.FrameType, split: Split, handled: BaseException | None) -> bool:
        """Cut the program at the instruction that it stands at.

        Returns:
            True if the instruction runs natively and another recording begins after it.
        """
        rec = self.context.recording
        if (
            self.cut is None
            or self.context.isolation.branch_run is not None
            or rec.running.depth
            or self.context.suspension.depth
            or rec.split
        ):
            return False
        if rec.checkpointed is not None:
            return False
        if self.branching is not None:
            self.branching.abandon_loops(self.context)
        self.context.flags.specialize_all()
        self._restore_containers()
        self._compiling.leave()  # a backend and a dynamic instruction are no part of the region
        changed = rec.changed_objects()
        if self.cut.at_split(self, frame, split.cause, handled):
            self._restoration.restore(frame, changed)
            # Pending results in outer frames belong to the earlier recording.
            self._monitor.drop_pending()
            self.context.suspension.enter()
            return True
        self._compiling.enter()
        return False

    def _on_result(self, token: Any, frame: types.FrameType, stack: tuple[Any, ...]) -> None:
        self.context.frame = frame
        try:
            if self._restoration.resumes(frame):
                stack = frame_stack(frame)
            finish, payload = token
            given: Any = stack if finish is finish_isolated else stack[-1] if stack else None
            replacement = finish(self.context, payload, given)
            if replacement is not None:
                frame_set_operand(frame, 1, replacement)
                self._monitor.watch_numbers()
            return
        except BaseException as raised:
            error = raised
        try:
            if is_instance(error, UnguardableRead) and self._cut_at(frame, error, sys.exception()):
                self._on_result((_finish_dynamic, (self, frame)), frame, ())
            else:
                self._fail(frame, error, before_instruction=True)
        finally:
            del error  # its traceback holds this frame and the program's

    def _on_exception(self, token: Any, frame: types.FrameType, raised: Any) -> None:
        finish, payload = token
        if finish is _finish_dynamic:
            self.context.frame = frame
            try:
                _finish_raising(self, frame, *raised[1:])
            except BaseException as error:
                self._fail(frame, error)
            return
        if finish is finish_isolated:
            if payload[1] is None:
                return
            finish, payload = payload[1]
        if finish is finish_without_result:
            finish, payload = payload
        try:
            cause = native_calls.finish_raising(self.context, finish, payload)
        except BaseException as error:
            self._fail(frame, error)
            return
        if cause is not None:
            self._split(frame, cause)

    def _on_return(self, frame: types.FrameType, value: Any) -> None:
        """Specialize a lifted number that a Python function returns to native code.

        The frame must not be held any longer: that would keep its variables alive.
        """
        self._restoration.left(frame)
        if self._restoration.over:
            return
        if self.context.frame is frame:
            self.context.frame = None
        is_root = self.context.root_frame is frame
        if is_root:
            self.context.root_frame = None
        if self.branching is not None:
            self.branching.abandon_loops(self.context, frame)
        caller = None if is_root else frame.f_back
        if not self.context.lifted.any_lifted((value,)) or caller is None:
            return
        try:
            native = (
                self._monitor.is_waiting(caller) or current_opname(caller) not in _PASSES_THROUGH
            )
            _, operands = (native and self.context.step_of(caller)) or (0, ())
            if native and not is_passed_through(frame.f_code, caller, operands, value):
                self.context.lifted.specialize(value)
        except BaseException as error:
            self._fail(frame, error)

    def _on_interruption(self, frame: types.FrameType, kind: type[BaseException]) -> None:
        """A callback has raised an interruption, which reaches the program."""
        detail = f"was interrupted by {kind.__name__}"
        self._split(frame, SplitCause(SplitReason.INTERRUPTED, detail))

    def _on_unreported_operators(self, frame: types.FrameType) -> None:
        """Torch has dispatched operators that no reported event shows."""
        if not (self.context.recording.running.depth or self._restoration.over):
            detail = "runs native code that applies tensor operators itself"
            self._split(frame, SplitCause(SplitReason.HIDDEN_NATIVE_OPERATORS, detail))

    def _on_frame(self, frame: types.FrameType) -> bool:
        try:
            self._restoration.entered(frame)
            return not self._restoration.over and self._entering.enter(self.context, frame)
        except BaseException as error:
            self._fail(frame, error)
            return False


def _nobody_listens() -> None:
    """Replaces ``account`` once the run is over."""


def _in_the_backend() -> str:
    return "the backend"


def _finish_dynamic(_: Context, payload: tuple[MonitorRun, types.FrameType], result: Any) -> None:
    """A dynamic instruction has run natively."""
    run, frame = payload
    run.context.suspension.leave()
    run._compiling.enter()
    assert run.cut is not None
    run.cut.after_split(run, frame)


def _finish_raising(
    run: MonitorRun,
    frame: types.FrameType,
    exception: BaseException,
    traceback: types.TracebackType | None,
) -> None:
    """A dynamic instruction has raised an exception."""
    run.context.suspension.leave()
    run._compiling.enter()
    assert run.cut is not None
    run.cut.after_raise(run, exception)
    if traceback is not None and traceback.tb_frame is frame:
        traceback = traceback.tb_next  # the frame will be entered again
    run.context.recording.reads.note_raised(exception, traceback)
