"""The Triton printer: one function per kernel, over blocks of its loops.

Every value is a block with one dimension per axis of the kernel's tiling, of size 1 where the
value does not vary along the axis, so that Triton's broadcasting is the loop nest's. Phases run
one after the other inside a program. A *persistent* kernel holds whole rows: what one phase loaded
or computed is there for the next. A *looped* one walks along the row once per phase, and computes
again what an earlier phase computed per element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler import indexing
from magpy_like.compiler.codegen.common import (
    Emitter,
    Kernel,
    Lines,
    Node,
    Phase,
    dependencies,
    split_levels,
)
from magpy_like.compiler.codegen.triton_tiling import Axis, Hint, magnitude, tile
from magpy_like.compiler.codegen.triton_values import (
    ACCUMULATED,
    INFIX,
    LIBDEVICE,
    TYPE,
    Name,
    identity,
    number,
    print_index,
)
from magpy_like.compiler.errors import Unsupported
from magpy_like.compiler.graph import Graph
from magpy_like.compiler.indexing import Expr
from magpy_like.compiler.ir import Buffer
from magpy_like.compiler.ops import LOW_PRECISION, Value
from magpy_like.compiler.runtime import triton_launch
from magpy_like.compiler.runtime.triton_launch import TritonSource
from magpy_like.compiler.trace import Trace

NARROW = 2**31 - 2**21  # offsets below this, and a block beyond, fit 32 bits

#: Reduction -> the prelude's function that combines two elements.
COMBINE = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "any": "either",
    "argmax": "greater_first", "argmin": "less_first", "welford": "welford",
}  # fmt: skip


class TritonEmitter(Emitter):
    """Prints values as Triton statements; ``level`` is "inner" (per element) or "outer"."""

    def __init__(self, printer: TritonKernel, level: str) -> None:
        super().__init__(printer.kernel)
        self.printer = printer
        self.level = level

    def define(self, text: str, axes: Iterable[str]) -> Name:
        """A new name for an expression that varies along ``axes``."""
        name = Name(self.printer.fresh("t"), frozenset(axes))
        self.printer.lines.line(f"{name} = {text}")
        self.printer.axes_of[str(name)] = name.axes
        return name

    # --- memory --------------------------------------------------------------------------------

    def load(self, buffer: str, index: Expr, mask: Any, dtype: torch.dtype) -> Name:
        here = self.printer.local.get(buffer)
        if here is not None:
            return here
        if buffer in self.kernel.removed:
            return self._recompute(buffer)
        axes = self.printer.varies(index)
        wanted = axes | (mask.axes if isinstance(mask, Name) else frozenset())
        guard = self.printer.mask(wanted, mask)
        guard = f", {guard}, other=0" if guard else ""
        place = self.printer.address(buffer, index, axes, wanted)
        text = f"tl.load({place}{guard})"
        if self.kernel.dtypes[buffer] in LOW_PRECISION:
            text += ".to(tl.float32)"
        return self.define(text, wanted)

    def _recompute(self, buffer: str) -> Name:
        """What an earlier phase computed per element and did not store."""
        node, store = self.printer.producer[buffer]
        wanted = _closure(store.args[2], node)
        self.run(node.body, [v for v in node.body.values if v in wanted])
        name = self.names[store.args[2]]
        self._stored[buffer] = name
        return name

    def store(self, buffer: str, index: Expr, name: Any, dtype: torch.dtype, mode: Any) -> None:
        if self.level == "outer" or self.printer.tiling.persistent:
            self.printer.local[buffer] = name
        if buffer in self.kernel.removed:
            return
        target = self.kernel.dtypes[buffer]
        value = name.typed(self.printer.rank)
        if target != dtype:
            value = f"{value}.to({TYPE[target]})"
        wanted = self.printer.level_axes(self.level)
        place = self.printer.address(buffer, index, self.printer.varies(index), wanted)
        guard = self.printer.mask(wanted, None)
        line = self.printer.lines.line
        if mode not in (None, "add"):
            raise Unsupported("a scatter", f"the Triton printer cannot {mode} in memory")
        if mode == "add":
            guard = f", mask={guard}" if guard else ""
            line(f'tl.atomic_add({place}, {value}{guard}, sem="relaxed")')
        else:
            guard = f", {guard}" if guard else ""
            line(f"tl.store({place}, {value}{guard})")

    def as_loaded(self, buffer: str, name: Any, dtype: torch.dtype) -> Any:
        return name  # lowerings convert before storing; low precision stays unrounded in flight

    # --- operations ----------------------------------------------------------------------------

    def operation(
        self, op: str, args: tuple[Any, ...], dtype: torch.dtype, dtypes: list[torch.dtype]
    ) -> Any:
        if op == "constant":
            return Name(number(args[0], dtype), frozenset(), dtype)
        if op == "item":
            return args[0][args[1]]
        if op == "index_expr":
            return self._index_value(args[0], dtype)
        if op == "check":
            self._check(args[0], args[1])
            return None
        names = [a for a in args if isinstance(a, Name)]
        axes = frozenset().union(*(n.axes for n in names))
        return self.define(self._expression(op, args, names, dtype, dtypes), axes)

    def _index_value(self, e: Expr, dtype: torch.dtype) -> Name:
        if e.is_Integer:
            return Name(number(int(e), dtype), frozenset(), dtype)
        text = print_index(e)
        return self.define(f"({text}).to({TYPE[dtype]})", self.printer.varies(e))

    def _check(self, condition: Name, message: str) -> None:
        outside = self.printer.mask(condition.axes, None)
        test = condition.typed(self.printer.rank)
        if outside:
            test = f"{test} | (({outside}) == 0)"
        self.printer.lines.line(f"tl.device_assert({test}, {message!r})")

    def _expression(
        self, op: str, args: tuple[Any, ...], names: list[Name], dtype: torch.dtype,
        dtypes: list[torch.dtype],
    ) -> str:  # fmt: skip
        rank, source = self.printer.rank, dtypes[0]
        typed = [n.typed(rank) for n in names]
        if op == "to_dtype":
            if dtype == torch.bool:
                return f"{typed[0]} != 0"
            if source.is_floating_point and dtype in (torch.uint8, torch.int8, torch.int16):
                return f"{typed[0]}.to(tl.int64).to({TYPE[dtype]})"
            return f"{typed[0]}.to({TYPE[dtype]})"
        if op == "round_to":
            return f"{typed[0]}.to({TYPE[args[1]]}).to(tl.float32)"
        if op == "bitcast":
            return f"{typed[0]}.to({TYPE[dtype]}, bitcast=True)"
        if op == "where":
            sides = typed[1:] if names[1].dtype and names[2].dtype else names[1:]
            return f"tl.where({typed[0]}, {sides[0]}, {sides[1]})"
        # One literal beside a block takes the block's type; two of them have none.
        plain: Sequence[str] = typed
        if source in (torch.float32, torch.float64, torch.int32, torch.int64) and any(
            n.dtype is None for n in names
        ):
            plain = names
        if op == "truediv" and dtype == torch.float32:
            return f"tl.div_rn({typed[0]}, {typed[1]})"
        if op in INFIX:
            return f"{plain[0]} {INFIX[op]} {plain[1]}"
        floats = source.is_floating_point
        return self._call(op, plain, typed, source, floats)

    def _call(
        self, op: str, plain: Sequence[str], typed: Sequence[str], dtype: torch.dtype, floats: bool
    ) -> str:
        a, b = typed[0], typed[-1]
        if op == "neg":  # 0 - x would lose the sign of zero
            return f"{a} * -1.0" if floats else f"0 - {a}"
        if op == "square":
            return f"{a} * {a}"
        if op == "reciprocal":
            return f"tl.div_rn({_ones(self.printer.rank)}, {a})" if dtype == torch.float32 else (
                f"1.0 / {a}")  # fmt: skip
        if op == "sqrt":
            return f"tl.sqrt_rn({a})" if dtype == torch.float32 else f"libdevice.sqrt({a})"
        if op == "abs":
            return f"tl.abs({a})"
        if op == "sign":
            return f"prelude.sign({a})"
        if op == "sgn":
            return f"tl.where({a} != {a}, {a}, prelude.sign({a}))" if floats else (
                f"prelude.sign({a})")  # fmt: skip
        if op == "isnan":
            return f"{a} != {a}"
        if op == "isinf":
            return f'tl.abs({a}) == float("inf")'
        if op == "signbit":
            bits = TYPE[torch.int32 if dtype == torch.float32 else torch.int64]
            return f"{a}.to({bits}, bitcast=True) < 0"
        if op == "sigmoid":
            total = f"libdevice.exp({a} * -1.0) + 1.0"
            if dtype == torch.float32:
                return f"tl.div_rn({_ones(self.printer.rank)}, {total})"
            return f"1.0 / ({total})"
        if op == "logical_not" or (op == "bitwise_not" and dtype == torch.bool):
            return f"{a} == 0"
        if op == "bitwise_not":
            return f"{a} ^ {255 if dtype == torch.uint8 else -1}"
        if op in ("maximum", "minimum", "fmax", "fmin"):
            return f"prelude.{op}({a}, {b})"
        if op == "floordiv":
            if not floats:
                return f"prelude.int_floordiv({a}, {b})"
            quotient = f"tl.div_rn({a}, {b})" if dtype == torch.float32 else f"{a} / {b}"
            return f"prelude.float_floordiv({a}, {b}, {quotient})"
        if op == "remainder":
            return f"prelude.{'float' if floats else 'int'}_remainder({a}, {b})"
        if op == "truncdiv":
            if not floats:
                return f"{plain[0]} // {plain[1]}"
            quotient = f"tl.div_rn({a}, {b})" if dtype == torch.float32 else f"{a} / {b}"
            return f"libdevice.trunc({quotient})"
        if op == "fmod" and not floats:
            return f"{plain[0]} % {plain[1]}"
        if op == "shift_left":
            return f"prelude.shift_left({a}, {b}, {dtype.itemsize * 8})"
        if op == "shift_right":
            bits = dtype.itemsize * 8
            if dtype == torch.uint8:
                return f"prelude.unsigned_shift_right({a}, {b}, {bits})"
            return f"prelude.shift_right({a}, {b}, {bits - 1})"
        if op in LIBDEVICE and floats:
            return f"libdevice.{LIBDEVICE[op]}({', '.join(typed)})"
        raise Unsupported(op, "the Triton printer has no such operation")


def _ones(rank: int) -> str:
    return f"tl.full({[1] * rank}, 1.0, tl.float32)"


class TritonKernel:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel, hint: Hint, buffers: Mapping[str, Buffer]) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.tiling = tile(kernel, hint)
        self.rank = len(self.tiling.axes)
        self.lines = Lines()
        self.local: dict[str, Name] = {}  # buffers whose value is at hand
        self.axes_of: dict[
            str, frozenset[str]
        ] = {}  # what each loop variable and name varies along
        for axis in self.tiling.axes:
            for v in axis.loops:
                self.axes_of[v.name] = frozenset(axis.name)
        self.producer = _producers(kernel)
        self._count = 0

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- blocks --------------------------------------------------------------------------------

    def shape(self, axes: Iterable[str]) -> str:
        """The block shape of a value that varies along ``axes``."""
        return str([a.block if a.name in axes else 1 for a in self.tiling.axes])

    def level_axes(self, level: str) -> frozenset[str]:
        axes = self.tiling.axes if level == "inner" else self.tiling.outer
        return frozenset(a.name for a in axes)

    def varies(self, e: Expr) -> frozenset[str]:
        """The axes that an index expression varies along."""
        found: frozenset[str] = frozenset()
        for s in e.free_symbols:
            found |= self.axes_of.get(s.name, frozenset())
        return found

    def mask(self, axes: Iterable[str], mask: Any) -> str:
        """What must hold for an element to exist and for ``mask``; empty when it always does."""
        parts = [
            f"{a.name}mask" for a in self.tiling.axes if a.name in axes and not a.exact
        ]  # fmt: skip
        if isinstance(mask, Name):
            parts.append(mask.typed(self.rank))
        return " & ".join(parts)

    def address(
        self, buffer: str, index: Expr, axes: frozenset[str], wanted: frozenset[str]
    ) -> str:
        """A block of pointers that has the shape of a value along ``wanted``."""
        offset = print_index(index)
        if wanted - axes or not axes:  # a block even where it is one number
            offset = f"{offset} + tl.full({self.shape(wanted)}, 0, tl.int32)"
        return f"{buffer} + ({offset})"

    # --- printing ------------------------------------------------------------------------------

    def print(self) -> TritonSource:
        """The kernel's source, and what launching it takes."""
        kernel, line = self.kernel, self.lines.line
        names = [*kernel.inputs, *kernel.outputs]
        line("@triton.jit")
        line(f"def {kernel.name}({', '.join([*names, *(s.name for s in kernel.size_symbols)])}):")
        self.lines.indent()
        self._positions()
        if self.tiling.reduced is None:
            emitter = TritonEmitter(self, "outer")
            for phase in kernel.phases:
                for node in phase.outer:
                    emitter.run(node.body, node.body.values)
        else:
            self._reduction(self.tiling.reduced)
        line("return")
        self.lines.indent(-1)
        return TritonSource(
            name=kernel.name,
            text=self.lines.text(),
            pointers=tuple(kernel.dtypes[b] for b in names),
            sizes=tuple(s.name for s in kernel.size_symbols),
            grid=self._grid(),
            wide=self._wide(),
            num_warps=self.tiling.num_warps,
            asserts=bool(kernel.messages),
        )

    def _positions(self) -> None:
        """Where on the outer axes this program is, and the loop variables there."""
        line, outer = self.lines.line, self.tiling.outer
        line("program = tl.program_id(0).to(INDEX)")
        rest = "program"
        for k, axis in enumerate(reversed(outer)):
            if k == len(outer) - 1:
                start = rest
            else:
                blocks = print_index(indexing.Div(axis.size + axis.block - 1, axis.block))
                start = f"{rest} % {blocks}"
                following = self.fresh("program")
                line(f"{following} = {rest} // {blocks}")
                rest = following
            self._along(axis, f"({start}) * {axis.block}")

    def _along(self, axis: Axis, start: str) -> None:
        """The block's positions along one axis, its mask and its loop variables."""
        line, name = self.lines.line, f"{axis.name}at"
        where = ", ".join(":" if a is axis else "None" for a in self.tiling.axes)
        span = f"tl.arange(0, {axis.block})" + (f"[{where}]" if self.rank > 1 else "")
        line(f"{name} = {start} + {span}")
        if not axis.exact:
            line(f"{axis.name}mask = {name} < {print_index(axis.size)}")
        at = sympy.Symbol(name, integer=True, nonnegative=True)
        sizes = [self.kernel.ranges[v] for v in axis.loops]
        for v, e in zip(axis.loops, indexing.unflatten(at, sizes), strict=True):
            line(f"{v.name} = {print_index(e)}")

    def _reduction(self, axis: Axis) -> None:
        outer = TritonEmitter(self, "outer")
        inner = TritonEmitter(self, "inner")
        if self.tiling.persistent:
            self._along(axis, "0")
        stored: set[str] = set()  # per element, by phases so far
        for phase in self.kernel.phases:
            if phase.inner and self.tiling.persistent:
                self._row(phase, inner, outer, axis)
            elif phase.inner:
                if stored & {b for n in phase.inner for b in n.reads}:
                    self.lines.line("tl.debug_barrier()")  # another thread may have stored it
                self._loop(phase, outer, axis)
            for node in phase.outer:
                outer.run(node.body, node.body.values)
            stored |= {b for n in phase.inner for b in n.writes} - self.kernel.removed

    def _row(self, phase: Phase, inner: TritonEmitter, outer: TritonEmitter, axis: Axis) -> None:
        """A phase of a persistent kernel."""
        for node in phase.inner:
            values, reductions, after = split_levels(node.body)
            inner.run(node.body, values)
            for v in reductions:
                outer.names[v] = self._reduced(v, self._elements(v, inner, axis), axis)
            outer.run(node.body, after)

    def _elements(self, v: Value, inner: TritonEmitter, axis: Axis) -> list[str]:
        """A reduction's arguments as full blocks, neutral where the row has ended."""
        kind, values = v.args
        parts = [inner.names[a].typed(self.rank) for a in values]
        full = self.shape(a.name for a in self.tiling.axes)
        wide = ACCUMULATED.get(values[0].dtype, values[0].dtype)
        if wide != values[0].dtype:
            parts[0] = f"{parts[0]}.to({TYPE[wide]})"
        parts = [f"tl.broadcast_to({p}, {full})" for p in parts]
        if kind == "welford":
            count = f"tl.full({full}, 1.0, {TYPE[wide]})"
            parts = [parts[0], f"tl.full({full}, 0.0, {TYPE[wide]})", count]
        if axis.exact:
            return parts
        starts = _starts(kind, wide)
        if kind == "welford":
            kept = [parts[0], parts[1], f"tl.where(rmask, {parts[2]}, 0.0)"]
            return [f"tl.where(rmask, {kept[0]}, 0.0)", *kept[1:]]
        return [f"tl.where(rmask, {p}, {s})" for p, s in zip(parts, starts, strict=True)]

    def _reduced(self, v: Value, parts: Sequence[str], axis: Axis) -> Any:
        """Combine along the row; the name of the result, or of each of several."""
        kind, values = v.args
        line, function = self.lines.line, f"prelude.{COMBINE[kind]}"
        axes = self.level_axes("outer")
        dtype = values[0].dtype
        if len(parts) == 1:
            text = f"tl.reduce({parts[0]}, {self.rank - 1}, {function}, keep_dims=True)"
            if dtype in ACCUMULATED:
                text += " != 0" if dtype == torch.bool else f".to({TYPE[dtype]})"
            return self._named(text, axes)
        names = [Name(self.fresh("t"), axes) for _ in parts]
        for n in names:
            self.axes_of[str(n)] = axes
        joined = ", ".join(parts)
        line(
            f"{', '.join(names)} = tl.reduce(({joined}), {self.rank - 1}, {function}, "
            "keep_dims=True)"
        )
        return tuple(names) if kind == "welford" else names[1]

    def _named(self, text: str, axes: frozenset[str]) -> Name:
        name = Name(self.fresh("t"), axes)
        self.axes_of[str(name)] = axes
        self.lines.line(f"{name} = {text}")
        return name

    def _loop(self, phase: Phase, outer: TritonEmitter, axis: Axis) -> None:
        """A phase of a looped kernel: accumulate a block of elements, then combine them."""
        line = self.lines.line
        accumulators: dict[Value, list[str]] = {}
        full = self.shape(a.name for a in self.tiling.axes)
        for node in phase.inner:
            for v in node.body.of("reduction"):
                kind, values = v.args
                wide = ACCUMULATED.get(values[0].dtype, values[0].dtype)
                accumulators[v] = []
                for k, start in enumerate(_starts(kind, wide)):
                    name = self.fresh("acc")
                    ctype = TYPE[torch.int64 if k and kind != "welford" else wide]
                    line(f"{name} = tl.full({full}, {start}, {ctype})")
                    accumulators[v].append(name)
        line(f"for start in range(0, {print_index(axis.size)}, {axis.block}):")
        self.lines.indent()
        self._along(axis, "start")
        inner = TritonEmitter(self, "inner")
        for node in phase.inner:
            values, reductions, _ = split_levels(node.body)
            inner.run(node.body, values)
            for v in reductions:
                self._accumulate(v, accumulators[v], self._elements(v, inner, axis))
        self.lines.indent(-1)
        for node in phase.inner:
            _, reductions, after = split_levels(node.body)
            for v in reductions:
                outer.names[v] = self._reduced(v, accumulators[v], axis)
            outer.run(node.body, after)

    def _accumulate(self, v: Value, names: Sequence[str], parts: Sequence[str]) -> None:
        both = ", ".join([*names, *parts])
        self.lines.line(f"{', '.join(names)} = prelude.{COMBINE[v.args[0]]}({both})")

    # --- launching -----------------------------------------------------------------------------

    def _grid(self) -> str:
        """The number of programs, as Python over the size symbols."""
        from magpy_like.compiler.codegen.launcher import print_size

        parts = [f"-(-({print_size(a.size)}) // {a.block})" for a in self.tiling.outer]
        return " * ".join(f"({p})" for p in parts)

    def _wide(self) -> str:
        """Python: do positions need 64 bits?"""
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
                if int(bound) >= NARROW:
                    return "True"
            else:
                tests.append(f"{print_size(bound)} >= {NARROW}")
        return " or ".join(tests) or "False"


def _starts(kind: str, dtype: torch.dtype) -> list[str]:
    """The neutral element of a reduction, part by part."""
    if kind == "welford":
        return ["0.0", "0.0", "0.0"]
    if kind in ("argmax", "argmin"):
        return [identity(kind, dtype), str(2**63 - 1)]
    return [identity(kind, dtype)]


def _producers(kernel: Kernel) -> dict[str, tuple[Node, Value]]:
    """For each buffer stored per element: the node and the store."""
    return {
        store.args[0]: (node, store)
        for node in kernel.nodes()
        for store in node.body.of("store")
        if node.inner and not store.outer
    }


def _closure(root: Value, node: Node) -> set[Value]:
    found: set[Value] = set()
    pending = [root]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += dependencies(value, node.body)
    return found


def settle(kernel: Kernel, hint: Hint) -> None:
    """Before memory is planned: let a looped kernel store what it could not compute again.

    A value per element that a later phase reads is computed again from memory, unless that memory
    is updated in between.
    """
    if not any(n.inner for n in kernel.nodes()) or tile(kernel, hint).persistent:
        return
    written: set[str] = set()
    updated: set[str] = set()
    for node in kernel.nodes():
        updated |= (node.writes - node.reads - written) & {
            b for n in kernel.nodes() for b in n.reads if n is not node
        } & set(kernel.inputs)  # fmt: skip
        updated |= node.writes & node.reads - written
        written |= node.writes
    producer = _producers(kernel)
    for buffer, way in kernel.forward.items():
        if way == "row" and buffer in kernel.removed and _reads(buffer, producer, kernel) & updated:
            kernel.removed.discard(buffer)
            kernel.outputs.append(buffer)


def _reads(buffer: str, producer: Mapping[str, tuple[Node, Value]], kernel: Kernel) -> set[str]:
    """The memory that computing ``buffer`` again would read."""
    node, store = producer[buffer]
    found: set[str] = set()
    for v in _closure(store.args[2], node):
        if v.op == "load":
            b = v.args[0]
            if b in kernel.removed and b in producer:
                found |= _reads(b, producer, kernel)
            else:
                found.add(b)
    return found


def print_function(kernel: Kernel, graph: Graph) -> TritonSource:
    """A kernel named ``NAME``, with buffers named in order of appearance, so that kernels that do
    the same to different buffers (the layers of a model) have one text."""
    source = TritonKernel(kernel, graph.hint, graph.buffers).print()
    order: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        return order.setdefault(match[0], f"p{len(order)}")

    text = re.sub(r"(?<![A-Za-z0-9])(?:buf|arg|const)\d+\b", rename, source.text)
    return source.renamed(re.sub(rf"\b{kernel.name}\b", "NAME", text))


def build(
    kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace
) -> dict[str, Callable[..., Any]]:
    """Print, compile and load kernels: name -> function of addresses and sizes."""
    found: dict[tuple[TritonSource, torch.device], list[Kernel]] = {}
    for kernel in kernels:
        source = print_function(kernel, graph)
        found.setdefault((source, kernel.device), []).append(kernel)
    for (source, _), users in found.items():
        origins = "".join(f"# {o}\n" for k in users for o in k.origins)
        text = source.text.replace("NAME", users[0].name)
        trace.write("kernels", f"{kind}.py", origins + text)
    wanted = [
        (source, device, [graph.hint(s) for s in users[0].size_symbols])
        for (source, device), users in found.items()
    ]
    functions = triton_launch.load_many(wanted)
    return {
        kernel.name: function
        for users, function in zip(found.values(), functions, strict=True)
        for kernel in users
    }
