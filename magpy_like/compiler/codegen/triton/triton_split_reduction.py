"""Split reductions in Triton: a row shared by several programs.

Every launch is a stage. The programs of a *walk* each go along a part of the row and reduce it into
a workspace. The programs of a *combination* each combine the parts of a few rows, in a fixed order,
store the results and compute the values per row that follow from them; a later walk loads the
results and computes such values again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.ops import Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.triton.triton_kernel import TritonKernel

#: Parts that one program of a combination keeps in registers.
MAX_COMBINED = 1024


class SplitReduction:
    """The stages of one kernel whose rows are shared by several programs."""

    def __init__(self, printer: TritonKernel) -> None:
        self._printer = printer
        #: (dtype, reduction) of each workspace pointer: one per part of a reduction's state.
        self._pointers: list[tuple[torch.dtype, Value]] = []

    def workspace(self) -> tuple[tuple[torch.dtype, str], ...]:
        """(dtype, number of elements as Python source) of each workspace pointer.

        A workspace holds the parts of all rows, then the results of all rows.
        """
        from magpy_like.compiler.codegen.launcher import print_size

        count = f"{print_size(self._rows())} * {self._printer.tiling.split + 1}"
        return tuple((dtype, count) for dtype, _ in self._pointers)

    def print_stages(self) -> list[tuple[str, str]]:
        """Print a function per stage.

        Returns (function, grid) of each launch, in order.
        """
        printer, phases = self._printer, self._printer.kernel.phases
        self._collect_pointers()
        stages: list[tuple[str, str]] = []
        walks = [k for k, phase in enumerate(phases) if phase.inner]
        stored = 0  # phases whose values per row have been stored
        for k, following in zip(walks, [*walks[1:], len(phases)], strict=True):
            name = f"{printer.kernel.name}_{len(stages)}"
            self._print_walk(name, k)
            stages.append((name, f"{printer.grid()} * {printer.tiling.split}"))
            if any(map(_has_values_per_row, phases[stored:following])):
                name = f"{printer.kernel.name}_{len(stages)}"
                with self._few_rows():
                    self._print_combination(name, k, stored, following)
                    stages.append((name, printer.grid()))
                stored = following
        return stages

    def _rows(self) -> Expr:
        kernel = self._printer.kernel
        return kernel.size(kernel.xs)

    def _collect_pointers(self) -> None:
        for phase in self._printer.kernel.phases:
            for node in phase.inner:
                for v in node.body.of("reduction"):
                    wide = ACCUMULATED.get(v.args[1][0].dtype, v.args[1][0].dtype)
                    for k in range(len(neutral_elements(v.args[0], wide))):
                        indexed = k and v.args[0] != "welford"
                        self._pointers.append((torch.int64 if indexed else wide, v))

    def _pointers_of(self, v: Value) -> list[str]:
        """The workspace pointers of a reduction."""
        return [f"part{k}" for k, (_, owner) in enumerate(self._pointers) if owner is v]

    # --- stages --------------------------------------------------------------------------------

    def _print_walk(self, name: str, number: int) -> None:
        """Print the function that reduces a part of the row for phase ``number``."""
        printer, line = self._printer, self._printer.lines.line
        axis, split = printer.tiling.reduced, printer.tiling.split
        assert axis is not None
        printer.open_function(name)
        printer.print_positions(f"tl.program_id(0) // {split}")
        line(f"part = tl.program_id(0).to(INDEX) % {split}")
        outer = TritonEmitter(printer, "outer")
        self._print_known_values(printer.kernel.phases[:number], outer)
        length = index_arithmetic.Div(axis.size + split * axis.block - 1, split * axis.block)
        step = print_index(length * axis.block)
        line(f"first = part * {step}")
        line(f"last = tl.minimum(first + {step}, {print_index(axis.size)})")
        phase = printer.kernel.phases[number]
        accumulators = printer.print_row_walk(phase, outer, axis, "first", "last")
        for v, names in accumulators.items():
            state = printer.combine_row(v, names)
            for pointer, value in zip(self._pointers_of(v), state, strict=True):
                self._store(f"{pointer} + (xat * {split} + part)", value)
        printer.close_function()
        printer.forwarded.clear()

    def _print_combination(self, name: str, number: int, stored: int, following: int) -> None:
        """Print the function that combines the parts of phase ``number`` and computes the values
        per row up to phase ``following``. Those of the first ``stored`` phases are in memory."""
        printer, phases = self._printer, self._printer.kernel.phases
        printer.open_function(name)
        printer.print_positions("tl.program_id(0)")
        outer = TritonEmitter(printer, "outer")
        self._print_known_values(phases[:stored], outer)
        self._print_values(phases[stored:following], outer, self._combine)
        printer.close_function()
        printer.forwarded.clear()

    def _print_known_values(self, phases: Sequence[Phase], outer: TritonEmitter) -> None:
        """Print the values per row of earlier phases, without their stores."""
        self._printer.stores_disabled = True
        self._print_values(phases, outer, self._load_results)
        self._printer.stores_disabled = False

    def _print_values(
        self,
        phases: Sequence[Phase],
        outer: TritonEmitter,
        state_of: Callable[[Value], Sequence[Name]],
    ) -> None:
        """Print the values per row of phases; ``state_of``: prints the state of a reduction."""
        for phase in phases:
            for node in phase.inner:
                _, reductions, after = split_levels(node.body)
                for v in reductions:
                    outer.names[v] = self._printer.reduction_result(v, state_of(v))
                outer.run(node.body, after)
            for node in phase.outer:
                outer.run(node.body, node.body.values)

    def _combine(self, v: Value) -> list[Name]:
        """Print the combination of a reduction's parts, and the store of the state."""
        state = self._printer.combine_row(v, self._load_parts(v))
        for pointer, value in zip(self._pointers_of(v), state, strict=True):
            self._store(self._result_address(pointer), value)
        return state

    @contextmanager
    def _few_rows(self) -> Iterator[None]:
        """Tile rows for a combination: all parts of a row at once, so fewer rows."""
        printer, tiling = self._printer, self._printer.tiling
        (outer,) = tiling.outer
        block = min(outer.block, max(MAX_COMBINED // tiling.split, 1))
        printer.tiling = dataclasses.replace(
            tiling, outer=(dataclasses.replace(outer, block=block),)
        )
        try:
            yield
        finally:
            printer.tiling = tiling

    # --- workspaces ----------------------------------------------------------------------------

    def _store(self, address: str, value: Name) -> None:
        guard = self._printer.mask("x", None)
        self._printer.lines.line(f"tl.store({address}, {value}{guard and f', {guard}'})")

    def _result_address(self, pointer: str) -> str:
        rows = print_index(self._rows())
        return f"{pointer} + (({rows}) * {self._printer.tiling.split} + xat)"

    def _load_parts(self, v: Value) -> list[Name]:
        """Print the loads of a reduction's parts, as a block along the last axis."""
        split = self._printer.tiling.split
        offset = f"xat * {split} + tl.arange(0, {split})[None, :]"
        return self._load(v, [f"{pointer} + ({offset})" for pointer in self._pointers_of(v)])

    def _load_results(self, v: Value) -> list[Name]:
        """Print the loads of a reduction's combined state."""
        return self._load(v, [*map(self._result_address, self._pointers_of(v))])

    def _load(self, v: Value, addresses: Sequence[str]) -> list[Name]:
        printer = self._printer
        axes = printer.level_axes("outer")
        wide = ACCUMULATED.get(v.args[1][0].dtype, v.args[1][0].dtype)
        guard = printer.mask("x", None)
        loaded = []
        for address, start in zip(addresses, neutral_elements(v.args[0], wide), strict=True):
            masked = f", {guard}, other={start}" if guard else ""
            loaded.append(printer.define(f"tl.load({address}{masked})", axes))
        return loaded


def _has_values_per_row(phase: Phase) -> bool:
    """True if a phase computes values per row: results of reductions, and what follows."""
    return bool(phase.outer) or any(
        node.body.of("reduction") or split_levels(node.body)[2] for node in phase.inner
    )
