"""``while`` loops that count: ``while t < n: ...; t += 1`` is a loop over a range of ``t``.

Python compiles the condition of such a loop twice, before the first iteration and after each one.
Both comparisons lead to the same body, and each iteration ends at the second one. An isolated
iteration shows by how much it advances the counter.
"""

from __future__ import annotations

import operator
from types import CodeType
from typing import Any

import torch

from magpy_like.bytecode.instruction_stream import Instruction, instruction_list, instructions
from magpy_like.bytecode.post_dominators import can_reach
from magpy_like.control_flow.loops.loop_description import Bounds, Comparison, LoopOffsets
from magpy_like.monitor.context import Context
from magpy_like.monitor.symbolic.lists.loop_ranges import compute_lifted, constant_offset
from magpy_like.split_points import LoopNotMergeable


def for_loop_offsets(head: Instruction) -> LoopOffsets:
    """The offsets of a ``for`` loop.

    Args:
        head: its FOR_ITER.
    """
    return LoopOffsets(head.end, head.offset, head.exhaustion_target, 1, head.offset)


def while_loop_offsets(code: CodeType, offset: int) -> tuple[LoopOffsets, bool] | None:
    """The offsets of the loop whose condition is the comparison at ``offset``, and the truth with
    which the loop continues; None if the comparison is not such a condition."""
    table = instructions(code)
    at = table[offset]
    targets = _jump_targets(table, table[at.end])
    if targets is None:
        return None
    for stays in (True, False):
        body, leave = targets[stays], targets[not stays]
        heads = [
            other.offset
            for other in instruction_list(code)
            if other.name == "COMPARE_OP"
            and other.arg == at.arg
            and other.offset != at.offset
            and (_jump_targets(table, table[other.end]) or (None, None))[stays] == body
        ]
        heads = heads or [at.offset]  # while True: if t >= n: break
        head = table[heads[0]]
        exits = _jump_targets(table, table[head.end])
        assert exits is not None
        if len(heads) == 1 and can_reach(code, body, heads[0], leave):
            if not can_reach(code, leave, heads[0], body):
                branch = table[head.end].offset
                return LoopOffsets(body, head.offset, exits[not stays], 2, branch), stays
    return None


def _jump_targets(table: dict[int, Instruction], jump: Instruction) -> tuple[int, int] | None:
    """The targets of a conditional jump for a false and a true operand; None for any other
    instruction."""
    if not jump.name.startswith("POP_JUMP") or "NONE" in jump.name or jump.target is None:
        return None
    target, after = (_skip_jumps(table, offset) for offset in (jump.target, jump.end))
    return (after, target) if "IF_TRUE" in jump.name else (target, after)


def _skip_jumps(table: dict[int, Instruction], offset: int) -> int:
    """The first instruction from ``offset`` on that is no unconditional jump."""
    seen = set()
    while table[offset].name in ("JUMP_BACKWARD", "JUMP_FORWARD") and offset not in seen:
        seen.add(offset)
        offset = table[offset].target or offset
    return offset


def step_of(index: Any, counter: Any) -> int:
    """The constant by which an iteration advances its counter.

    Args:
        index: the node of the counter before the iteration.
        counter: the node of the counter after it.

    Raises:
        Split: it is not the sum of ``index`` and a constant.
    """
    step = constant_offset(index, counter)
    if not step:
        raise LoopNotMergeable("an iteration does not advance the counter by a constant")
    return step


def bounds_of(context: Context, compared: Comparison, start: Any, end: Any, step: int) -> Bounds:
    """The range of a counter's values while ``compared(counter, end)`` holds.

    Raises:
        Split: it does not count towards ``end``.
    """
    up, offset = _RANGES.get((compared, step > 0), (None, 0))
    if up is None or (compared is operator.ne and abs(step) != 1):
        raise LoopNotMergeable("the counter does not approach its bound")
    return start, compute_lifted(context, operator.add, end, offset) if offset else end, step


_RANGES: dict[tuple[Comparison, bool], tuple[bool, int]] = {
    (operator.lt, True): (True, 0),
    (operator.le, True): (True, 1),
    (operator.gt, False): (False, 0),
    (operator.ge, False): (False, -1),
    (operator.ne, True): (True, 0),
    (operator.ne, False): (False, 0),
}
"""By comparison and whether the step is positive: whether the counter ascends, and the summand that
makes its limit the stop of a range."""


def is_one_number(context: Context, one: Any, other: Any) -> bool:
    """True if two integers are equal in every call; both must be computable at entry."""
    if type(one) is not int or type(other) is not int or one != other:
        return False
    if one is other or not context.lifted.any_lifted((one, other)):
        return True
    if not context.lifted.guards.are_computable_at_entry((one, other)):
        return False
    twins = [context.lifted.twin(number) for number in (one, other)]
    if all(isinstance(twin, torch.SymInt) for twin in twins):
        return context.lifted.guards.require_symbolic(twins[0] == twins[1])
    return context.lifted.expression(one) is context.lifted.expression(other)
