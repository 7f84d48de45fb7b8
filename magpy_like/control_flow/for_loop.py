"""Loops over a ``range`` or the rows of tensors become one operator of the graph, ``for_loop``.

Before such a loop one round runs beside the program on fake tensors, for any index and any values
of what the rounds hand on to each other. When it leaves everything else as it was, every round is
the same graph, and the operator serves each number of rounds. Then the program goes through its
loop with nothing announced, and what it has behind it are the operator's results. Lists that nobody
else has may be changed: their elements are handed on, and what rounds append to one is gathered; so
is the list that a comprehension makes, on the operand stack. Any other loop is recorded round by
round.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Protocol

import torch
from torch import fx

from magpy_like.bytecode.data_flow import live_locals
from magpy_like.bytecode.post_dominators import join_point
from magpy_like.control_flow import carried_attributes
from magpy_like.control_flow.carried_containers import (
    Path,
    check_depth,
    containers,
    differences,
    part,
    parts,
    rebuilt,
    shared,
)
from magpy_like.control_flow.carried_places import End, Output, check_like, erase, nodes_after, say
from magpy_like.control_flow.counting_loops import Counter, Turn, bounds_of, is_one_number, step_of
from magpy_like.control_flow.loop_exits import Exits
from magpy_like.control_flow.loop_outputs import LoopOutputs, twin_of
from magpy_like.control_flow.loop_tensor_writes import (
    Past,
    Written,
    check_apart,
    is_nobody_elses,
    on_a_copy,
    rows_of_all,
)
from magpy_like.control_flow.row_writes import filled_rows
from magpy_like.graph_operators.control_operators import for_loop
from magpy_like.monitor.objects.loop_written_places import Filled, Holder
from magpy_like.monitor.operator_graph.graph_nodes import LIST, NUMBER
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.monitor.symbolic.gathered_lists import CarriedList, GraphList
from magpy_like.monitor.symbolic.loop_ranges import (
    Element,
    ReversedRows,
    compute_lifted,
    constant_offset,
    trip_count,
)
from magpy_like.monitor.symbolic.loop_windows import IndexedReads
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import LoopNotMergeable
from magpy_like.splitting.frame_state import FrameState

MIN_ITERATIONS = 8
_FEWEST_OPERATORS = 4000
"""A loop whose number of rounds is a constant is worth an operator from so many rounds and so many
operators in all on. Measured with the written-out LSTM on one core: compiled round by round a call
takes 0.65 to 0.9 of the time, but 1,000 operators take 1.5 s to compile, and more the more there
are (21 s for 64 steps of 10 layers, 1 s as an operator)."""
_MOST_TRIES = 7
"""Rounds that run beside the program until it is known what one hands on to the next."""


class Explorer(Protocol):
    """What runs a part of the program beside it."""

    def explore(
        self,
        run: MonitorRun,
        start: FrameState,
        until: int,
        again: int | None = None,
        own: Sequence[Any] = (),
        gradients_differ: bool = False,
        *,
        exits: Exits | None = None,
        draws: bool = False,
        filled: Filled | None = None,
        reads: IndexedReads | None = None,
        stand_ins: Collection[int] = (),
    ) -> End:
        """See ``Branches``."""

    def any_tensor(
        self, run: MonitorRun, like: torch.Tensor, symbol: fx.Node, gradients: bool
    ) -> torch.Tensor:
        """See ``Branches``."""

    def list_element(self, run: MonitorRun, given: GraphList, at: Any) -> torch.Tensor:
        """See ``Branching.list_element``."""

    def row(self, run: MonitorRun, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """See ``Branches``."""

    def share_memory(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """See ``Branches``."""

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Branches``."""

    def receive(
        self, run: MonitorRun, frame: FrameType, outputs: Sequence[tuple[Output, fx.Node]]
    ) -> None:
        """See ``Branches``."""


@dataclass
class Leaf:
    """A tensor or number that a round leaves: in the local ``slot``, or in containers there."""

    slot: int
    path: Path
    first: Any
    """What the first round is given; NULL for what no round is given."""
    gradients: bool = False
    """Whether it takes part in gradients in any round but the first."""
    symbol: Any = None
    result: Any = None
    in_place: bool = False
    """Whether rounds change the very tensor."""
    was_there: bool = False
    """Whether a round may leave a tensor there that it has not made."""
    is_last: bool = False
    """Whether it is one of the last elements of a list to which rounds append, and so another one
    behind each."""

    @property
    def takes_part(self) -> bool:
        """Whether the first round is given what takes part in gradients."""
        return _takes_part(self.first)


@dataclass
class List:
    """A list that rounds append to: in the local ``slot``, or ``shared`` with other objects."""

    slot: int
    begin: list[Any]
    added: list[Any]
    was_there: bool = False
    """Whether a round may add a tensor that it has not made."""
    shared: list[Any] | None = None


class _NotYet(Exception):
    """A round has left more than was expected, which is known now."""


@dataclass
class Loop:
    """A loop over ``bounds`` that the program is about to begin: ``state`` is at its head."""

    explorer: Explorer
    run: MonitorRun
    state: FrameState
    bounds: tuple[int, int, int]
    tensors: tuple[torch.Tensor, ...]
    """What the rounds are given the rows of."""
    element: Element | None
    """What a round is given, if it is given something."""
    turn: Turn
    making: int | None = None
    """Where on the operand stack the list lies that a comprehension makes."""
    inside: bool = False
    """Whether the comprehension is a function of its own, whose frame is gone behind the loop."""
    counter: Counter | None = None
    may_begin_later: bool = False
    """Whether the program may go through the first round as it is, where only that one differs."""
    carried: dict[tuple[int, Path], Leaf] = field(default_factory=dict)
    written: list[Leaf] = field(default_factory=list)
    """Tensors that rounds write into."""
    places: list[Holder] = field(default_factory=list)
    """What rounds put something into beside local variables. They have slots behind these."""
    shared: list[list[Any]] = field(default_factory=list)
    """Lists that rounds append to, and that are not in a local variable alone."""
    last: list[Leaf] = field(default_factory=list)
    lists: list[List] = field(default_factory=list)
    pasts: list[Past] = field(default_factory=list)
    """Rows that rounds hand on before anything else."""
    _grow: set[int] = field(default_factory=set)
    """The slots of lists that are known to grow, and of which a round asks how long they are."""
    _joined: bool = False

    def __post_init__(self) -> None:
        code, turn = self.state.code, self.turn
        self.exit = turn.exit
        self.exits: Exits | None = None
        self._meet = join_point(code, turn.branch) if self.making is None else None
        self._wanted = sorted(live_locals(code, turn.again))
        self._given = live_locals(code, turn.begin)
        self.values = (*self.state.locals, *self._made(self.state.stack))
        """What the program has before the loop, by slot: such a list comes behind the locals."""
        rec, slots = self.run.recording, self.values
        # References from the frame, the state, these values, and as an argument: nobody else's.
        self._own = {
            slot
            for slot in self._given
            if type(slots[slot]) is list
            and id(slots[slot]) not in rec.operators.lists
            and sys.getrefcount(slots[slot]) <= 4
            and rec.variables.node(slots[slot]) is None
        }
        self._shared: set[int] = set()
        for slot in self._given:
            self._shared |= shared(slots[slot], rec, 3)  # the frame's, the state's, and these
        self._writable = [i for i in self._given if is_nobody_elses(rec, slots, i)]
        if self.making is not None:
            slot = len(self.state.locals)
            self._own.add(slot)
            self._given |= {slot}
            self._wanted.append(slot)
        if self.counter is not None:
            begins = self.state.stack[self.counter.at - 2]
            counts = [slot for slot in self._given if slots[slot] is begins]
            self.counter.slot = counts[0] if len(counts) == 1 else None

    def _made(self, stack: Sequence[Any]) -> tuple[Any, ...]:
        return () if self.making is None else (stack[self.making],)

    @property
    def rounds(self) -> int:
        return len(range(*self.bounds))

    # --- one round beside the program ------------------------------------------------------------

    def record(self) -> list[fx.Node]:
        """Put the operator on the graph; gives the nodes of its results.

        Raises:
            Split: the rounds are not alike, or do what the operator cannot.
        """
        for _ in range(_MOST_TRIES):
            try:
                return self._try()
            except _NotYet:
                continue
            except Written as refused:
                self._let_write(refused)
            finally:
                self.run.account()
        raise LoopNotMergeable("each attempt finds more loop-carried values")

    def _let_write(self, refused: Written) -> None:
        """Raises Written: a round must not write into this tensor."""
        known = [leaf.slot for leaf in self.written]
        for slot in self._writable:
            first = self.values[slot]
            if slot not in known and self.explorer.share_memory(first, refused.tensor):
                self.written.append(Leaf(slot, (), first, in_place=True))
                return
        raise refused

    def _let_fill(self, filled: Filled) -> None:
        """
        Raises:
            _NotYet: a round puts something into other objects, which is known now.
            Split: what is there must not be handed on.
        """
        places, lists = filled.places[len(self.places) :], filled.lists[len(self.shared) :]
        for place in places:
            value, slot = carried_attributes.read(self.run, place), len(self.values)
            self.values = (*self.values, value)
            self.places.append(place)
            self._given |= {slot}
            self._wanted.append(slot)
        self.shared += lists
        if places or lists:
            raise _NotYet

    def place_of(self, slot: int) -> Holder | None:
        """The one of ``places`` that has a slot; None for a local variable."""
        at = slot - self._first_place
        return self.places[at] if at >= 0 else None

    @property
    def _first_place(self) -> int:
        """The slot of the first of ``places``."""
        return len(self.values) - len(self.places)

    def _try(self) -> list[fx.Node]:
        run, rec = self.run, self.run.recording
        start, symbols, turn = int(self.bounds[0]), [], self.turn
        end: End | None = None
        made: list[fx.Node] = []
        growing: list[CarriedList] = []
        self.last, self.lists, self.pasts = [], [], []
        for leaf in (*self.carried.values(), *self.written):
            leaf.symbol = leaf.result = None
        try:
            twin = run.lifted.twin(self.bounds[0])
            self.index = rec.operators.add_symbol(number=True, twin=start if twin is None else twin)
            symbols.append(self.index)
            self._reads = IndexedReads(self.index)
            given: dict[int, dict[Path, Any]] = {}
            for leaf in (*self.carried.values(), *self.written):
                value = self._any_like(leaf)
                symbols.append(leaf.symbol)
                given.setdefault(leaf.slot, {})[leaf.path] = value
                leaf.result = value if leaf.in_place else None
            of_shared = [given.pop(-1 - i, {}) for i in range(len(self.shared))]
            slots = list(self.values)
            for slot in {*self._own, *given}:
                slots[slot] = rebuilt(slots[slot], given.get(slot, {}))
            before = [list(value) if i in self._own else value for i, value in enumerate(slots)]
            counted = GraphNumber(self.index)
            if not run.lifted.any_lifted(self.bounds[:1]) and self.bounds[2] > 0:
                later = start + self.bounds[2] if self.may_begin_later else None
                run.lifted.guards.lower_bounds.note(counted, start, later)
            index = self._counted = run.lift(start, counted)
            if self.counter is not None and self.counter.slot is not None:
                slots[self.counter.slot] = before[self.counter.slot] = index
            rows = [self._row(tensor, made) for tensor in self.tensors]
            before_element = next(iter(reversed(rec.operators.graph.nodes)), None)
            stack = [*self.state.stack]
            if self.element is not None:
                stack.append(self.element(index, rows))
            else:
                del stack[-turn.operands :]
            made += nodes_after(rec, before_element)
            rec.operators.forget_numbers(set(made))
            if self.making is not None:
                stack[self.making] = slots[len(self.state.locals)]
            begun = replace(
                self.state,
                offset=turn.begin,
                locals=tuple(slots[: len(self.state.locals)]),
                stack=tuple(stack),
            )
            own = [*(slots[slot] for slot in self._own), *self.shared]
            slots_of_own = (*self._own, *self._slots_of_shared())
            begins = [*(list(self.values[slot]) for slot in self._own), *map(list, self.shared)]
            self._growing = {
                slot: CarriedList(value, begin, index, self._handed_on_of(slot), slot in self._grow)
                for slot, value, begin in zip(slots_of_own, own, begins, strict=True)
            }
            growing = [*self._growing.values()]
            for leaf in self.written:
                own += [leaf.result, leaf.symbol.meta.get(TWIN)]
            rec.operators.lists |= {id(found.value): found for found in growing}
            differ = any(leaf.gradients != leaf.takes_part for leaf in self.carried.values())
            lists = [slots[slot] for slot in self._own]
            head = replace(self.state, offset=turn.again)
            exits = None if self._meet is None else Exits(head, self._meet, lists)
            stand_ins = {
                id(part(slots[slot], path[:i]))
                for slot, leaves in given.items()
                for path in leaves
                for i in range(len(path))
            }
            filled = Filled(rec, self.shared)
            in_places = zip(self.places, slots[self._first_place :], strict=True)
            with filled.holding([*in_places]) as left:
                for value, items in zip(self.shared, of_shared, strict=True):
                    for (at,), item in items.items():
                        value[at] = item
                given_lists = [*map(list, self.shared)]
                end = self.end = self.explorer.explore(
                    run, begun, self.exit, turn.again, own, differ,
                    exits=exits, draws=True, filled=filled, reads=self._reads,
                    stand_ins=stand_ins,
                )  # fmt: skip
            end.nodes = made = [*made, *end.nodes]
            self._let_fill(filled)
            ends = [*(slots[slot] for slot in self._own), *left.lists]
            for (slot, found), value in zip(self._growing.items(), ends, strict=True):
                added = len(value) - len(found.begin)
                if added and found.assumed_constant_length:
                    self._grow.add(slot)
                    raise _NotYet
                self.check_look_ups(found, added)
            self._add_shared(given_lists, left.lists)
            self._compare(before, slots, begun, end, left.places)
            self._check(end)
            if exits is not None and exits.found:
                if self.places or self.shared:
                    raise LoopNotMergeable("a loop with an early exit stores values in objects")
                self._ask_for_two_rounds()
                self._ask_for_windows()
                nodes, self.exits = exits.record(self, end, slots), exits
                return nodes
            nodes = self._operator(end)
            for place in self.places:
                carried_attributes.begin(rec, place)
            return nodes
        finally:
            for found in growing:
                rec.operators.lists.pop(id(found.value), None)
            erase(rec, made if end is None else end.nodes)
            erase(rec, [*symbols, *(past.symbol for past in self.pasts)])

    def _row(self, tensor: Any, made: list[fx.Node]) -> torch.Tensor:
        """What stands for the row of a tensor, or the element of a list, that any round is given.

        Raises:
            Split: the elements are not alike.
        """
        rec = self.run.recording
        if not is_instance(tensor, torch.Tensor):
            return self._element_of(tensor, made)
        node = rec.graph.value(tensor)
        made.append(rec.operators.add_row(node, self.index))
        return self.explorer.row(self.run, tensor, made[-1])

    def _element_of(self, rows: Any, made: list[fx.Node]) -> torch.Tensor:
        operators = self.run.recording.operators
        found = operators.lists[id(rows.rows if is_instance(rows, ReversedRows) else rows)]
        assert is_instance(found, GraphList)
        at = self.index
        if is_instance(rows, ReversedRows):
            at = operators.graph.call_function(operator.invert, (at,))
            at.meta[NUMBER] = True
            made.append(at)
        element = self.explorer.list_element(self.run, found, at)
        self._reads.elements = True
        node = operators.node_of(element)
        assert node is not None
        made.append(node)
        return element

    def _any_like(self, leaf: Leaf) -> Any:
        """What stands for the value that any round is given, known as the leaf's symbol."""
        run, rec, first = self.run, self.run.recording, leaf.first
        if is_number(first):
            leaf.symbol = rec.operators.add_symbol(number=True, twin=type(first)(first))
            return run.lift(first, GraphNumber(leaf.symbol))
        node = rec.graph.value(first)
        if rec.operators.has_data_dependent_shape(first) or (
            rec.sizes.twin is not None and TWIN not in node.meta
        ):
            raise LoopNotMergeable("the sizes of a loop-carried tensor depend on data")
        leaf.symbol = rec.operators.add_symbol(number=False, twin=node.meta.get(TWIN))
        return self.explorer.any_tensor(run, first, leaf.symbol, leaf.gradients)

    # --- what it has left ------------------------------------------------------------------------

    def _compare(
        self,
        before: Sequence[Any],
        given: Sequence[Any],
        begun: FrameState,
        end: End,
        in_places: Sequence[Any],
    ) -> None:
        """Find what differs from the state in which the round began."""
        if not end.again:
            raise LoopNotMergeable("an iteration does not return to the loop head")
        below = len(self.state.stack) - self.turn.operands
        if self.counter is not None:
            self._count(self.counter, end)
        if not all(map(operator.is_, end.stack[:below], begun.stack[:below])):
            raise LoopNotMergeable("an iteration changes operands below its iterator")
        left_there: list[int] = []
        left = (*end.locals, *self._made(end.stack), *in_places)
        for slot in self._wanted:
            after, was = left[slot], before[slot]
            if self.counter is not None and slot == self.counter.slot:
                continue
            if slot in self._given:
                if slot in self._own and after is given[slot] and len(after) > len(was):
                    begin = list(self.values[slot])
                    self.lists.append(List(slot, begin, after[len(was) :]))
                    self._hand_on_last(slot, begin, after)
                    after = after[: len(was)]
                found = list(differences(was, after))
                for path, result in found:
                    self._carry(slot, path, result)
                if not found:
                    continue
            else:
                for path, result in self._leaves(after, (), end):
                    self.last.append(Leaf(slot, path, NULL, result=result))
            left_there += map(id, containers(left[slot]))
        changed = {leaf.slot for leaf in self.carried.values() if not leaf.is_last}
        if changed & {found.slot for found in self.lists}:
            raise LoopNotMergeable("iterations change elements of a list that they append to")
        if len(set(left_there)) < len(left_there):
            raise LoopNotMergeable("an iteration leaves one container in two variables")
        if any(leaf.symbol and leaf.result is None for leaf in self.carried.values()):
            raise LoopNotMergeable("iterations alternate in the values they carry")

    def _add_shared(self, given: Sequence[list[Any]], grown: Sequence[list[Any]]) -> None:
        """Raises Split: a round does something else to a list than to append to it."""
        slots = self._slots_of_shared()
        for slot, value, was, after in zip(slots, self.shared, given, grown, strict=True):
            stays = len(after) >= len(was) and all(map(operator.is_, after, was))
            if not stays or any(place.owner is value for place in self.places):
                raise LoopNotMergeable(
                    "iterations change elements of a list that is not in a local variable"
                )
            begin = list(value)
            self.lists.append(List(slot, begin, after[len(begin) :], shared=value))
            self._hand_on_last(slot, begin, after)

    def _slots_of_shared(self) -> range:
        """What stands for slots of the lists that are not in a local variable alone."""
        return range(-1, -1 - len(self.shared), -1)

    def _handed_on_of(self, slot: int) -> int:
        """How many of a list's last elements rounds hand on."""
        return sum(leaf.is_last and leaf.slot == slot for leaf in self.carried.values())

    def check_look_ups(self, found: CarriedList, added: int) -> None:
        """Raises Split: a round that has ``added`` elements to a list looks into it otherwise than
        any round may."""
        if found.is_inspected and added:
            raise LoopNotMergeable("an iteration reads a list that it appends to")
        if found.grows_with_index:
            if added != self.bounds[2]:
                raise LoopNotMergeable(
                    "a list grows at another rate than the index by which iterations read it"
                )
            self.run.lifted.specialize(self.bounds[:1])  # how far from its end the elements are

    def _hand_on_last(self, slot: int, begin: Sequence[Any], after: Sequence[Any]) -> None:
        """Each round finds elements at the end of a list that it appends to, as the one before has
        left them.

        Raises:
            Split: they are not of one kind.
        """
        found = self._growing[slot]
        for distance in range(1, max(found.elements_read, found.carried) + 1):
            path = (len(begin) - distance,)
            leaf = self.carried.get((slot, path))
            if leaf is None:
                first = begin[-distance]
                if not is_instance(first, torch.Tensor):
                    raise LoopNotMergeable(
                        f"an iteration reads {say(first)} from a list that it appends to"
                    )
                takes_part = _takes_part(first)
                self.carried[slot, path] = Leaf(slot, path, first, takes_part, is_last=True)
            else:
                leaf.result = after[-distance]

    def _count(self, counter: Counter, end: End) -> None:
        """Find what a round has counted.

        Raises:
            Split: it does not count towards an end that stays.
            _NotYet: only now it is known what counts.
        """
        run, operands = self.run, end.stack[-2:]
        first = self.state.stack[-2:]
        found, stop = operands[counter.at], first[1 - counter.at]
        if not is_one_number(run, operands[1 - counter.at], stop):
            raise LoopNotMergeable("iterations change the bound of their counter")
        node = run.recording.operators.value_node(found, run.recording.graph.value)
        counter.is_length = counter.slot is None and bool(constant_offset(self.index, node))
        if counter.slot is not None or counter.is_length:
            if counter.slot is not None and end.locals[counter.slot] is not found:
                raise LoopNotMergeable("iterations compare another value than their counter")
            step = step_of(self.index, node)
            bounds = bounds_of(run, counter.holds, first[counter.at], stop, step)
            if step != self.bounds[2] or int(bounds[1]) != int(self.bounds[1]):
                self.bounds = bounds
                raise _NotYet
            return
        numbered = range(self._first_place)
        slots = [slot for slot in self._given if slot in numbered and end.locals[slot] is found]
        known = [slot for slot in slots if (slot, ()) in self.carried]
        if known and self.values[known[0]] == first[counter.at] and run.lifted.any_lifted((found,)):
            counter.slot = known[0]
            del self.carried[known[0], ()]
            raise _NotYet

    def _carry(self, slot: int, path: Path, result: Any) -> None:
        if any(leaf.slot == slot for leaf in self.written):
            raise LoopNotMergeable("iterations write to a tensor and replace it by another one")
        leaf = self.carried.get((slot, path))
        if leaf is None:
            first = self.values[slot]
            if any(id(part(first, path[:i])) in self._shared for i in range(len(path))):
                raise LoopNotMergeable(
                    f"iterations change a {type(first).__qualname__}, which may be aliased"
                )
            first = part(first, path)
            self.carried[slot, path] = Leaf(slot, path, first, _takes_part(first))
        else:
            leaf.result = result

    def _leaves(self, value: Any, path: Path, end: End) -> Iterator[tuple[Path, Any]]:
        """The tensors and numbers of the last round in what no round is given.

        Raises:
            Split: there is something else that the round has made.
        """
        rec = self.run.recording
        if is_instance(value, torch.Tensor):
            node = rec.operators.node_of(value)
            if end.made(value) or node in end.nodes or node in self._symbols():
                yield path, value
        elif is_number(value):
            if self.run.lifted.any_lifted((value,)):
                yield path, value
        elif (inside := parts(value)) is not None and rec.variables.node(value) is None:
            check_depth(path)
            for key, item in inside.items():
                yield from self._leaves(item, (*path, key), end)
        elif not (is_plain(value) or is_identity(value) or value is NULL):
            if rec.variables.node(value) is None:
                raise LoopNotMergeable(f"an iteration leaves {say(value)}")

    def symbols(self) -> list[fx.Node]:
        """What stands for what a round is given."""
        return [self.index, *self._symbols()]

    def growing(self) -> list[CarriedList]:
        """The lists of the round that runs."""
        return [*self._growing.values()]

    @property
    def until(self) -> int:
        """Where it is over: an offset, or ``RETURN``."""
        return self.exit if self.exits is None else self.exits.until

    def _symbols(self) -> list[fx.Node]:
        return [leaf.symbol for leaf in (*self.carried.values(), *self.written)]

    def _check(self, end: End) -> None:
        """Whether the next round, given what this one has left, does the same.

        Raises:
            Split: it may not.
            _NotYet: it may take part in gradients otherwise.
        """
        if any(leaf.symbol is None for leaf in self.carried.values()):
            raise _NotYet
        counter = self.counter
        if counter is not None and counter.slot is None and not counter.is_length:
            raise LoopNotMergeable("no variable counts the iterations")
        self._let_go_of_unread()
        for leaf in (*self.carried.values(), *self.last):
            leaf.was_there = self.was_there(leaf.result, end)
        for found in self.lists:
            hands_on = [self.was_there(item, end) for item in found.added]
            found.was_there = any(hands_on)
        if any(not is_instance(item, torch.Tensor) for s in self.lists for item in s.added):
            raise LoopNotMergeable("iterations append numbers to a list")
        differ = False
        for leaf in self.carried.values():
            if is_instance(leaf.first, torch.Tensor):
                check_like(leaf.result, leaf.first, but="part in gradients")
                self._check_twin(leaf)
                differ |= leaf.gradients != leaf.result.requires_grad
                leaf.gradients = leaf.result.requires_grad
        if differ and self._joined:
            raise LoopNotMergeable("iterations alternate in which values require gradients")
        if differ:
            self._joined = True
            raise _NotYet

    def _let_go_of_unread(self) -> None:
        """What rounds put into objects and never read there is not handed on: gradients must not
        go to what was there before."""
        leaves = [*self.carried.values(), *self.last]
        results = [leaf.result for leaf in leaves] + [t for s in self.lists for t in s.added]
        handed_on = {self.run.recording.operators.node_of(result) for result in results}
        for key, leaf in list(self.carried.items()):
            is_tensor = is_instance(leaf.first, torch.Tensor)
            if leaf.slot < self._first_place or not is_tensor:
                continue
            if not leaf.symbol.users and leaf.symbol not in handed_on:
                del self.carried[key]
                self.last.append(leaf)

    def was_there(self, value: Any, end: End) -> bool:
        """Whether a round hands on a tensor that it has not made.

        Raises:
            Split: it is none that the next round may be given.
        """
        if not is_instance(value, torch.Tensor):
            if not is_number(value):
                raise LoopNotMergeable(f"an iteration carries {say(value)}")
            return False
        if self.run.recording.operators.has_data_dependent_shape(value):
            raise LoopNotMergeable("the sizes of a tensor that an iteration creates depend on data")
        was_there = not end.made(value)
        if was_there and self._reads.elements:
            raise LoopNotMergeable("iterations over a list carry tensors that they did not create")
        if was_there and value.is_inference():
            raise LoopNotMergeable(
                "an iteration carries an inference tensor that it did not create"
            )
        return was_there

    def _check_twin(self, leaf: Leaf) -> None:
        """Sizes that vary from call to call are those that the round was given."""
        rec = self.run.recording
        if rec.sizes.twin is None:
            return
        node = rec.operators.node_of(leaf.result)
        given, left = leaf.symbol.meta[TWIN], node.meta.get(TWIN) if node is not None else None
        if left is None or left.dim() != given.dim():
            raise LoopNotMergeable("the sizes of a tensor that an iteration creates are unknown")
        check_twins(self.run, given, left)

    # --- the operator ----------------------------------------------------------------------------

    def _ask_for_two_rounds(self) -> None:
        self.run.lifted.guards.require_truth(operator.ge, (trip_count(self.run, self.bounds), 2))

    def _ask_for_windows(self) -> None:
        """Raises Split: not all that rounds read by their index is there."""
        for window in self._reads.windows:
            last = compute_lifted(self.run, operator.sub, window.end, 1)
            for at in (window.begin, last):
                rows_of_all(self.run, self.bounds, at, window.size, window.times)

    def _operator(self, end: End) -> list[fx.Node]:
        rec, operators = self.run.recording, self.run.recording.operators
        few = len(end.nodes) * self.rounds < _FEWEST_OPERATORS
        if few and not self.run.has_varied(self.bounds):
            raise LoopNotMergeable("so few operators are faster unrolled")
        if self.rounds < 2:
            raise LoopNotMergeable("it has one iteration at most")
        self._ask_for_two_rounds()
        self._ask_for_windows()
        made = [leaf.result for leaf in (*self.carried.values(), *self.last)]
        made += [tensor for found in self.lists for tensor in found.added]
        check_apart([leaf.result for leaf in self.written], made)
        filled, pasts = filled_rows(self, end), self.pasts
        handed_on = [*self.carried.values(), *self.written]
        leaves = [*handed_on, *self.last]
        if self.inside and any(leaf.slot < self._first_place for leaf in leaves):
            raise LoopNotMergeable("a comprehension carries values between iterations")
        results = [leaf.result for leaf in leaves] + [t for s in self.lists for t in s.added]
        given = [operators.value_node(result, rec.graph.value) for result in results]
        given += [row.node for _, row, _ in filled]
        self._inner = given
        end.nodes = [node for node in end.nodes if not operators.is_constant_tensor(node)]
        given = [*(past.result for past in pasts), *given]
        index, *others = self.symbols()
        symbols = [index, *(past.symbol for past in pasts), *others]
        inside = {*end.nodes, *symbols}
        used = [n for node in end.nodes for n in node.all_input_nodes]
        used += [n for n in given if is_instance(n, fx.Node)]
        outside = list(dict.fromkeys(n for n in used if n not in inside))
        body = operators.subgraph([*symbols, *outside], end.nodes, given)
        on_a_copy(body, range(1 + len(pasts) + len(self.carried), len(symbols)))

        def node_of(value: Any) -> Any:
            return operators.value_node(value, rec.graph.value)

        bounds = tuple(map(node_of, self.bounds))
        carried = (*(past.first for past in pasts), *(node_of(leaf.first) for leaf in handed_on))
        gathered = [(tuple(map(node_of, s.begin)), len(s.added)) for s in self.lists]
        gathered += [((), 1)] * len(filled)
        numbers = [False] * len(pasts) + [is_number(leaf.result) for leaf in leaves]
        numbers += [False] * len(gathered)
        after = (bounds, carried, tuple(gathered), tuple(outside))
        nodes = operators.add_control(for_loop, (), [body], after, numbers)[len(pasts) :]
        for node, twin in zip(nodes[: len(leaves)], map(twin_of, self._inner), strict=False):
            if twin is not None and not node.meta[NUMBER]:
                node.meta[TWIN] = twin
        for node in nodes[len(leaves) :]:
            node.meta[LIST] = True
        rows = nodes[len(nodes) - len(filled) :]
        for (leaf, row, at), found in zip(filled, rows, strict=True):
            key = slice(node_of(at.start), node_of(at.stop), at.step)
            if self.bounds[2] < 0:
                found = operators.add_reversed(found)
            operators.add_row_writes(node_of(leaf.first), row.dim, key, found)
        return nodes[: len(nodes) - len(filled)]

    # --- behind the loop -------------------------------------------------------------------------

    def receive(self, nodes: Sequence[fx.Node], frame: FrameType) -> None:
        """The program, in ``frame``, has come to the end of the loop.

        Raises:
            Split: it is not as the round beside it has recorded.
        """
        if self.exits is not None:
            self.exits.receive(self, nodes, frame)
        else:
            LoopOutputs(self, nodes, self._inner).receive(frame)
        self.run.account()


def check_twins(run: MonitorRun, left: torch.Tensor, right: torch.Tensor) -> None:
    """Raises Split: symbolic tensors have not the same sizes and strides, whatever these are."""
    for one, other in zip(
        (*left.shape, *left.stride()), (*right.shape, *right.stride()), strict=True
    ):
        if not run.lifted.guards.require_symbolic(one == other):
            raise LoopNotMergeable("the sizes of a tensor differ between branches or iterations")


def _takes_part(value: Any) -> bool:
    return is_instance(value, torch.Tensor) and value.requires_grad
