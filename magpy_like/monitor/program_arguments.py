"""The compiled function's arguments: each is read when the program first loads it.

An argument whose load is not reported, such as one in a tuple or a cell, is read at entry. A number
or flag that varies between calls is lifted by its read.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.config import config
from magpy_like.monitor.calls.read_calls import inputs_of
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.iterators import is_native_iterator
from magpy_like.monitor.symbolic.expressions import distinct_copy
from magpy_like.monitor.symbolic.variation import argument_path
from magpy_like.monitor.symbolic.varying_reads import can_vary
from magpy_like.native import frame_locals, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.torch_compat.recognized_functions import MODULE_CALLS, global_forward_hooks

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


class ProgramArguments:
    """The arguments of a run, and the set of those that the program has not loaded yet."""

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs
        self.waiting: dict[int, tuple[int | str, Any]] | None = None
        """Arguments not loaded yet, by slot of the function's frame; None before it is entered."""

    def vary(self, context: Context) -> None:
        """Replace numbers that vary between calls by distinct objects, before the call."""
        self.args = tuple(_with_identity(context, i, value) for i, value in enumerate(self.args))
        self.kwargs = {name: _with_identity(context, name, v) for name, v in self.kwargs.items()}

    def take(self, args: tuple[Any, ...]) -> None:
        """Replace the arguments by ``args``, all of which the program has loaded."""
        self.args, self.kwargs, self.waiting = args, {}, {}

    def release(self) -> None:
        """Drop the arguments, except those that the program may still load."""
        self.args, self.kwargs = (), {}

    def enter(self, context: Context, frame: types.FrameType, function: Any) -> None:
        """Enter the compiled function: note the arguments to read at their loads, read the
        others."""
        self.waiting = {}
        target, bound = self.target, 0
        context.recording.keyword_order = _ordered_keywords(target, frame.f_code, self.kwargs)
        if is_instance(target, types.MethodType):
            context.recording.variables.constant(target.__self__)
            target, bound = target.__func__, 1
        elif not is_instance(target, types.FunctionType):
            context.recording.variables.constant(target)
            class_lookup.read_class(context.recording, type(target), "__call__")
        if function is not target:
            self.read_all(context)
            if function is lookup_in_type(type(target), "__call__"):
                self._follow_flags(context, frame, dict(inputs_of(self.args, self.kwargs)), 1)
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount]
        mapped: set[int | str] = set()
        for slot, name in enumerate(names):
            position = slot - bound
            if 0 <= position < len(self.args):
                self.waiting[slot] = (position, self.args[position])
                mapped.add(position)
            elif name in self.kwargs:
                self.waiting[slot] = (name, self.kwargs[name])
                mapped.add(name)
        for i in range(code.co_kwonlyargcount):
            slot = code.co_argcount + i
            name = code.co_varnames[slot]
            if name in self.kwargs:
                self.waiting[slot] = (name, self.kwargs[name])
                mapped.add(name)
        for key, value in inputs_of(self.args, self.kwargs):
            if key not in mapped:
                self._read(context, key, value)
        for slot, (key, value) in list(self.waiting.items()):
            if code.co_varnames[slot] in code.co_cellvars:
                self._read(context, key, value)
                del self.waiting[slot]
        self._follow_flags(context, frame, dict(self.waiting.values()), bound)

    def _follow_flags(
        self, context: Context, frame: types.FrameType, arguments: dict[int | str, Any], bound: int
    ) -> None:
        """Lift bool arguments that have varied between calls; ``bound`` others precede them."""
        varying = {
            key: self._read(context, key, value)
            for key, value in arguments.items()
            if type(value) is bool and argument_path(key) in context.varying.numbers
        }
        if varying:
            waiting = (self.waiting or {}).items()
            self.waiting = {slot: entry for slot, entry in waiting if entry[0] not in varying}
            context.flags.enter_region(frame, varying, bound)
            context.watch_numbers()

    def read_all(self, context: Context) -> None:
        for key, value in inputs_of(self.args, self.kwargs):
            self._read(context, key, value)

    def read_local(self, context: Context, frame: types.FrameType, slot: int) -> None:
        """Record a load of a local variable, which may be an argument."""
        found = self.waiting.pop(slot, None) if self.waiting else None
        if found is not None:
            key, value = found
            if frame_locals(frame)[slot] is value:
                self._read(context, key, value)

    def read_rest(self, context: Context) -> None:
        """Read the arguments that were not loaded yet: code after a split may load them."""
        waiting, self.waiting = self.waiting or {}, {}
        for key, value in waiting.values():
            self._read(context, key, value)

    def _read(self, context: Context, key: int | str, value: Any) -> ShadowNode:
        relation = Relation(RelationKind.LOCAL, key)
        node = context.recording.reads.record(context.recording.refs.external, relation, value)
        if is_native_iterator(value):
            context.watch_iterators()
        if can_vary(value) and (relation,) in context.varying.numbers:
            context.lifted.external.register_argument(value, node)
            context.watch_numbers()
        elif type(value) is np.ndarray and (relation,) in context.varying.numbers:
            if not value.dtype.hasobject and value.nbytes <= config.max_guarded_array_bytes:
                context.lifted.external.register_array(value, node)
                context.watch_numbers()
        return node


def _with_identity(context: Context, key: int | str, value: Any) -> Any:
    lifted = argument_path(key) in context.varying.numbers and can_vary(value)
    if not lifted:
        return value
    number = distinct_copy(value)
    context.originals.note(number, value)
    return number


def _ordered_keywords(
    target: Any, code: types.CodeType, keywords: Iterable[str]
) -> tuple[str, ...]:
    """The keywords that the compiled function receives in a dictionary, whose order it may read.

    A module without hooks passes all keywords on to ``forward``.
    """
    if code is MODULE_CALLS[0].__code__ and not _has_forward_hooks(target):
        forward = lookup_in_type(type(target), "forward")
        if is_instance(forward, types.FunctionType) and "forward" not in instance_dict(target):
            code = forward.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return ()
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    named = parameters[code.co_posonlyargcount :]
    return tuple(name for name in keywords if name not in named)


def _has_forward_hooks(module: torch.nn.Module) -> bool:
    """True if hooks may receive the keywords of a module's call."""
    return bool(module._forward_hooks or module._forward_pre_hooks or any(global_forward_hooks))
