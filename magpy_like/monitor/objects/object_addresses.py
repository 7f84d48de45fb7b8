"""Memory addresses of objects, which differ between calls unless the object lives on.

``id`` returns the address; the default hash, the order in a set and the default text depend on it.
The address of an external object is a lifted number or text: the mock computes it again, and the
guard compares it if the program inspects it. A new object has another address at every call.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import reprlib
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.calls import special_methods
from magpy_like.monitor.objects.containers import elements
from magpy_like.monitor.symbolic.expressions import Address
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split, UnguardableRead
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any]

_HASHES = {hash, object.__hash__, torch.Tensor.__hash__}
TEXT_FUNCTIONS = {
    repr, str, ascii, format, object.__repr__, object.__str__, object.__format__,
}  # fmt: skip
ADDRESS_QUERIES = {id} | _HASHES | TEXT_FUNCTIONS
"""Functions of one object whose result may depend on its address."""


def begin_address_query(context: Context, operation: Any, value: Any) -> Token | None:
    """Begin ``operation(value)``; return None if the result does not depend on the address.

    Raises:
        Split: the result depends on the address of a new object.
    """
    rec = context.recording
    if is_plain(value):
        return None
    query: Callable[[Any], Any] | None = id
    if operation in TEXT_FUNCTIONS:
        query = operation if operation is not ascii and text_shows_address(value) else None
    elif operation is not id:
        query = _hashed_by(value)
        if query is None:
            for part in _hashed_in(value):
                guard_address(rec, part)
    if query is None or _is_private_use(context):
        return None
    rec.inspections.record_comparison(value)
    return address_token(context, query, value)


def address_token(context: Context, query: Callable[[Any], Any], value: Any) -> Token:
    """The token of an instruction whose result is ``query(value)``.

    Raises:
        Split: the object is new.
    """
    if query is not id:
        special_methods.read_special_methods_of_class(context.recording, type(value))
    return _finish, Address(_external_node(context.recording, value), query)


def _finish(context: Context, address: Address, result: Any) -> Any:
    context.watch_numbers()
    return context.lifted.lift(result, address)


def guard_address(rec: Recording, value: Any) -> None:
    """Guard the address of an object.

    Raises:
        Split: the object is new.
    """
    node = _external_node(rec, value)
    guarded = (part for part, _ in rec.lifted.guards.conditions if is_instance(part, Address))
    if not any(part.node is node and part.function is id for part in guarded):
        rec.lifted.guards.conditions.append((Address(node, id), id(value)))


def _external_node(rec: Recording, value: Any) -> ShadowNode:
    node = rec.variables.node(value)
    if (
        node is None
        and is_instance(value, type | types.ModuleType)
        and not rec.variables.is_new_object(value)
    ):
        node = rec.variables.constant(value)
    if node is None or node in rec.reads.drawn:
        raise Split(
            SplitReason.OBJECT_IDENTITY, "reads the memory address of an object that it has created"
        )
    return node


def _hashed_by(value: Any) -> Callable[[Any], int] | None:
    """The function that computes the hash from the address; None for any other hash."""
    found = lookup_in_type(type(value), "__hash__")
    if found is torch.Tensor.__hash__:
        return id
    return object.__hash__ if found is object.__hash__ else None


def _hashed_in(value: Any) -> Iterator[Any]:
    """The objects in ``value`` on whose addresses its hash depends."""
    if is_instance(value, tuple | frozenset):
        for part in elements(value):
            yield from _hashed_in(part)
    elif is_instance(value, weakref.ref):
        yield from _hashed_in(value())
    elif is_instance(value, types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType):
        if not is_plain(value.__self__):
            yield value.__self__
        yield from _hashed_in(getattr(value, "__func__", None))
    elif not is_plain(value) and _hashed_by(value) is not None:
        yield value


def text_shows_address(value: Any) -> bool:
    """True if an object has the default text, of class and address."""
    return all(lookup_in_type(type(value), name) is own for name, own in _OWN_TEXT.items())


_OWN_TEXT = {name: getattr(object, name) for name in ("__repr__", "__str__", "__format__")}


def finish_text(context: Context, _: Any, text: Any) -> None:
    """Guard the object addresses in a text that native code returns.

    Any other result comes from a method of one of the objects.

    Raises:
        UnguardableRead: the text has the address of a new object.
    """
    if not is_instance(text, str | bytes):
        context.recording.variables.add_new(text)
        return
    for found in _ADDRESS.findall(text if is_instance(text, str) else text.decode("latin-1")):
        address = int(found, 16)
        if address >= _LOWEST_ADDRESS:
            node = context.recording.refs.get_node_at(address)
            if node is None or not node.existed:
                raise UnguardableRead(
                    SplitReason.OBJECT_IDENTITY,
                    "reads the memory address of an object that it has created",
                )
            guard_address(context.recording, node.variable)


_ADDRESS = re.compile(r"\b0x([0-9a-f]+)")
_LOWEST_ADDRESS = 1 << 20
"""The lowest address of an object."""


def guard_set_order(rec: Recording, found: Any) -> None:
    """Guard the order of a set: the addresses of members that are hashed by address.

    Raises:
        Split: some of them are new.
    """
    if is_instance(found, set | frozenset) and len(members := elements(found)) > 1:
        node = rec.variables.node(found)
        if node is None or node.changed:
            for member in members:
                for part in _hashed_in(member):
                    guard_address(rec, part)


def _is_private_use(context: Context) -> bool:
    """True if the calling function uses the number only as the key of a private table."""
    return context.frame is not None and context.frame.f_code in _PRIVATE_USERS


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        yield code
        pending += [part for part in code.co_consts if is_instance(part, types.CodeType)]


_PRIVATE_USERS = {
    code
    for function in (
        *vars(copy).values(), torch.Tensor.__deepcopy__, torch.Tensor.__hash__,
        reprlib.recursive_repr, getattr(dataclasses, "_recursive_repr", None),
    )
    if is_instance(function, types.FunctionType)
    for code in _codes(function)
}  # fmt: skip
"""Code of functions that remember visited objects by ``id``, and the hash of a tensor."""
