"""Plain data about a loop in the program: offsets of its parts, its head, its iteration space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from magpy_like.monitor.symbolic.lists.loop_ranges import Element
from magpy_like.splitting.frame_state import FrameState

Bounds: TypeAlias = tuple[int, int, int]
"""Start, stop and step of a ``range``; each may be lifted."""
Comparison: TypeAlias = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class LoopOffsets:
    """Bytecode offsets of a loop, and its operands on the stack."""

    body: int
    """The offset at which an iteration begins."""
    head: int
    """The offset at which an iteration ends and the loop continues or ends."""
    exit: int
    """The offset at which the program continues after the last iteration."""
    operands: int
    """Number of operands on the stack at ``head`` that are popped at ``exit``."""
    branch: int
    """The instruction at ``head`` that leads to ``body`` or ``exit``."""


@dataclass
class Counter:
    """The comparison of a ``while`` loop that counts."""

    holds: Comparison
    """The comparison under which the loop continues, with the counter as its first operand."""
    at: int
    """The counter's position among the two operands; the other one is its limit."""
    slot: int | None = None
    """The local variable that holds the counter, once known."""
    is_length: bool = False
    """Whether the counter is the length of a list to which iterations append: no local holds it."""


@dataclass(frozen=True)
class IterationSpace:
    """The indices of a loop, and the elements that its iterator yields for them."""

    bounds: Bounds
    tensors: tuple[Any, ...]
    """The tensors, or lists of the graph, whose rows an iteration receives."""
    element: Element | None
    """The element of an index; None for a loop without an iterator."""
    counter: Counter | None = None
    """The counter of a ``while`` loop."""
    may_skip_first: bool = False
    """Whether the first iteration may run natively, where only that one differs."""


@dataclass(frozen=True)
class LoopHead:
    """The head of a loop that may become an operator."""

    state: FrameState
    """The frame at the head, before the first iteration."""
    until: int
    """The offset in the frame's code at which the loop is over."""
    offsets: LoopOffsets
    wraps: Any = None
    """The built-in to which the ``range`` is passed: ``reversed`` or ``enumerate``."""
    list_operand: int | None = None
    """The position on the operand stack of the list that a comprehension builds."""
    in_comprehension: bool = False
    """Whether the loop is in a function of its own, as Python 3.11 compiles a comprehension: its
    frame does not outlive the loop."""
