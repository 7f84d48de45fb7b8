"""What the program has behind a loop that has become an operator: the operator's results.

It has gone through the rounds with nothing announced. Its tensors and numbers become known as
values of the graph where the rounds have left them, in local variables, lists and other objects.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.control_flow import carried_attributes
from magpy_like.control_flow.carried_containers import Path, part, put
from magpy_like.control_flow.carried_places import check_like
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.monitor.symbolic.gathered_lists import GraphList
from magpy_like.monitor.symbolic.loop_ranges import compute_lifted, trip_count
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.native import frame_locals, frame_set_local, frame_stack
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import VersionCheck
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.control_flow.for_loop import Leaf, List, Loop
    from magpy_like.monitor.recording import Recording


class LoopOutputs:
    """The end of a loop over its ``loop.bounds``, whose results are ``nodes`` of the graph."""

    def __init__(self, loop: Loop, nodes: Sequence[fx.Node], inner: Sequence[Any]) -> None:
        """``inner`` are the nodes of what a round leaves."""
        self._loop, self._nodes, self._inner = loop, nodes, inner
        self._run, self._bounds = loop.run, loop.bounds
        self._known: dict[int, Any] = {}
        """By id, the tensors that are results, with the nodes of what a round leaves."""
        self._instead: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        """What takes the place of numbers and tuples that the rounds have left in two places."""

    def receive(self, frame: FrameType) -> None:
        """The program is there, in ``frame``.

        Raises:
            Split: it is not as the round beside it has recorded.
        """
        loop, rec = self._loop, self._run.recording
        leaves = [*loop.carried.values(), *loop.written, *loop.last]
        if any(leaf.was_there for leaf in leaves) or any(s.was_there for s in loop.lists):
            steady = [leaf.first for leaf in leaves if is_instance(leaf.first, torch.Tensor)]
            rec.inspections.unchanged += map(VersionCheck, steady)
        for leaf, node, inner in zip(leaves, self._nodes, self._inner, strict=False):
            if leaf.is_last:
                continue  # the list itself is a result
            place = loop.place_of(leaf.slot)
            value = frame_locals(frame)[leaf.slot] if place is None else place.get()
            received = self._received(value, leaf.path, leaf, node, inner)
            if received is value:
                continue
            if place is None:
                frame_set_local(frame, leaf.slot, received)
            else:
                place.put(received)
        for place in loop.places:
            carried_attributes.end(rec, place)
        at, count = len(leaves), trip_count(self._run, self._bounds)
        for found, node in zip(loop.lists, self._nodes[at:], strict=True):
            is_made = found.slot == len(loop.state.locals)
            value = frame_stack(frame)[-1] if is_made else frame_locals(frame)[found.slot]
            value = value if found.shared is None else found.shared
            self._gather(value, found, node, count, self._inner[at])
            at += len(found.added)
        if loop.counter is not None and loop.counter.slot is not None:
            value = frame_locals(frame)[loop.counter.slot]
            frame_set_local(frame, loop.counter.slot, self._index_of(value, count))

    def _received(self, value: Any, path: Path, leaf: Leaf, node: fx.Node, inner: Any) -> Any:
        """``value``, in which the operator has made what is at ``path``."""
        if path:
            self._run.recording.variables.add_new(value)
            item = part(value, path[:1])
            received = self._received(item, path[1:], leaf, node, inner)
            if received is item:
                return value
            made = put(value, path[0], received)
            if made is value:
                return value
            return self._instead.setdefault((id(value), *path, id(received)), (made, value))[0]
        operators = self._run.recording.operators
        if is_number(leaf.result):
            if type(value) is not type(leaf.result):
                raise LoopNotMergeable(
                    "a loop leaves a number of another type than its isolated run"
                )
            if inner is self._loop.index:
                return self._last_index(value)
            lifted = self._run.lift(value, GraphNumber(node))
            return self._instead.setdefault((id(value), id(inner)), (lifted, value))[0]
        check_like(value, leaf.result)
        if self._known.get(id(value)) is inner:
            return value
        rec = self._run.recording
        is_known = operators.node_of(value) is not None or rec.variables.node(value) is not None
        if leaf.was_there:
            if is_known:
                value = self._loop.explorer.stand_in(value)
                is_known = False
            rec.inspections.unchanged.append(VersionCheck(value))
        elif id(value) in self._known:
            raise LoopNotMergeable("a loop leaves one tensor in two variables")
        if leaf.in_place:
            if value is not leaf.first:
                raise LoopNotMergeable("a loop replaces a tensor that it changes in place")
        elif is_known:
            raise LoopNotMergeable("a loop leaves an external tensor")
        self._known[id(value)] = inner
        operators.set_node(value, node)
        return value

    def _last_index(self, value: int) -> int:
        rounds = trip_count(self._run, self._bounds)
        return self._index_of(value, compute_lifted(self._run, operator.sub, rounds, 1))

    def _index_of(self, value: int, number: int) -> int:
        """The index of a round, which the program has as ``value``."""
        start, _, step = self._bounds
        steps = compute_lifted(self._run, operator.mul, number, step)
        found = compute_lifted(self._run, operator.add, start, steps)
        return found if found == value else value

    def _gather(
        self, value: list[Any], found: List, node: fx.Node, rounds: Any, inner: Any
    ) -> None:
        run, added = self._run, len(found.added)
        count = compute_lifted(run, operator.mul, rounds, added) if added > 1 else rounds
        if found.begin:
            count = compute_lifted(run, operator.add, count, len(found.begin))
        if len(value) != count:
            raise LoopNotMergeable("a loop leaves a list of another length than its isolated run")
        alike = added == 1 and not found.begin

        bounds = self._bounds

        def specialize_length() -> None:
            run.lifted.specialize(bounds)

        twin = twin_of(inner) if alike else None
        gather(run.recording, GraphList(value, node, count, twin, specialize_length), found)


def gather(rec: Recording, known: GraphList, found: List) -> None:
    """From here on the program has a list that the operator has gathered."""
    if found.was_there or known.has_data_dependent_length:
        rec.inspections.unchanged += map(VersionCheck, known.value)
        known.elements_are_new = not found.was_there
    rec.operators.lists[id(known.value)] = known


def twin_of(node: Any) -> torch.Tensor | None:
    """That of a node of the graph; None for a plain value."""
    return node.meta.get(TWIN) if is_instance(node, fx.Node) else None
