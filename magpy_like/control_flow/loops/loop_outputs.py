"""Results of a ``for_loop`` operator in the program.

The program has run through the iterations unreported. Its tensors and numbers become known as
values of the graph where the iterations have left them: in local variables, lists and other
objects.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.control_flow.loops import carried_attributes
from magpy_like.control_flow.loops.carried_containers import Path, part, put
from magpy_like.control_flow.paths.symbolic_sizes import twin_of
from magpy_like.control_flow.paths.value_comparison import check_like
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.monitor.symbolic.lists.loop_ranges import compute_lifted, trip_count
from magpy_like.native import frame_locals, frame_set_local, frame_stack
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.control_flow.loops.loop_iteration import Iteration
    from magpy_like.control_flow.loops.loop_plan import AppendedList, CarriedValue
    from magpy_like.monitor.recording import Recording


class LoopOutputs:
    """The results of one loop."""

    def __init__(
        self, iteration: Iteration, nodes: Sequence[fx.Node], body_results: Sequence[Any]
    ) -> None:
        """
        Args:
            nodes: the operator's results.
            body_results: the nodes of the same values in the operator's body.
        """
        self._iteration, self._nodes, self._body_results = iteration, nodes, body_results
        self._plan = iteration.plan
        self._context, self._bounds = self._plan.context, self._plan.bounds
        self._known: dict[int, Any] = {}
        """By id, the tensors that are results, with their nodes in the body."""
        self._replaced: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        """The replacements of numbers and tuples, which the iterations may have left in two
        locations; each with the original, whose id must stay unique."""

    def receive(self, frame: FrameType) -> None:
        """Publish the results in ``frame``, which has reached the end of the loop.

        Raises:
            Split: the program's values are not as the isolated iteration has left them.
        """
        plan, lists, rec = self._plan, self._iteration.lists, self._context.recording
        leaves = [*plan.inputs, *self._iteration.final_values]
        if any(leaf.may_preexist for leaf in leaves) or any(s.may_preexist for s in lists):
            steady = [leaf.initial for leaf in leaves if is_instance(leaf.initial, torch.Tensor)]
            rec.inspections.note_possible_aliases(steady)
        for leaf, node, inner in zip(leaves, self._nodes, self._body_results, strict=False):
            if leaf.is_list_tail:
                continue  # the list itself is a result
            location = plan.location_of(leaf.slot)
            value = frame_locals(frame)[leaf.slot] if location is None else location.get()
            published = self._published(value, leaf.path, leaf, node, inner)
            if published is value:
                continue
            if location is None:
                frame_set_local(frame, leaf.slot, published)
            else:
                location.put(published)
        for location in plan.locations:
            carried_attributes.end(rec, location)
        at, count = len(leaves), trip_count(self._context, self._bounds)
        for found, node in zip(lists, self._nodes[at:], strict=True):
            is_operand = found.slot == len(plan.state.locals)
            value = frame_stack(frame)[-1] if is_operand else frame_locals(frame)[found.slot]
            value = value if found.shared is None else found.shared
            self._publish_list(value, found, node, count, self._body_results[at])
            at += len(found.appended)
        if plan.counter is not None and plan.counter.slot is not None:
            value = frame_locals(frame)[plan.counter.slot]
            frame_set_local(frame, plan.counter.slot, self._index_of(value, count))

    def _published(
        self, value: Any, path: Path, leaf: CarriedValue, node: fx.Node, inner: Any
    ) -> Any:
        """``value``, with the tensor or number at ``path`` in it known as a result.

        Args:
            inner: the result's node in the body.
        """
        if path:
            self._context.recording.variables.add_new(value)
            item = part(value, path[:1])
            published = self._published(item, path[1:], leaf, node, inner)
            if published is item:
                return value
            made = put(value, path[0], published)
            if made is value:
                return value
            return self._replaced.setdefault((id(value), *path, id(published)), (made, value))[0]
        operators = self._context.recording.operators
        if is_number(leaf.result):
            if type(value) is not type(leaf.result):
                raise LoopNotMergeable(
                    "a loop leaves a number of another type than its isolated run"
                )
            if inner is self._iteration.index:
                return self._last_index(value)
            lifted = self._context.lift(value, GraphNumber(node))
            return self._replaced.setdefault((id(value), id(inner)), (lifted, value))[0]
        check_like(value, leaf.result)
        if self._known.get(id(value)) is inner:
            return value
        rec = self._context.recording
        is_known = (
            operators.nodes.node_of(value) is not None or rec.variables.node(value) is not None
        )
        if leaf.may_preexist:
            if is_known:
                value = self._plan.tools.substitutes.make(value)
                is_known = False
            rec.inspections.note_possible_aliases((value,))
        elif id(value) in self._known:
            raise LoopNotMergeable("a loop leaves one tensor in two variables")
        if leaf.in_place:
            if value is not leaf.initial:
                raise LoopNotMergeable("a loop replaces a tensor that it changes in place")
        elif is_known:
            raise LoopNotMergeable("a loop leaves an external tensor")
        self._known[id(value)] = inner
        operators.nodes.set_node(value, node)
        return value

    def _last_index(self, value: int) -> int:
        count = trip_count(self._context, self._bounds)
        return self._index_of(value, compute_lifted(self._context, operator.sub, count, 1))

    def _index_of(self, value: int, number: int) -> int:
        """The lifted index of the iteration with a ``number``, equal to the program's ``value``."""
        start, _, step = self._bounds
        steps = compute_lifted(self._context, operator.mul, number, step)
        found = compute_lifted(self._context, operator.add, start, steps)
        return found if found == value else value

    def _publish_list(
        self, value: list[Any], found: AppendedList, node: fx.Node, count: Any, inner: Any
    ) -> None:
        """Make a list known that the operator has gathered.

        Args:
            count: the trip count.
            inner: the node in the body of the first element that an iteration appends.
        """
        context, added = self._context, len(found.appended)
        count = compute_lifted(context, operator.mul, count, added) if added > 1 else count
        if found.initial:
            count = compute_lifted(context, operator.add, count, len(found.initial))
        if len(value) != count:
            raise LoopNotMergeable("a loop leaves a list of another length than its isolated run")
        is_uniform = added == 1 and not found.initial

        bounds = self._bounds

        def specialize_length() -> None:
            context.lifted.specialize(bounds)

        twin = twin_of(inner) if is_uniform else None
        add_gathered(
            context.recording, GraphList(value, node, count, twin, specialize_length), found
        )


def add_gathered(rec: Recording, known: GraphList, found: AppendedList) -> None:
    """Make a list known to the graph that an operator has gathered."""
    if found.may_preexist or known.has_data_dependent_length:
        tensors = [item for item in known.value if is_instance(item, torch.Tensor)]
        rec.inspections.note_possible_aliases(tensors)
        known.elements_are_new = not found.may_preexist
    rec.operators.lists[id(known.value)] = known
