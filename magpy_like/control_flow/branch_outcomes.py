"""Differences between the two branches at their join point, and ``cond``, which computes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.post_dominators import RETURN
from magpy_like.control_flow.paths.body_nodes import used_nodes, without_constants
from magpy_like.control_flow.paths.frame_locations import FrameLocation, OperatorOutput
from magpy_like.control_flow.paths.operator_results import OperatorResults
from magpy_like.control_flow.paths.path_ends import ADVANCED, PathEnd
from magpy_like.control_flow.paths.symbolic_sizes import check_twins
from magpy_like.control_flow.paths.value_comparison import check_like, describe, is_same_constant
from magpy_like.graph_operators.node_metadata import NUMBER, TWIN
from magpy_like.monitor.context import Context
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    EntryValue,
    Expression,
    Size,
    choose_branch_value,
    is_computable_at_entry,
    is_number,
    leaves_of,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import BranchNotMergeable
from magpy_like.splitting.frame_state import FrameState
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor


@dataclass
class Outcomes:
    """The ends of two branches that begin in ``state`` and meet at the join point ``until``."""

    context: Context
    state: FrameState
    until: int
    true: PathEnd
    false: PathEnd
    results: OperatorResults
    """The results of earlier operators."""
    _tuples: set[tuple[int, int]] = field(default_factory=set)
    """The ids of pairs of tuples that differ."""

    def compare(self, ignored: Collection[int]) -> list[OperatorOutput]:
        """The tensors and numbers that differ, except in the ``ignored`` locals.

        Raises:
            Split: other values differ.
        """
        return list(self._differences(ignored))

    def _differences(self, ignored: Collection[int]) -> Iterator[OperatorOutput]:
        a, b = self.true, self.false
        if self.until != RETURN:
            for slot in sorted(live_locals(self.state.code, self.until) - {*ignored}):
                yield from self._compare(FrameLocation(True, slot), a.locals[slot], b.locals[slot])
        if len(a.stack) != len(b.stack):
            raise BranchNotMergeable(
                "the branches reach the join point with operand stacks of different depth"
            )
        for slot, (left, right) in enumerate(zip(a.stack, b.stack, strict=True)):
            yield from self._compare(FrameLocation(False, slot), left, right)

    def _compare(self, location: FrameLocation, left: Any, right: Any) -> Iterator[OperatorOutput]:
        if left is right:
            if left is ADVANCED:
                raise BranchNotMergeable(
                    "one branch advances an iterator that is used after the join point"
                )
            return
        if is_instance(left, torch.Tensor) and is_instance(right, torch.Tensor):
            check_like(left, right)
            sources = [*self._sources(left, self.true), *self._sources(right, self.false)]
            yield OperatorOutput(location, (left, right), sources)
        elif type(left) is tuple and type(right) is tuple and len(left) == len(right):
            outputs: list[OperatorOutput] = []
            for i, (one, other) in enumerate(zip(left, right, strict=True)):
                outputs += self._compare(replace(location, path=(*location.path, i)), one, other)
            if outputs and (id(left), id(right)) in self._tuples:
                # Each variable would receive a tuple of its own.
                raise BranchNotMergeable("the branches leave one tuple in two variables")
            self._tuples.add((id(left), id(right)))
            yield from outputs
        elif (
            is_plain(left)
            and is_plain(right)
            and is_same_constant(left, right, self.context.recording)
        ):
            return
        elif is_number(left) and type(left) is type(right):
            yield OperatorOutput(location, (left, right))
        else:
            raise BranchNotMergeable(
                f"the branches leave {describe(left)} and {describe(right)} in one variable"
            )

    def _sources(self, tensor: torch.Tensor, end: PathEnd) -> list[torch.Tensor]:
        """The tensors created before the branch that ``tensor`` may alias; none if the path has
        created it."""
        sources = self.results.sources(tensor)
        if sources or end.created(tensor):
            return sources
        node = self.context.recording.operators.nodes.node_of(tensor)
        if is_instance(tensor, FakeTensor) and node in end.nodes:
            raise BranchNotMergeable("one branch leaves a view of an external tensor")
        if tensor.is_inference():
            raise BranchNotMergeable("one branch leaves an external inference tensor")
        return [tensor]

    def add_cond(
        self, add_test: Callable[[], fx.Node], outputs: Sequence[OperatorOutput]
    ) -> list[fx.Node]:
        """Add ``cond`` to the graph.

        Args:
            add_test: adds the predicate to the graph; called only if there are outputs.

        Returns:
            The nodes of the ``outputs``.
        """
        if not outputs:
            return []
        context, ends = self.context, (self.true, self.false)
        rec, operators = context.recording, context.recording.operators
        results = [
            [operators.numbers.value_node(output.values[i], rec.graph.value) for output in outputs]
            for i in (0, 1)
        ]
        twins = [_common_twin(context, *pair) for pair in zip(*results, strict=True)]
        for end in ends:
            end.nodes = without_constants(rec, end.nodes)
        outside: dict[fx.Node, None] = {}
        for end, returned in zip(ends, results, strict=True):
            inside = set(end.nodes)
            outside |= {n: None for n in used_nodes(end.nodes, returned) if n not in inside}
        graphs = [
            operators.control.subgraph(list(outside), end.nodes, returned)
            for end, returned in zip(ends, results, strict=True)
        ]
        numbers = [is_number(output.values[0]) for output in outputs]
        before, after = (add_test(),), (tuple(outside),)
        nodes = operators.control.add_control(
            torch.ops.higher_order.cond, before, graphs, after, numbers
        )
        for node, twin in zip(nodes, twins, strict=True):
            if twin is not None:
                node.meta[TWIN] = twin
        return nodes


def _common_twin(context: Context, left: Any, right: Any) -> torch.Tensor | None:
    """The symbolic twin of a tensor that either branch leaves; None for a number, and in a
    recording without varying sizes.

    Raises:
        Split: the sizes differ for some values of the symbols.
    """
    if context.recording.sizes.twin is None:
        return None
    twins = [n.meta.get(TWIN) if is_instance(n, fx.Node) else None for n in (left, right)]
    if any(is_instance(n, fx.Node) and n.meta.get(NUMBER) for n in (left, right)):
        return None
    if not all(is_instance(twin, torch.Tensor) for twin in twins):
        if any(is_instance(n, fx.Node) for n in (left, right)):
            raise BranchNotMergeable("the sizes of a tensor that a branch creates are unknown")
        return None
    check_twins(context, *twins)
    return twins[0]


def number_chosen_by(context: Context, flag: ShadowNode, one: Any, other: Any) -> Expression | None:
    """The expression of a number that a lifted flag chooses; None for a tensor, and for a number
    that only the graph computes.

    Raises:
        Split: it may be a size. Tensors of that size must agree with others of the chosen branch,
            and no symbol relates them.
    """
    parts = context.lifted.identities.expressions((one, other))
    if not is_number(one) or not all(map(is_computable_at_entry, parts)):
        return None
    if any(is_instance(leaf, Size) for part in parts for leaf in leaves_of(part)):
        raise BranchNotMergeable("a flag chooses a size that varies")
    return Computed(choose_branch_value, (EntryValue(flag), *parts))
