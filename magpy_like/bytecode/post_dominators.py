"""Where the two sides of a branch meet again: the branch's immediate post-dominator."""

from __future__ import annotations

from types import CodeType

from magpy_like.bytecode.data_flow import Instruction, instruction_list, instructions, per_code

RETURN = -1
"""Stands for the offset of whichever instruction returns from the frame."""
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")


def join_point(code: CodeType, offset: int) -> int | None:
    """The offset where both ways from the branch at `offset` meet first; `RETURN` where they meet
    in the frame's end only; None when the program cannot get from there to an end.

    Exceptions are not taken for ways: a side that raises never gets to the join.
    """
    return _joins(code).get(offset)


def can_reach(code: CodeType, start: int, offset: int, without: int) -> bool:
    """Whether there is a way from `start` to `offset` that does not come through `without`."""
    table = instructions(code)
    seen: set[int] = set()
    todo = [start]
    while todo:
        place = todo.pop()
        if place == offset:
            return True
        if place not in seen and place not in (without, RETURN):
            seen.add(place)
            todo += _successors(table[place])
    return False


def _successors(instruction: Instruction) -> list[int]:
    if instruction.name in _RETURNS:
        return [RETURN]
    after = [instruction.end] if instruction.falls_through else []
    if instruction.name == "FOR_ITER":
        return [*after, instruction.exhaustion_target]
    return after if instruction.target is None else [*after, instruction.target]


@per_code
def _joins(code: CodeType) -> dict[int, int]:
    """The join of each branch, by the branch's offset."""
    order = instruction_list(code)
    places = [i.offset for i in order] + [RETURN]
    bit = {offset: 1 << number for number, offset in enumerate(places)}
    ways = {i.offset: _successors(i) for i in order}
    everything = (1 << len(places)) - 1
    # The places that every way to an end comes through; everything, where there is no such way.
    ahead = dict.fromkeys(places, everything)
    ahead[RETURN] = bit[RETURN]
    changed = True
    while changed:
        changed = False
        for i in reversed(order):
            common = everything
            for way in ways[i.offset]:
                common &= ahead[way]
            found = common | bit[i.offset] if ways[i.offset] else everything
            if found != ahead[i.offset]:
                ahead[i.offset], changed = found, True
    joins = {}
    for i in order:
        if len(ways[i.offset]) < 2 or ahead[i.offset] == everything:
            continue
        further = [p for p in places if p != i.offset and ahead[i.offset] & bit[p]]
        # The nearest of them has all the others ahead.
        joins[i.offset] = max(further, key=lambda place: ahead[place].bit_count())
    return joins
