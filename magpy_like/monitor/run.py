"""The monitor run: the program runs natively, once, and every instruction is seen (section 3)."""

from __future__ import annotations

import copyreg
import functools
import gc
import inspect
import opcode
import pathlib
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.weak

from magpy_like.annotation import RelationKind
from magpy_like.logs import topic
from magpy_like.monitor import (
    classes,
    native_calls,
    polyfills,
    specials,
    tensor_attributes,
    varying_reads,
)
from magpy_like.monitor.arguments import is_followed
from magpy_like.monitor.code_facts import calling, first_resume, keyword_names
from magpy_like.monitor.devices import MODE_CODE
from magpy_like.monitor.endings import WEAK_CONTAINERS
from magpy_like.monitor.expressions import Expression, fresh
from magpy_like.monitor.flags import Flags
from magpy_like.monitor.gathered import looked_at
from magpy_like.monitor.instructions.step import Step, finish_without_result
from magpy_like.monitor.instructions.table import WHEN, Rules, load_rules
from magpy_like.monitor.iterators import is_native_iterator
from magpy_like.monitor.lifted import LiftedNumbers
from magpy_like.monitor.meetings import GUARDED_BYTES
from magpy_like.monitor.number_rules import SETTLED_BY
from magpy_like.monitor.own_tensors import OwnTensors
from magpy_like.monitor.reads import inputs_of
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region import Compiling, ask_for_instructions, seen_entry
from magpy_like.monitor.repeated_calls import Call, outward
from magpy_like.monitor.replacing import FoundNumbers
from magpy_like.monitor.roles import Branching, Cut
from magpy_like.monitor.sides import MAKES, Side, finish_in_side, side_filter
from magpy_like.monitor.split import Effect, Look, Place, Split, SplitPoint, active, place_of
from magpy_like.monitor.variation import NOTHING_VARIES, Variation, argument_place
from magpy_like.monitor.varying_reads import can_vary
from magpy_like.native import (
    Monitor,
    call_as_caller,
    dispatch_counter,
    frame_function,
    frame_locals,
    frame_set_operand,
    frame_stack,
    lookup_in_type,
    start_counting,
    stop_counting,
)
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.refgraph.values import PLAIN_TYPES

log = topic("monitor")

_PASSES_THROUGH = {
    "CALL", "CALL_FUNCTION_EX", "LOAD_ATTR", "LOAD_METHOD", "BINARY_SUBSCR", "BINARY_OP",
    "FOR_ITER", "SEND", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "RETURN_VALUE",
}  # fmt: skip
"""Instructions that leave what a Python function returns to them on the stack as it is."""
_PACKAGE = str(pathlib.Path(__file__).parents[1])
_UNSEEN = (_PACKAGE, str(pathlib.Path(torch.__file__).parent / "_dynamo"))
"""Code that is no part of a program: this package, and torch's other tracer. What it calls is."""
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_WEAK_CONTAINERS = (
    weakref.WeakSet, weakref.WeakValueDictionary, weakref.WeakKeyDictionary,
    torch.utils.weak.WeakIdKeyDictionary,
)  # fmt: skip
_FORGETTING = {
    constant
    for container in _WEAK_CONTAINERS
    for constant in container.__init__.__code__.co_consts
    if isinstance(constant, types.CodeType)
}
"""What weak containers do when objects die, which may be amid any operation. The keys of torch's
hash themselves in Python for it."""
_HIDDEN_CODE = _FORGETTING | {
    torch.nn.Module.__getattr__.__code__,
    copyreg._slotnames.__code__,  # type: ignore[attr-defined]
    MODE_CODE,
}
"""Not entered: what the monitor knows by itself, what copying finds out once about a class, what
weak containers do when objects die, and what a default device does to each operator."""


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
        self.side: Side | None = None
        """The side of a branch that is running beside the program."""
        self.skipping = False
        """Whether a side goes through a branch inside it, whose operator is on the graph."""
        self.target, self.args, self.kwargs = seen_entry(target), args, kwargs
        self.name = getattr(target, "__qualname__", type(target).__qualname__)
        self.cut = cut
        self.found = FoundNumbers()
        self._begin(varying)
        if varying.numbers:
            self.args = tuple(self._varying_argument(i, value) for i, value in enumerate(args))
            self.kwargs = {name: self._varying_argument(name, v) for name, v in kwargs.items()}
        self.root_frame: types.FrameType | None = None
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.at: types.FrameType | None = None
        """Where the program was last seen."""
        self._collects = False
        """Whether the garbage collector is at work."""
        self.called_instead: Call | None = None
        """The call to make in place of the one that is about to run."""
        self.suspended = 0
        """How many calls are running whose Python code is not followed."""
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
        self._own = OwnTensors(self._monitor, branching, id(outward(sys._getframe())))
        self._root: dict[int, tuple[int | str, Any]] | None = None
        self.updates: dict[types.CodeType, set[int]] = {}
        self._keywords: dict[types.CodeType, dict[int, tuple[str, ...]]] = {}

    def _begin(self, varying: Variation) -> None:
        """A recording begins, of which nothing is known yet."""
        self.recording = Recording()
        self.lifted = LiftedNumbers(self.recording, self._place_to_foretell, self.found)
        self.recording.lifted = self.lifted
        self.flags = Flags(self.recording)
        self.recording.operators.expression = self.lifted.expression
        self.recording.operators.value_of = self.lifted.values.get
        self.varying = varying
        self.recording.varying_lengths = varying.lengths
        if varying.dims is not None:
            self.recording.dynamic_dims = varying.dims
            self.recording.begin_twin(self.account, self._locate)
        self.globals_read: set[tuple[int, str]] = set()
        self._entered: set[int] = set()
        self._keep: list[Any] = []
        self._generators: set[int] = set()
        """Ids of the frames of the generators that have begun since."""

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Any:
        """Run the program; what it returns or raises is what it would have without the monitor."""
        outer = getattr(active, "run", None)
        previous = sys.gettrace()
        self.handled_outside = self.recording.handled_outside = sys.exception()
        ask_for_instructions()
        active.run = self
        with self._compiling:
            counting = start_counting()
            gc.callbacks.insert(0, self._suspend)
            gc.callbacks.append(self._resume)
            self._monitor.start(dispatch_counter())
            try:
                return call_as_caller(self.target, self.args, self.kwargs)
            finally:
                self._monitor.stop()
                gc.callbacks.remove(self._suspend)
                gc.callbacks.remove(self._resume)
                stop_counting(counting)
                sys.settrace(previous)
                active.run = outer
                log.info("%s: %d instructions, %d of interest", self.name, *self._monitor.counts())
                self._close()

    def _place_to_foretell(self) -> Place | None:
        if self.cut is None or self.at is None:
            return None
        place = place_of(self.at)
        return place if self.cut.foretells(place) else None

    def _locate(self) -> str:
        frame = self.at
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def _suspend(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins amid a program: what it ends, and who listens, are no part of it."""
        if phase == "start" and not self._collects and getattr(active, "run", None) is self:
            self._collects = True
            self.suspended += 1

    def _resume(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and self._collects:
            self._collects = False
            self.suspended -= 1

    def _recall(self) -> None:
        """Containers have what they had before, but for those that the mock is to change."""

        def is_changed(container: Any) -> bool:
            node = self.recording.node(container)
            return node is not None and node.changed

        self.found.recall(is_changed)

    def _close(self) -> None:
        """Let go of the program: the monitor and its callbacks refer to each other."""
        self._recall()
        self._keep.clear()
        self._root = self.root_frame = self.cut = self.branching = None
        if self.recording.twin is not None:
            self.recording.twin.account = _nobody_listens
            self.recording.twin.locate = _in_the_backend
        self.at = self.handled_outside = None
        del self._monitor, self._own, self.args, self.kwargs

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
        self.recording.release()  # what the program lets go of from here on dies there
        self.recording.split = split
        self._keep.clear()
        self.at = self.root_frame = None
        self.args, self.kwargs, self._root = (), {}, {}
        if self.cut is not None:
            self.cut.release()

    def give_back(self, result: Any, changed: Sequence[Any]) -> Any:
        """The run is over, and all records are made: the program's result, with the objects that
        it has found for numbers, which it must not have others for elsewhere either, as in what it
        has ``changed``."""
        self.recording.release()
        self.lifted = LiftedNumbers(self.recording, self._place_to_foretell, self.found)
        return self.found.give_back(result, changed)

    def let_go(self) -> None:
        """Hold no more of the program than what follows a split needs to know."""
        self.recording.let_go()
        self._keep.clear()
        self.args, self.kwargs = (), {}

    def give_up(self, reason: str) -> None:
        """The program does something that no instruction or call has told of."""
        self._split(sys._getframe(1), reason)

    def _split(self, frame: types.FrameType, reason: str, stands: bool = False) -> None:
        """End the recording here; the program goes on natively.

        ``stands`` says that the frame stands before an instruction.
        """
        if self.side is not None:
            self.side.refuse(reason)
            return
        if not stands and self.branching is not None:
            self.branching.on_entry(frame)
        self.end(frame if stands else None)
        if self.recording.split is None:
            self.recording.split = SplitPoint.at(frame, reason)

    def _fail(self, frame: types.FrameType, error: BaseException, stands: bool = False) -> None:
        """A callback has raised: its own errors end the recording, an interruption the program."""
        if not isinstance(error, Exception):
            raise error
        ends = isinstance(error, Effect) or self.side is not None
        if isinstance(error, Split) and self.recording.inside and not ends:
            # The operator as a whole stays on the graph, but has to run as it is.
            self.recording.running_as_is = f"{frame.f_code.co_qualname} {error}"
            self.recording.dynamic_inside = True
        elif isinstance(error, Split):
            self._split(frame, str(error), stands)
        else:
            log.debug("the monitor failed", exc_info=error)
            reason = f"the monitor could not follow: {type(error).__name__}: {error}"
            self._split(frame, reason, stands)

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
                if jumps and self.branching is not None and isinstance(stack[-1], torch.Tensor):
                    frame_set_operand(frame, 1, self.branching.choose(step))
                return None
            operators = self.recording.operators
            if operators.lists:
                for value in looked_at(step, operators.lists, is_followed):
                    operators.look_at(value)
            step = self.flags.at(self, step)
            if self.side is not None:
                return self._on_side_instruction(self.side, step)
            if self.lifted and number in SETTLED_BY:
                done = SETTLED_BY[number](self, step)
                if done is not None:
                    return done
            return self._rules.rules[number](self, step)
        except BaseException as error:
            if isinstance(error, Split) and self._cut_here(frame, error, handled):
                return _finish_dynamic, (frame,)
            self._fail(frame, error, stands=True)
            return None

    def _on_side_instruction(self, side: Side, step: Step) -> Any:
        if side.is_restored_by(step):
            return None
        side.check(self, step)
        token = None
        if self.lifted and step.opcode in SETTLED_BY:
            token = SETTLED_BY[step.opcode](self, step)
        rule = self._rules.rules.get(step.opcode)
        if token is None and rule is not None:
            token = rule(self, step)
        return (finish_in_side, (side, token)) if step.opcode in MAKES else token

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
        self.recording.handled_outside = self.handled_outside
        self.args, self.kwargs = values, {}
        self._root = {}
        self._monitor.set_root(None)
        self._read_arguments()
        for function in functions:
            if isinstance(function, types.FunctionType):
                self._enter_function(function)
        self.account()

    def _cut_here(
        self, frame: types.FrameType, split: Split, handled: BaseException | None
    ) -> bool:
        """Whether the program is cut at the instruction it stands at, and watched beyond that."""
        rec = self.recording
        if self.cut is None or self.side is not None or rec.inside or self.suspended or rec.split:
            return False
        if self.branching is not None:
            self.branching.settle(self)
        self.flags.settle_all()
        self._recall()
        self._compiling.leave()  # neither a backend nor a dynamic function is part of the region
        changed = rec.changed_objects()
        if self.cut.at_split(self, frame, str(split), handled):
            self._own.hand_back(frame, changed)
            # What outer frames wait for is the earlier recording's business.
            self._monitor.drop_pending()
            self.suspended += 1
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
            instead = finish(self, payload, given)
            if instead is not None:
                frame_set_operand(frame, 1, instead)
                self._monitor.watch_numbers()
            return
        except BaseException as raised:
            error = raised
        try:
            if isinstance(error, Look) and self._cut_here(frame, error, sys.exception()):
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
            reason = native_calls.undo(self, finish, payload)
        except BaseException as error:
            self._fail(frame, error)
            return
        if reason is not None:
            self._split(frame, reason)

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
            self.branching.settle(self, frame)
        caller = None if is_root else frame.f_back
        if not self.lifted.any((value,)) or caller is None:
            return
        try:
            if self._monitor.waits(caller) or calling(caller) not in _PASSES_THROUGH:
                self.lifted.settle(value)
        except BaseException as error:
            self._fail(frame, error)

    def _on_interruption(self, frame: types.FrameType, kind: type[BaseException]) -> None:
        """A callback has raised what is meant for the program, which will have it."""
        self._split(frame, f"was interrupted by {kind.__name__}")

    def _on_hidden(self, frame: types.FrameType) -> None:
        """Torch has dispatched operators that no instruction or call has told of."""
        if not (self.recording.inside or self._own.over):
            self._split(frame, "runs native code that applies tensor operators out of sight")

    def explore(
        self, function: types.FunctionType, until: int, again: int, side: Side
    ) -> tuple[int, tuple[Any, ...], tuple[Any, ...]] | None:
        """Run a part of the program beside it, up to the offset ``until`` or ``again`` of its code.

        Gives the offset, the locals and the operands there, and None when ``side`` has refused.
        Raises what the program does there. What it has recorded up to then stays.
        """
        rec = self.recording
        before = self.side, rec.inside, self.suspended, self.skipping
        at = self.at
        self.side, self.skipping, self.lifted.beside = side, False, True
        self._monitor.set_filter(side_filter(self._rules.filter, WHEN))
        try:
            return self._monitor.explore(function, until, again)
        finally:
            self.side, rec.inside, self.suspended, self.skipping = before
            self.at = at
            if self.side is None:
                self._monitor.set_filter(self._rules.filter)
                self.lifted.beside = False

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
            return not self._own.over and self._enter(frame)
        except BaseException as error:
            self._fail(frame, error)
            return False

    def _enter(self, frame: types.FrameType) -> bool:
        code = frame.f_code
        unseen = code.co_filename.startswith(_UNSEEN)
        hidden = code in _HIDDEN_CODE or (unseen and code not in polyfills.CODE)
        if self.suspended or hidden or _forgets(frame.f_back):
            self.flags.lose()
            return False
        self.flags.enter(frame)
        if unseen:
            return True
        if self.recording.loses and frame.f_globals.get("__name__") in WEAK_CONTAINERS:
            self.recording.look_for_lost()
        if code.co_flags & inspect.CO_GENERATOR:
            if frame.f_lasti > first_resume(code):
                # Another frame may have had the id, so the frame itself must bear the hook's mark.
                if id(frame) in self._generators and not frame.f_trace_lines:
                    return True
                raise Split("goes on with a generator from before the region")
            self._generators.add(id(frame))
        if code.co_flags & _ASYNC:
            raise Split("is asynchronous")
        function = frame_function(frame)
        if self.cut is not None:
            if self._root is None and not self.cut.begins(function):
                return False
            function = self.cut.stands_for(function)
        if self._root is None:
            self._enter_root(frame, function)
        if isinstance(function, types.FunctionType):
            self._enter_function(function)
            self._enter_method(frame, function)
        return True

    def _enter_function(self, function: types.FunctionType) -> None:
        if id(function) in self._entered:
            return
        rec = self.recording
        if rec.is_born(function):
            return
        node = rec.node(function) or rec.constant(function)
        self._entered.add(id(function))
        self._keep.append(function)
        for i, cell in enumerate(function.__closure__ or ()):
            rec.meet(node, Relation(RelationKind.CLOSURE, i), cell)
        for i, value in enumerate(function.__defaults__ or ()):
            rec.meet(node, Relation(RelationKind.DEFAULT, i), value)
        for name, value in (function.__kwdefaults__ or {}).items():
            rec.meet(node, Relation(RelationKind.DEFAULT, name), value)

    def _enter_method(self, frame: types.FrameType, function: types.FunctionType) -> None:
        """Native code such as ``str`` finds a special method in the class of its argument."""
        code = frame.f_code
        if not code.co_argcount:
            if code.co_flags & inspect.CO_VARARGS:
                given = frame_locals(frame)[code.co_kwonlyargcount]
                if type(given) is tuple and given:
                    specials.enter(self.recording, given[0], function)
            return
        receiver = frame_locals(frame)[0]
        if code.co_varnames[0] in code.co_cellvars and isinstance(receiver, types.CellType):
            receiver = receiver.cell_contents
        specials.enter(self.recording, receiver, function)
        if not function.__name__.startswith("__"):
            return
        if function.__name__ == "__del__" and not self.recording.is_born(receiver):
            raise Split(f"lets go of a {type(receiver).__qualname__} from outside")
        making = {"__set_name__": 1, "__init_subclass__": 0}.get(function.__name__)
        if making is not None and making < code.co_argcount:
            # Called with a class that is still in the making; one from outside was met before.
            self.recording.bear(frame_locals(frame)[making])
        if function.__name__ == "__init__" and self.recording.node(receiver) is None:
            self.recording.bear(receiver)  # the program may be cut before the call has given it
        if lookup_in_type(type(receiver), function.__name__) is function:
            classes.read_class(self.recording, type(receiver), function.__name__)

    # --- the compiled function's own arguments ---------------------------------------------------

    def _enter_root(self, frame: types.FrameType, function: Any) -> None:
        """Arguments are read when the program loads them, or at once when it cannot be seen."""
        self._root = {}
        self._monitor.set_root(frame)
        self.root_frame = frame
        target, bound = self.target, 0
        if isinstance(target, types.MethodType):
            self.recording.constant(target.__self__)
            target, bound = target.__func__, 1
        elif not isinstance(target, types.FunctionType):
            self.recording.constant(target)
            classes.read_class(self.recording, type(target), "__call__")
        if function is not target:
            self._read_arguments()
            if function is lookup_in_type(type(target), "__call__"):
                self._follow_flags(frame, dict(inputs_of(self.args, self.kwargs)), 1)
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount]
        taken: set[int | str] = set()
        for slot, name in enumerate(names):
            position = slot - bound
            if 0 <= position < len(self.args):
                self._root[slot] = (position, self.args[position])
                taken.add(position)
            elif name in self.kwargs:
                self._root[slot] = (name, self.kwargs[name])
                taken.add(name)
        for i in range(code.co_kwonlyargcount):
            slot = code.co_argcount + i
            name = code.co_varnames[slot]
            if name in self.kwargs:
                self._root[slot] = (name, self.kwargs[name])
                taken.add(name)
        for key, value in inputs_of(self.args, self.kwargs):
            if key not in taken:
                self._read_argument(key, value)
        for slot, (key, value) in list(self._root.items()):
            if code.co_varnames[slot] in code.co_cellvars:
                self._read_argument(key, value)
                del self._root[slot]
        self._follow_flags(frame, dict(self._root.values()), bound)

    def _follow_flags(
        self, frame: types.FrameType, given: dict[int | str, Any], bound: int
    ) -> None:
        """Bool arguments that have varied between calls: ``bound`` others come before them."""
        varying = {
            key: self._read_argument(key, value)
            for key, value in given.items()
            if type(value) is bool and argument_place(key) in self.varying.numbers
        }
        if varying:
            waiting = (self._root or {}).items()
            self._root = {slot: known for slot, known in waiting if known[0] not in varying}
            self.flags.begin(frame, varying, bound)
            self._monitor.watch_numbers()

    def _read_arguments(self) -> None:
        for key, value in inputs_of(self.args, self.kwargs):
            self._read_argument(key, value)

    def read_root_local(self, frame: types.FrameType, slot: int) -> None:
        """The compiled function loads one of its locals, maybe an argument still."""
        found = self._root.pop(slot, None) if self._root else None
        if found is not None:
            key, value = found
            if frame_locals(frame)[slot] is value:
                self._read_argument(key, value)

    def read_rest(self) -> None:
        """What was not loaded yet may be loaded behind a split."""
        waiting, self._root = self._root or {}, {}
        for key, value in waiting.values():
            self._read_argument(key, value)

    def _read_argument(self, key: int | str, value: Any) -> ShadowNode:
        relation = Relation(RelationKind.LOCAL, key)
        node = self.recording.meet(self.recording.refs.external, relation, value)
        if is_native_iterator(value):
            self.watch_iterators()
        if can_vary(value) and (relation,) in self.varying.numbers:
            self.lifted.adopt(value, node)
            self._monitor.watch_numbers()
        elif type(value) is np.ndarray and (relation,) in self.varying.numbers:
            if not value.dtype.hasobject and value.nbytes <= GUARDED_BYTES:
                self.lifted.adopt_array(value, node)
                self._monitor.watch_numbers()
        return node

    def _varying_argument(self, key: int | str, value: Any) -> Any:
        """A number that varies between calls gets an identity of its own before the call."""
        lifted = argument_place(key) in self.varying.numbers and can_vary(value)
        if not lifted:
            return value
        number = fresh(value)
        self.found.note(number, value)
        return number

    def watch_numbers(self) -> None:
        """Instructions count from now on that look at plain values: some of them are lifted."""
        self._monitor.watch_numbers()

    def watch_iterators(self) -> None:
        """Steps of loops count from now on: some iterators come from outside."""
        self._monitor.watch_iterators()

    varies = varying_reads.varies
    has_varied = varying_reads.has_varied
    lend = varying_reads.lend
    lift_element = varying_reads.lift_element
    lift_read = varying_reads.lift_read

    # --- what the rules ask ----------------------------------------------------------------------

    def cell(self, frame: types.FrameType, slot: int) -> types.CellType | None:
        found = frame_locals(frame)[slot]
        return found if isinstance(found, types.CellType) else None

    def keyword_names(self, step: Step) -> tuple[str, ...]:
        """The names of the keyword arguments of a CALL instruction."""
        found = self._keywords.get(step.code)
        if found is None:
            found = self._keywords[step.code] = keyword_names(step.code)
        return found.get(step.offset, ())

    read_tensor_attribute = tensor_attributes.read
    write_tensor_attribute = tensor_attributes.write


def _forgets(frame: types.FrameType | None) -> bool:
    """Whether a weak container forgets an object that has died."""
    return frame is not None and any(frame.f_code is code for code in _FORGETTING)


def _nobody_listens() -> None:
    """The run is over."""


def _in_the_backend() -> str:
    return "the backend"


def _finish_dynamic(run: MonitorRun, payload: tuple[types.FrameType], result: Any) -> None:
    """A dynamic instruction has run natively."""
    run.suspended -= 1
    run._compiling.enter()
    assert run.cut is not None
    run.cut.behind_split(run, *payload)


def _finish_raising(
    run: MonitorRun,
    frame: types.FrameType,
    exception: BaseException,
    traceback: types.TracebackType | None,
) -> None:
    """It has raised an exception."""
    run.suspended -= 1
    run._compiling.enter()
    assert run.cut is not None
    run.cut.behind_raise(run, exception)
    if traceback is not None and traceback.tb_frame is frame:
        traceback = traceback.tb_next  # the frame will be entered again
    run.recording.note_raised(exception, traceback)
