"""Where and why a recording ends, and what code asks for that."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from magpy_like.refgraph.plain_values import MonitorWeakRef

AUTOGRAD = "runs or changes the autograd graph"


class Split(Exception):
    """The program does something here that cannot be part of a record; the text says what."""


class UnguardableRead(Split):
    """The same, found when it was done: something was read that a record cannot tell beforehand,
    and nothing was changed. So the program can still be cut before the instruction that did it."""


class EffectInsideOperator(Split):
    """An operator's own Python code changes something outside: to run it again changes it twice."""


class SpeculationRefused(Split):
    """A value was speculated on, and a later effect could not be undone after a misspeculation."""


def unknown(value: Any, reason: str) -> Split:
    """The program does something with a value that nothing is known of.

    An autograd graph's nodes are instances of classes that torch makes, one for each operator: what
    a program does with one is said for all of them.
    """
    if issubclass(type(value), torch.autograd.graph.Node):
        reason = AUTOGRAD
    return Split(reason)


LENGTH_VARIES = "gives a list whose length varies to a tensor operator"

Place = tuple[Any, ...]
"""Where a program looks at a value, in its source: file, function, lines and columns. A loop's
condition stands there once, but twice in the bytecode, and in that of every continuation."""


def place_of(frame: FrameType) -> Place:
    """The place at which a frame stands."""
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    return code.co_filename, code.co_qualname, *position


class BranchRefused(Split):
    """A branch became an operator, which the program does not allow by what it did later."""


@dataclass(frozen=True)
class SplitPoint:
    """Where a program was cut, and why. ``lineno`` counts from 1."""

    function: str
    filename: str
    lineno: int
    reason: str

    @classmethod
    def at(cls, frame: FrameType, reason: str) -> SplitPoint:
        """The place where a frame stands."""
        code = frame.f_code
        return cls(code.co_qualname, code.co_filename, frame.f_lineno or 0, reason)

    @classmethod
    def of(cls, name: str, code: CodeType | None, reason: str) -> SplitPoint:
        """A function as a whole."""
        if code is None:
            return cls(name, "?", 0, reason)
        return cls(name, code.co_filename, code.co_firstlineno, reason)

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno} in {self.function}: {self.reason}"


_disabled: set[MonitorWeakRef] = set()


def mark_disabled(function: Callable[..., Any]) -> None:
    """Calls of this function are never part of a record."""
    _disabled.add(MonitorWeakRef(function, _disabled.discard))


def is_disabled(function: Callable[..., Any]) -> bool:
    return MonitorWeakRef(function) in _disabled


active = threading.local()
"""Holds, as ``run``, the monitor run that the thread is in."""


def is_monitoring() -> bool:
    """Whether this thread is inside a monitor run."""
    return getattr(active, "run", None) is not None
