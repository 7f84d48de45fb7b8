"""One isolated iteration of a loop, for any index and any carried values."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from magpy_like.control_flow.loops.carried_containers import Path, part, rebuilt
from magpy_like.control_flow.loops.loop_exits import LoopExits
from magpy_like.control_flow.loops.loop_plan import (
    AppendedList,
    CarriedValue,
    LoopPlan,
    PlanGrew,
    requires_grad,
)
from magpy_like.control_flow.loops.loop_tensor_writes import CarriedRow
from magpy_like.control_flow.paths.body_nodes import erase, last_node, nodes_after
from magpy_like.control_flow.paths.isolated_paths import PathOptions
from magpy_like.control_flow.paths.path_ends import PathEnd
from magpy_like.control_flow.paths.value_comparison import describe
from magpy_like.graph_operators.node_metadata import NUMBER, TWIN
from magpy_like.monitor.objects.loop_written_locations import SubstitutedLocations
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.monitor.symbolic.lists.graph_lists import CarriedList, GraphList
from magpy_like.monitor.symbolic.lists.loop_ranges import ReversedRows
from magpy_like.monitor.symbolic.lists.loop_windows import IndexedReads
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable
from magpy_like.splitting.frame_state import FrameState


class Iteration:
    """An isolated iteration of a loop: the values that it receives and leaves."""

    index: fx.Node
    """The node of the iteration's index."""
    reads: IndexedReads
    """Its reads at its index."""
    begun: FrameState
    """The state in which it begins."""
    location_results: Sequence[Any]
    """The final values of ``plan.locations``."""

    def __init__(self, plan: LoopPlan) -> None:
        self.plan = plan
        self.end = PathEnd((), (), None, [])
        """The state in which it ends, and all nodes that it has recorded."""
        self.slots: list[Any] = []
        """The values that it receives, by slot."""
        self.before: list[Any] = []
        """As ``slots``, with copies of the lists that it may append to."""
        self.growing: dict[int, CarriedList] = {}
        """The lists that it may append to, by slot."""
        self.final_values: list[CarriedValue] = []
        """Values of the last iteration that no iteration receives."""
        self.lists: list[AppendedList] = []
        self.rows: list[CarriedRow] = []
        """Carried rows of written tensors, the first of the carried values."""
        self.exits: LoopExits | None = None
        self._symbols: list[fx.Node] = []
        self._received: dict[int, dict[Path, Any]] = {}
        """The placeholders of carried values, by slot and path."""
        self._of_shared: list[dict[Path, Any]] = []
        """The placeholders in the lists of ``plan.shared``."""

    @property
    def input_symbols(self) -> list[fx.Node]:
        return [leaf.symbol for leaf in self.plan.inputs]

    @property
    def symbols(self) -> list[fx.Node]:
        """The nodes of the values that it receives."""
        return [self.index, *self.input_symbols]

    # --- start -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Build the state in which the iteration begins.

        Raises:
            Split: no placeholder can represent one of the values.
        """
        plan, rec = self.plan, self.plan.context.recording
        start = int(plan.bounds[0])
        twin = plan.context.lifted.twin(plan.bounds[0])
        self.index = rec.operators.control.add_symbol(
            number=True, twin=start if twin is None else twin
        )
        self._symbols.append(self.index)
        self.reads = IndexedReads(self.index)
        self._add_placeholders()
        self._of_shared = [self._received.pop(-1 - i, {}) for i in range(len(plan.shared))]
        self.slots = list(plan.values)
        for slot in {*plan.own_lists, *self._received}:
            self.slots[slot] = rebuilt(self.slots[slot], self._received.get(slot, {}))
        self.before = [
            list(value) if i in plan.own_lists else value for i, value in enumerate(self.slots)
        ]
        index = self._lift_index(start)
        if plan.counter is not None and plan.counter.slot is not None:
            self.slots[plan.counter.slot] = self.before[plan.counter.slot] = index
        stack = self._operands(index)
        local_count = len(plan.state.locals)
        if plan.list_operand is not None:
            stack[plan.list_operand] = self.slots[local_count]
        self.begun = replace(
            plan.state,
            offset=plan.offsets.body,
            locals=tuple(self.slots[:local_count]),
            stack=tuple(stack),
        )
        self._note_growing(index)

    def _add_placeholders(self) -> None:
        plan = self.plan
        for leaf in plan.inputs:
            value = self._placeholder(leaf)
            self._symbols.append(leaf.symbol)
            self._received.setdefault(leaf.slot, {})[leaf.path] = value
            leaf.result = value if leaf.in_place else None

    def _placeholder(self, leaf: CarriedValue) -> Any:
        """A placeholder for the value that any iteration receives; its node is the leaf's
        symbol."""
        context, rec, first = self.plan.context, self.plan.context.recording, leaf.initial
        if is_number(first):
            leaf.symbol = rec.operators.control.add_symbol(number=True, twin=type(first)(first))
            return context.lift(first, GraphNumber(leaf.symbol))
        node = rec.graph.value(first)
        if rec.operators.has_data_dependent_shape(first) or (
            rec.sizes.twin is not None and TWIN not in node.meta
        ):
            raise LoopNotMergeable("the sizes of a loop-carried tensor depend on data")
        leaf.symbol = rec.operators.control.add_symbol(number=False, twin=node.meta.get(TWIN))
        return self.plan.tools.placeholders.any_like(
            context, first, leaf.symbol, leaf.requires_grad
        )

    def _lift_index(self, start: int) -> Any:
        plan, lifted = self.plan, self.plan.context.lifted
        counted = GraphNumber(self.index)
        if not lifted.any_lifted(plan.bounds[:1]) and plan.bounds[2] > 0:
            second = start + plan.bounds[2] if plan.may_skip_first else None
            lifted.guards.lower_bounds.note(counted, start, second)
        return plan.context.lift(start, counted)

    def _operands(self, index: Any) -> list[Any]:
        """The operand stack at the beginning of the body."""
        plan, rec = self.plan, self.plan.context.recording
        rows = [self._row(tensor) for tensor in plan.tensors]
        last = last_node(rec)
        stack = [*plan.state.stack]
        if plan.element is not None:
            stack.append(plan.element(index, rows))
        else:
            del stack[-plan.offsets.operands :]
        self.end.nodes += nodes_after(rec, last)
        rec.operators.numbers.forget_numbers(set(self.end.nodes))
        return stack

    def _row(self, tensor: Any) -> torch.Tensor:
        """A placeholder for the row of a tensor, or the element of a list, at any index.

        Raises:
            Split: the elements differ in form.
        """
        rec = self.plan.context.recording
        if not is_instance(tensor, torch.Tensor):
            return self._list_element(tensor)
        node = rec.graph.value(tensor)
        row = rec.operators.control.add_row(node, self.index)
        self.end.nodes.append(row)
        return self.plan.tools.placeholders.row(self.plan.context, tensor, row)

    def _list_element(self, rows: Any) -> torch.Tensor:
        operators = self.plan.context.recording.operators
        graph_list = operators.lists[id(rows.rows if is_instance(rows, ReversedRows) else rows)]
        assert is_instance(graph_list, GraphList)
        index = self.index
        if is_instance(rows, ReversedRows):
            index = operators.nodes.graph.call_function(operator.invert, (index,))
            index.meta[NUMBER] = True
            self.end.nodes.append(index)
        element = self.plan.tools.placeholders.list_element(self.plan.context, graph_list, index)
        self.reads.elements = True
        node = operators.nodes.node_of(element)
        assert node is not None
        self.end.nodes.append(node)
        return element

    def _note_growing(self, index: Any) -> None:
        """Register the lists to which the iteration may append."""
        plan = self.plan
        lists = [*(self.slots[slot] for slot in plan.own_lists), *plan.shared]
        initial = [*(list(plan.values[slot]) for slot in plan.own_lists), *map(list, plan.shared)]
        slots = (*plan.own_lists, *plan.shared_slots)
        self.growing = {
            slot: CarriedList(
                value, begin, index, plan.tail_length(slot), slot in plan.growing_slots
            )
            for slot, value, begin in zip(slots, lists, initial, strict=True)
        }

    # --- run -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the iteration in isolation, and note which lists have grown.

        Raises:
            Split: it has an effect that no operator expresses.
            PlanGrew: it writes to locations, or appends to lists, that were not planned.
        """
        plan, rec = self.plan, self.plan.context.recording
        owned = [*(self.slots[slot] for slot in plan.own_lists), *plan.shared]
        for leaf in plan.written:
            owned += [leaf.result, leaf.symbol.meta.get(TWIN)]
        rec.operators.lists |= {id(growing.value): growing for growing in self.growing.values()}
        lists = [self.slots[slot] for slot in plan.own_lists]
        if plan.join is not None:
            head = replace(plan.state, offset=plan.offsets.head)
            self.exits = LoopExits(head, plan.join, lists)
        substituted = SubstitutedLocations(rec, plan.shared)
        options = PathOptions(
            owned=owned,
            requires_grad_differs=plan.requires_grad_differs(),
            exits=self.exits,
            draws=True,
            substituted=substituted,
            reads=self.reads,
            copies=self._copied_containers(),
        )
        received = zip(plan.locations, self.slots[plan.first_location :], strict=True)
        with substituted.substituting([*received]) as final:
            for value, items in zip(plan.shared, self._of_shared, strict=True):
                for (position,), item in items.items():
                    value[position] = item
            shared_before = [*map(list, plan.shared)]
            end = plan.tools.paths.explore(
                plan.context, self.begun, plan.offsets.exit, plan.offsets.head, options
            )
        end.nodes = [*self.end.nodes, *end.nodes]
        self.end = end
        plan.carry_locations(substituted)
        self._note_growth([*lists, *final.lists])
        self._note_shared(shared_before, final.lists)
        self.location_results = final.locations

    def _copied_containers(self) -> set[int]:
        """The ids of the containers around placeholders: copies of the program's."""
        return {
            id(part(self.slots[slot], path[:i]))
            for slot, leaves in self._received.items()
            for path in leaves
            for i in range(len(path))
        }

    def _note_growth(self, ends: Iterable[list[Any]]) -> None:
        for (slot, carried_list), value in zip(self.growing.items(), ends, strict=True):
            appended = len(value) - len(carried_list.begin)
            if appended and carried_list.assumed_constant_length:
                self.plan.growing_slots.add(slot)
                raise PlanGrew
            self.check_look_ups(carried_list, appended)

    def check_look_ups(self, carried_list: CarriedList, appended: int) -> None:
        """Check that any iteration may read a list as this one has.

        Args:
            appended: the number of elements that the iteration appends to it.

        Raises:
            Split: the reads do not follow the growth of the list.
        """
        if carried_list.is_inspected and appended:
            raise LoopNotMergeable("an iteration reads a list that it appends to")
        if carried_list.grows_with_index:
            if appended != self.plan.bounds[2]:
                raise LoopNotMergeable(
                    "a list grows at another rate than the index by which iterations read it"
                )
            # The distance of the elements from the end of the list.
            self.plan.context.lifted.specialize(self.plan.bounds[:1])

    def _note_shared(self, before: Sequence[list[Any]], after: Sequence[list[Any]]) -> None:
        """Note the elements that the iteration has appended to ``plan.shared``.

        Raises:
            Split: it has made another change of one of these lists.
        """
        plan = self.plan
        for slot, value, was, grown in zip(
            plan.shared_slots, plan.shared, before, after, strict=True
        ):
            stays = len(grown) >= len(was) and all(map(operator.is_, grown, was))
            if not stays or any(location.owner is value for location in plan.locations):
                raise LoopNotMergeable(
                    "iterations change elements of a list that is not in a local variable"
                )
            self.append_list(slot, list(value), grown, shared=value)

    def append_list(
        self,
        slot: int,
        initial: list[Any],
        grown: list[Any],
        shared: list[Any] | None = None,
    ) -> None:
        """Note that the iteration has appended to a list, which was ``initial`` before the loop and
        is ``grown`` after the iteration."""
        self.lists.append(AppendedList(slot, initial, grown[len(initial) :], shared=shared))
        self._carry_tail(slot, initial, grown)

    def _carry_tail(self, slot: int, initial: Sequence[Any], grown: Sequence[Any]) -> None:
        """Carry the last elements of a list that iterations append to and read from its end.

        Raises:
            Split: one of them is not a tensor.
        """
        carried, carried_list = self.plan.carried, self.growing[slot]
        for distance in range(1, max(carried_list.elements_read, carried_list.carried) + 1):
            path = (len(initial) - distance,)
            leaf = carried.get((slot, path))
            if leaf is None:
                first = initial[-distance]
                if not is_instance(first, torch.Tensor):
                    raise LoopNotMergeable(
                        f"an iteration reads {describe(first)} from a list that it appends to"
                    )
                carried[slot, path] = CarriedValue(
                    slot, path, first, requires_grad(first), is_list_tail=True
                )
            else:
                leaf.result = grown[-distance]

    def discard(self) -> None:
        """Erase the nodes of the iteration from the graph."""
        rec = self.plan.context.recording
        for growing in self.growing.values():
            rec.operators.lists.pop(id(growing.value), None)
        erase(rec, self.end.nodes)
        erase(rec, [*self._symbols, *(row.symbol for row in self.rows)])
