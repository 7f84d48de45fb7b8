"""Split reductions in Triton: a row shared by several programs.

Each phase is a launch of its own, whose programs each reduce a part of the row into a workspace.
The next launch begins by combining the parts, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Phase, split_levels
from magpy_like.compiler.codegen.triton.triton_emitter import TritonEmitter
from magpy_like.compiler.codegen.triton.triton_expressions import (
    ACCUMULATED,
    Name,
    neutral_elements,
    print_index,
)
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.ops import Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.triton.triton_kernel import TritonKernel


class SplitReduction:
    """The stages of one kernel whose rows are shared by several programs."""

    def __init__(self, printer: TritonKernel) -> None:
        self._printer = printer
        #: (dtype, reduction) of each workspace pointer: one per part of a reduction's state.
        self._pointers: list[tuple[torch.dtype, Value]] = []

    def workspace(self) -> tuple[tuple[torch.dtype, str], ...]:
        """(dtype, number of elements as Python source) of each workspace pointer."""
        from magpy_like.compiler.codegen.launcher import print_size

        kernel = self._printer.kernel
        count = f"{print_size(kernel.size(kernel.xs))} * {self._printer.tiling.split}"
        return tuple((dtype, count) for dtype, _ in self._pointers)

    def print_stages(self) -> list[tuple[str, str]]:
        """Print a function per phase with reductions, and one for the values after the last.

        Returns (function, grid) of each launch, in order.
        """
        printer, kernel = self._printer, self._printer.kernel
        self._collect_pointers()
        stages: list[tuple[str, str]] = []
        stored = 0  # phases whose results have been stored
        for k, phase in enumerate(kernel.phases):
            if not phase.inner:
                continue
            name = f"{kernel.name}_{len(stages)}"
            self._print_stage(name, phase, k, stored)
            stored = k
            stages.append((name, f"{printer.grid()} * {printer.tiling.split}"))
        if any(p.outer or any(split_levels(n.body)[2] for n in p.inner)
               for p in kernel.phases[stored:]):  # fmt: skip
            name = f"{kernel.name}_{len(stages)}"
            printer.open_function(name)
            printer.print_positions("tl.program_id(0)")
            self._combine_parts(kernel.phases, stored, several=False)
            printer.close_function()
            stages.append((name, printer.grid()))
        return stages

    def _collect_pointers(self) -> None:
        for phase in self._printer.kernel.phases:
            for node in phase.inner:
                for v in node.body.of("reduction"):
                    wide = ACCUMULATED.get(v.args[1][0].dtype, v.args[1][0].dtype)
                    for k in range(len(neutral_elements(v.args[0], wide))):
                        indexed = k and v.args[0] != "welford"
                        self._pointers.append((torch.int64 if indexed else wide, v))

    def _print_stage(self, name: str, phase: Phase, number: int, stored: int) -> None:
        """Print the function that reduces a part of the row for phase ``number``."""
        printer, line = self._printer, self._printer.lines.line
        axis, split = printer.tiling.reduced, printer.tiling.split
        assert axis is not None
        printer.open_function(name)
        printer.print_positions(f"tl.program_id(0) // {split}")
        line(f"part = tl.program_id(0).to(INDEX) % {split}")
        outer = self._combine_parts(printer.kernel.phases[:number], stored, several=True)
        length = index_arithmetic.Div(axis.size + split * axis.block - 1, split * axis.block)
        step = print_index(length * axis.block)
        line(f"first = part * {step}")
        line(f"last = tl.minimum(first + {step}, {print_index(axis.size)})")
        accumulators = printer.print_row_walk(phase, outer, axis, "first", "last")
        guard = printer.mask("x", None)
        guard = f", {guard}" if guard else ""
        for v, names in accumulators.items():
            state = printer.combine_row(v, names)
            for pointer, value in zip(self._pointers_of(v), state, strict=True):
                line(f"tl.store({pointer} + (xat * {split} + part), {value}{guard})")
        printer.close_function()
        printer.forwarded.clear()

    def _pointers_of(self, v: Value) -> list[str]:
        """The workspace pointers of a reduction."""
        return [f"part{k}" for k, (_, owner) in enumerate(self._pointers) if owner is v]

    def _combine_parts(
        self, phases: Sequence[Phase], stored: int, *, several: bool
    ) -> TritonEmitter:
        """Print the results of earlier phases from their parts, and store those not yet ``stored``.

        ``several``: several programs share the row, and one of them stores.
        """
        printer = self._printer
        outer = TritonEmitter(printer, "outer")
        for k, phase in enumerate(phases):
            printer.stores_disabled = k < stored
            printer.store_condition = Name("(part == 0)", frozenset()) if several else None
            for node in phase.inner:
                _, reductions, after = split_levels(node.body)
                for v in reductions:
                    state = printer.combine_row(v, self._load_parts(v))
                    outer.names[v] = printer.reduction_result(v, state)
                outer.run(node.body, after)
            for node in phase.outer:
                outer.run(node.body, node.body.values)
        printer.stores_disabled, printer.store_condition = False, None
        return outer

    def _load_parts(self, v: Value) -> list[Name]:
        """Print the loads of a reduction's parts, as a block along the last axis."""
        printer, split = self._printer, self._printer.tiling.split
        axes = printer.level_axes("outer")
        wide = ACCUMULATED.get(v.args[1][0].dtype, v.args[1][0].dtype)
        guard = printer.mask("x", None)
        loaded = []
        starts = neutral_elements(v.args[0], wide)
        for pointer, start in zip(self._pointers_of(v), starts, strict=True):
            address = f"{pointer} + (xat * {split} + tl.arange(0, {split})[None, :])"
            masked = f", {guard}, other={start}" if guard else ""
            loaded.append(printer.define(f"tl.load({address}{masked})", axes))
        return loaded
