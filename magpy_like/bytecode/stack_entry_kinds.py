"""The kinds of the entries on the operand stack before each instruction."""

from __future__ import annotations

from enum import Enum
from types import CodeType

from magpy_like.bytecode.exception_table import handler_of
from magpy_like.bytecode.instruction_stream import Instruction, instructions, stack_effect
from magpy_like.bytecode.per_code_cache import per_code


class EntryKind(Enum):
    """The kind of an entry of the operand stack."""

    VALUE = "value"
    LASTI = "offset of the instruction that raised"
    PREVIOUS_EXCEPTION = "exception handled before, which the end of a handler restores"


EntryKinds = tuple[EntryKind, ...]


@per_code
def stack_kinds(code: CodeType) -> dict[int, EntryKinds]:
    """The operand stack before each reachable instruction, by the instruction's offset."""
    table = instructions(code)
    out: dict[int, EntryKinds] = {}
    todo: list[tuple[int, EntryKinds]] = [(0, ())]
    while todo:
        offset, kinds = todo.pop()
        if offset in out:
            continue
        out[offset] = kinds
        instruction = table[offset]
        if instruction.falls_through and instruction.end in table:
            todo.append((instruction.end, _after(instruction, kinds, jump=False)))
        if (target := instruction.target) is not None:
            todo.append((target, _after(instruction, kinds, jump=True)))
        # PUSH_EXC_INFO cannot raise, but lies in the row for the state that it sets up.
        handler = handler_of(code, instruction)
        if handler and instruction.name != "PUSH_EXC_INFO":
            pushed = (EntryKind.LASTI, EntryKind.VALUE) if handler.lasti else (EntryKind.VALUE,)
            todo.append((handler.target, kinds[: handler.depth] + pushed))
    return out


def _after(instruction: Instruction, kinds: EntryKinds, jump: bool) -> EntryKinds:
    """The operand stack after an instruction."""
    match instruction.name:
        case "PUSH_EXC_INFO":
            return (*kinds[:-1], EntryKind.PREVIOUS_EXCEPTION, EntryKind.VALUE)
        case "SWAP":
            swapped = list(kinds)
            swapped[-1], swapped[-instruction.arg] = swapped[-instruction.arg], swapped[-1]
            return tuple(swapped)
        case "COPY":
            # POP_EXCEPT pops the copy, which ends the handler.
            copied = list(kinds)
            if (kind := kinds[-instruction.arg]) is EntryKind.PREVIOUS_EXCEPTION:
                copied[-instruction.arg] = EntryKind.VALUE
            return (*copied, kind)
        case _:
            effect = stack_effect(instruction, jump)
            if effect >= 0:
                return kinds + (EntryKind.VALUE,) * effect
            return kinds[:effect]
