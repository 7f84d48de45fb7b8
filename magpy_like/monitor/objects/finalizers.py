"""Finalizers: objects whose destruction the program observes by `__del__` or weak references.

A mock holds its arguments until it returns, and applies changes in an order of its own. So an
object of this kind must die where the program drops it, which only a native run ensures.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from magpy_like.bytecode.instruction_facts import runs_cleanup
from magpy_like.monitor.objects.access_paths import follow
from magpy_like.monitor.objects.containers import elements
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE, MonitorWeakRef, is_plain


def is_observed(value: Any) -> bool:
    """True if the program's code runs when an object dies, or can query whether it is alive."""
    return has_cleanup(value) or any(map(_is_programs, weakref.getweakrefs(value)))


def has_finalizers(value: Any) -> bool:
    """True if the program's code runs when an object dies."""
    return has_cleanup(value) or any(map(_calls_back, weakref.getweakrefs(value)))


def has_cleanup(value: Any) -> bool:
    """True if an object itself has code that runs when it dies: `__del__`, or a generator's
    ``finally``."""
    if is_instance(value, types.GeneratorType):
        frame = value.gi_frame
        return frame is not None and runs_cleanup(frame.f_code, frame.f_lasti)
    return has_destructor(value)


def has_destructor(value: Any) -> bool:
    return defines_destructor(type(value))


def defines_destructor(kind: type) -> bool:
    """True if a class has a ``__del__`` in Python."""
    if not kind.__flags__ & HEAP_TYPE:
        return False
    return is_instance(lookup_in_type(kind, "__del__"), types.FunctionType)


def _is_programs(reference: Any) -> bool:
    """True if a weak reference is the program's, not one of torch's tables.

    Once Dynamo has compiled anything, it keeps a table of all modules that are created.
    """
    if type(reference) is MonitorWeakRef:
        return False
    if type(reference) in weakref.ProxyTypes:
        return True
    makers = type(reference), reference.__callback__
    return not any(str(getattr(maker, "__module__", "")).startswith("torch.") for maker in makers)


def _calls_back(reference: Any) -> bool:
    """True if the destruction of the referent runs the program's code, not that of a weak
    container."""
    if type(reference) in weakref.ProxyTypes:
        return True  # perhaps: the callback of a proxy cannot be read
    callback = reference.__callback__
    own = is_instance(callback, types.FunctionType) and callback.__module__ in WEAK_CONTAINERS
    return callback is not None and not own and _is_programs(reference)


WEAK_CONTAINERS = ("weakref", "_weakrefset")
"""The modules that define weak containers."""


def find_observed(
    values: Iterable[Any], is_held: Callable[[Any], bool] | None = None
) -> Any | None:
    """The first observed object among these and those that they hold; None if there is none.

    Objects for which ``is_held`` is true are skipped, with all that they hold: they have other
    owners.
    """
    return next(filter(is_observed, held_by(values, is_held)), None)


def held_by(values: Iterable[Any], is_held: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """These objects and all objects that they hold, directly or indirectly."""
    seen: dict[int, Any] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) in seen or is_plain(value) or is_instance(value, _APART):
            continue
        if (is_held is not None and is_held(value)) or _is_defined(value):
            continue
        seen[id(value)] = value
        yield value
        todo += _parts(value)


_APART = (type, types.ModuleType, types.CodeType)
"""Kept alive by existing classes and modules, or by cycles."""


def _is_defined(value: Any) -> bool:
    """True for a function that its module or class holds under its name: torch has weak tables of
    such functions."""
    if not is_instance(value, types.FunctionType):
        return False
    holder: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        holder = vars(holder).get(name) if is_instance(holder, type | types.ModuleType) else None
    return holder is value


def _parts(value: Any) -> list[Any]:
    """The objects that an object holds directly, perhaps as their only owner."""
    if is_instance(value, torch.Tensor):
        return list(object.__getattribute__(value, "__dict__").values())
    if is_instance(value, types.FunctionType):
        keywords = value.__kwdefaults__ or {}
        own = *(value.__closure__ or ()), *(value.__defaults__ or ()), *keywords.values()
        return [*own, *value.__dict__.values()]
    held = gc.get_referents(value)
    if is_instance(value, types.FrameType):
        apart = (value.f_trace, value.f_back)  # the monitor's, and another frame's callers
        return [entry for entry in held if not any(entry is other for other in apart)]
    return held


def lost_values(node: ShadowNode, relation: Relation, value: Any) -> list[Any]:
    """A list of the value that an external variable loses when ``value`` is stored at a location;
    empty if there is none."""
    with contextlib.suppress(LookupError, AttributeError, ValueError, TypeError):
        found = follow(node.variable, relation)
        if found is not value:
            return [found]
    return []


def removable_contents(value: Any) -> list[Any]:
    """All that a container may lose: its elements, and a dictionary's keys."""
    return [*elements(value), *(dict.keys(value) if is_instance(value, dict) else ())]


def may_keep_alive(value: Any) -> bool:
    """True if a dead local variable may keep alive an object whose destruction has effects."""
    return not is_plain(value) and (is_observed(value) or _is_open_file(value))


def _is_open_file(value: Any) -> bool:
    """True for an open file: its buffer is written at its destruction, which only code after a
    split can observe."""
    if not is_instance(value, io.IOBase) or type(value).__module__ != "_io":
        return False
    with contextlib.suppress(ValueError):  # of a file that has been taken apart
        return not value.closed
    return False
