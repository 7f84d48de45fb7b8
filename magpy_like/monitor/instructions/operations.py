"""Operators on one value or two: arithmetic, comparisons, membership, identity."""

from __future__ import annotations

import dis
import opcode
import operator
import sys
import types
from collections import deque
from typing import TYPE_CHECKING

import torch

from magpy_like.annotation import ValueRead
from magpy_like.monitor import classes, formats, operators, reads, specials
from magpy_like.monitor.containers import CONTAINERS, elements
from magpy_like.monitor.gathered import Growing
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.instructions.truth import ask_which
from magpy_like.monitor.split import Split
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph.values import is_plain

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun


def binary(run: MonitorRun, step: Step) -> Token:
    """``left + right`` and the like, in place or not."""
    operation = operators.BINARY[step.oparg]
    if operation in operators.FORMATS and (text := formats.by_percent(run, step)):
        return text
    left, right = step.stack[-2:]
    if operation is operator.iadd:
        growing = run.recording.operators.lists.get(id(left))
        if isinstance(growing, Growing) and growing.takes(run.recording, right):
            return None
    return operators.operate(run, operation, (left, right))


def compare(run: MonitorRun, step: Step) -> Token:
    """``left < right`` and the like."""
    index = step.oparg >> 4 if sys.version_info >= (3, 12) else step.oparg
    return operators.operate(run, operators.OPERATORS[dis.cmp_op[index]], step.stack[-2:])


def unary(run: MonitorRun, step: Step) -> Token:
    """``-value``, ``+value`` and ``~value``."""
    return operators.operate(run, operators.UNARY[opcode.opname[step.opcode]], step.stack[-1:])


def contains(run: MonitorRun, step: Step) -> Token:
    """``item in container``."""
    item, container = step.stack[-2:]
    ask_which(run, step, 2)
    rec = run.recording
    if isinstance(container, torch.Tensor):
        raise Split("looks for a value in a tensor")
    tester = classes.read_class(rec, type(container), "__contains__")
    if isinstance(tester, types.FunctionType):
        return None
    specials.look_for_all(rec, container)
    if not is_plain(item):
        rec.visit(item, ValueRead.ALL)
        rec.compare((item, container))
    elif type(item) is float and item != item:
        # NaN is equal to no other, and yet found where it is itself.
        others = elements(container) if isinstance(container, CONTAINERS) else ()
        rec.tell_apart(item, *(other for other in others if type(other) is float))
    if isinstance(item, torch.Tensor) and isinstance(container, list | tuple | deque):
        if any(isinstance(e, torch.Tensor) for e in container if e is not item):
            raise Split("compares a tensor with the elements of a container")
    reads.look_for(rec, container, item)
    return None


def identity(run: MonitorRun, step: Step) -> Token:
    """``left is right``."""
    ask_which(run, step, 2, 1)
    operators.identify(run.recording, *step.stack[-2:])
    return None
