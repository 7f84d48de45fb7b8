"""Where loops begin: at the head of one it is decided whether its rounds become one operator.

Where the first round differs from the others, as in ``h = None`` or ``if t == 0``, the program goes
through that one as it is, and the rounds behind it may be an operator.
"""

from __future__ import annotations

import dis
import operator
import sys
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from types import FrameType, FunctionType
from typing import Any, Protocol

import torch

from magpy_like.bytecode.data_flow import Instruction, instruction_list, instructions, live_locals
from magpy_like.bytecode.post_dominators import RETURN
from magpy_like.control_flow.counting_loops import Comparison, Counter, Turn, turn_at, turn_of
from magpy_like.control_flow.for_loop import MIN_ITERATIONS, Explorer, Loop
from magpy_like.control_flow.generator_consumers import hand_rounds_over
from magpy_like.logs import topic
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic import unbound_tensors
from magpy_like.monitor.symbolic.gathered_lists import GraphList, LiftedRange
from magpy_like.monitor.symbolic.loop_ranges import (
    Element,
    compute_lifted,
    index_element,
    reversed_bounds,
)
from magpy_like.monitor.symbolic.lower_bounds import MIRRORED
from magpy_like.native import NULL, frame_function, frame_set_operand
from magpy_like.split_points import LoopNotMergeable, Split, source_location
from magpy_like.splitting.frame_layout import UnresumableState
from magpy_like.splitting.frame_state import (
    FrameState,
    capture,
    is_restoring,
    is_resumable,
    origins,
)

_log = topic("splits")


class Host(Explorer, Protocol):
    """What loops are made for."""

    def wait(self, receive: Callable[[MonitorRun, FrameType], None]) -> None:
        """Call this where the operator ends that the program is about to go through."""


@dataclass
class _Begun:
    """A loop of which the rounds behind the first one may become an operator."""

    bounds: tuple[int, int, int]
    """Not settled yet: the program has made a ``range`` of them, or goes through ``rows``."""
    tensors: tuple[Any, ...]
    element: Element
    rows: list[GraphList | LiftedRange]
    heads: int = 0
    """How often the program has come to its head."""

    def are_rows_there(self, run: MonitorRun) -> bool:
        """Whether nobody has looked into them since."""
        lists = run.recording.operators.lists
        return all(lists.get(id(given.value)) is given for given in self.rows)

    def abandon(self, run: MonitorRun) -> None:
        """The number of rounds must not vary."""
        for given in self.rows:
            run.recording.operators.inspect_list(given.value)
        if not self.rows:
            run.lifted.specialize(self.bounds)


@dataclass(frozen=True)
class Head:
    """The head of a loop: the state there, and the offset in the frame at which the loop is over.

    ``turn`` says how its rounds follow each other. ``wraps`` is the function that a ``range`` is
    given to, ``making`` where on the operand stack the list is that a comprehension makes."""

    state: FrameState
    until: int
    turn: Turn
    wraps: Any = None
    making: int | None = None
    inside: bool = False
    """Whether the state is that of the function which Python 3.11 makes of a comprehension."""


class LoopHeads:
    """The loops of one monitor run that are no operators yet."""

    def __init__(self, branches: Host) -> None:
        self._branches: Host = weakref.proxy(branches)  # which has this, and arguments of the call
        self._begun: dict[tuple[int, int], _Begun] = {}
        """By frame and the offset of their heads, loops whose first round may differ."""
        self._tries: dict[tuple[int, int], int] = {}
        """By frame and where their rounds begin, how often loops that count were no operators."""

    def begins(
        self,
        run: MonitorRun,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Element | None,
    ) -> bool:
        """See ``Branching.at_loop``."""
        rounds = len(range(*bounds))
        if rounds < 2 or run.lifted.any_lifted(bounds[2:]):
            return False
        varies = run.has_varied(bounds)
        if rounds < MIN_ITERATIONS and not varies:
            return False
        if varies and hand_rounds_over(run, step, bounds):
            return True
        if element is None:
            return False
        try:
            head = _at_head(run, step)
        except (Split, UnresumableState) as why:
            _say_why_not(step, why)
            return False
        if head is None or (head.wraps is not None and bounds[2] != 1):
            return False
        if head.wraps is not None:
            bounds, element = _WRAPPERS[head.wraps](run, bounds, element)
        plain = head.wraps is None and head.making is None
        later = plain and rounds >= 3 and run.lifted.guards.are_computable_at_entry(bounds)
        if self._make_loop(run, step, head, bounds, tensors, element, later=later):
            return True
        rows = _with_first(run, step) if later and element is not index_element else []
        if not later or rows is None:
            return False
        key = id(step.frame), head.state.offset + shift_of(step.frame)
        if key in self._begun:  # it has been left in its first round, and begins once more
            self._begun.pop(key).abandon(run)
        self._begun[key] = _Begun(bounds, tensors, element, rows)
        run.watch_iterators()
        return True

    def at_loop_head(self, run: MonitorRun, step: Step) -> None:
        """See ``Branching.at_loop_head``."""
        key = id(step.frame), instructions(step.code)[step.offset].offset
        begun = self._begun.get(key)
        if begun is None:
            return
        begun.heads += 1
        if begun.heads < 2:
            return
        del self._begun[key]
        start, stop, by = begun.bounds
        rest = compute_lifted(run, operator.add, start, by), stop, by
        try:
            if not begun.are_rows_there(run):
                raise LoopNotMergeable("the first iteration has read all rows")
            state = captured(run, step)
            at = instructions(state.code)[state.offset]
            stack = (*state.stack[:-1], iter(range(1)))
            state = replace(state, offset=at.offset, stack=stack)
            check_resumable(state)
            at = state.instruction
            head = Head(state, at.exhaustion_target + shift_of(step.frame), turn_of(at))
            made = self._make_loop(run, step, head, rest, begun.tensors, begun.element)
        except (Split, UnresumableState) as why:
            _say_why_not(step, why)
            made = False
        if not made:
            begun.abandon(run)

    def counts(self, run: MonitorRun, step: Step, compared: Comparison) -> bool:
        """See ``Branching.at_comparison``."""
        operands = step.stack[-2:]
        if any(type(operand) is not int for operand in operands):
            return False
        shift = shift_of(step.frame)
        origin = origins.get(id(step.code))
        code = step.code if origin is None else origin.code
        found = turn_at(code, step.offset - shift) if step.offset >= shift else None
        if found is None or run.lifted.any_lifted(operands) is False:
            return False
        turn, stays = found
        key = id(step.frame), turn.begin
        if self._tries.get(key, 0) > 1 or compared(*operands) is not stays:
            return False
        holds = compared if stays else _OPPOSITE.get(compared)
        for at in (0, 1) if holds is not None else ():
            first, last = operands[at], operands[1 - at]
            turned = holds if at == 0 else MIRRORED.get(holds)
            if turned is None or not run.has_varied((first, last)):
                continue
            try:
                state = captured(run, step)
                state = replace(state, offset=instructions(state.code)[state.offset].offset)
                check_resumable(state)
            except (Split, UnresumableState) as why:
                _say_why_not(step, why)
                return False
            head = Head(state, turn.exit + shift, turn)
            if self._make_loop(run, step, head, (first, last, 1), (), None, Counter(turned, at)):
                return True
        self._tries[key] = self._tries.get(key, 0) + 1
        return False

    def abandon_loops(self, run: MonitorRun, frame: FrameType | None = None) -> None:
        """See ``Branching.abandon_loops``."""
        for key in [key for key in self._begun if frame is None or key[0] == id(frame)]:
            self._begun.pop(key).abandon(run)

    def _make_loop(
        self,
        run: MonitorRun,
        step: Step,
        head: Head,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Element | None,
        counter: Counter | None = None,
        later: bool = False,
    ) -> bool:
        """Whether the rounds over ``bounds``, before which the program is, are an operator now."""
        nodes, raising = None, len(run.lifted.arithmetic.may_raise)
        try:
            state = head.state
            if step.frame is run.root_frame and state.function is frame_function(step.frame):
                for slot in live_locals(state.code, state.offset):
                    run.arguments.read_local(run, step.frame, slot)
            loop = Loop(
                self._branches, run, state, bounds, tensors, element, head.turn,
                head.making, head.inside, counter, later,
            )  # fmt: skip
            nodes = loop.record()
        except (Split, UnresumableState) as why:
            del run.lifted.arithmetic.may_raise[raising:]
            _say_why_not(step, why)
            return False
        self._branches.wait(lambda run, frame: loop.receive(nodes, frame))
        until = head.until if loop.exits is None else loop.until
        inside = until != RETURN and loop.exits is not None
        run.skip(step.frame, until + shift_of(step.frame) if inside else until)
        return True


def is_consumed_at_once(step: Step, functions: Collection[Any]) -> bool:
    """Whether one of these functions is given what a call is about to make, before anybody else
    has it: it lies on the stack already, and what lies between is computed on top of that."""
    table, stack = instructions(step.code), step.stack
    at = table[step.offset]
    place = len(stack) - at.arg - 2
    depth = place + 1
    while True:
        at = table[at.end]
        if at.name in ("PRECALL", "KW_NAMES"):
            continue
        takes = at.arg + _TAKES_MORE[at.name] if at.name in _TAKES_MORE else _TAKES.get(at.name)
        if takes is None:
            return False
        first = depth - takes
        if first > place:
            argument = at.arg if dis.opmap[at.name] >= dis.HAVE_ARGUMENT else None
            effect = dis.stack_effect(dis.opmap[at.name], argument)
            depth = first + 1 if at.name == "CALL" else depth + effect
        else:
            is_call = at.name == "CALL" and first >= 0 and stack[first] is NULL
            return is_call and any(stack[first + 1] is known for known in functions)


_TAKES = {
    **dict.fromkeys(
        ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "PUSH_NULL"), 0
    ),
    **dict.fromkeys(
        ("LOAD_ATTR", "LOAD_METHOD", *(n for n in dis.opmap if n.startswith("UNARY_"))), 1
    ),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR"), 2),
    "BINARY_SLICE": 3,
}
"""How many operands instructions take that do no more than to compute something."""
_TAKES_MORE = {"CALL": 2, "BUILD_SLICE": 0}
"""And how many beside those that their arguments count."""


def _with_first(run: MonitorRun, step: Step) -> list[GraphList | LiftedRange] | None:
    """Let the program go through the rows of tensors as lists of the graph, of which it knows the
    first ones; None where it cannot."""
    at, stack = instructions(step.code)[step.offset], step.stack
    spread = at.name == "CALL_FUNCTION_EX" and not at.arg & 1
    operands, called = list(stack[-1:]), iter
    if at.name != "GET_ITER":
        operands = list(stack[-1] if spread else stack[len(stack) - at.arg :])
        called = stack[-2 if spread else -at.arg - 1]
    if not any(called is known for known in (iter, enumerate, zip)):
        return None
    lists = run.recording.operators.lists
    found: list[GraphList | LiftedRange] = []
    for i, value in enumerate(operands):
        if type(value) is int:  # what `enumerate` begins with
            continue
        if isinstance(value, torch.Tensor):
            operands[i] = value.unbind(0)
            run.account()
            if not unbound_tensors.unbind_into_list(run, torch.unbind, (value,), {}, operands[i]):
                return None
        given = lists.get(id(operands[i]))
        if isinstance(given, LiftedRange) and not run.lifted.any_lifted(given.bounds[:1]):
            found.append(given)
            continue
        if not isinstance(given, GraphList) or not (
            given.elements_are_new and given.is_never_empty
        ):
            return None
        found.append(given)
    for given in found:
        if isinstance(given, GraphList):
            given.know(run.recording.operators, 0)
    instead = [tuple(operands)] if spread else operands
    for depth, value in enumerate(reversed(instead), start=1):
        frame_set_operand(step.frame, depth, value)
    return found


def _at_head(run: MonitorRun, step: Step) -> Head | None:
    """The head of the loop over what is about to be made, or gone through; None when that is for
    something else.

    Raises:
        Split: the frame cannot be run on from there.
    """
    table, stack = instructions(step.code), step.stack
    at, wraps = table[step.offset], None
    if at.name == "CALL":
        stack, at = stack[: -at.arg - 2], table[at.end]
        after = table[at.end] if at.name == "PRECALL" else at
        if after.name == "CALL" and after.arg == 1 and len(stack) > 1 and stack[-2] is NULL:
            wraps = next((known for known in _WRAPPERS if known is stack[-1]), None)
            if wraps is not None:
                stack, at = stack[:-2], table[after.end]
    elif at.name == "CALL_FUNCTION_EX":
        stack, at = stack[: -3 - (at.arg & 1)], table[at.end]
    else:
        stack = stack[:-1]
    if at.name != "GET_ITER":
        return None
    state, shift = captured(run, step), shift_of(step.frame)
    iterator = iter(range(1))  # nothing takes elements out of it
    state = replace(state, stack=(*state.stack[: len(stack)], iterator))
    making: list[Any] | None = None
    slots = list(state.locals)
    on_stack = list(state.stack)
    at = table[at.end]
    while at.name in _OF_COMPREHENSIONS:  # Python 3.12 has them in the function itself
        if at.name == "SWAP":
            on_stack[-1], on_stack[-at.arg] = on_stack[-at.arg], on_stack[-1]
        elif at.name == "LOAD_FAST_AND_CLEAR":
            on_stack.append(slots[at.arg])
            slots[at.arg] = NULL
        elif at.arg == 0 and making is None:
            making = []
            on_stack.append(making)
        else:
            return None
        at = table[at.end]
    if making is None and len(on_stack) > 1 and "CALL" in at.name:
        return _in_comprehension(step, on_stack[-2], at, iterator, wraps)
    if at.name != "FOR_ITER":
        return None
    at = instructions(state.code)[at.offset - shift]
    state = replace(state, offset=at.offset, locals=tuple(slots), stack=tuple(on_stack))
    check_resumable(state)
    place = None if making is None else next(i for i, v in enumerate(on_stack) if v is making)
    return Head(state, at.exhaustion_target + shift, turn_of(at), wraps, place)


def _in_comprehension(
    step: Step, function: Any, call: Instruction, iterator: Any, wraps: Any
) -> Head | None:
    """The head of the loop in the function that Python 3.11 makes of a list comprehension."""
    table = instructions(step.code)
    call = table[call.end] if call.name == "PRECALL" else call
    if type(function) is not FunctionType or function.__code__.co_name != "<listcomp>":
        return None
    code = function.__code__
    inside = [i for i in instruction_list(code) if i.name not in ("RESUME", "COPY_FREE_VARS")]
    begin, load, head, *_ = inside
    names = (begin.name, load.name, head.name)
    if call.arg or code.co_cellvars or names != ("BUILD_LIST", "LOAD_FAST", "FOR_ITER"):
        return None
    slots = (iterator, *[NULL] * (code.co_nlocals - 1), *(function.__closure__ or ()))
    state = FrameState(function, code, head.offset, slots, ([], iterator), None)
    check_resumable(state)
    return Head(state, call.end, turn_of(head), wraps, 0, inside=True)


_OF_COMPREHENSIONS = ("LOAD_FAST_AND_CLEAR", "SWAP", "BUILD_LIST")


def _turned(
    run: MonitorRun, bounds: tuple[int, int, int], element: Element
) -> tuple[tuple[int, int, int], Element]:
    return reversed_bounds(run, bounds), element


def _numbered(
    run: MonitorRun, bounds: tuple[int, int, int], element: Element
) -> tuple[tuple[int, int, int], Element]:
    def pair(index: Any, rows: list[torch.Tensor]) -> Any:
        return compute_lifted(run, operator.sub, index, bounds[0]), element(index, rows)

    return bounds, pair


_OPPOSITE: dict[Comparison, Comparison] = {
    operator.lt: operator.ge, operator.ge: operator.lt, operator.le: operator.gt,
    operator.gt: operator.le, operator.eq: operator.ne, operator.ne: operator.eq,
}  # fmt: skip
"""What holds of two integers where a comparison does not."""


_WRAPPERS: dict[Any, Callable[..., tuple[tuple[int, int, int], Element]]] = {
    reversed: _turned,
    enumerate: _numbered,
}
"""What a ``range`` of step 1 is given to: the bounds then, and the elements."""


def captured(run: MonitorRun, step: Step) -> FrameState:
    """The state of the frame before an instruction.

    Raises:
        Split: the monitor does not see what goes on there.
    """
    frame = step.frame
    if run.recording.running.depth or run.suspension.depth:
        raise LoopNotMergeable("it runs inside an operator")
    if is_restoring(frame.f_code, step.offset):
        raise LoopNotMergeable("a continuation is being restored")
    return capture(frame, step.stack, step.offset, sys.exception())


def check_resumable(state: FrameState) -> None:
    """Raises Split: a frame cannot be run on from this state."""
    if state.handled_exception is not None:
        raise LoopNotMergeable("an exception is being handled")
    if reason := is_resumable(state):
        raise LoopNotMergeable(reason)


def shift_of(frame: FrameType) -> int:
    """By how much the offsets of a frame's code exceed those of the program's own."""
    origin = origins.get(id(frame.f_code))
    return origin.shift if origin is not None else 0


def _say_why_not(step: Step, why: Exception) -> None:
    _log.info("%s: no operator for a loop: %s", source_location(step.frame), why)
