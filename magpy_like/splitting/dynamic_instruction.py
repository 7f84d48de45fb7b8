"""Dynamic instructions between two segments, prepared once per layout and run at every call.

``single_instruction.execute_instruction`` works on frame states. Most dynamic instructions map the
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
from magpy_like.monitor.objects.finalizers import may_keep_alive
from magpy_like.native import NULL, call_as_caller, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import bind
from magpy_like.splitting.frame_layout import FrameLayout, Layout, Slot, lay_out
from magpy_like.splitting.frame_state import has_handler, line_of, pushes_two
from magpy_like.splitting.single_instruction import (
    CONDITIONAL_JUMPS,
    OPERAND_INSTRUCTIONS,
    Raised,
    execute_instruction,
    instruction_code,
)

_METHODS = (BuiltinMethodType, MethodWrapperType)
"""Results of these types are laid out by what they are bound to."""


@dataclass
class Successor:
    """The layout behind an instruction, and where its values were before."""

    layout: Layout
    kept: tuple[int, ...]
    following: Any = None
    """Whatever the caller wants to find here again."""


class DynamicInstruction:
    """The instruction at which the innermost frame of a layout stands."""

    def __init__(self, layout: Layout) -> None:
        inner = layout.frames[0]
        self.layout = layout
        self._inner = inner
        self._at = instructions(inner.code)[inner.offset]
        places = iter(range(1, sum(map(bool, (*inner.locals, *inner.stack))) + 1))
        self._locals = [next(places) if slot else -1 for slot in inner.locals]
        self._stack = [next(places) if slot else -1 for slot in inner.stack]
        self._rest = next(places, 1 + sum(map(bool, (*inner.locals, *inner.stack))))
        named = zip((*inner.locals, *inner.stack), (*self._locals, *self._stack), strict=True)
        self._methods = [(place, slot) for slot, place in named if is_instance(slot, str)]
        self._handles = layout.handles_exception
        """Whether the instruction may ask which exception is being handled."""
        caught = has_handler(layout.frames)
        self.raising = Successor(Layout(layout.frames, raised=True), ()) if caught else None
        """Where the program is when the instruction has raised; None when nothing handles that."""
        self._code: CodeType | None = None
        self._order: list[int] = []
        self._keywords: dict[str, None] = {}
        self._ahead: dict[Any, Successor] = {}
        self._callers = list(_callers(layout))

    def run(self, values: Sequence[Any]) -> tuple[Successor, tuple[Any, ...]] | Raised:
        """Run the instruction natively: what it raised, or where the program is, with its values.

        Raises:
            UnresumableState: the state after it cannot be handed over.
        """
        given = [*values, NULL]
        for place, name in self._methods:
            given[place] = bind(lookup_in_type(type(given[place]), name), given[place])
        name = self._at.name
        if self._handles:
            return self._step(values)
        if name in CONDITIONAL_JUMPS:
            return self._test(values, given)
        if name == "FOR_ITER":
            return self._next(values, given)
        alone = name in OPERAND_INSTRUCTIONS and not pushes_two(self._at)
        if not alone or type(values[0]) is not FunctionType:
            return self._step(values)
        return self._operate(values, given)

    def _test(self, values: Sequence[Any], given: list[Any]) -> tuple[Successor, Any] | Raised:
        try:
            truth = bool(given[self._stack[-1]])
        except BaseException as exception:
            return _raised(exception, 1)
        jumps = truth is ("IF_TRUE" in self._at.name)
        stays = jumps and self._at.name.endswith("_OR_POP")
        peek = self._ahead.get(jumps)
        if peek is None:
            assert self._at.target is not None
            target = self._at.target if jumps else self._at.end
            peek = self._look_ahead(values, jumps, target, len(self._stack) - (not stays), 0)
        return peek, self._values(peek, values, ())

    def _next(self, values: Sequence[Any], given: list[Any]) -> tuple[Successor, Any] | Raised:
        try:
            element = next(given[self._stack[-1]], NULL)
        except BaseException as exception:
            return _raised(exception, 1)
        if is_instance(element, _METHODS):
            stack = (*(given[place] for place in self._stack), element)
            return self._lay_out(values, self._at.end, stack)
        more = element is not NULL
        peek = self._ahead.get(more)
        if peek is None:
            count = len(self._stack)
            if more:
                peek = self._look_ahead(values, more, self._at.end, count, 1)
            else:
                peek = self._look_ahead(values, more, self._at.exhaustion_target, count - 1, 0)
        return peek, self._values(peek, values, (element,) if more else ())

    def _operate(self, values: Sequence[Any], given: list[Any]) -> tuple[Successor, Any] | Raised:
        code = self._code or self._prepare(values)
        function = values[0]
        state = CellType(tuple([given[place] for place in self._order]))
        operation = FunctionType(
            code,
            function.__globals__,
            function.__name__,
            (None,) * self._inner.code.co_argcount,
            (*(function.__closure__ or ()), state),
        )
        operation.__kwdefaults__ = self._keywords
        for at, caller in self._callers:
            operation = FunctionType(caller, values[at].__globals__, closure=(CellType(operation),))
        try:
            stack = call_as_caller(operation, ())
        except BaseException as exception:
            return _raised(exception, 2 + len(self._callers))
        same = 0
        for entry, place in zip(stack, self._stack, strict=False):
            if entry is not given[place]:
                break
            same += 1
        results = stack[same:]
        for result in results:
            if result is NULL or is_instance(result, _METHODS):
                return self._lay_out(values, self._at.end, stack)
        key = same, len(results)
        peek = self._ahead.get(key)
        if peek is None:
            peek = self._look_ahead(values, key, self._at.end, same, len(results))
        return peek, self._values(peek, values, results)

    def _prepare(self, values: Sequence[Any]) -> CodeType:
        code = self._inner.code
        own = slot_count(code) - len(code.co_freevars)
        bound = [place for place in self._locals[:own] if place > 0]
        self._order = [*bound, *reversed(self._stack)]
        only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        self._keywords = dict.fromkeys(only)
        made = instruction_code(self.layout.build(values)[0])
        self._code = made  # last: other threads look at it
        return made

    def _look_ahead(
        self, values: Sequence[Any], key: Any, offset: int, same: int, results: int
    ) -> Successor:
        """The state at ``offset``, with that many operands kept and that many results."""
        inner = self._inner
        live = live_locals(inner.code, offset)
        slots: list[Slot] = [
            (slot in live or (place > 0 and may_keep_alive(values[place]))) and entry
            for slot, (entry, place) in enumerate(zip(inner.locals, self._locals, strict=True))
        ]
        stack = (*inner.stack[:same], *(True,) * results)
        after = FrameLayout(inner.code, offset, tuple(slots), stack, None, False)
        kept = [0]
        kept += [place for slot, place in zip(slots, self._locals, strict=True) if slot]
        kept += [place for place in self._stack[:same] if place > 0]
        peek = Successor(Layout((after, *self.layout.frames[1:])), tuple(kept))
        self._ahead[key] = peek
        return peek

    def _values(
        self, peek: Successor, values: Sequence[Any], results: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return (*[values[place] for place in peek.kept], *results, *values[self._rest :])

    def _step(self, values: Sequence[Any]) -> tuple[Successor, tuple[Any, ...]] | Raised:
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
    """For each frame around the innermost one, inside out, where its function is among the values,
    and code that calls what it closes over from the same place: loggers and warnings name it."""
    functions = sorted(layout.function_positions)
    for at, frame in zip(functions[1:], layout.frames[1:], strict=True):
        yield at, _calling(frame.code, frame.offset, id(frame.code))


@functools.lru_cache(256)
def _calling(code: CodeType, offset: int, identity: int) -> CodeType:
    """Code objects compare equal across files."""
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
    """Without this module's own frames: the program's frame will be entered again."""
    trace = exception.__traceback__
    for _ in range(own):
        trace = trace and trace.tb_next
    return Raised(exception.with_traceback(trace))
