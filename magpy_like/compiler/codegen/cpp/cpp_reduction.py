"""Base class of reductions in C++: accumulators, and the values computed from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Phase, split_levels
from magpy_like.compiler.codegen.cpp.cpp_expressions import (
    CTYPE,
    CppEmitter,
    combine,
    identity,
    scan_dtype,
)
from magpy_like.compiler.codegen.cpp.cpp_kernel import CppKernel
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.ops import Value

#: The variables of a reduction, each (name, dtype, kind): two for kinds with an index, three for
#: Welford's (the sum, the sum of squared differences from the mean, the count).
Parts = list[tuple[str, Any, str]]


def _base(kind: str) -> str:
    """The kind of reduction of one variable."""
    return "sum" if kind == "welford" else kind


class Reduction(CppKernel):
    """A kernel with reductions.

    Accumulators are scalars, or arrays with an element per column of a tile: ``suffix`` is then
    their extent, ``lane`` the index into them.
    """

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self.nans: dict[Value, str] = {}  # extremum in the loop being printed -> its NaN flag
        self.implied: set[Value] = set()  # values that accumulators compute themselves

    def accumulators(self, phase: Phase, suffix: str) -> dict[Value, Parts]:
        """Declare the accumulators of a phase: reduction -> its variables."""
        found = self.name_accumulators(phase)
        for parts in found.values():
            self.declare_accumulator(parts, suffix)
        return found

    def name_accumulators(self, phase: Phase) -> dict[Value, Parts]:
        """The variables of each reduction of a phase, undeclared."""
        found: dict[Value, Parts] = {}
        for node in phase.inner:
            for v in node.body.of("reduction"):
                kind, values = v.args
                name = self.fresh("acc")
                dtype = values[0].dtype
                # Sums of float32 (block by block) add up in float64, as in eager.
                precise = kind == "sum" and dtype == torch.float32
                parts = [(name, torch.float64 if precise else dtype, kind)]
                if kind in ("argmax", "argmin"):
                    parts.append((name + "_at", self._position_dtype(), "at"))
                elif kind == "welford":
                    parts = [(name + end, torch.float64, kind) for end in ("", "_m2", "_count")]
                found[v] = parts
        return found

    def declare_accumulator(self, parts: Parts, suffix: str) -> None:
        """Declare the variables of a reduction at their neutral elements."""
        for name, dtype, kind in parts:
            # If no element exceeds the identity, the first one is the extremum.
            start = "0" if kind == "at" else identity(_base(kind), dtype)
            if suffix:
                self.lines.line(f"{CTYPE[dtype]} {name}{suffix};")
                self.lines.line("#pragma omp simd")
                self.lines.line(f"for (i64 l = 0; l < {self.tile}; ++l) {name}[l] = {start};")
            else:
                self.lines.line(f"{CTYPE[dtype]} {name} = {start};")

    def merge(self, parts: Parts, own: str, other: str) -> None:
        """Merge the accumulator of another part of the elements, at index ``other`` of arrays, into
        an accumulator at index ``own``."""
        line, (_, _, kind) = self.lines.line, parts[0]
        names = [f"{n}{own}" for n, *_ in parts]
        others = [f"all_{n}[{other}]" for n, *_ in parts]
        if kind == "welford":
            line(f"merge_spread({', '.join([*names, *others])});")
        elif len(parts) == 1:
            line(f"{names[0]} = {combine(kind, names[0], others[0])};")
        else:
            better = "greater_first" if kind == "argmax" else "less_first"
            line(f"if ({better}({others[0]}, {others[1]}, {names[0]}, {names[1]})) {{")
            line(f"    {names[0]} = {others[0]}; {names[1]} = {others[1]};")
            line("}")

    def _position_dtype(self) -> torch.dtype:
        """int32 where it suffices: positions as wide as the vector's elements are cheaper."""
        count = self.kernel.size(self.kernel.rs)
        short = self.columns and count.is_Integer and int(count) < 2**31
        return torch.int32 if short else torch.int64

    def is_in_position_order(self, v: Value) -> bool:
        """True if the loops visit the elements of a reduction in the order of their positions."""
        position, rs = v.args[1][1], self.kernel.rs
        if position.op != "index_expr":
            return False
        flat = index_arithmetic.flatten(list(rs), [self.kernel.ranges[r] for r in rs])
        return bool(index_arithmetic.simplify(position.args[0] - flat, self.kernel.ranges) == 0)

    def declare_scans(self, phase: Phase, suffix: str) -> bool:
        """Declare the accumulators of the phase's scans; returns whether there are any."""
        found = [v for node in phase.inner for v in node.body.of("scan")]
        for v in found:
            kind, dtype = v.args[0], scan_dtype(v.args[0], v.args[1].dtype)
            parts = [(self.fresh("scan"), CTYPE[dtype], identity(kind, dtype))]
            if kind in ("argmax", "argmin"):
                parts.append((self.fresh("scan"), "i64", "0"))
            for name, ctype, start in parts:
                self.lines.line(f"{ctype} {name}{suffix}{'' if suffix else f' = {start}'};")
                if suffix:
                    self.lines.line("#pragma omp simd")
                    self.lines.line(f"for (i64 l = 0; l < {self.tile}; ++l) {name}[l] = {start};")
            self.scans[v] = [name for name, *_ in parts]
        return bool(found)

    def print_element(
        self, phase: Phase, accumulators: dict[Value, Parts],
        inner: dict[Value, str], lane: str | None = None,
    ) -> None:  # fmt: skip
        """Print the inner nodes of a phase for one element, and accumulate it."""
        emitter = CppEmitter(self, lane)
        for node in phase.inner:
            values, reductions, _ = split_levels(node.body)
            emitter.run(node.body, (v for v in values if v not in self.implied))
            for v in reductions:
                self.accumulate(v, accumulators[v], emitter, inner.get(v), lane)

    def accumulate(
        self, v: Value, parts: Parts, emitter: CppEmitter, part: str | None,
        lane: str | None,
    ) -> None:  # fmt: skip
        """Print the combination of an element with an accumulator, or with the block's variable
        ``part``."""
        at = f"[{lane}]" if lane else ""
        name, dtype, kind = parts[0]
        name = (part or name) + at
        value = emitter.names[v.args[1][0]]
        line = self.lines.line
        if kind == "welford":
            self.accumulate_welford(part, value, v.args[1][0].dtype, lane)
            return
        if v in self.nans:
            better = ">" if kind == "max" else "<"
            line(f"{self.nans[v]} |= {value} != {value};")
            line(f"{name} = {value} {better} {name} ? {value} : {name};")
            return
        if len(parts) == 1:
            kept = v.args[1][0].dtype if part and part != parts[0][0] else dtype
            line(f"{name} = {combine(kind, name, f'({CTYPE[kept]}){value}')};")
            return
        position = emitter.names[v.args[1][1]]
        other = parts[1][0] + at
        test, ctype = self.fresh("better"), CTYPE[dtype]
        if self.is_in_position_order(v):
            largest = "true" if kind == "argmax" else "false"
            line(f"const bool {test} = exceeds<{largest}, {ctype}>({value}, {name});")
        else:
            better = "greater_first" if kind == "argmax" else "less_first"
            line(f"const bool {test} = {better}<{ctype}>({value}, {position}, {name}, {other});")
        line(f"{name} = {test} ? {value} : {name};")
        line(f"{other} = {test} ? {position} : {other};")

    def accumulate_welford(
        self, part: str | None, value: str, dtype: torch.dtype, lane: str | None
    ) -> None:
        """One element of Welford's reduction, into the state that is merged after each block."""
        raise NotImplementedError

    def print_results(
        self, phase: Phase, outer: CppEmitter,
        accumulators: dict[Value, Parts], lane: str | None = None,
    ) -> None:  # fmt: skip
        """Print the values that reduction nodes compute from their results."""
        for node in phase.inner:
            _, reductions, after = split_levels(node.body)
            for v in reductions:
                at = f"[{lane}]" if lane else ""
                names = [name + at for name, *_ in accumulators[v]]
                ctype = CTYPE[v.dtype]
                narrow = v.args[0] == "sum" and v.dtype == torch.float32
                outer.names[v] = f"({ctype}){names[-1]}" if narrow else names[-1]
                if v.args[0] == "welford":
                    total, m2, count = names
                    results = (f"({total} / {count})", m2, count)
                    outer.names[v] = tuple(f"({ctype}){name}" for name in results)
            outer.run(node.body, after)
