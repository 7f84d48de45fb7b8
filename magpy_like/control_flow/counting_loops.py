"""``while`` loops that count: ``while t < n: ...; t += 1`` is a loop over a range of ``t``.

Python has the condition of such a loop twice, before the first round and behind each of them. So a
round goes from one comparison to the other, and both lead to one beginning. What it adds to the
counter is found out by running it beside the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from magpy_like.bytecode.data_flow import Instruction, instruction_list, instructions
from magpy_like.bytecode.post_dominators import can_reach
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.loop_ranges import compute_lifted, constant_offset
from magpy_like.split_points import LoopNotMergeable

Comparison = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Turn:
    """How the rounds of a loop follow each other: offsets in its code."""

    begin: int
    """Where a round begins."""
    again: int
    """Where it is over, and another one follows or not."""
    exit: int
    """Where there is no further one."""
    operands: int
    """How many there are on the stack at ``again`` that nothing behind it has."""
    branch: int
    """The instruction at ``again`` that leads to either."""


@dataclass
class Counter:
    """What a ``while`` loop compares at its head to go on."""

    holds: Callable[[Any, Any], bool]
    """The comparison that goes on, with the counter first."""
    at: int
    """Where the counter is among the two operands; the other one is where it ends."""
    slot: int | None = None
    """The local that it is kept in, once that is known."""
    is_length: bool = False
    """Whether it is how long a list is to which rounds append, and so kept nowhere."""


def turn_of(head: Instruction) -> Turn:
    """That of a ``for`` loop, whose FOR_ITER is ``head``."""
    return Turn(head.end, head.offset, head.exhaustion_target, 1, head.offset)


def turn_at(code: CodeType, offset: int) -> tuple[Turn, bool] | None:
    """The loop that goes on or ends by the comparison at ``offset``, and for which truth it goes
    on; None where that is no such comparison."""
    table = instructions(code)
    at = table[offset]
    ways = _ways(table, table[at.end])
    if ways is None:
        return None
    for stays in (True, False):
        begin, leave = ways[stays], ways[not stays]
        again = [
            other.offset
            for other in instruction_list(code)
            if other.name == "COMPARE_OP"
            and other.arg == at.arg
            and other.offset != at.offset
            and (_ways(table, table[other.end]) or (None, None))[stays] == begin
        ]
        again = again or [at.offset]  # while True: if t >= n: break
        end = table[again[0]]
        exits = _ways(table, table[end.end])
        assert exits is not None
        if len(again) == 1 and can_reach(code, begin, again[0], leave):
            if not can_reach(code, leave, again[0], begin):
                return Turn(begin, end.offset, exits[not stays], 2, table[end.end].offset), stays
    return None


def _ways(table: dict[int, Instruction], jump: Instruction) -> tuple[int, int] | None:
    """Where the program goes on, if the operand is false and if it is true."""
    if not jump.name.startswith("POP_JUMP") or "NONE" in jump.name or jump.target is None:
        return None
    target, after = (_landing(table, place) for place in (jump.target, jump.end))
    return (after, target) if "IF_TRUE" in jump.name else (target, after)


def _landing(table: dict[int, Instruction], offset: int) -> int:
    """Where a way leads that begins with nothing but jumps."""
    seen = set()
    while table[offset].name in ("JUMP_BACKWARD", "JUMP_FORWARD") and offset not in seen:
        seen.add(offset)
        offset = table[offset].target or offset
    return offset


def step_of(index: Any, counter: Any) -> int:
    """By how much a round counts on: ``counter`` is the node of what it makes of ``index``.

    Raises:
        Split: it is no sum of the two.
    """
    step = constant_offset(index, counter)
    if not step:
        raise LoopNotMergeable("an iteration does not advance the counter by a constant")
    return step


def bounds_of(
    run: MonitorRun, compared: Comparison, start: Any, end: Any, step: int
) -> tuple[int, int, int]:
    """The range that a counter goes through while ``compared(counter, end)`` holds.

    Raises:
        Split: it does not count towards its end.
    """
    up, offset = _RANGES.get((compared, step > 0), (None, 0))
    if up is None or (compared is operator.ne and abs(step) != 1):
        raise LoopNotMergeable("the counter does not approach its bound")
    return start, compute_lifted(run, operator.add, end, offset) if offset else end, step


_RANGES: dict[tuple[Comparison, bool], tuple[bool, int]] = {
    (operator.lt, True): (True, 0),
    (operator.le, True): (True, 1),
    (operator.gt, False): (False, 0),
    (operator.ge, False): (False, -1),
    (operator.ne, True): (True, 0),
    (operator.ne, False): (False, 0),
}
"""By comparison and whether the step is positive, what is added to its end to be a range's."""


def is_one_number(run: MonitorRun, one: Any, other: Any) -> bool:
    """Whether two integers are the same in any call: both are known before it."""
    if type(one) is not int or type(other) is not int or one != other:
        return False
    if one is other or not run.lifted.any_lifted((one, other)):
        return True
    if not run.lifted.guards.are_computable_at_entry((one, other)):
        return False
    twins = [run.lifted.twin(number) for number in (one, other)]
    if all(isinstance(twin, torch.SymInt) for twin in twins):
        return run.lifted.guards.require_symbolic(twins[0] == twins[1])
    return run.lifted.expression(one) is run.lifted.expression(other)
