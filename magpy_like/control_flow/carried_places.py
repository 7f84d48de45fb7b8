"""What the sides of a branch and the rounds of a loop leave, place by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.isolated_runs import BranchRun, is_iterator
from magpy_like.monitor.objects.iterators import FORESEEN
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Expression, is_number
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import LoopNotMergeable
from magpy_like.splitting.frame_state import FrameState


@dataclass
class End:
    """A side at the place where it meets the other one."""

    locals: tuple[Any, ...]
    stack: tuple[Any, ...]
    side: BranchRun | None
    """None when there is nothing between the branch and that place."""
    nodes: list[fx.Node]
    again: bool = False
    """Whether it has come to the branch again instead."""

    def put_back(self, original: Callable[[Any], Any]) -> None:
        """Have what was there before in place of what the side was given of it."""
        self.locals, self.stack = (
            tuple(map(original, self.locals)),
            tuple(map(original, self.stack)),
        )

    def made(self, tensor: torch.Tensor) -> bool:
        return self.side is not None and self.side.tensors.owns(tensor)


@dataclass(frozen=True)
class Place:
    """Where a tensor is, at the join: a local, an operand or what is returned, or in tuples there.

    ``slot`` counts locals from 0 and operands from the bottom; ``path`` are positions in tuples.
    """

    local: bool
    slot: int
    path: tuple[int, ...] = ()


@dataclass
class Output:
    """A result of the operator: a tensor, or a number."""

    place: Place
    values: tuple[Any, ...]  # what the sides have there, the true side first
    sources: list[torch.Tensor] = field(default_factory=list)
    """Tensors that were there before, and one of which it may be."""
    number: Expression | None = None
    """What a number is, if that is known before the graph runs: then no operator gives it."""


def at_place(state: FrameState, place: Place) -> Any:
    return (state.locals if place.local else state.stack)[place.slot]


def with_value(state: FrameState, place: Place, value: Any) -> FrameState:
    slots = list(state.locals if place.local else state.stack)
    slots[place.slot] = value
    if place.local:
        return replace(state, locals=tuple(slots))
    return replace(state, stack=tuple(slots))


def begin_side(state: FrameState, taken: bool) -> FrameState:
    """The state in which the side begins that is for a true predicate, or a false one."""
    at = state.instruction
    jumps = taken is ("IF_TRUE" in at.name)
    keeps = jumps and at.name.endswith("_OR_POP")
    assert at.target is not None
    stack = state.stack if keeps else state.stack[:-1]
    return replace(state, offset=at.target if jumps else at.end, stack=stack)


def unchanged(before: Any, after: Any) -> bool:
    if before is after:
        return True
    plain = is_plain(before) and is_plain(after) and not is_number(before)
    return plain and type(before) is type(after) and repr(before) == repr(after)


def check_carried(before: Any, after: Any) -> None:
    """What one round leaves must be such that the next one does the same.

    Raises:
        Split: it is not.
    """
    if is_number(before):
        if type(before) is not type(after):
            raise LoopNotMergeable("a number changes its type between iterations")
    else:
        check_like(after, before)


def erase(rec: Recording, nodes: Sequence[fx.Node]) -> None:
    for node in reversed(nodes):
        rec.operators.graph.erase_node(node)


def copied(value: Any, rec: Recording) -> Any:
    """An iterator at the same place, for one of the program's own; any other value as it is."""
    if type(value) not in FORESEEN or rec.variables.node(value) is not None:
        return value
    maker, arguments, *state = value.__reduce__()
    copies = [copied(argument, rec) for argument in arguments]
    if any(is_iterator(one) and one is other for one, other in zip(copies, arguments, strict=True)):
        return value  # the copy would advance a generator, or what there was before
    made = maker(*copies)
    if state and state[0] is not None:
        made.__setstate__(state[0])
    return made


def nodes_after(rec: Recording, last: fx.Node | None) -> list[fx.Node]:
    found = []
    for node in reversed(rec.operators.graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            found.append(node)
    return found[::-1]


def check_like(left: Any, right: torch.Tensor, but: str = "") -> None:
    """What follows is recorded once, for the results of either side.

    Raises:
        Split: they differ in what the program could see, other than in what ``but`` names.
    """
    for name, look in _LOOKS.items():
        if name == but:
            continue
        one = look(left) if is_instance(left, torch.Tensor) else None
        other = look(right)
        if one != other:
            raise LoopNotMergeable(
                f"the {name} of a tensor differs between branches or iterations: {one} and {other}"
            )


_LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "shape": lambda tensor: tuple(tensor.shape),
    "layout": lambda tensor: tensor.layout,
    "strides": lambda tensor: tensor.stride(),
    "part in gradients": lambda tensor: tensor.requires_grad,
}


def same(left: Any, right: Any, rec: Recording) -> bool:
    if rec.lifted is not None and rec.lifted.any_lifted((left, right)):
        return False
    return type(left) is type(right) and repr(left) == repr(right)


def say(value: Any) -> str:
    if value is NULL:
        return "nothing"
    return repr(value) if is_plain(value) else f"a {type(value).__qualname__}"


MOVED = object()
"""Stands for an iterator that a side has taken elements from."""
