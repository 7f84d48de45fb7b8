"""Join points: the immediate post-dominators of branches; and reachability between instructions."""

from __future__ import annotations

from types import CodeType

from magpy_like.bytecode.instruction_stream import Instruction, instruction_list, instructions
from magpy_like.bytecode.per_code_cache import per_code

RETURN = -1
"""An offset that denotes the end of the frame, at any of its returns."""
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")


def join_point(code: CodeType, offset: int) -> int | None:
    """The first offset at which both paths from the branch at ``offset`` meet.

    Exceptions are not paths: a branch that raises never reaches the join point.

    Returns:
        ``RETURN`` if the paths meet only at the frame's end; None if no path leads to an end.
    """
    return _join_points(code).get(offset)


def can_reach(code: CodeType, start: int, offset: int, without: int) -> bool:
    """True if a path leads from ``start`` to ``offset`` without passing ``without``."""
    table = instructions(code)
    seen: set[int] = set()
    todo = [start]
    while todo:
        current = todo.pop()
        if current == offset:
            return True
        if current not in seen and current not in (without, RETURN):
            seen.add(current)
            todo += _successors(table[current])
    return False


def _successors(instruction: Instruction) -> list[int]:
    if instruction.name in _RETURNS:
        return [RETURN]
    after = [instruction.end] if instruction.falls_through else []
    if instruction.name == "FOR_ITER":
        return [*after, instruction.exhaustion_target]
    return after if instruction.target is None else [*after, instruction.target]


@per_code
def _join_points(code: CodeType) -> dict[int, int]:
    """The join point of each branch, by the branch's offset."""
    order = instruction_list(code)
    offsets = [i.offset for i in order] + [RETURN]
    bit = {offset: 1 << number for number, offset in enumerate(offsets)}
    successors = {i.offset: _successors(i) for i in order}
    everything = (1 << len(offsets)) - 1
    # The post-dominators of each instruction, as a bit set: the instructions on every path to an
    # end. All instructions, if there is no such path.
    post_dominators = dict.fromkeys(offsets, everything)
    post_dominators[RETURN] = bit[RETURN]
    changed = True
    while changed:
        changed = False
        for i in reversed(order):
            common = everything
            for successor in successors[i.offset]:
                common &= post_dominators[successor]
            updated = common | bit[i.offset] if successors[i.offset] else everything
            if updated != post_dominators[i.offset]:
                post_dominators[i.offset], changed = updated, True
    joins = {}
    for i in order:
        dominators = post_dominators[i.offset]
        if len(successors[i.offset]) < 2 or dominators == everything:
            continue
        further = [offset for offset in offsets if offset != i.offset and dominators & bit[offset]]
        # The nearest one is post-dominated by all the others.
        joins[i.offset] = max(further, key=lambda offset: post_dominators[offset].bit_count())
    return joins
