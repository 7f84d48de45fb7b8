"""Publication of an operator's results in the frame that has reached its join point."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import fx

from magpy_like.control_flow.paths.frame_locations import OperatorOutput
from magpy_like.control_flow.paths.substitute_tensors import SubstituteTensors
from magpy_like.control_flow.paths.value_comparison import check_like
from magpy_like.monitor.context import Context
from magpy_like.monitor.symbolic.expressions import Expression, GraphNumber, is_number
from magpy_like.native import frame_locals, frame_set_local, frame_set_operand, frame_stack
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import MonitorWeakRef, storage_of
from magpy_like.split_points import BranchNotMergeable

Result: TypeAlias = fx.Node | Expression
"""The value of an output: a node of the graph, or the expression of a number."""


class OperatorResults:
    """The results of the operators of one monitor run."""

    def __init__(self, substitutes: SubstituteTensors) -> None:
        self._substitutes = substitutes
        self._may_be: dict[int, tuple[MonitorWeakRef, list[MonitorWeakRef]]] = {}
        """By id, results with the tensors created before the operator that each may be."""

    def publish(
        self, context: Context, frame: FrameType, outputs: Sequence[tuple[OperatorOutput, Result]]
    ) -> None:
        """Make the tensors and numbers in ``frame`` known as an operator's results.

        Raises:
            Split: the program has another kind of value than the isolated paths have left.
        """
        slots, stack = frame_locals(frame), frame_stack(frame)
        changed: dict[tuple[bool, int], Any] = {}
        for output, result in outputs:
            location = output.location
            key = (location.is_local, location.slot)
            value = changed.get(key, (slots if location.is_local else stack)[location.slot])
            changed[key] = self._published(context, value, location.path, output, result)
        for (is_local, slot), value in changed.items():
            if value is (slots if is_local else stack)[slot]:
                continue
            if is_local:
                frame_set_local(frame, slot, value)
            else:
                frame_set_operand(frame, len(stack) - slot, value)

    def _published(
        self,
        context: Context,
        value: Any,
        path: tuple[int, ...],
        output: OperatorOutput,
        result: Result,
    ) -> Any:
        """``value``, with the tensor or number at ``path`` in it known as a result."""
        rec = context.recording
        if path:
            item = self._published(context, value[path[0]], path[1:], output, result)
            if item is value[path[0]]:
                return value
            return (*value[: path[0]], item, *value[path[0] + 1 :])
        if is_number(output.values[0]):
            if type(value) is not type(output.values[0]):
                raise BranchNotMergeable(
                    "a branch leaves a number of another type than its branch run"
                )
            return context.lift(
                value, GraphNumber(result) if is_instance(result, fx.Node) else result
            )
        assert is_instance(result, fx.Node)
        check_like(value, output.values[0])
        replaced = {storage_of(tensor) for tensor in rec.writes.with_replaced_data()}
        if not replaced.isdisjoint(map(storage_of, output.sources)):
            raise BranchNotMergeable("a branch may return a tensor whose data the program has set")
        if rec.operators.nodes.node_of(value) is not None or rec.variables.node(value) is not None:
            value = self._substitutes.make(value)
        rec.operators.nodes.set_node(value, result)
        if output.sources:
            self._may_be[id(value)] = MonitorWeakRef(value), [*map(MonitorWeakRef, output.sources)]
            rec.inspections.note_possible_aliases((value, *output.sources))
        return value

    def sources(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors created before an operator, any of which its result ``tensor`` may be."""
        known, references = self._may_be.get(id(tensor), (lambda: None, []))
        found = [source() for source in references if known() is tensor]
        return [source for source in found if source is not None]

    def clear(self) -> None:
        self._may_be.clear()
