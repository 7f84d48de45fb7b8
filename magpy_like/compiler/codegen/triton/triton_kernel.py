"""The Triton code of one kernel, over blocks of its loops.

Every value is a block with one dimension per axis of the kernel's tiling, of size 1 where the value
does not vary along the axis, so that Triton's broadcasting is the loop nest's. Phases run one after
the other inside a program. A *persistent* kernel holds whole rows: values that one phase loads or
computes are available to the next. A *looped* one walks along the row once per phase, and
recomputes values per element of earlier phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import (
    Kernel,
    Lines,
    Phase,
    is_integral,
    split_levels,
)
from magpy_like.compiler.codegen.common.recomputation import producers
from magpy_like.compiler.codegen.triton.triton_emitter import TritonEmitter
from magpy_like.compiler.codegen.triton.triton_expressions import (
    ACCUMULATED,
    TYPE,
    Name,
    as_operand,
    neutral_elements,
    print_index,
)
from magpy_like.compiler.codegen.triton.triton_scans import Scans
from magpy_like.compiler.codegen.triton.triton_split_reduction import SplitReduction
from magpy_like.compiler.codegen.triton.triton_tiling import (
    Axis,
    Hint,
    magnitude,
    tile,
)
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Buffer
from magpy_like.compiler.ir.ops import Value
from magpy_like.compiler.runtime.triton_launch import TritonSource

MAX_INT32_OFFSET = 2**31 - 2**21  # offsets below this, plus a block, fit 32 bits

#: Reduction -> the prelude's function that combines two elements.
COMBINE = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "fmax": "fmax",
    "any": "either", "argmax": "greater_first", "argmin": "less_first", "welford": "welford",
}  # fmt: skip


class TritonKernel:
    """Prints one kernel; ``hint`` evaluates sizes, ``buffers`` has the layout of each argument."""

    def __init__(self, kernel: Kernel, hint: Hint, buffers: Mapping[str, Buffer]) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.tiling = tile(kernel, hint)
        self.rank = len(self.tiling.axes)
        self.lines = Lines()
        self.forwarded: dict[str, Name] = {}  # buffer -> its current value
        self.axes_of: dict[str, frozenset[str]] = {}  # axes that a name or loop varies along
        for axis in self.tiling.axes:
            for v in axis.loops:
                self.axes_of[v.name] = frozenset(axis.name)
        self.producers_of = producers(kernel)
        self.stores_disabled = False  # an earlier stage has stored everything
        self.before_walk: Lines | None = None  # the lines before the loop being printed
        self._written = {b for node in kernel.nodes() for b in node.writes}
        self.scans = Scans(self)
        self.split = SplitReduction(self)
        self._count = 0

    def fresh(self, prefix: str) -> str:
        """A new Triton name with a prefix."""
        self._count += 1
        return f"{prefix}{self._count}"

    # --- blocks --------------------------------------------------------------------------------

    def shape(self, axes: Iterable[str]) -> str:
        """The block shape of a value that varies along ``axes``."""
        return str([a.block if a.name in axes else 1 for a in self.tiling.axes])

    def level_axes(self, level: str) -> frozenset[str]:
        """The axes that values of a level ("inner" or "outer") vary along."""
        axes = self.tiling.axes if level == "inner" else self.tiling.outer
        return frozenset(a.name for a in axes)

    def varies(self, e: Expr) -> frozenset[str]:
        """The axes that an index expression varies along."""
        found: frozenset[str] = frozenset()
        for s in e.free_symbols:
            found |= self.axes_of.get(s.name, frozenset())
        return found

    def mask(self, axes: Iterable[str], mask: Any) -> str:
        """The condition that an element exists and ``mask`` holds; empty if it is always true."""
        parts = [
            f"{a.name}mask" for a in self.tiling.axes if a.name in axes and not a.is_exact
        ]  # fmt: skip
        if isinstance(mask, Name):
            parts.append(mask.typed(self.rank))
        return " & ".join(parts)

    def address(
        self, buffer: str, index: Expr, axes: frozenset[str], wanted: frozenset[str]
    ) -> str:
        """A block of pointers of the shape of a value that varies along ``wanted``."""
        offset = print_index(index)
        if wanted - axes or not axes:  # a block, even of one element
            offset = f"{offset} + tl.full({self.shape(wanted)}, 0, tl.int32)"
        return f"{buffer} + ({offset})"

    # --- printing ------------------------------------------------------------------------------

    def print(self) -> TritonSource:
        """The kernel's source and its launch parameters."""
        kernel = self.kernel
        names = [*kernel.inputs, *kernel.outputs]
        if self.tiling.split > 1:
            stages = self.split.print_stages()
        else:
            self.open_function(kernel.name)
            self.print_positions("tl.program_id(0)")
            if self.tiling.reduced is None:
                emitter = TritonEmitter(self, "outer")
                for phase in kernel.phases:
                    for node in phase.outer:
                        emitter.run(node.body, node.body.values)
            else:
                self._print_reduction(self.tiling.reduced)
            self.close_function()
            stages = [(kernel.name, self.grid())]
        return TritonSource(
            stages=tuple(stages),
            text=self.lines.text(),
            pointers=tuple(kernel.dtypes[b] for b in names),
            workspace=self.split.workspace(),
            sizes=tuple(s.name for s in kernel.size_symbols),
            numbers=tuple("i64" if is_integral(e) else "fp64" for e in kernel.numbers),
            wide=self.needs_int64(),
            num_warps=self.tiling.num_warps,
            asserts=bool(kernel.messages),
        )

    def open_function(self, name: str) -> None:
        """Open a Triton function with the kernel's arguments."""
        kernel = self.kernel
        names = [*kernel.inputs, *kernel.outputs]
        names += [f"part{k}" for k in range(len(self.split.workspace()))]
        names += [s.name for s in kernel.size_symbols]
        names += [kernel.number(e) for e in kernel.numbers]
        self.lines.line("@triton.jit")
        self.lines.line(f"def {name}({', '.join(names)}):")
        self.lines.indent()

    def close_function(self) -> None:
        """Close the function."""
        self.lines.line("return")
        self.lines.indent(-1)
        self.lines.line()

    # --- positions -----------------------------------------------------------------------------

    def print_positions(self, program: str) -> None:
        """Print the program's positions on the outer axes, and the loop variables there."""
        line, outer = self.lines.line, self.tiling.outer
        line(f"program = ({program}).to(INDEX)")
        rest = "program"
        for k, axis in enumerate(reversed(outer)):
            if k == len(outer) - 1:
                start = rest
            else:
                blocks = print_index(index_arithmetic.Div(axis.size + axis.block - 1, axis.block))
                start = f"{rest} % {blocks}"
                following = self.fresh("program")
                line(f"{following} = {rest} // {blocks}")
                rest = following
            self._axis_positions(axis, f"({start}) * {axis.block}")

    def _axis_positions(self, axis: Axis, start: str) -> None:
        """Print the block's positions along one axis, its mask and its loop variables."""
        line, name = self.lines.line, f"{axis.name}at"
        where = ", ".join(":" if a is axis else "None" for a in self.tiling.axes)
        span = f"tl.arange(0, {axis.block})" + (f"[{where}]" if self.rank > 1 else "")
        line(f"{name} = {start} + {span}")
        if not axis.is_exact:
            line(f"{axis.name}mask = {name} < {print_index(axis.size)}")
        at = sympy.Symbol(name, integer=True, nonnegative=True)
        sizes = [self.kernel.ranges[v] for v in axis.loops]
        for v, e in zip(axis.loops, index_arithmetic.unflatten(at, sizes), strict=True):
            line(f"{v.name} = {print_index(e)}")

    def _print_reduction(self, axis: Axis) -> None:
        outer = TritonEmitter(self, "outer")
        inner = TritonEmitter(self, "inner")
        if self.tiling.persistent:
            self._axis_positions(axis, "0")
        stored: set[str] = set()  # buffers stored per element by phases so far
        for phase in self.kernel.phases:
            if phase.inner and self.tiling.persistent:
                self._print_persistent_phase(phase, inner, outer, axis)
            elif phase.inner:
                if stored & {b for n in phase.inner for b in n.reads}:
                    # Another thread may have stored the element.
                    self.lines.line("tl.debug_barrier()")
                self._print_looped_phase(phase, outer, axis)
            for node in phase.outer:
                outer.run(node.body, node.body.values)
            stored |= {b for n in phase.inner for b in n.writes} - self.kernel.removed

    def _print_persistent_phase(
        self, phase: Phase, inner: TritonEmitter, outer: TritonEmitter, axis: Axis
    ) -> None:
        """Print a phase of a persistent kernel."""
        for node in phase.inner:
            values, reductions, after = split_levels(node.body)
            inner.run(node.body, values)
            for v in reductions:
                outer.names[v] = self.reduction_result(
                    v, self.combine_row(v, self._elements(v, inner, axis))
                )
            outer.run(node.body, after)

    def _elements(self, v: Value, inner: TritonEmitter, axis: Axis) -> list[str]:
        """A reduction's arguments as full blocks, neutral past the end of the row."""
        kind, values = v.args
        parts = [inner.names[a].typed(self.rank) for a in values]
        full = self.shape(a.name for a in self.tiling.axes)
        wide = ACCUMULATED.get(values[0].dtype, values[0].dtype)
        if wide != values[0].dtype:
            parts[0] = f"{parts[0]}.to({TYPE[wide]})"
        parts = [f"tl.broadcast_to({p}, {full})" for p in parts]
        if kind == "welford":
            count = f"tl.full({full}, 1.0, {TYPE[wide]})"
            # x - x is 0, but NaN for an infinity, as in eager.
            parts = [parts[0], f"{parts[0]} - {parts[0]}", count]
        if axis.is_exact:
            return parts
        starts = neutral_elements(kind, wide)
        if kind == "welford":
            return [f"tl.where(rmask, {p}, 0.0)" for p in parts]
        return [f"tl.where(rmask, {p}, {s})" for p, s in zip(parts, starts, strict=True)]

    def combine_row(self, v: Value, parts: Sequence[str]) -> list[Name]:
        """Print the reduction of blocks along the row; returns the reduction's state, per row."""
        return self.reduce_block(as_operand(parts), len(parts), COMBINE[v.args[0]])

    def reduce_block(self, block: str, count: int, combine: str) -> list[Name]:
        """Print the reduction of a block, or of a tuple of ``count`` blocks, along the row."""
        names = [self.fresh_name(self.level_axes("outer")) for _ in range(count)]
        end = f"{self.rank - 1}, prelude.{combine}, keep_dims=True)"
        self.lines.line(f"{', '.join(names)} = tl.reduce({block}, {end}")
        return names

    def reduction_result(self, v: Value, state: Sequence[Name]) -> Any:
        """The result of a reduction's state: a name, or a tuple for kinds with several results."""
        kind, values = v.args
        if kind == "welford":
            return tuple(state)
        if kind in ("argmax", "argmin"):
            return state[1]
        dtype = values[0].dtype
        if dtype not in ACCUMULATED:
            return state[0]
        text = f"{state[0]} != 0" if dtype == torch.bool else f"{state[0]}.to({TYPE[dtype]})"
        return self.define(text, state[0].axes)

    def define(self, text: str, axes: frozenset[str]) -> Name:
        """A new name for an expression that varies along ``axes``."""
        name = self.fresh_name(axes)
        self.lines.line(f"{name} = {text}")
        return name

    def fresh_name(self, axes: frozenset[str]) -> Name:
        """A new name for a value that varies along ``axes``."""
        name = Name(self.fresh("t"), axes)
        self.axes_of[str(name)] = axes
        return name

    def _print_looped_phase(self, phase: Phase, outer: TritonEmitter, axis: Axis) -> None:
        """Print a phase of a looped kernel."""
        accumulators = self.print_row_walk(phase, outer, axis, "0", print_index(axis.size))
        for node in phase.inner:
            _, reductions, after = split_levels(node.body)
            for v in reductions:
                outer.names[v] = self.reduction_result(v, self.combine_row(v, accumulators[v]))
            outer.run(node.body, after)

    def print_row_walk(
        self, phase: Phase, outer: TritonEmitter, axis: Axis, first: str, last: str
    ) -> dict[Value, list[str]]:
        """Print a phase's nodes block by block along the row from ``first`` to ``last``.

        Returns the accumulators of each reduction, as full blocks.
        """
        line = self.lines.line
        accumulators: dict[Value, list[str]] = {}
        full = self.shape(a.name for a in self.tiling.axes)
        for node in phase.inner:
            for v in node.body.of("reduction"):
                kind, values = v.args
                wide = ACCUMULATED.get(values[0].dtype, values[0].dtype)
                accumulators[v] = []
                for k, start in enumerate(neutral_elements(kind, wide)):
                    name = self.fresh("acc")
                    ctype = TYPE[torch.int64 if k and kind != "welford" else wide]
                    line(f"{name} = tl.full({full}, {start}, {ctype})")
                    accumulators[v].append(name)
            for v in node.body.of("scan"):
                self.scans.declare_carry(v)
        averages = any(v.args[0] == "welford" for n in phase.inner for v in n.body.of("reduction"))
        if averages:
            line("steps = 0")
        # The loop is printed apart: loads of its rows come before it.
        before, self.lines = self.lines, Lines()
        self.before_walk = before
        self._axis_positions(axis, "start")
        if averages:
            self.lines.line("steps += 1")
        inner = TritonEmitter(self, "inner")
        for node in phase.inner:
            values, reductions, _ = split_levels(node.body)
            inner.run(node.body, values)
            for v in reductions:
                self._accumulate(v, accumulators[v], inner, axis)
        body, self.lines, self.before_walk = self.lines, before, None
        line(f"for start in range({first}, {last}, {axis.block}):")
        self.lines.indent()
        self.lines.append(body)
        self.lines.indent(-1)
        return accumulators

    def is_of_row(self, buffer: str, index: Expr) -> bool:
        """True if a load reads one element per row, which no program of the kernel writes."""
        known = {*self.kernel.xs, *self.kernel.size_symbols}
        return buffer not in self._written and index.free_symbols <= known

    def _accumulate(self, v: Value, names: Sequence[str], inner: TritonEmitter, axis: Axis) -> None:
        """Print that the accumulators take the elements of one step of the walk."""
        kind, values = v.args
        if kind != "welford":
            parts, function = self._elements(v, inner, axis), COMBINE[kind]
        else:
            # All elements of a block are the same in number: one division for all of them.
            wide = TYPE[ACCUMULATED.get(values[0].dtype, values[0].dtype)]
            exists = "True" if axis.is_exact else "rmask"
            value = f"{inner.names[values[0]].typed(self.rank)}.to({wide})"
            parts = [value, exists, f"1.0 / tl.cast(steps, {wide})"]
            function = "welford_next"
        both = ", ".join([*names, *parts])
        self.lines.line(f"{', '.join(names)} = prelude.{function}({both})")

    # --- launching -----------------------------------------------------------------------------

    def grid(self) -> str:
        """The number of programs, as Python source over the size symbols."""
        from magpy_like.compiler.codegen.launcher import print_size

        parts = [f"-(-({print_size(a.size)}) // {a.block})" for a in self.tiling.outer]
        return " * ".join(f"({p})" for p in parts)

    def needs_int64(self) -> str:
        """Python source: do positions need 64 bits?"""
        from magpy_like.compiler.codegen.launcher import print_size

        kernel = self.kernel
        bounds: list[Expr | None] = [a.size for a in self.tiling.axes]
        for b in (*kernel.inputs, *kernel.outputs):
            buffer = self.buffers[b]
            extents = zip(buffer.size, buffer.stride, strict=True)
            bounds.append(sum(((s - 1) * abs(step) for s, step in extents), sympy.S.One))
        for node in kernel.nodes():
            for v in node.body.of("index_expr"):
                bounds.append(magnitude(v.args[0], kernel.ranges))
        known = set(kernel.size_symbols)
        tests = []
        for bound in dict.fromkeys(bounds):
            if bound is None or not bound.free_symbols <= known:
                return "True"
            if bound.is_Integer:
                if int(bound) >= MAX_INT32_OFFSET:
                    return "True"
            else:
                tests.append(f"{print_size(bound)} >= {MAX_INT32_OFFSET}")
        return " or ".join(tests) or "False"
