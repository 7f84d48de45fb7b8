"""Local variables that are live before each instruction."""

from __future__ import annotations

from types import CodeType

from magpy_like.bytecode.exception_table import handler_of
from magpy_like.bytecode.instruction_stream import instruction_list, instructions, parts_of
from magpy_like.bytecode.local_uses import FRAME_INSPECTORS
from magpy_like.bytecode.per_code_cache import per_code
from magpy_like.bytecode.stack_entry_kinds import stack_kinds

# The instructions that read a slot, or its cell, before they write to it.
_READS = frozenset(
    (
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "DELETE_FAST",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "MAKE_CELL",
    )
)
_WRITES = frozenset(("STORE_FAST", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"))


def slot_count(code: CodeType) -> int:
    """The number of local, cell and free variables: the length of ``frame_locals``."""
    cells = set(code.co_cellvars) - set(code.co_varnames)
    return code.co_nlocals + len(cells) + len(code.co_freevars)


@per_code
def _live(code: CodeType) -> dict[int, int]:
    """The live slots before each reachable instruction, by offset, as bit sets."""
    reachable = [i for i in instruction_list(code) if i.offset in stack_kinds(code)]
    always = 0
    if FRAME_INSPECTORS & {*code.co_names}:
        always = (1 << slot_count(code)) - 1
    elif "__class__" in code.co_freevars:  # super() finds both in the frame
        always = 1 | 1 << (slot_count(code) - len(code.co_freevars)) + code.co_freevars.index(
            "__class__"
        )
    live = {i.offset: always for i in reachable}
    changed = True
    while changed:
        changed = False
        for i in reversed(reachable):
            out = 0
            if i.falls_through:
                out |= live.get(i.end, 0)
            if i.target is not None:
                out |= live[i.target]
            for name, slot in reversed(parts_of(i.name, i.arg)):
                if name in _WRITES:
                    out &= ~(1 << slot)
                if name in _READS:
                    out |= 1 << slot
            if handler := handler_of(code, i):
                # The instruction may raise before it writes.
                out |= live[handler.target]
            out |= always
            if out != live[i.offset]:
                live[i.offset], changed = out, True
    return live


def live_locals(code: CodeType, offset: int) -> frozenset[int]:
    """The slots of ``frame_locals`` that may be read before they are written, from ``offset`` on.

    A cell is live where an instruction of this frame still opens it or passes it to a closure;
    existing closures keep it alive themselves. In a function that uses a name of
    ``FRAME_INSPECTORS``, all slots are live. A caller that drops a dead slot releases its value
    earlier than the program would.
    """
    bits = _live(code).get(instructions(code)[offset].offset, 0)
    return frozenset(slot for slot in range(slot_count(code)) if bits >> slot & 1)
