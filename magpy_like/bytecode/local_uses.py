"""Uses of locals: the consumers of the values that loads of locals push.

Only straight-line bytecode is followed. A local is not tracked if a jump, or an instruction that is
not in the tables below, lies between a load and its consumer.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass

from magpy_like.bytecode.instruction_facts import CALLS, operand_count
from magpy_like.bytecode.instruction_stream import instruction_list, parts_of
from magpy_like.bytecode.per_code_cache import per_code


@dataclass(frozen=True)
class LocalUses:
    """The locals of one code object that can be followed from load to use.

    ``tracked`` locals are never stored to, and an instruction in ``consumers`` consumes each of
    their loads. ``consumers`` maps an instruction's offset (bytes) to the locals among its
    operands, each with its depth on the operand stack (1: the topmost).
    """

    tracked: frozenset[int]
    consumers: dict[int, tuple[tuple[int, int], ...]]
    stored_once: frozenset[int]
    """Locals other than arguments that are tracked in the same way, except that one instruction
    stores to them."""
    reads: dict[int, tuple[int, int]]
    """By the offset of an instruction that reads a value from outside the frame: the offset of the
    instruction that consumes the value or stores it to a local, and the value's depth there."""


@per_code
def local_uses(code: types.CodeType) -> LocalUses:
    """The uses of a code object's locals."""
    listing = list(_listing(code))
    cells = {slot for slot, name in enumerate(code.co_varnames) if name in code.co_cellvars}
    untracked = set(range(code.co_nlocals)) if FRAME_INSPECTORS & {*code.co_names} else cells
    consumers: dict[int, list[tuple[int, int]]] = {}
    reads: dict[int, tuple[int, int]] = {}
    stores: dict[int, int] = {}
    for position, instruction in enumerate(listing):
        name, slot = instruction.name, instruction.arg
        if name in _LOADS:
            found = _consumer(listing, position)
            if found is None:
                untracked.add(slot)
            else:
                offset, depth = found
                consumers.setdefault(offset, []).append((depth, slot))
        elif name == "STORE_FAST":
            stores[slot] = stores.get(slot, 0) + 1
        elif "_FAST" in name:
            untracked.add(slot)
        elif name in _READS:
            found = _consumer(listing, position) or _storing(listing[position + 1])
            if found is not None:
                reads[instruction.offset] = found
    clear = frozenset(range(code.co_nlocals)) - untracked
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += bool(code.co_flags & inspect.CO_VARARGS)
    arguments += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    once = {slot for slot, count in stores.items() if count == 1 and slot >= arguments}
    by_offset = {offset: tuple(found) for offset, found in consumers.items()}
    return LocalUses(clear - stores.keys(), by_offset, clear & once, reads)


_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK")
_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF", "BINARY_SUBSCR")
FRAME_INSPECTORS = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"))
"""Names of functions by which code reads its own locals without instructions for it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An instruction, or one of the two that a fused one stands for."""

    name: str
    arg: int
    offset: int
    """The offset with which the monitor reports it: its first EXTENDED_ARG, if it has one."""
    is_jump_target: bool


def _listing(code: types.CodeType) -> Iterator[_Part]:
    targets = {i.offset for i in dis.get_instructions(code) if i.is_jump_target}
    for instruction in instruction_list(code):
        is_target = not targets.isdisjoint((instruction.offset, instruction.at))
        for name, arg in parts_of(instruction.name, instruction.arg):
            yield _Part(name, arg, instruction.offset, is_target)
            is_target = False


def _storing(instruction: _Part) -> tuple[int, int] | None:
    if instruction.name != "STORE_FAST" or instruction.is_jump_target:
        return None
    return instruction.offset, 1


def _consumer(listing: list[_Part], load: int) -> tuple[int, int] | None:
    """The offset of the instruction that consumes a loaded value, and the value's depth there.

    Args:
        load: the position of the load in ``listing``.
    """
    above = 0
    for instruction in listing[load + 1 :]:
        name, arg = instruction.name, instruction.arg
        if instruction.is_jump_target:
            return None
        popped = _pops(name, arg)
        if popped is None:
            return None
        if popped > above:
            return (instruction.offset, above + 1) if _is_consumer(name) else None
        above += _stack_effect(name, arg)
    return None


def _is_consumer(name: str) -> bool:
    """True for instructions whose operands are reported as uses of locals."""
    return name in ("BINARY_OP", "COMPARE_OP", "IS_OP", "TO_BOOL", *CALLS) or _is_jump(name)


def _is_jump(name: str) -> bool:
    return name.startswith("POP_JUMP")


def _pops(name: str, arg: int) -> int | None:
    """Number of operands that an instruction pops; None for an instruction not in the tables."""
    if _is_jump(name):
        return 1
    if name in CALLS:
        return operand_count(name, arg)
    if name in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SLICE", "BUILD_STRING"):
        return arg
    return _POPS.get(name)


def _stack_effect(name: str, arg: int) -> int:
    if name in ("PRECALL", "KW_NAMES"):  # `dis` attributes the effect of CALL to PRECALL
        return 0
    if name in CALLS:
        return 1 - operand_count(name, arg)
    opcode = dis.opmap[name]
    return dis.stack_effect(opcode, arg if opcode >= dis.HAVE_ARGUMENT else None)


def _pops_by_name() -> Iterator[tuple[str, int]]:
    for name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF",
                 "PUSH_NULL", "PRECALL", "KW_NAMES", "NOP"):  # fmt: skip
        yield name, 0
    for name in ("LOAD_ATTR", "LOAD_METHOD", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT",
                 "TO_BOOL"):  # fmt: skip
        yield name, 1
    for name in ("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "IS_OP", "CONTAINS_OP"):
        yield name, 2
    yield "BINARY_SLICE", 3


_POPS = dict(_pops_by_name())
