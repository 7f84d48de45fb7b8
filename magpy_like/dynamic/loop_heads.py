"""Where loops begin: at the head of one it is decided whether its rounds become one operator.

Where the first round differs from the others, as in ``h = None`` or ``if t == 0``, the program goes
through that one as it is, and the rounds behind it may be an operator.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Protocol

import torch

from magpy_like.dynamic.code_flow import instructions, live_locals
from magpy_like.dynamic.frame_state import FrameState, capture, is_resumable, origins, restores
from magpy_like.dynamic.layout import NoLayout
from magpy_like.dynamic.rounds import FEWEST_ROUNDS, Element, Explorer, Loop, number
from magpy_like.logs import topic
from magpy_like.monitor.instructions import Step
from magpy_like.monitor.loops import HEADS
from magpy_like.monitor.operator_graph import UnknownTensor
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.split import Split, SplitPoint

_log = topic("splits")


class Host(Explorer, Protocol):
    """What loops are made for."""

    def wait(self, receive: Callable[[MonitorRun, FrameType], None]) -> None:
        """Call this where the operator ends that the program is about to go through."""


@dataclass
class _Begun:
    """A loop of which the rounds behind the first one may become an operator."""

    bounds: tuple[int, int, int]
    """Not settled yet: the program has made a ``range`` of them."""
    heads: int = 0
    """How often the program has come to its head."""


class LoopHeads:
    """The loops of one monitor run that are no operators yet."""

    def __init__(self, branches: Host) -> None:
        self._branches: Host = weakref.proxy(branches)  # which has this, and arguments of the call
        self._begun: dict[tuple[int, int], _Begun] = {}
        """By frame and the offset of their heads, loops whose first round may differ."""

    def begins(
        self,
        run: MonitorRun,
        step: Step,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Element,
    ) -> bool:
        """See ``Branching.at_loop``."""
        rounds = len(range(*bounds))
        if rounds < 2 or run.lifted.any(bounds[2:]):
            return False
        if rounds < FEWEST_ROUNDS and not run.has_varied(bounds):
            return False
        try:
            state = _at_head(run, step)
        except (Split, NoLayout) as why:
            _say_why_not(step, why)
            return False
        if state is None:
            return False
        if self._make_loop(run, step, state, bounds, tensors, element):
            return True
        if tensors or rounds < 3 or not run.lifted.is_known_at_entry(bounds):
            return False
        self._begun[id(step.frame), state.offset + shift_of(step.frame)] = _Begun(bounds)
        run.watch_iterators()
        return True

    def at_next_round(self, run: MonitorRun, step: Step) -> None:
        """See ``Branching.at_next_round``."""
        key = id(step.frame), instructions(step.code)[step.offset].offset
        begun = self._begun.get(key)
        if begun is None:
            return
        begun.heads += 1
        if begun.heads < 2:
            return
        del self._begun[key]
        start, stop, by = begun.bounds
        rest = number(run, operator.add, start, by), stop, by
        try:
            state = captured(run, step)
            head = instructions(state.code)[state.offset]
            stack = (*state.stack[:-1], iter(range(1)))
            state = replace(state, offset=head.offset, stack=stack)
            check_resumable(state)
            made = self._make_loop(run, step, state, rest, (), HEADS[range])
        except (Split, NoLayout) as why:
            _say_why_not(step, why)
            made = False
        if not made:
            run.lifted.settle(begun.bounds)

    def settle(self, run: MonitorRun, frame: FrameType | None = None) -> None:
        """See ``Branching.settle``."""
        for key in [key for key in self._begun if frame is None or key[0] == id(frame)]:
            run.lifted.settle(self._begun.pop(key).bounds)

    def _make_loop(
        self,
        run: MonitorRun,
        step: Step,
        state: FrameState,
        bounds: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        element: Element,
    ) -> bool:
        """Whether the rounds over ``bounds``, before which the program is, are an operator now."""
        nodes = None
        try:
            for slot in live_locals(state.code, state.offset):
                if step.frame is run.root_frame:
                    run.read_root_local(step.frame, slot)
            loop = Loop(self._branches, run, state, bounds, tensors, element)
            nodes = loop.record()
        except (Split, NoLayout, UnknownTensor) as why:
            _say_why_not(step, why)
            return False
        self._branches.wait(lambda run, frame: loop.receive(nodes, frame))
        run.skip(step.frame, loop.exit + shift_of(step.frame))
        return True


def _at_head(run: MonitorRun, step: Step) -> FrameState | None:
    """The state at the head of the loop over what is about to be made, or gone through; None when
    that is for something else.

    Raises:
        Split: the frame cannot be run on from there.
    """
    table = instructions(step.code)
    getter = table[step.offset]
    taken = 1
    if getter.name == "CALL":
        getter, taken = table[getter.end], step.oparg + 2
    head = table.get(getter.end)
    if getter.name != "GET_ITER" or head is None or head.name != "FOR_ITER":
        return None
    state = captured(run, step)
    below = len(state.stack) - taken
    iterator = iter(range(1))  # nothing takes elements out of it
    head = instructions(state.code)[head.offset - shift_of(step.frame)]
    state = replace(state, offset=head.offset, stack=(*state.stack[:below], iterator))
    check_resumable(state)
    return state


def captured(run: MonitorRun, step: Step) -> FrameState:
    """The state of the frame before an instruction.

    Raises:
        Split: the monitor does not see what goes on there.
    """
    frame = step.frame
    if run.recording.inside or run.suspended:
        raise Split("it is inside an operator")
    if restores(frame.f_code, step.offset):
        raise Split("a continuation is being restored")
    return capture(frame, step.stack, step.offset, sys.exception())


def check_resumable(state: FrameState) -> None:
    """Raises Split: a frame cannot be run on from this state."""
    if state.handled is not None:
        raise Split("an exception is being handled")
    if reason := is_resumable(state):
        raise Split(reason)


def shift_of(frame: FrameType) -> int:
    """By how much the offsets of a frame's code exceed those of the program's own."""
    origin = origins.get(id(frame.f_code))
    return origin.shift if origin is not None else 0


def _say_why_not(step: Step, why: Exception) -> None:
    _log.info("%s: no operator for a loop: %s", SplitPoint.at(step.frame, ""), why)
