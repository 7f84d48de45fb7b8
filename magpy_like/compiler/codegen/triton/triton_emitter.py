"""Values as Triton statements, with eager's semantics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Emitter
from magpy_like.compiler.codegen.common.recomputation import recompute
from magpy_like.compiler.codegen.triton.triton_expressions import (
    INFIX,
    LIBDEVICE,
    TYPE,
    Name,
    print_index,
    print_number,
)
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import LOW_PRECISION, Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.triton.triton_kernel import TritonKernel


class TritonEmitter(Emitter):
    """Prints values as Triton statements; ``level`` is "inner" (per element) or "outer"."""

    def __init__(self, printer: TritonKernel, level: str) -> None:
        super().__init__(printer.kernel)
        self.printer = printer
        self.level = level

    def define(self, text: str, axes: Iterable[str]) -> Name:
        """A new name for an expression that varies along ``axes``."""
        return self.printer.define(text, frozenset(axes))

    # --- memory --------------------------------------------------------------------------------

    def load(self, buffer: str, index: Expr, mask: Any, dtype: torch.dtype) -> Name:
        here = self.printer.forwarded.get(buffer)
        if here is not None:
            return here
        if buffer in self.kernel.removed:
            recomputed: Name = recompute(self, buffer, self.printer.producers_of)
            return recomputed
        axes = self.printer.varies(index)
        wanted = axes | (mask.axes if isinstance(mask, Name) else frozenset())
        guard = self.printer.mask(wanted, mask)
        guard = f", {guard}, other=0" if guard else ""
        pointer = self.printer.address(buffer, index, axes, wanted)
        text = f"tl.load({pointer}{guard})"
        if self.kernel.dtypes[buffer] in LOW_PRECISION:
            text += ".to(tl.float32)"
        before = self.printer.before_walk
        if before is None or isinstance(mask, Name) or not self.printer.is_of_row(buffer, index):
            return self.define(text, wanted)
        # Triton leaves a load in the loop in which it stands.
        name = self.printer.fresh_name(wanted)
        before.line(f"{name} = {text}")
        return name

    def store(self, buffer: str, index: Expr, name: Any, dtype: torch.dtype, mode: Any) -> None:
        if self.level == "outer" or self.printer.tiling.persistent:
            self.printer.forwarded[buffer] = name
        if buffer in self.kernel.removed or self.printer.stores_disabled:
            return
        target = self.kernel.dtypes[buffer]
        value = name.typed(self.printer.rank)
        if target != dtype:
            value = f"{value}.to({TYPE[target]})"
        wanted = self.printer.level_axes(self.level)
        pointer = self.printer.address(buffer, index, self.printer.varies(index), wanted)
        guard = self.printer.mask(wanted, None)
        line = self.printer.lines.line
        if mode not in (None, "add"):
            raise Unsupported("a scatter", f"Triton kernels have no atomic {mode}")
        if mode == "add":
            guard = f", mask={guard}" if guard else ""
            line(f'tl.atomic_add({pointer}, {value}{guard}, sem="relaxed")')
        else:
            guard = f", {guard}" if guard else ""
            line(f"tl.store({pointer}, {value}{guard})")

    def as_loaded(self, buffer: str, name: Any, dtype: torch.dtype) -> Any:
        return name  # already converted and rounded

    def _emit(self, value: Value, rename: Mapping[Symbol, Expr]) -> Any:
        if value.op == "scan":
            return self.printer.scans.print_scan(value, [self.names[a] for a in value.args[1:]])
        return super()._emit(value, rename)

    # --- operations ----------------------------------------------------------------------------

    def operation(
        self, op: str, args: tuple[Any, ...], dtype: torch.dtype, dtypes: list[torch.dtype]
    ) -> Any:
        if op == "constant":
            return Name(print_number(args[0], dtype), frozenset(), dtype)
        if op == "item":
            return args[0][args[1]]
        if op == "index_expr":
            return self._index_value(args[0], dtype)
        if op == "number":
            text = f"{self.kernel.number(args[0])}.to({TYPE[dtype]})"
            return self.define(text, frozenset())
        if op == "check":
            self._check(args[0], args[1][1])
            return None
        names = [a for a in args if isinstance(a, Name)]
        axes = frozenset().union(*(n.axes for n in names))
        return self.define(self._expression(op, args, names, dtype, dtypes), axes)

    def _index_value(self, e: Expr, dtype: torch.dtype) -> Name:
        if e.is_Integer:
            return Name(print_number(int(e), dtype), frozenset(), dtype)
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
            if source.is_floating_point and not dtype.is_floating_point:
                return _float_to_integer(typed[0], source, dtype)
            return f"{typed[0]}.to({TYPE[dtype]})"
        if op == "round_to":
            return f"{typed[0]}.to({TYPE[args[1]]}).to(tl.float32)"
        if op == "bitcast":
            return f"{typed[0]}.to({TYPE[dtype]}, bitcast=True)"
        if op == "where":
            sides = typed[1:] if names[1].dtype and names[2].dtype else names[1:]
            return f"tl.where({typed[0]}, {sides[0]}, {sides[1]})"
        # A literal next to a block takes the block's type; two literals have none.
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
        if op in ("exp_nonpositive", "exp_addend"):
            op = "exp"
        if op == "normal_cdf":
            return f"libdevice.erf({a} * {math.sqrt(0.5)}) * 0.5 + 0.5"
        if op == "logical_not" or (op == "bitwise_not" and dtype == torch.bool):
            return f"{a} == 0"
        if op == "bitwise_not":
            return f"{a} ^ {255 if dtype == torch.uint8 else -1}"
        if op in ("maximum", "minimum", "fmax", "fmin"):
            return f"prelude.{op}({a}, {b})"
        if op in ("floordiv", "truncdiv", "remainder"):
            return self._division(op, plain, typed, dtype, floats)
        if op == "pow" and not floats:
            return f"prelude.int_pow({a}, {b})"
        if op == "fmod" and not floats:
            return f"{plain[0]} % {plain[1]}"
        if op in ("shift_left", "shift_right"):
            return _shift(op, a, b, dtype)
        if op in LIBDEVICE and floats:
            return f"libdevice.{LIBDEVICE[op]}({', '.join(typed)})"
        raise Unsupported(op, "Triton kernels have no such operation")

    def _division(
        self, op: str, plain: Sequence[str], typed: Sequence[str], dtype: torch.dtype, floats: bool
    ) -> str:
        """A rounding division, or the remainder with the divisor's sign."""
        a, b = typed
        if op == "remainder":
            return f"prelude.{'float' if floats else 'int'}_remainder({a}, {b})"
        quotient = f"tl.div_rn({a}, {b})" if dtype == torch.float32 else f"{a} / {b}"
        if op == "truncdiv":
            return f"libdevice.trunc({quotient})" if floats else f"{plain[0]} // {plain[1]}"
        if floats:
            return f"prelude.float_floordiv({a}, {b}, {quotient})"
        return f"prelude.int_floordiv({a}, {b})"


def _shift(op: str, a: str, b: str, dtype: torch.dtype) -> str:
    bits = dtype.itemsize * 8
    if op == "shift_left":
        return f"prelude.shift_left({a}, {b}, {bits})"
    if dtype == torch.uint8:
        return f"prelude.unsigned_shift_right({a}, {b}, {bits})"
    return f"prelude.shift_right({a}, {b}, {bits - 1})"


def _float_to_integer(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """A float as an integer; out-of-range floats convert as by eager's instructions.

    The instructions are explicit: LLVM assumes that the argument of a cast is in range, and drops
    selections between results.
    """
    wide = target in (torch.uint8, torch.int64)
    kind = "double" if source == torch.float64 else "float"
    whole = f"libdevice.{kind}2{'ll' if wide else 'int'}_rz({value})"
    return whole if target in (torch.int32, torch.int64) else f"{whole}.to({TYPE[target]})"


def _ones(rank: int) -> str:
    return f"tl.full({[1] * rank}, 1.0, tl.float32)"
