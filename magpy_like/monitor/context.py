"""The context of a rule: the parts of a monitor run that handlers of instructions and calls use."""

from __future__ import annotations

import types
from typing import Any

from magpy_like.bytecode.instruction_facts import in_place_reads, keyword_names
from magpy_like.bytecode.instruction_stream import instructions
from magpy_like.monitor.calls import warning_and_log_calls
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.isolation import Isolation
from magpy_like.monitor.monitor_suspension import Suspension
from magpy_like.monitor.objects.object_replacement import OriginalNumbers
from magpy_like.monitor.program_arguments import ProgramArguments
from magpy_like.monitor.protocols import Branching
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.monitor.symbolic.lifted_flags import LiftedFlags
from magpy_like.monitor.symbolic.numbers.lifted_numbers import LiftedNumbers
from magpy_like.monitor.symbolic.variation import Variation
from magpy_like.monitor.torch_state import tensor_attributes
from magpy_like.monitor.torch_state.cached_casts import CachedCasts
from magpy_like.native import Monitor


class Context:
    """The present recording, the values to lift, and the state of the monitor."""

    recording: Recording
    lifted: LiftedNumbers
    varying: Variation
    flags: LiftedFlags

    def __init__(
        self,
        monitor: Monitor,
        arguments: ProgramArguments,
        branching: Branching | None,
        ordinary_filter: bytes,
    ) -> None:
        """
        Args:
            monitor: The native monitor.
            arguments: The arguments of the compiled function.
            branching: Merges branches and loops into operators.
            ordinary_filter: The instructions reported outside isolated runs, by opcode.
        """
        self._monitor = monitor
        self.arguments, self.branching = arguments, branching
        self.originals = OriginalNumbers()
        """The external objects that lifted numbers replace."""
        self.suspension = Suspension()
        self.isolation = Isolation(self, monitor, ordinary_filter)
        self.frame: types.FrameType | None = None
        """The frame of the last reported event."""
        self.instruction = (0, 0)
        """The last reported instruction: the id of its frame, and its offset."""
        self.root_frame: types.FrameType | None = None
        """The compiled function's own frame."""
        self.replacement_call: warning_and_log_calls.Call | None = None
        """The call to make in place of the one that is about to run."""
        self.compiling_read = False
        """Whether the program has read that it is being compiled."""
        self.compiling_read_by_user = False
        """Whether code outside torch has. Torch's own code, such as a module call with hooks,
        decides for this one call."""
        self.hidden_code: set[types.CodeType] = set()
        """Code of the called functions of torch's own that it hides from its compiler."""
        self.casts = CachedCasts()
        """The casts that autocast keeps."""
        self.compiled_by_torch: tuple[str, tuple[str, int, str]] | None = None
        """The first callee that torch.compile has compiled, and where the program calls it."""
        self._keywords: dict[types.CodeType, dict[int, tuple[str, ...]]] = {}
        self._in_place_reads: dict[types.CodeType, set[int]] = {}

    def record_into(self, recording: Recording, varying: Variation) -> None:
        """Begin a recording; ``varying`` lists the numbers and sizes that it lifts."""
        flags = LiftedFlags(recording)
        self.recording, self.lifted, self.varying = recording, recording.lifted, varying
        self.flags = flags

    def note_compiled_by_torch(self, name: str) -> None:
        """Note that the program calls a function or module that torch.compile has compiled."""
        if self.frame is not None:
            code = self.frame.f_code
            position = code.co_filename, self.frame.f_lineno or 0, code.co_qualname
            self.compiled_by_torch = name, position

    def release(self) -> None:
        """Drop the recording, and with it every object of the program that it holds."""
        recording = self.recording
        # May raise a RecursionError: the recording must be intact then.
        self.record_into(Recording(originals=self.originals), self.varying)
        recording.release()

    def close(self) -> None:
        """End the run: keep the recording only. The monitor and its callbacks form a reference
        cycle, which is broken here."""
        self.frame = self.root_frame = self.branching = None
        del self._monitor, self.arguments, self.isolation

    def lift(self, value: Any, expression: Expression) -> Any:
        """Return a new object equal to ``value``, whose lifted number is ``expression``."""
        self._monitor.watch_numbers()
        return self.lifted.lift(value, expression)

    def watch_numbers(self) -> None:
        """Report instructions on plain values from now on: some of these values are lifted."""
        self._monitor.watch_numbers()

    def watch_iterators(self) -> None:
        """Report the iterations of all loops from now on: some iterators are external."""
        self._monitor.watch_iterators()

    def follow(self, frame: types.FrameType) -> None:
        """Report the instructions of a suspended frame when it continues."""
        self._monitor.follow(frame)

    def unfollow(self, frame: types.FrameType) -> None:
        """Report no more instructions of a frame."""
        self._monitor.unfollow(frame)

    def account(self) -> None:
        """Declare that the graph holds all operators that torch has dispatched up to now."""
        self._monitor.account()

    def step_of(self, frame: types.FrameType) -> tuple[int, tuple[Any, ...]] | None:
        """Offset and operands of the instruction that an active frame executes; None if the monitor
        has not reported it."""
        return self._monitor.step(frame)

    def enter_root(self, frame: types.FrameType, function: Any) -> None:
        """Note that the frame of the compiled function has been entered."""
        self._monitor.set_root(frame)
        self.root_frame = frame
        self.arguments.enter(self, frame, function)

    def keyword_names(self, step: Step) -> tuple[str, ...]:
        """The names of the keyword arguments of a call whose arguments are on the stack."""
        of_code = self._keywords.get(step.code)
        if of_code is None:
            of_code = self._keywords[step.code] = {}
        names = of_code.get(step.offset)
        if names is None:
            call = instructions(step.code)[step.offset]
            names = of_code[step.offset] = keyword_names(step.code, call)
        return names

    def is_updated_in_place(self, step: Step) -> bool:
        """True if an in-place operator takes the value that this instruction reads."""
        code = step.code
        offsets = self._in_place_reads.get(code)
        if offsets is None:
            offsets = self._in_place_reads[code] = in_place_reads(code)
        return step.offset in offsets

    read_tensor_attribute = tensor_attributes.read
    write_tensor_attribute = tensor_attributes.write
