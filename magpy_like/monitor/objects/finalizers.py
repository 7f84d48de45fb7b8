"""Objects whose end the program notices: by a destructor, or by a weak reference to them.

A mock holds what it is given until it ends, and brings changes about in an order of its own. So an
object of this kind must die where the program lets it go, which is in native code alone.
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

from magpy_like.bytecode.code_facts import runs_cleanup
from magpy_like.monitor.objects.access_paths import follow
from magpy_like.monitor.objects.containers import elements
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE, MonitorWeakRef, is_plain


def is_observed(value: Any) -> bool:
    """Whether code of the program runs when an object dies, or can ask whether it is there."""
    return has_cleanup(value) or any(map(_is_programs, weakref.getweakrefs(value)))


def has_finalizers(value: Any) -> bool:
    """Whether code of the program runs when an object dies."""
    return has_cleanup(value) or any(map(_calls_back, weakref.getweakrefs(value)))


def has_cleanup(value: Any) -> bool:
    """Whether an object itself brings code of the program that runs when it dies."""
    if is_instance(value, types.GeneratorType):
        frame = value.gi_frame
        return frame is not None and runs_cleanup(frame.f_code, frame.f_lasti)
    return has_destructor(value)


def has_destructor(value: Any) -> bool:
    return defines_destructor(type(value))


def defines_destructor(kind: type) -> bool:
    """Whether the end of a class's instances is Python code."""
    if not kind.__flags__ & HEAP_TYPE:
        return False
    return is_instance(lookup_in_type(kind, "__del__"), types.FunctionType)


def _is_programs(reference: Any) -> bool:
    """Whether a weak reference is the program's; torch's tables are what it knows by itself.

    Once Dynamo has compiled anything, it keeps a table of all modules that are made.
    """
    if type(reference) is MonitorWeakRef:
        return False
    makers = type(reference), reference.__callback__
    return not any(str(getattr(maker, "__module__", "")).startswith("torch.") for maker in makers)


def _calls_back(reference: Any) -> bool:
    """What weak containers do then is nothing but to forget it."""
    callback = reference.__callback__
    own = is_instance(callback, types.FunctionType) and callback.__module__ in WEAK_CONTAINERS
    return callback is not None and not own and _is_programs(reference)


WEAK_CONTAINERS = ("weakref", "_weakrefset")
"""The modules that define them."""


def find_observed(
    values: Iterable[Any], is_held: Callable[[Any], bool] | None = None
) -> Any | None:
    """One of these objects, or of those that they hold, whose end is noticed; None if none is.

    What ``is_held`` has other owners, and so has all that it holds.
    """
    return next(filter(is_observed, held_by(values, is_held)), None)


def held_by(values: Iterable[Any], is_held: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """These objects and those that they hold."""
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
"""Kept by the classes and modules that there are, or by cycles."""


def _is_defined(value: Any) -> bool:
    """Whether it is a function that is kept where its name says, in its module or class: torch
    keeps weak tables of those, too."""
    if not is_instance(value, types.FunctionType):
        return False
    holder: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        holder = vars(holder).get(name) if is_instance(holder, type | types.ModuleType) else None
    return holder is value


def _parts(value: Any) -> list[Any]:
    """What an object holds directly, as far as it may be the only one."""
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
    """What a variable from outside is about to lose when one place of it holds ``value``."""
    with contextlib.suppress(LookupError, AttributeError, ValueError, TypeError):
        found = follow(node.variable, relation)
        if found is not value:
            return [found]
    return []


def removable_contents(value: Any) -> list[Any]:
    """What a container may lose: a dictionary its keys as well."""
    return [*elements(value), *(dict.keys(value) if is_instance(value, dict) else ())]


def may_keep_alive(value: Any) -> bool:
    """Whether a local variable that is read no more may be what keeps an object from its end."""
    return not is_plain(value) and (is_observed(value) or _is_open_file(value))


def _is_open_file(value: Any) -> bool:
    """What it holds back is written when it dies, and seen by what splits a program alone."""
    if not is_instance(value, io.IOBase) or type(value).__module__ != "_io":
        return False
    with contextlib.suppress(ValueError):  # of a file that has been taken apart
        return not value.closed
    return False
