"""What the two sides of a branch leave where they meet, and ``cond``, which gives it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from magpy_like.bytecode.data_flow import live_locals
from magpy_like.bytecode.post_dominators import RETURN
from magpy_like.control_flow.carried_places import MOVED, End, Output, Place, check_like, same, say
from magpy_like.control_flow.for_loop import check_twins
from magpy_like.monitor.operator_graph.graph_nodes import NUMBER
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    EntryValue,
    Expression,
    choose_branch_value,
    is_computable_at_entry,
    is_number,
)
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import MonitorWeakRef, is_plain
from magpy_like.split_points import BranchNotMergeable
from magpy_like.splitting.frame_state import FrameState
from magpy_like.torch_compat.fake_tensors import FakeTensor

MayBe: TypeAlias = Mapping[int, tuple[MonitorWeakRef, list[MonitorWeakRef]]]
"""By id, results of branches, with what they may be that was there before."""


@dataclass
class Outcomes:
    """Two sides that begin with ``state`` and meet at the offset ``until``, one for each truth."""

    run: MonitorRun
    state: FrameState
    until: int
    true: End
    false: End
    may_be: MayBe
    _tuples: set[tuple[int, int]] = field(default_factory=set)
    """The ids of pairs of tuples that the sides have left."""

    def compare(self, but: Collection[int]) -> list[Output]:
        """The tensors and numbers that differ, ``but`` for these locals.

        Raises:
            Split: something else differs.
        """
        return list(self._differing(but))

    def _differing(self, but: Collection[int]) -> Iterator[Output]:
        a, b = self.true, self.false
        if self.until != RETURN:
            for slot in sorted(live_locals(self.state.code, self.until) - {*but}):
                yield from self._pair(Place(True, slot), a.locals[slot], b.locals[slot])
        if len(a.stack) != len(b.stack):
            raise BranchNotMergeable(
                "the branches reach the join point with operand stacks of different depth"
            )
        for slot, (left, right) in enumerate(zip(a.stack, b.stack, strict=True)):
            yield from self._pair(Place(False, slot), left, right)

    def _pair(self, place: Place, left: Any, right: Any) -> Iterator[Output]:
        if left is right:
            if left is MOVED:
                raise BranchNotMergeable(
                    "one branch advances an iterator that is used after the join point"
                )
            return
        if is_instance(left, torch.Tensor) and is_instance(right, torch.Tensor):
            check_like(left, right)
            sources = [*self._sources(left, self.true), *self._sources(right, self.false)]
            yield Output(place, (left, right), sources)
        elif type(left) is tuple and type(right) is tuple and len(left) == len(right):
            found: list[Output] = []
            for i, (one, other) in enumerate(zip(left, right, strict=True)):
                found += self._pair(replace(place, path=(*place.path, i)), one, other)
            if found and (id(left), id(right)) in self._tuples:  # each place would have its own
                raise BranchNotMergeable("the branches leave one tuple in two variables")
            self._tuples.add((id(left), id(right)))
            yield from found
        elif is_plain(left) and is_plain(right) and same(left, right, self.run.recording):
            return
        elif is_number(left) and type(left) is type(right):
            yield Output(place, (left, right))
        else:
            raise BranchNotMergeable(
                f"the branches leave {say(left)} and {say(right)} in one variable"
            )

    def _sources(self, tensor: torch.Tensor, end: End) -> list[torch.Tensor]:
        """What was there before the branch and may be this tensor."""
        known, references = self.may_be.get(id(tensor), (lambda: None, []))
        found = [source() for source in references if known() is tensor]
        sources = [source for source in found if source is not None]
        if sources or end.made(tensor):
            return sources
        node = self.run.recording.operators.node_of(tensor)
        if is_instance(tensor, FakeTensor) and node in end.nodes:
            raise BranchNotMergeable("one branch leaves a view of an external tensor")
        if tensor.is_inference():
            raise BranchNotMergeable("one branch leaves an external inference tensor")
        return [tensor]

    def operator(self, test: Callable[[], fx.Node], outputs: Sequence[Output]) -> list[fx.Node]:
        """The nodes of the ``outputs`` of an operator, which goes by the ``test``."""
        if not outputs:
            return []
        run, ends = self.run, (self.true, self.false)
        rec, operators = run.recording, run.recording.operators
        results = [
            [operators.value_node(output.values[i], rec.graph.value) for output in outputs]
            for i in (0, 1)
        ]
        twins = [_twin_of_both(run, *pair) for pair in zip(*results, strict=True)]
        for end in ends:
            # A constant tensor becomes an operand.
            end.nodes = [node for node in end.nodes if not operators.is_constant_tensor(node)]
        outside: dict[fx.Node, None] = {}
        for end, given in zip(ends, results, strict=True):
            inside = set(end.nodes)
            used = [n for node in end.nodes for n in node.all_input_nodes]
            used += [n for n in given if is_instance(n, fx.Node)]
            outside |= {n: None for n in used if n not in inside}
        graphs = [
            operators.subgraph(list(outside), end.nodes, given)
            for end, given in zip(ends, results, strict=True)
        ]
        numbers = [is_number(output.values[0]) for output in outputs]
        before, after = (test(),), (tuple(outside),)
        found = operators.add_control(torch.ops.higher_order.cond, before, graphs, after, numbers)
        for node, twin in zip(found, twins, strict=True):
            if twin is not None:
                node.meta[TWIN] = twin
        return found


def _twin_of_both(run: MonitorRun, left: Any, right: Any) -> torch.Tensor | None:
    """The symbolic twin of a tensor that either side may have left; None for a number, and where
    no sizes vary.

    Raises:
        Split: their sizes are not the same whatever they are.
    """
    if run.recording.sizes.twin is None:
        return None
    twins = [n.meta.get(TWIN) if is_instance(n, fx.Node) else None for n in (left, right)]
    if any(is_instance(n, fx.Node) and n.meta.get(NUMBER) for n in (left, right)):
        return None
    if not all(is_instance(twin, torch.Tensor) for twin in twins):
        if any(is_instance(n, fx.Node) for n in (left, right)):
            raise BranchNotMergeable("the sizes of a tensor that a branch creates are unknown")
        return None
    check_twins(run, *twins)
    return twins[0]


def chosen_by(run: MonitorRun, flag: ShadowNode, one: Any, other: Any) -> Expression | None:
    """A number that a flag has decided; None for a tensor, and for a number of the graph."""
    parts = run.lifted.identities.expressions((one, other))
    if not is_number(one) or not all(map(is_computable_at_entry, parts)):
        return None
    return Computed(choose_branch_value, (EntryValue(flag), *parts))
