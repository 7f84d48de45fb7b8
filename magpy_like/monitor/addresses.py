"""Where objects lie in memory, which differs from call to call for all but what stays.

``id`` and the hash of objects that are equal to themselves alone tell it. Of a variable from
outside that is a lifted number: the mock asks again, and a guard compares it where the program
looks at it. What the program itself has made lies elsewhere at every call.
"""

from __future__ import annotations

import copy
import dataclasses
import reprlib
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.expressions import Address
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.split import Split
from magpy_like.native import lookup_in_type
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.values import is_plain

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]

TELLS = {id, hash, object.__hash__, torch.Tensor.__hash__}
"""Functions of one object whose number may be made of its address."""


def tell(run: MonitorRun, operation: Any, value: Any) -> Token | None:
    """``operation(value)`` is about to be called: what to do with its result, None where it does
    not depend on an address.

    Raises:
        Split: it tells that of an object which a later call does not find.
    """
    rec = run.recording
    if is_plain(value):
        return None
    way = id if operation is id else _hashed_by(value)
    if operation is hash and isinstance(value, tuple | frozenset):
        for part in _hashed_in(value):
            rely_on(rec, part)
        return None
    if way is None or _keeps_to_itself(run):
        return None
    rec.compare(value)
    return _finish, Address(_outside(rec, value), way)


def _finish(run: MonitorRun, address: Address, result: Any) -> Any:
    run.watch_numbers()
    return run.lifted.lift(result, address)


def rely_on(rec: Recording, value: Any) -> None:
    """Something is made of the address of an object: it must not differ.

    Raises:
        Split: a later call does not find the object.
    """
    node = _outside(rec, value)
    known = (part for part, _ in rec.lifted.conditions if isinstance(part, Address))
    if not any(part.node is node and part.tell is id for part in known):
        rec.lifted.conditions.append((Address(node, id), id(value)))


def _outside(rec: Recording, value: Any) -> ShadowNode:
    node = rec.node(value)
    if node is None and isinstance(value, type) and not rec.is_born(value):
        node = rec.constant(value)
    if node is None or node in rec.drawn:
        raise Split("reads a memory address of what it has made")
    return node


def _hashed_by(value: Any) -> Callable[[Any], int] | None:
    """What gives the hash of an object that is told by its address; None for any other."""
    found = lookup_in_type(type(value), "__hash__")
    if found is torch.Tensor.__hash__:
        return id
    return object.__hash__ if found is object.__hash__ else None


def _hashed_in(value: Any) -> Iterator[Any]:
    """The objects in nested tuples whose addresses are part of the hash."""
    if isinstance(value, tuple | frozenset):
        for part in value:
            yield from _hashed_in(part)
    elif not is_plain(value) and _hashed_by(value) is not None:
        yield value


def _keeps_to_itself(run: MonitorRun) -> bool:
    """Whether the function that asks uses a number as a key of what it alone knows."""
    return run.at is not None and run.at.f_code in _KEEP_TO_THEMSELVES


def _codes(function: Any) -> Iterator[types.CodeType]:
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        yield code
        pending += [part for part in code.co_consts if isinstance(part, types.CodeType)]


_KEEP_TO_THEMSELVES = {
    code
    for function in (
        copy.deepcopy, copy._keep_alive, copy._deepcopy_list, copy._deepcopy_tuple,
        copy._deepcopy_dict, torch.Tensor.__deepcopy__, torch.Tensor.__hash__,
        reprlib.recursive_repr, getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr),
    )
    for code in _codes(function)
}  # fmt: skip
"""What notes which objects it has been at already, and the hash of a tensor in a dictionary."""
