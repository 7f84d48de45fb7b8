"""Outputs of a loop with several exits: the values that differ at their join point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.post_dominators import RETURN
from magpy_like.control_flow.loops.iteration_values import preexists
from magpy_like.control_flow.paths.frame_locations import FrameLocation, OperatorOutput
from magpy_like.control_flow.paths.value_comparison import (
    check_like,
    describe,
    is_same_constant,
    is_unchanged,
)
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import LoopNotMergeable
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor

if TYPE_CHECKING:
    from magpy_like.control_flow.loops.loop_exits import LoopExits
    from magpy_like.control_flow.loops.loop_iteration import Iteration

_NO_VALUE = object()


def find_outputs(exits: LoopExits, iteration: Iteration) -> list[OperatorOutput]:
    """The tensors and numbers at the join point that differ between exits or from before the loop.

    Raises:
        Split: something else differs.
    """
    return list(_Differences(exits, iteration).find())


@dataclass
class _Differences:
    exits: LoopExits
    iteration: Iteration
    _seen: set[tuple[int, ...]] = field(default_factory=set)
    """The ids of the tensors of outputs so far, one for each exit."""

    def find(self) -> Iterator[OperatorOutput]:
        ends, until, head = [e.end for e in self.exits.exits], self.exits.until, self.exits.head
        locations = [FrameLocation(False, i) for i in range(len(ends[0].stack))]
        if until != RETURN:
            live = live_locals(head.code, until)
            locations = [*(FrameLocation(True, slot) for slot in sorted(live)), *locations]
        for location in locations:
            slot = location.slot
            values = [(end.locals if location.is_local else end.stack)[slot] for end in ends]
            before: Any = _NO_VALUE
            if location.is_local:
                before = self.iteration.plan.values[slot]
            elif until != RETURN:
                before = head.stack[slot]
            yield from self._compare(location, before, values)

    def _compare(
        self, location: FrameLocation, before: Any, values: Sequence[Any]
    ) -> Iterator[OperatorOutput]:
        """The outputs at a location.

        Args:
            before: the value before the loop.
            values: the value of each exit.
        """
        rec, first = self.iteration.plan.context.recording, values[0]
        is_one = all(value is first for value in values)
        if all(is_unchanged(before, value, rec) for value in values):
            return
        if all(is_instance(value, torch.Tensor) for value in values):
            yield from self._compare_tensors(location, values, is_one)
        elif is_number(first) and all(type(value) is type(first) for value in values):
            if not all(is_plain(v) and is_same_constant(v, first, rec) for v in values):
                yield OperatorOutput(location, tuple(values))
        elif all(type(v) is tuple and len(v) == len(first) for v in values):
            parts = before if type(before) is tuple and len(before) == len(first) else None
            for i in range(len(first)):
                inner = replace(location, path=(*location.path, i))
                was = _NO_VALUE if parts is None else parts[i]
                yield from self._compare(inner, was, [v[i] for v in values])
        elif any(first is value for value in self.exits.lists) and is_one:
            changed = self.iteration.plan.carried.values()
            slots = (leaf.slot for leaf in changed if not leaf.is_list_tail)
            if any(self.iteration.slots[slot] is first for slot in slots):
                raise LoopNotMergeable("a loop with an early exit changes elements of a list")
        elif all(is_plain(value) and is_same_constant(value, first, rec) for value in values):
            return
        elif not (is_one and (is_identity(first) or rec.variables.node(first) is not None)):
            raise LoopNotMergeable(
                f"the exits of a loop leave {', '.join(map(describe, values))} in one variable"
            )

    def _compare_tensors(
        self, location: FrameLocation, values: Sequence[torch.Tensor], is_one: bool
    ) -> Iterator[OperatorOutput]:
        first, key = values[0], tuple(map(id, values))
        if key in self._seen or (is_one and not is_instance(first, FakeTensor)):
            return
        self._seen.add(key)
        for value in values:
            check_like(value, first)
        pairs = zip(values, self.exits.exits, strict=True)
        preexist = [self._preexists(value, exit.end) for value, exit in pairs]  # check all
        if any(preexist):
            initial = [leaf.initial for leaf in self.iteration.plan.carried.values()]
            sources = [value for value in initial if is_instance(value, torch.Tensor)]
            sources += [value for value in values if not is_instance(value, FakeTensor)]
            yield OperatorOutput(location, tuple(values), sources)
        else:
            yield OperatorOutput(location, tuple(values))

    def _preexists(self, value: torch.Tensor, end: Any) -> bool:
        """True if neither the iteration nor the path of an exit has created a tensor."""
        iteration = self.iteration
        return preexists(iteration, value, iteration.end) and preexists(iteration, value, end)
