"""Ways out of the rounds of a loop: ``break`` and ``return`` on a tensor's value.

A round runs beside the program and comes to a branch of which one way leads back to the head of the
loop, and the other one does not. What lies on the other way, up to where all ways out of the loop
meet, becomes a graph of its own, which the operator runs when it leaves the loop there; so does
what lies behind the last round. The round itself goes on. What it does behind such a branch is
done for nothing in the one round that leaves, and so must not change what it has made before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.bytecode.data_flow import live_locals
from magpy_like.bytecode.post_dominators import RETURN, can_reach, join_point
from magpy_like.control_flow.carried_places import (
    End,
    Output,
    Place,
    begin_side,
    check_like,
    nodes_after,
    same,
    say,
    unchanged,
)
from magpy_like.control_flow.loop_outputs import gather
from magpy_like.graph_operators.control_operators import for_loop_with_exits, may_write
from magpy_like.monitor.operator_graph.graph_nodes import LIST
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.monitor.symbolic.gathered_lists import GraphList
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.native import frame_locals
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import LoopNotMergeable
from magpy_like.splitting.frame_state import FrameState
from magpy_like.torch_compat.fake_tensors import FakeTensor

if TYPE_CHECKING:
    from magpy_like.control_flow.for_loop import Loop
    from magpy_like.monitor.run import MonitorRun


@dataclass
class Exit:
    """One way out."""

    end: End
    added: tuple[int, ...]
    """How many elements the round has added to each list by then."""
    way: bool | None = None
    """Which truth of ``test`` leaves; None behind the last round."""
    test: fx.Node | None = None
    results: list[Any] = field(default_factory=list)
    needs: list[fx.Node] = field(default_factory=list)
    """What of a round its graph is given."""


@dataclass
class Exits:
    """The ways out of a loop: ``head`` is the state there, and all of them meet at ``until``."""

    head: FrameState
    until: int
    lists: Sequence[list[Any]]
    """Those that rounds may append to, as a round is given them."""
    found: list[Exit] = field(default_factory=list)
    original: Callable[[Any], Any] = field(default=lambda value: value)
    """From what the round has to what the program has there."""
    gradients: bool = field(default_factory=torch.is_grad_enabled)
    """Whether rounds begin where gradients are taken."""
    _behind: fx.Node | None = None
    """The last node before the first branch that leaves."""

    def __post_init__(self) -> None:
        self._lengths = [len(value) for value in self.lists]
        self.outputs: list[Output] = []

    def way_out(self, state: FrameState) -> bool | None:
        """Which truth of what the program branches on there leaves the loop; None for none.

        Raises:
            Split: one truth may leave it or not.
        """
        if state.code is not self.head.code:
            return None
        stays = [self._stays(begin_side(state, taken).offset) for taken in (False, True)]
        if stays[False] is not stays[True]:
            return not stays[True]
        meet = join_point(state.code, state.instruction.offset)
        if stays[True] and (meet is None or not self._stays(meet)):
            raise LoopNotMergeable("a nested branch may leave the loop")
        return None

    def _stays(self, offset: int) -> bool:
        """Whether there is a way from there to the next round."""
        return can_reach(self.head.code, offset, self.head.offset, self.until)

    def added(self) -> tuple[int, ...]:
        """How many elements the round that runs has added to each list up to now."""
        return tuple(
            len(value) - begin for value, begin in zip(self.lists, self._lengths, strict=True)
        )

    def note(self, way: bool, test: fx.Node, behind: fx.Node | None, end: End) -> None:
        """A round leaves ``way`` at a branch on ``test``, behind which it goes on otherwise."""
        if not self.found:
            self._behind = behind
        self.found.append(Exit(end, self.added(), way, test))

    # --- the operator ----------------------------------------------------------------------------

    def record(self, loop: Loop, end: End, given: Sequence[Any]) -> list[fx.Node]:
        """Put the operator on the graph, for a round that comes to its ``end`` if it is not left.

        Gives the nodes of its results: those of ``outputs``, then for each list how long it is, and
        the lists. ``given`` is what the round was given.

        Raises:
            Split: the ways out differ in what no operator can do, or the round changes something.
        """
        run, rec, operators = loop.run, loop.run.recording, loop.run.recording.operators
        if loop.written:
            raise LoopNotMergeable("iterations write to a tensor, and the loop has an early exit")
        if any(leaf.gradients != leaf.takes_part for leaf in loop.carried.values()):
            raise LoopNotMergeable(
                "the first iteration of a loop with an early exit differs in gradients"
            )
        if any(map(may_write, set(nodes_after(rec, self._behind)) & {*end.nodes})):
            raise LoopNotMergeable("an iteration changes a tensor after an early exit")
        stack = end.stack[: -loop.turn.operands]
        left = replace(self.head, offset=loop.exit, locals=end.locals, stack=stack)
        tail = loop.explorer.explore(run, left, self.until)
        self.found.append(Exit(tail, self.added()))
        inner = {node for exit in self.found for node in exit.end.nodes}
        body = [node for node in end.nodes if node not in inner]
        end.nodes += [node for node in tail.nodes if node not in end.nodes]  # to be erased
        for found, added in zip(loop.growing(), self.added(), strict=True):
            loop.check_look_ups(found, added)
            if added and (found.elements_read > found.carried or found.assumed_constant_length):
                raise LoopNotMergeable(
                    "the code after the loop reads a list that the loop appends to"
                )
        self.outputs = list(self._outputs(loop, given))
        # A constant tensor becomes an operand.
        end.nodes = [node for node in end.nodes if not operators.is_constant_tensor(node)]
        body = [node for node in body if not operators.is_constant_tensor(node)]
        symbols = loop.symbols()
        inside = {*body, *symbols}

        def node_of(value: Any) -> Any:
            return operators.value_node(value, rec.graph.value)

        results = [node_of(leaf.result) for leaf in loop.carried.values()]
        elements = [node_of(item) for found in loop.lists for item in found.added]
        tests = [exit.test for exit in self.found[:-1]]
        outside: dict[fx.Node, None] = {}
        for exit in self.found:
            exit.end.nodes = [n for n in exit.end.nodes if not operators.is_constant_tensor(n)]
            exit.results = [node_of(at(output, exit, self.found)) for output in self.outputs]
            own = set(exit.end.nodes)
            used = _used(exit.end.nodes, exit.results)
            exit.needs = list(dict.fromkeys(n for n in used if n in inside))
            outside |= {n: None for n in used if n not in inside and n not in own}
        outside |= {n: None for n in _used(body, [*results, *elements, *tests]) if n not in inside}
        twins = [self._twin(run, i) for i in range(len(self.outputs))]
        parts = [*tests, *results]
        spec = []
        place = {id(value): i for i, value in enumerate(self.lists)}
        slots = [place[id(given[found.slot])] for found in loop.lists]
        self._have_ends = [
            bool(found.begin) or all(exit.added[i] for exit in self.found)
            for found, i in zip(loop.lists, slots, strict=True)
        ]
        for exit in self.found:
            spec.append((exit.way, tuple(exit.added[i] for i in slots), len(parts)))
            parts += exit.needs
        graphs = [operators.subgraph([*symbols, *outside], body, [*parts, *elements])]
        for exit in self.found:
            inputs = [*exit.needs, *outside]
            graphs.append(operators.subgraph(inputs, exit.end.nodes, exit.results))
        before = (
            tuple(map(node_of, loop.bounds)),
            tuple(spec),
            tuple(node_of(leaf.first) for leaf in loop.carried.values()),
            tuple((tuple(map(node_of, found.begin)), len(found.added)) for found in loop.lists),
        )
        numbers = [is_number(output.values[0]) for output in self.outputs]
        numbers += [True] * len(loop.lists) + [False] * len(loop.lists)
        nodes = operators.add_control(
            for_loop_with_exits, before, graphs, (tuple(outside),), numbers
        )
        for node, twin in zip(nodes, twins, strict=False):
            if twin is not None:
                node.meta[TWIN] = twin
        for node in nodes[len(nodes) - len(loop.lists) :]:
            node.meta[LIST] = True
        self._element_twins = [
            n.meta.get(TWIN) if is_instance(n, fx.Node) else None for n in elements
        ]
        return nodes

    def _outputs(self, loop: Loop, given: Sequence[Any]) -> Iterator[Output]:
        """What differs from what was there before the loop, where the ways out meet.

        Raises:
            Split: it is something else than tensors and numbers, or differs in more than these may.
        """
        ends = [exit.end for exit in self.found]
        seen: set[tuple[int, ...]] = set()
        places = [Place(False, i) for i in range(len(ends[0].stack))]
        if self.until != RETURN:
            live = live_locals(self.head.code, self.until)
            places = [*(Place(True, slot) for slot in sorted(live)), *places]
        for place in places:
            values = [(end.locals if place.local else end.stack)[place.slot] for end in ends]
            before: Any = _NOTHING
            if place.local:
                before = loop.values[place.slot]
            elif self.until != RETURN:
                before = self.head.stack[place.slot]
            yield from self._differing(loop, place, before, values, given, seen)

    def _differing(
        self,
        loop: Loop,
        place: Place,
        before: Any,
        values: Sequence[Any],
        given: Sequence[Any],
        seen: set[tuple[int, ...]],
    ) -> Iterator[Output]:
        rec, first = loop.run.recording, values[0]
        is_one = all(value is first for value in values)
        if all(unchanged(before, value) for value in values):
            return
        if all(is_instance(value, torch.Tensor) for value in values):
            key = tuple(map(id, values))
            if key in seen or (is_one and not is_instance(first, FakeTensor)):
                return
            seen.add(key)
            for value in values:
                check_like(value, first)
            pairs = zip(values, self.found, strict=True)
            were_there = [self._was_there(loop, value, exit.end) for value, exit in pairs]
            if any(were_there):
                sources = [t for leaf in loop.carried.values() if _is_tensor(t := leaf.first)]
                sources += [value for value in values if not is_instance(value, FakeTensor)]
                yield Output(place, tuple(values), sources)
            else:
                yield Output(place, tuple(values))
        elif is_number(first) and all(type(value) is type(first) for value in values):
            if not all(is_plain(value) and same(value, first, rec) for value in values):
                yield Output(place, tuple(values))
        elif all(type(v) is tuple and len(v) == len(first) for v in values):
            parts = before if type(before) is tuple and len(before) == len(first) else None
            for i in range(len(first)):
                inner = replace(place, path=(*place.path, i))
                was = _NOTHING if parts is None else parts[i]
                yield from self._differing(loop, inner, was, [v[i] for v in values], given, seen)
        elif any(first is value for value in self.lists) and is_one:
            changed = (leaf.slot for leaf in loop.carried.values() if not leaf.is_last)
            if any(given[slot] is first for slot in changed):
                raise LoopNotMergeable("a loop with an early exit changes elements of a list")
        elif all(is_plain(value) and same(value, first, rec) for value in values):
            return
        elif not (is_one and (is_identity(first) or rec.variables.node(first) is not None)):
            raise LoopNotMergeable(
                f"the exits of a loop leave {', '.join(map(say, values))} in one variable"
            )

    def _was_there(self, loop: Loop, value: torch.Tensor, end: End) -> bool:
        """Whether neither the round nor a way out of it has made a tensor."""
        return loop.was_there(value, loop.end) and loop.was_there(value, end)

    def _twin(self, run: MonitorRun, i: int) -> torch.Tensor | None:
        """That of a result.

        Raises:
            Split: its sizes are not the same on all ways out, whatever they are.
        """
        from magpy_like.control_flow.for_loop import check_twins

        if run.recording.sizes.twin is None or is_number(self.outputs[i].values[0]):
            return None
        nodes = [exit.results[i] for exit in self.found]
        twins = [n.meta.get(TWIN) if is_instance(n, fx.Node) else None for n in nodes]
        if not all(is_instance(twin, torch.Tensor) for twin in twins):
            raise LoopNotMergeable("the sizes of a tensor that an iteration creates are unknown")
        first: torch.Tensor = twins[0]
        for twin in twins[1:]:
            check_twins(run, first, twin)
        return first

    # --- where the ways out meet -----------------------------------------------------------------

    def receive(self, loop: Loop, nodes: Sequence[fx.Node], frame: FrameType) -> None:
        """The program, in ``frame``, is out of the loop.

        Raises:
            Split: it is not as the round beside it has recorded.
        """
        run, count = loop.run, len(self.outputs)
        loop.explorer.receive(run, frame, list(zip(self.outputs, nodes[:count], strict=True)))
        slots, at = frame_locals(frame), 0
        lengths = nodes[count : count + len(loop.lists)]
        gathered = nodes[count + len(loop.lists) :]
        for found, length, node, is_never_empty in zip(
            loop.lists, lengths, gathered, self._have_ends, strict=True
        ):
            value = slots[found.slot]
            if type(value) is not list:
                raise LoopNotMergeable("a list that a loop appends to has been replaced")
            number = run.lift(len(value), GraphNumber(length))

            def specialize_length(number: int = number) -> None:
                run.lifted.specialize((number,))

            alike = len(found.added) == 1 and not found.begin
            twin = self._element_twins[at] if alike else None
            at += len(found.added)
            known = GraphList(
                value, node, number, twin, specialize_length, has_data_dependent_length=True
            )
            known.substitute, known.is_never_empty = loop.explorer.stand_in, is_never_empty
            gather(run.recording, known, found)


_NOTHING = object()


def at(output: Output, exit: Exit, exits: Sequence[Exit]) -> Any:
    """What an output is on one of the ways out."""
    return output.values[next(i for i, known in enumerate(exits) if known is exit)]


def _is_tensor(value: Any) -> bool:
    return is_instance(value, torch.Tensor)


def _used(nodes: Sequence[fx.Node], results: Sequence[Any]) -> list[fx.Node]:
    used = [n for node in nodes for n in node.all_input_nodes]
    return used + [n for n in results if is_instance(n, fx.Node)]
