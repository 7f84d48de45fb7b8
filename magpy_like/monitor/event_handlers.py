"""Events of the native monitor: frames, instructions, their results, and returns."""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from magpy_like.interruption import Interruption, handler_codes
from magpy_like.monitor.calls import native_calls
from magpy_like.monitor.calls.argument_kinds import is_followed
from magpy_like.monitor.calls.results.callback_results import read_result
from magpy_like.monitor.calls.results.conversion_results import is_passed_through
from magpy_like.monitor.calls.results.unchanged_results import is_pushed
from magpy_like.monitor.calls.special_methods import read_special_methods_of_class
from magpy_like.monitor.instructions import truth_tests
from magpy_like.monitor.instructions.rule_table import load_rules
from magpy_like.monitor.instructions.step import Step, finish_without_result
from magpy_like.monitor.isolated_runs import MAY_CREATE, IsolatedRun, finish_isolated
from magpy_like.monitor.objects.iterators import contents_of
from magpy_like.monitor.split_handling import finish_dynamic, finish_raising_dynamic
from magpy_like.monitor.symbolic.lists.graph_lists import inspected_lists
from magpy_like.monitor.symbolic.numbers.lifted_number_rules import LIFTED_NUMBER_RULES
from magpy_like.native import NULL, frame_set_operand, frame_stack
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_plain
from magpy_like.split_points import Split, UnguardableRead
from magpy_like.split_reasons import SplitCause, SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun


class EventHandlers:
    """The callbacks of one run's native monitor.

    They access the native monitor through the run, which drops it at its end: references of their
    own would keep the cycle of monitor and callbacks alive.
    """

    def __init__(self, run: MonitorRun) -> None:
        self.run = run
        self._rules = load_rules().rules
        self._handlers = handler_codes()

    def on_instruction(
        self, frame: types.FrameType, number: int, oparg: int, offset: int, stack: tuple[Any, ...]
    ) -> Any:
        handled = sys.exception()
        context = self.run.context
        context.frame = frame
        context.instruction = id(frame), offset
        try:
            if self.run.restoration.resumes(frame):
                stack = frame_stack(frame)
            if self.run.restoration.over:
                return None
            step = Step(frame, number, oparg, offset, stack)
            isolation = context.isolation
            if isolation.is_skipping:
                if self.run.branching is not None:
                    truth_tests.repeat(step, self.run.branching.recorded_truth)
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
            return self._rules[number](context, step)
        except BaseException as error:
            if is_instance(error, Split) and self.run.splits.cut_at(frame, error, handled):
                return finish_dynamic, (self.run, frame)
            self.run.splits.fail(frame, error, before_instruction=True)
            return None

    def _on_isolated_instruction(self, isolated: IsolatedRun, step: Step) -> Any:
        if isolated.is_restored_by(step):
            return None
        context = self.run.context
        isolated.check(context, step)
        token = None
        if context.lifted and step.opcode in LIFTED_NUMBER_RULES:
            token = LIFTED_NUMBER_RULES[step.opcode](context, step)
        rule = self._rules.get(step.opcode)
        if token is None and rule is not None:
            token = rule(context, step)
        return (finish_isolated, (isolated, token)) if step.opcode in MAY_CREATE else token

    def on_join(self, frame: types.FrameType | None) -> None:
        self.run.context.isolation.is_skipping = False
        try:
            if self.run.branching is not None:
                self.run.branching.at_join(self.run.context, frame)
        except BaseException as error:
            self.run.splits.fail(frame or sys._getframe(), error)

    def on_result(self, token: Any, frame: types.FrameType, stack: tuple[Any, ...]) -> None:
        self.run.context.frame = frame
        try:
            if self.run.restoration.resumes(frame):
                stack = frame_stack(frame)
            finish, payload = token
            # No variable must hold the result: `IsolatedRun.finish` counts its references.
            outcome: Any = stack if finish is finish_isolated else stack[-1] if stack else None
            replacement = finish(self.run.context, payload, outcome)
            if replacement is not None:
                frame_set_operand(frame, 1, replacement)
                self.run.monitor.watch_numbers()
            return
        except BaseException as raised:
            error = raised
        try:
            if is_instance(error, UnguardableRead) and self.run.splits.cut_at(
                frame, error, sys.exception()
            ):
                self.on_result((finish_dynamic, (self.run, frame)), frame, ())
            else:
                self.run.splits.fail(frame, error, before_instruction=True)
        finally:
            del error  # its traceback holds this frame and the program's

    def on_exception(self, token: Any, frame: types.FrameType, raised: Any) -> None:
        finish, payload = token
        if finish is finish_dynamic:
            self.run.context.frame = frame
            try:
                finish_raising_dynamic(self.run, frame, *raised[1:])
            except BaseException as error:
                self.run.splits.fail(frame, error)
            return
        if finish is finish_isolated:
            if payload[1] is None:
                return
            finish, payload = payload[1]
        if finish is finish_without_result:
            finish, payload = payload
        try:
            cause = native_calls.finish_raising(self.run.context, finish, payload)
        except BaseException as error:
            self.run.splits.fail(frame, error)
            return
        if cause is not None:
            self.run.splits.split(frame, cause)

    def on_return(self, frame: types.FrameType, value: Any) -> None:
        """Record that native code reads what a Python function returns to it.

        Lifted numbers in it are specialized.
        The frame must not be held any longer: that would keep its variables alive.
        """
        self.run.restoration.left(frame)
        if self.run.restoration.over:
            return
        if self.run.context.frame is frame:
            self.run.context.frame = None
        is_root = self.run.context.root_frame is frame
        if is_root:
            self.run.context.root_frame = None
        if self.run.branching is not None:
            self.run.branching.abandon_loops(self.run.context, frame)
        caller = None if is_root else frame.f_back
        try:
            if caller is not None and value is not NULL:
                truth_tests.check_tested_result(self.run.context, caller, value)
        except BaseException as error:
            self.run.splits.fail(frame, error)
            return
        if caller is None:
            return
        inspections, lifted = self.run.context.recording.inspections, self.run.context.lifted
        yields = frame.f_code.co_flags & inspect.CO_GENERATOR  # elements, not results of a key
        if not (is_plain(value) or yields or value is NULL):
            try:
                read_result(self.run.context, self._call_awaited_by(caller), value)
            except BaseException as error:
                self.run.splits.fail(frame, error)
                return
        may_vary = bool(lifted) and (lifted.any_lifted((value,)) or bool(contents_of(value)))
        has_methods = bool(type(value).__flags__ & HEAP_TYPE)
        if not (may_vary or has_methods or inspections.compares_yielded):
            return
        try:
            _, operands = self.run.context.step_of(caller) or (0, ())
            waits = self._waits_for_native_code(caller)
            if not waits and is_pushed(frame, caller, operands):
                return
            if inspections.compares_yielded and value is not NULL:
                inspections.record_hash(value)
            if (may_vary or has_methods) and not is_passed_through(frame, caller, operands, value):
                lifted.specialize(value)
                read_special_methods_of_class(self.run.context.recording, type(value))
        except BaseException as error:
            self.run.splits.fail(frame, error)

    def _waits_for_native_code(self, caller: types.FrameType) -> bool:
        """True if a frame waits for more than the return of a Python function."""
        return self._token_awaited_by(caller) is not None

    def _call_awaited_by(self, caller: types.FrameType) -> Any:
        """What a frame waits for, such as a native call; None if only a Python function."""
        token = self._token_awaited_by(caller)
        return None if token is None else token[1]

    def _token_awaited_by(self, caller: types.FrameType) -> Any:
        """In an isolated run a frame waits for each result that may be a new object."""
        token = self.run.monitor.waits_for(caller)
        if token is not None and token[0] is finish_isolated:
            _, (_, token) = token
        return token

    def on_interruption(
        self, frame: types.FrameType, error: BaseException | None
    ) -> BaseException | None:
        """End the recording: a callback was interrupted, or the program.

        Args:
            frame: The innermost frame of the program.
            error: The exception from outside; None if none is raised, or none yet.

        Returns:
            The exception for the program.
        """
        if is_instance(error, Interruption):
            error = error.error
        by = "a signal or another thread" if error is None else type(error).__name__
        detail = f"was interrupted by {by}"
        self.run.splits.split(frame, SplitCause(SplitReason.INTERRUPTED, detail))
        return error

    def on_observed_class(self, frame: types.FrameType) -> None:
        """End the recording: a metaclass of the program would see what the monitor does."""
        if not self.run.restoration.over:
            detail = "uses a class whose metaclass defines comparison, hash or attribute access"
            error = Split(SplitReason.OBSERVING_METACLASS, detail)
            self.run.splits.fail(frame, error, before_instruction=True)

    def on_unreported_operators(self, frame: types.FrameType) -> None:
        """End the recording: torch has dispatched operators that no reported event explains."""
        if not (self.run.context.recording.running.depth or self.run.restoration.over):
            detail = "runs native code that applies tensor operators itself"
            self.run.splits.split(frame, SplitCause(SplitReason.HIDDEN_NATIVE_OPERATORS, detail))

    def on_frame(self, frame: types.FrameType) -> bool:
        try:
            if frame.f_code in self._handlers:
                self.on_interruption(frame, None)
            self.run.restoration.entered(frame)
            return not self.run.restoration.over and self.run.entering.enter(
                self.run.context, frame
            )
        except BaseException as error:
            self.run.splits.fail(frame, error)
            return False
