"""``match`` statements: each pattern inspects its subject no deeper than Python does."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from magpy_like.annotation import ValueRead
from magpy_like.monitor.calls import read_calls, special_methods
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import attributes, class_lookup
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def inspect_length(context: Context, step: Step) -> Token:
    """Record a read of the length of a subject."""
    context.recording.inspections.visit(step.stack[-1], ValueRead.LENGTH)
    return None


def inspect_type(context: Context, step: Step) -> Token:
    """Record a test of whether a subject is a mapping or a sequence."""
    context.recording.inspections.visit(step.stack[-1], ValueRead.TYPE)
    return None


def match_keys(context: Context, step: Step) -> Token:
    """``case {key: …}``."""
    subject, keys = step.stack[-2:]
    getter = class_lookup.read_class(context.recording, type(subject), "get")
    if not is_instance(getter, types.FunctionType):
        for key in keys:
            read_calls.read_item(context.recording, subject, key)
    return None


def match_class(context: Context, step: Step) -> Token:
    """``case Class(positional, keyword=…)``."""
    subject, cls, keywords = step.stack[-3:]
    special_methods.read_class_checks(context.recording, isinstance, (subject, cls))
    if is_instance(subject, cls):
        if step.oparg:
            attributes.read_attribute(context.recording, cls, "__match_args__")
        positional = getattr(cls, "__match_args__", ())[: step.oparg]
        for name in (*positional, *keywords):
            attributes.read_attribute(context.recording, subject, name)
    return None
