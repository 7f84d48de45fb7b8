"""The plan of a ``for_loop`` operator: the values that iterations are known to carry.

An isolated iteration may carry more values than planned; the plan then grows for the next attempt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.post_dominators import join_point
from magpy_like.control_flow.loops import carried_attributes
from magpy_like.control_flow.loops.carried_containers import Path, part, shared
from magpy_like.control_flow.loops.loop_description import IterationSpace, LoopHead
from magpy_like.control_flow.loops.loop_tensor_writes import ExternalWrite, is_unshared
from magpy_like.control_flow.paths.shared_parts import OperatorTools
from magpy_like.monitor.context import Context
from magpy_like.monitor.objects.loop_written_locations import Location, SubstitutedLocations
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable


@dataclass
class CarriedValue:
    """A tensor or number that an iteration leaves in the local ``slot``, or in containers there."""

    slot: int
    path: Path
    initial: Any
    """The value before the loop; NULL for one that no iteration receives."""
    requires_grad: bool = False
    """Whether it requires gradients in any iteration but the first."""
    symbol: Any = None
    """Its node in the body."""
    result: Any = None
    """The value after an iteration."""
    in_place: bool = False
    """Whether iterations write into the tensor itself."""
    may_preexist: bool = False
    """Whether an iteration may leave a tensor that it has not created."""
    is_list_tail: bool = False
    """Whether it is one of the last elements of a list to which iterations append, so that each
    iteration receives another element."""

    @property
    def initial_requires_grad(self) -> bool:
        return requires_grad(self.initial)


@dataclass
class AppendedList:
    """A list to which iterations append: in the local ``slot``, or ``shared`` by other objects."""

    slot: int
    initial: list[Any]
    appended: list[Any]
    """The elements that one iteration appends."""
    may_preexist: bool = False
    """Whether an iteration may append a tensor that it has not created."""
    shared: list[Any] | None = None


class PlanGrew(Exception):
    """An iteration has shown that the plan is incomplete; the plan has been extended."""


class LoopPlan:
    """A loop that the program is about to begin, and the values that its iterations carry.

    Slots number the local variables, then the list of a comprehension, then ``locations``. Lists
    that are not in a local variable alone have the slots -1, -2 and so on.
    """

    def __init__(
        self, tools: OperatorTools, context: Context, head: LoopHead, space: IterationSpace
    ) -> None:
        self.tools, self.context, self.state, self.offsets = (
            tools,
            context,
            head.state,
            head.offsets,
        )
        self.list_operand, self.in_comprehension = head.list_operand, head.in_comprehension
        self.bounds, self.tensors, self.element = space.bounds, space.tensors, space.element
        self.counter, self.may_skip_first = space.counter, space.may_skip_first
        self.carried: dict[tuple[int, Path], CarriedValue] = {}
        self.written: list[CarriedValue] = []
        """Tensors that iterations write into."""
        self.locations: list[Location] = []
        """Locations other than local variables that iterations write to."""
        self.shared: list[list[Any]] = []
        """Lists to which iterations append, and that are not in a local variable alone."""
        self.growing_slots: set[int] = set()
        """Slots of lists that are known to grow, and whose length an iteration reads."""
        self.has_joined_gradients = False
        """Whether the carried values' ``requires_grad`` has been adapted to an iteration."""
        code = self.state.code
        self.join = join_point(code, self.offsets.branch) if self.list_operand is None else None
        """The join point of all exits of the loop; None if the loop has only one exit."""
        self.live_at_head = sorted(live_locals(code, self.offsets.head))
        self.live_in = live_locals(code, self.offsets.body)
        """The slots that an iteration may read before it writes them."""
        self.values = (*self.state.locals, *self.comprehension_list(self.state.stack))
        """The program's values before the loop, by slot."""
        self._find_unshared()
        if self.list_operand is not None:
            slot = len(self.state.locals)
            self.own_lists.add(slot)
            self.live_in |= {slot}
            self.live_at_head.append(slot)
        if self.counter is not None:
            begins = self.state.stack[self.counter.at - 2]
            counts = [slot for slot in self.live_in if self.values[slot] is begins]
            self.counter.slot = counts[0] if len(counts) == 1 else None

    def _find_unshared(self) -> None:
        """Find the lists, containers and tensors that nothing but a local variable refers to.

        Reference counts decide, so this must run before anything else refers to the values.
        """
        rec, slots = self.context.recording, self.values
        # References from the frame, the state, these values, and as an argument: no others.
        self.own_lists = {
            slot
            for slot in self.live_in
            if type(slots[slot]) is list
            and id(slots[slot]) not in rec.operators.lists
            and sys.getrefcount(slots[slot]) <= 4
            and rec.variables.node(slots[slot]) is None
        }
        self.shared_containers: set[int] = set()
        """Ids of containers that must not be replaced by copies."""
        for slot in self.live_in:
            # References from the frame, the state, and these values.
            self.shared_containers |= shared(slots[slot], rec, 3)
        self._writable = [i for i in self.live_in if is_unshared(rec, slots, i)]

    def comprehension_list(self, stack: Sequence[Any]) -> tuple[Any, ...]:
        return () if self.list_operand is None else (stack[self.list_operand],)

    @property
    def trip_count(self) -> int:
        """The number of iterations in this call."""
        return len(range(*self.bounds))

    @property
    def first_location(self) -> int:
        """The slot of the first of ``locations``."""
        return len(self.values) - len(self.locations)

    def location_of(self, slot: int) -> Location | None:
        """The one of ``locations`` that has a slot; None for a local variable."""
        position = slot - self.first_location
        return self.locations[position] if position >= 0 else None

    @property
    def shared_slots(self) -> range:
        """The slots of ``shared``."""
        return range(-1, -1 - len(self.shared), -1)

    def tail_length(self, slot: int) -> int:
        """Number of a list's last elements that are carried."""
        return sum(leaf.is_list_tail and leaf.slot == slot for leaf in self.carried.values())

    @property
    def inputs(self) -> list[CarriedValue]:
        """The values that an iteration receives."""
        return [*self.carried.values(), *self.written]

    def requires_grad_differs(self) -> bool:
        """True if the first iteration differs from others in requires_grad of carried values."""
        return any(
            leaf.requires_grad != leaf.initial_requires_grad for leaf in self.carried.values()
        )

    # --- extension -------------------------------------------------------------------------------

    def carry(self, slot: int, path: Path, result: Any) -> None:
        """Note that an iteration has left ``result`` at a path in a slot."""
        if any(leaf.slot == slot for leaf in self.written):
            raise LoopNotMergeable("iterations write to a tensor and replace it by another one")
        leaf = self.carried.get((slot, path))
        if leaf is None:
            first = self.values[slot]
            if any(id(part(first, path[:i])) in self.shared_containers for i in range(len(path))):
                raise LoopNotMergeable(
                    f"iterations change a {type(first).__qualname__}, which may be aliased"
                )
            first = part(first, path)
            self.carried[slot, path] = CarriedValue(slot, path, first, requires_grad(first))
        else:
            leaf.result = result

    def write_in_place(self, refused: ExternalWrite) -> None:
        """Plan writes into a tensor from before the loop, after an iteration was refused one.

        Raises:
            ExternalWrite: iterations must not write into this tensor.
        """
        planned = [leaf.slot for leaf in self.written]
        for slot in self._writable:
            first = self.values[slot]
            if slot not in planned and self.tools.placeholders.share_memory(first, refused.tensor):
                self.written.append(CarriedValue(slot, (), first, in_place=True))
                return
        raise refused

    def carry_locations(self, substituted: SubstitutedLocations) -> None:
        """Carry the locations and lists that an iteration has written to.

        Raises:
            PlanGrew: some of them are new.
            Split: a value there cannot be carried.
        """
        locations = substituted.locations[len(self.locations) :]
        lists = substituted.lists[len(self.shared) :]
        for location in locations:
            value, slot = carried_attributes.read(self.context, location), len(self.values)
            self.values = (*self.values, value)
            self.locations.append(location)
            self.live_in |= {slot}
            self.live_at_head.append(slot)
        self.shared += lists
        if locations or lists:
            raise PlanGrew


def requires_grad(value: Any) -> bool:
    return is_instance(value, torch.Tensor) and value.requires_grad
