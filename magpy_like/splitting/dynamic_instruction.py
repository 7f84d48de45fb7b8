"""Dynamic instructions between two segments, prepared once per layout and run at every call.

``native_instruction.execute_instruction`` works on frame states. Most dynamic instructions map the
same positions to the same positions at every call, so :class:`DynamicInstruction` computes that
mapping, from the values before the instruction to those after it, once for each layout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodWrapperType
from typing import Any

from magpy_like.bytecode.instruction_stream import instructions
from magpy_like.bytecode.live_locals import live_locals, slot_count
from magpy_like.bytecode.tested_jumps import CONDITIONAL_JUMPS
from magpy_like.monitor.objects.finalizers import may_keep_alive
from magpy_like.native import NULL, call_as_caller, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import bind
from magpy_like.splitting.frame_layout import FrameLayout, Layout, Slot, lay_out
from magpy_like.splitting.frame_state import has_handler, line_of, pushes_two_entries
from magpy_like.splitting.native_instruction import (
    OPERAND_INSTRUCTIONS,
    Raised,
    execute_instruction,
    instruction_code,
)

_METHODS = (BuiltinMethodType, MethodWrapperType)
"""Results of these types are laid out by their receivers."""


@dataclass
class Successor:
    """A layout after a dynamic instruction."""

    layout: Layout
    kept: tuple[int, ...]
    """The positions, before the instruction, of the values that it keeps in the innermost frame."""
    following: Any = None
    """The dispatcher of the continuation, which the caller stores here."""


class DynamicInstruction:
    """The next instruction of the innermost frame of a layout."""

    def __init__(self, layout: Layout) -> None:
        inner = layout.frames[0]
        self.layout = layout
        self._inner = inner
        self._instruction = instructions(inner.code)[inner.offset]
        positions = iter(range(1, sum(map(bool, (*inner.locals, *inner.stack))) + 1))
        self._locals = [next(positions) if slot else -1 for slot in inner.locals]
        self._stack = [next(positions) if slot else -1 for slot in inner.stack]
        self._rest = next(positions, 1 + sum(map(bool, (*inner.locals, *inner.stack))))
        named = zip((*inner.locals, *inner.stack), (*self._locals, *self._stack), strict=True)
        self._methods = [(position, slot) for slot, position in named if is_instance(slot, str)]
        self._handles = layout.handles_exception
        """Whether the instruction may read the handled exception."""
        caught = has_handler(layout.frames)
        self.raising = Successor(Layout(layout.frames, raised=True), ()) if caught else None
        """The successor if the instruction raises; None if no handler covers it."""
        self._code: CodeType | None = None
        self._order: list[int] = []
        self._keywords: dict[str, None] = {}
        self._successors: dict[Any, Successor] = {}
        self._callers = list(_callers(layout))

    def run(self, values: Sequence[Any]) -> tuple[Successor, tuple[Any, ...]] | Raised:
        """Run the instruction natively.

        Returns:
            The successor and the values after the instruction, or the exception that it raised.

        Raises:
            UnresumableState: no continuation can start in the state after it.
        """
        operands = [*values, NULL]
        for position, name in self._methods:
            operands[position] = bind(
                lookup_in_type(type(operands[position]), name), operands[position]
            )
        name = self._instruction.name
        if self._handles:
            return self._execute(values)
        if name in CONDITIONAL_JUMPS:
            return self._test(values, operands)
        if name == "FOR_ITER":
            return self._next(values, operands)
        alone = name in OPERAND_INSTRUCTIONS and not pushes_two_entries(self._instruction)
        if not alone or type(values[0]) is not FunctionType:
            return self._execute(values)
        return self._operate(values, operands)

    def _test(self, values: Sequence[Any], operands: list[Any]) -> tuple[Successor, Any] | Raised:
        try:
            truth = bool(operands[self._stack[-1]])
        except BaseException as exception:
            return _raised(exception, 1)
        jumps = truth is ("IF_TRUE" in self._instruction.name)
        stays = jumps and self._instruction.name.endswith("_OR_POP")
        successor = self._successors.get(jumps)
        if successor is None:
            assert self._instruction.target is not None
            target = self._instruction.target if jumps else self._instruction.end
            successor = self._successor(values, jumps, target, len(self._stack) - (not stays), 0)
        return successor, self._values_after(successor, values, ())

    def _next(self, values: Sequence[Any], operands: list[Any]) -> tuple[Successor, Any] | Raised:
        try:
            element = next(operands[self._stack[-1]], NULL)
        except BaseException as exception:
            return _raised(exception, 1)
        if is_instance(element, _METHODS):
            stack = (*(operands[position] for position in self._stack), element)
            return self._lay_out(values, self._instruction.end, stack)
        more = element is not NULL
        successor = self._successors.get(more)
        if successor is None:
            count = len(self._stack)
            if more:
                successor = self._successor(values, more, self._instruction.end, count, 1)
            else:
                successor = self._successor(
                    values, more, self._instruction.exhaustion_target, count - 1, 0
                )
        return successor, self._values_after(successor, values, (element,) if more else ())

    def _operate(
        self, values: Sequence[Any], operands: list[Any]
    ) -> tuple[Successor, Any] | Raised:
        code = self._code or self._prepare_code(values)
        function = values[0]
        state = CellType(tuple([operands[position] for position in self._order]))
        operation = FunctionType(
            code,
            function.__globals__,
            function.__name__,
            (None,) * self._inner.code.co_argcount,
            (*(function.__closure__ or ()), state),
        )
        operation.__kwdefaults__ = self._keywords
        for position, caller in self._callers:
            operation = FunctionType(
                caller, values[position].__globals__, closure=(CellType(operation),)
            )
        try:
            stack = call_as_caller(operation, ())
        except BaseException as exception:
            return _raised(exception, 2 + len(self._callers))
        same = 0
        for entry, position in zip(stack, self._stack, strict=False):
            if entry is not operands[position]:
                break
            same += 1
        results = stack[same:]
        for result in results:
            if result is NULL or is_instance(result, _METHODS):
                return self._lay_out(values, self._instruction.end, stack)
        key = same, len(results)
        successor = self._successors.get(key)
        if successor is None:
            successor = self._successor(values, key, self._instruction.end, same, len(results))
        return successor, self._values_after(successor, values, results)

    def _prepare_code(self, values: Sequence[Any]) -> CodeType:
        code = self._inner.code
        own = slot_count(code) - len(code.co_freevars)
        bound = [position for position in self._locals[:own] if position > 0]
        self._order = [*bound, *reversed(self._stack)]
        only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        self._keywords = dict.fromkeys(only)
        prepared = instruction_code(self.layout.build(values)[0])
        self._code = prepared  # last: other threads read it
        return prepared

    def _successor(
        self, values: Sequence[Any], key: Any, offset: int, same: int, results: int
    ) -> Successor:
        """The successor at ``offset``, after ``same`` operands kept and new ``results``."""
        inner = self._inner
        live = live_locals(inner.code, offset)
        slots: list[Slot] = [
            (slot in live or (position > 0 and may_keep_alive(values[position]))) and entry
            for slot, (entry, position) in enumerate(zip(inner.locals, self._locals, strict=True))
        ]
        stack = (*inner.stack[:same], *(True,) * results)
        after = FrameLayout(inner.code, offset, tuple(slots), stack, None, False)
        kept = [0]
        kept += [position for slot, position in zip(slots, self._locals, strict=True) if slot]
        kept += [position for position in self._stack[:same] if position > 0]
        successor = Successor(Layout((after, *self.layout.frames[1:])), tuple(kept))
        self._successors[key] = successor
        return successor

    def _values_after(
        self, successor: Successor, values: Sequence[Any], results: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return (*[values[position] for position in successor.kept], *results, *values[self._rest :])

    def _execute(self, values: Sequence[Any]) -> tuple[Successor, tuple[Any, ...]] | Raised:
        states = self.layout.build(values)
        outcome = execute_instruction(states[0])
        if is_instance(outcome, Raised):
            return outcome
        return self._lay_out(values, outcome.offset, outcome.stack)

    def _lay_out(
        self, values: Sequence[Any], offset: int, stack: tuple[Any, ...]
    ) -> tuple[Successor, tuple[Any, ...]]:
        states = self.layout.build(values)
        states[0] = replace(states[0], offset=offset, stack=stack)
        layout, after = lay_out(states)
        return Successor(layout, ()), tuple(after)


def _callers(layout: Layout) -> Iterator[tuple[int, CodeType]]:
    """Code of frames that replace the outer ones, which loggers and warnings may name.

    For each outer frame, from the inside out: the position of its function among the values, and
    code that calls its only free variable from the frame's file, function and line.
    """
    functions = sorted(layout.function_positions)
    for position, frame in zip(functions[1:], layout.frames[1:], strict=True):
        yield position, _calling(frame.code, frame.offset, id(frame.code))


@functools.lru_cache(256)
def _calling(code: CodeType, offset: int, identity: int) -> CodeType:
    """``identity`` is the id of ``code``: code objects of different files may compare equal."""
    return _CALLING.replace(
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=line_of(code, offset),
    )


def _calling_code() -> CodeType:
    inner: Callable[[], Any] = lambda: None  # noqa: E731
    return (lambda: inner()).__code__


_CALLING = _calling_code()


def _raised(exception: BaseException, own: int) -> Raised:
    """The outcome without this module's ``own`` frames: the continuation adds the program's
    frame."""
    trace = exception.__traceback__
    for _ in range(own):
        trace = trace and trace.tb_next
    return Raised(exception.with_traceback(trace))
