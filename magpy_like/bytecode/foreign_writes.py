"""Writes by Python code to objects that it has not created itself.

The source positions of instructions tell whose item or method an instruction uses, and the function
whose result a local variable holds. Code without positions counts as writing.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator, Sequence

Listing = Sequence[dis.Instruction]

_CREATES = frozenset(
    (
        "clone", "zeros_like", "ones_like", "empty_like", "full_like", "zeros", "ones", "empty",
        "full", "new_zeros", "new_ones", "new_empty", "new_full", "mul", "add", "sub", "div", "neg",
        "masked_fill", "where", "list", "dict", "set",
    )
)  # fmt: skip
"""Names of functions that return new objects."""
_CHANGES_CONTAINER = frozenset(
    (
        "append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse",
        "update", "setdefault", "add", "discard", "appendleft", "popleft",
    )
)  # fmt: skip
_SETS_ITEM = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_FIRST_IN_PLACE = 13
"""The first argument of ``BINARY_OP`` that stands for an operator such as ``+=``."""
_OF_ITEMS = ("COPY", "SWAP", "BINARY_SUBSCR", "BINARY_SLICE", "BINARY_OP")
"""Instructions between a load and a write that lead to a part of the loaded object."""


def foreign_write(code: types.CodeType, listing: Listing) -> str | None:
    """The first write to an object that the code may not have created, as the end of a sentence;
    None if there is none. The name of a method decides: its object may be a tensor or a container.
    ``listing``: the instructions of ``code``."""
    new = _new_locals(code, listing)
    for position, instruction in enumerate(listing):
        change = _change(instruction)
        if change is not None and not _is_new(listing, position, new):
            return change
    return None


def _change(instruction: dis.Instruction) -> str | None:
    name = instruction.opname
    if name in _SETS_ITEM:
        return "sets an item"
    if _is_in_place(instruction):
        return "computes in place"
    if name in ("LOAD_ATTR", "LOAD_METHOD") and _changes_receiver(instruction.argval):
        return f"calls `{instruction.argval}`"
    return None


def _is_in_place(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_OP" and (instruction.arg or 0) >= _FIRST_IN_PLACE


def _changes_receiver(method: str) -> bool:
    return method in _CHANGES_CONTAINER or (method.endswith("_") and not method.endswith("__"))


def _is_new(listing: Listing, position: int, new: frozenset[str]) -> bool:
    """True if an instruction changes an object that the code has created."""
    before = _with_same_start(listing, position)
    if not before:
        return False
    if listing[before[-1]].opname == "CALL":
        return _callee(listing, before[-1]) in _CREATES
    first, *rest = (listing[each] for each in before)
    return _loaded(first) in new and all(each.opname in _OF_ITEMS for each in rest)


def _loaded(instruction: dis.Instruction) -> str | None:
    """The local variable that an instruction loads, the first one of two."""
    if not instruction.opname.startswith("LOAD_FAST"):
        return None
    found = instruction.argval
    return str(found[0] if type(found) is tuple else found)


def _new_locals(code: types.CodeType, listing: Listing) -> frozenset[str]:
    """The local variables to which the code assigns only objects that it has created."""
    arguments = inspect.getargs(code)
    named = (arguments.varargs, arguments.varkw)
    new, other = set[str](), {*arguments.args, *filter(None, named)}
    for position, instruction in enumerate(listing):
        for k, name in enumerate(_stored(instruction)):
            is_new = not k and position > 0 and _creates(listing, position - 1, name)
            (new if is_new else other).add(name)
    return frozenset(new - other)


def _stored(instruction: dis.Instruction) -> Iterator[str]:
    """The local variables that an instruction assigns, the topmost operand's first."""
    name, found = instruction.opname, instruction.argval
    if name == "STORE_FAST_STORE_FAST":
        yield from found
    elif name.startswith("STORE_FAST"):
        yield found[0] if type(found) is tuple else found


def _creates(listing: Listing, position: int, name: str) -> bool:
    """True if an instruction creates an object, or changes that of the variable ``name``."""
    instruction = listing[position]
    if instruction.opname == "CALL":
        return _callee(listing, position) in _CREATES
    if _is_in_place(instruction):
        return [_loaded(listing[each]) for each in _with_same_start(listing, position)] == [name]
    return instruction.opname.startswith(("BUILD_", "BINARY_OP", "UNARY_", "COMPARE_OP"))


def _callee(listing: Listing, call: int) -> str | None:
    """The last name of the function that an instruction calls."""
    names = [
        listing[each]
        for each in _with_same_start(listing, call)
        if listing[each].opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME")
    ]
    return str(names[-1].argval) if names else None


def _with_same_start(listing: Listing, position: int) -> list[int]:
    """The earlier instructions, in order, whose source begins where that of an instruction does;
    the last of them yields the object to which it belongs."""
    start = _start(listing[position])
    if start is None:
        return []
    return [
        each
        for each in range(position)
        if _start(listing[each]) == start and listing[each].opname != "PRECALL"
    ]


def _start(instruction: dis.Instruction) -> tuple[int, int] | None:
    place = instruction.positions
    if place is None or place.lineno is None or place.col_offset is None:
        return None
    return place.lineno, place.col_offset
