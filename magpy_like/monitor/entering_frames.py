"""Entering frames: the decision which frames are followed, and the facts of their functions.

A frame that is not followed counts as native code: a frame of this package or of torch's own
tracer, a frame below a call that is an operator, and code that the interpreter may run during any
operation.
"""

from __future__ import annotations

import copyreg
import inspect
import opcode
import pathlib
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.weak
from torch.autograd.function import FunctionCtx

from magpy_like.bytecode.instruction_facts import CALLS, operand_count, resume_offset
from magpy_like.monitor.call_operands import call_operands, spread_callee_depth
from magpy_like.monitor.calls import compiled_callees, polyfills, special_methods
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.finalizers import WEAK_CONTAINERS
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.torch_state.default_device import MODE_CODE
from magpy_like.native import NULL, frame_function, frame_locals, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.tracing.fake_tensors import ATTRIBUTES_IN_PYTHON

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.protocols import Cut

_PACKAGE = str(pathlib.Path(__file__).parents[1])
_OF_TORCH = (
    "_dynamo", "_library/simple_registry.py", "_library/fake_impl.py", "_library/effects.py",
)  # fmt: skip
_UNSEEN = (_PACKAGE, *(str(pathlib.Path(torch.__file__).parent / name) for name in _OF_TORCH))
"""Files whose code does not belong to a program, unlike its callees: this package, torch's own
tracer, and the registry that the dispatcher asks before each operator under a mode. An exception
of the monitor there would end the process: some of the dispatcher's callers expect none."""
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_WEAK_CONTAINERS = (
    weakref.WeakSet, weakref.WeakValueDictionary, weakref.WeakKeyDictionary,
    torch.utils.weak.WeakIdKeyDictionary,
)  # fmt: skip
_FORGETTING = {
    constant
    for container in _WEAK_CONTAINERS
    for constant in container.__init__.__code__.co_consts
    if is_instance(constant, types.CodeType)
}
"""Callbacks of weak containers at the destruction of objects, which may happen during any
operation. They hash the keys of torch's weak containers in Python."""
_HIDDEN_CODE = (
    _FORGETTING
    | ATTRIBUTES_IN_PYTHON
    | {
        torch.nn.Module.__getattr__.__code__,
        copyreg._slotnames.__code__,  # type: ignore[attr-defined]
        MODE_CODE,
    }
)
"""Code that is not followed: the monitor records its reads itself, or the code caches facts of a
class for copying, is a callback of a weak container, applies a default device to an operator, or
stands in for native code of tensors."""


class Entering:
    """The functions and generators that a recording has entered."""

    def __init__(self, cut: Cut | None) -> None:
        """``cut`` identifies the program's first function and its continuations."""
        self._cut = cut
        self._entered: set[int] = set()
        self._keep: list[Any] = []
        """The entered functions, kept alive so that their ids stay unique."""
        self._generators: set[int] = set()
        """Ids of the frames of generators that began in this recording."""

    def release(self) -> None:
        """Drop the objects of the program that are held here."""
        self._keep.clear()

    def _replaces(self, frame: types.FrameType) -> bool:
        """True if a frame of this package, or a continuation of one, replaces native code or the
        program's."""
        if frame.f_code in polyfills.CODE or frame.f_code in compiled_callees.CODE:
            return True
        known = None if self._cut is None else self._cut.original_function(frame_function(frame))
        return getattr(known, "__code__", None) in polyfills.CODE

    def enter(self, context: Context, frame: types.FrameType) -> bool:
        """Enter a frame that begins or is resumed; True if the monitor follows it.

        Raises:
            Split: the frame belongs to an external generator or an asynchronous function.
        """
        code = frame.f_code
        unseen = code.co_filename.startswith(_UNSEEN)
        hidden = code in _HIDDEN_CODE or (unseen and not self._replaces(frame))
        if context.suspension.depth or hidden or _forgets(frame.f_back):
            context.flags.specialize_pending_call()
            return False
        context.flags.enter(frame)
        if unseen:
            return True
        if (
            context.recording.mutations.may_destroy
            and frame.f_globals.get("__name__") in WEAK_CONTAINERS
        ):
            context.recording.mutations.check_none_lost()
        if code.co_flags & inspect.CO_GENERATOR:
            if frame.f_lasti > resume_offset(code):
                # Another frame may have had the id; the hook clears its frames' f_trace_lines.
                if id(frame) in self._generators and not frame.f_trace_lines:
                    return True
                raise Split(SplitReason.GENERATOR_SUSPENDED, "resumes an external generator")
            self._generators.add(id(frame))
        if code.co_flags & _ASYNC:
            raise Split(SplitReason.ASYNC, "enters an asynchronous function")
        if context.isolation.is_skipping:
            return True  # recorded already; it may be torch's code for fake tensors
        function = frame_function(frame)
        if self._cut is not None:
            if context.arguments.waiting is None and not self._cut.begins(function):
                return False
            function = self._cut.original_function(function)
        if context.arguments.waiting is None:
            context.enter_root(frame, function)
        if is_instance(function, types.FunctionType):
            self.enter_function(context.recording, function)
            self._enter_method(context, frame, function)
        return True

    def enter_function(self, rec: Recording, function: types.FunctionType) -> None:
        """Record the cells and default values of an external function."""
        if id(function) in self._entered:
            return
        if rec.variables.is_new_object(function):
            return
        self._entered.add(id(function))
        self._keep.append(function)
        rec.reads.record_function(function)

    def _enter_method(
        self, context: Context, frame: types.FrameType, function: types.FunctionType
    ) -> None:
        """Record the look-up of a special method that native code such as ``str`` has called."""
        rec, code = context.recording, frame.f_code
        receiver = _first_argument(frame)
        if receiver is NULL:
            return
        special_methods.enter_special_method(rec, receiver, function)
        confined = context.isolation.current()
        if confined is not None and is_instance(receiver, FunctionCtx):
            called = frame.f_back and _called(context, frame.f_back)
            if is_instance(called, types.BuiltinMethodType) and called.__name__ == "apply":
                confined.own(receiver)  # `autograd.Function.apply` has made it
        if not code.co_argcount or not function.__name__.startswith("__"):
            return
        if function.__name__ == "__del__" and not rec.variables.is_new_object(receiver):
            raise Split(
                SplitReason.FINALIZER,
                f"destroys an external {type(receiver).__qualname__}, whose __del__ is Python code",
            )
        making = {"__set_name__": 1, "__init_subclass__": 0}.get(function.__name__)
        if making is not None and making < code.co_argcount:
            # Called with a class under construction; an external one has a node already.
            rec.variables.add_new(frame_locals(frame)[making])
        if function.__name__ == "__init__" and rec.variables.node(receiver) is None:
            rec.variables.add_new(receiver)  # the program may be cut before the call returns
            if confined is not None and frame.f_back is not None:
                confined.own_if_new(receiver, _called(context, frame.f_back))
        if lookup_in_type(type(receiver), function.__name__) is function:
            class_lookup.read_class(rec, type(receiver), function.__name__)


def _first_argument(frame: types.FrameType) -> Any:
    """The first positional argument of a frame that begins; NULL if it has none."""
    code, given = frame.f_code, frame_locals(frame)
    if not code.co_argcount:
        rest = given[code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else ()
        return rest[0] if type(rest) is tuple and rest else NULL
    first = given[0]
    is_cell = code.co_varnames[0] in code.co_cellvars and is_instance(first, types.CellType)
    return first.cell_contents if is_cell else first


def _called(context: Context, frame: types.FrameType) -> Any:
    """The callable that a frame is calling; None if it calls a method or executes another
    instruction."""
    offset, stack = context.step_of(frame) or (0, ())
    name, arg = opcode.opname[frame.f_code.co_code[offset]], frame.f_code.co_code[offset + 1]
    if name == "CALL_FUNCTION_EX" and len(stack) >= spread_callee_depth(arg):
        return stack[-spread_callee_depth(arg)]
    if name not in CALLS or len(stack) < operand_count(name, arg):
        return None
    operands = call_operands(name, arg, stack)
    return None if operands.is_method else operands.function


def _forgets(frame: types.FrameType | None) -> bool:
    """True for the callback of a weak container at the destruction of an object."""
    return frame is not None and any(frame.f_code is code for code in _FORGETTING)
