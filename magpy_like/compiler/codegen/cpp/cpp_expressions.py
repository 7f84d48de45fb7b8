"""C++ expressions: types, numbers, indices and operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Emitter, IndexPrinter
from magpy_like.compiler.codegen.common.recomputation import recompute
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.ops import LOW_PRECISION, Body, Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.cpp.cpp_printer import CppKernel

CTYPE = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", torch.float32: "f32", torch.float64: "f64",
    torch.bfloat16: "bf16", torch.float16: "f16",
}  # fmt: skip

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "logical_and": "&", "logical_or": "|",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_INTEGER = {"floordiv", "truncdiv", "remainder", "fmod", "pow"}
_TEMPLATE = {
    "neg": "-{0}", "square": "{0} * {0}", "logical_not": "!{0}", "isnan": "{0} != {0}",
    "isinf": "m_abs({0}) == (decltype({0}))__builtin_inf()", "reciprocal": "1 / {0}",
    "rsqrt": "1 / m_sqrt({0})", "where": "{0} ? {1} : {2}",
    "shift_left": "shift_left({0}, {1})", "shift_right": "shift_right({0}, {1})",
}  # fmt: skip


def _integer(n: int) -> str:
    return str(n) if abs(n) < 2**31 else f"{n}ll"


print_index = IndexPrinter("C++", "{} / {}", "{}<i64>", "m_{}<i64>", _integer)


def print_number(number: Any, dtype: torch.dtype) -> str:
    """A Python number as a C++ constant of ``dtype``; integers wrap around, as in eager."""
    ctype = CTYPE[dtype]
    if dtype == torch.bool:
        return "true" if number else "false"
    if dtype.is_floating_point:
        if number != number:
            return f'({ctype})__builtin_nan("")'
        if number in (float("inf"), float("-inf")):
            return f"({ctype}){'-' if number < 0 else ''}__builtin_inf()"
        return f"({ctype}){float(number)!r}"
    value = int(number)
    if value == -(2**63):
        return f"({ctype})(-9223372036854775807ll - 1)"
    return f"({ctype}){value}{'ll' if abs(value) >= 2**31 else ''}"


def identity(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction or scan."""
    if kind in ("sum", "any"):
        return print_number(0, dtype)
    if kind == "prod":
        return print_number(1, dtype)
    low = kind in ("max", "fmax", "argmax", "logsumexp")
    if dtype == torch.bool:
        return "false" if low else "true"
    if dtype.is_floating_point:
        return print_number(float("-inf") if low else float("inf"), dtype)
    info = torch.iinfo(dtype)
    return print_number(info.min if low else info.max, dtype)


def combine(kind: str, a: str, b: str) -> str:
    """``a`` reduced with ``b``; not for kinds with an index."""
    if kind in ("sum", "prod"):
        return f"{a} {'+' if kind == 'sum' else '*'} {b}"
    if kind == "fmax":
        return f"{b} > {a} ? {b} : {a}"  # a is never NaN
    # Test the new element for NaN: the state of ``a`` after the previous iteration would be a bool
    # that depends on the path taken, and would prevent vectorisation.
    return f"{a} | {b}" if kind == "any" else f"m_{kind}imum({b}, {a})"


def clause(kind: str, dtype: torch.dtype) -> str:
    """The OpenMP reduction operator."""
    if kind in ("max", "min"):
        return kind if dtype != torch.bool else "||" if kind == "max" else "&&"
    return {"sum": "+", "prod": "*", "any": "||", "fmax": "max"}[kind]


def scan_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    """Accumulation dtype of a scan: eager's running sums and products of floats are in double."""
    return torch.float64 if kind in ("sum", "prod") and dtype == torch.float32 else dtype


class CppEmitter(Emitter):
    """Prints values as C++ statements; ``lane`` is the index into arrays of a tile, if any."""

    def __init__(self, printer: CppKernel, lane: str | None = None) -> None:
        super().__init__(printer.kernel)
        self.printer = printer
        self.lane = lane
        self.hoisted: dict[Value, Any] = {}  # loop invariant -> name
        self.masks: dict[Value, str] = {}  # hoisted condition -> its bit mask
        self._mask: str | None = None  # of the condition of the ``where`` being printed

    def _define(self, text: str, dtype: torch.dtype) -> str:
        name = self.printer.fresh("t")
        self.printer.lines.line(f"const {CTYPE[dtype]} {name} = {text};")
        return name

    def hoist(self, bodies: Iterable[tuple[Body, Iterable[Value]]]) -> None:
        """Print loop invariants of bodies before the loop."""
        bodies = list(bodies)
        for body, values in bodies:
            self.run(body, values)
        self.hoisted = dict(self.names)
        # Select by bit mask on a loop-invariant condition: the compiler would turn it into a branch
        # and not vectorise. It must not learn that the mask comes from a condition.
        for body, _ in bodies:
            for value in body.of("where"):
                condition = value.args[0]
                if value in self.hoisted or condition in self.masks:
                    continue
                if condition in self.hoisted:
                    mask = self.masks[condition] = self.printer.fresh("mask")
                    self.printer.lines.line(
                        f"const u64 {mask} = mask_of({self.hoisted[condition]});"
                    )

    def in_new_scope(self) -> CppEmitter:
        """An emitter for another scope that keeps the hoisted names."""
        other = CppEmitter(self.printer, self.lane)
        other.hoisted, other.masks = dict(self.hoisted), self.masks
        return other

    def assuming(self, known: Mapping[Value, bool]) -> CppEmitter:
        """An emitter for a scope in which conditions have ``known`` values."""
        other = CppEmitter(self.printer, self.lane)
        other.hoisted = {v: name for v, name in self.hoisted.items() if v.dtype != torch.bool}
        other.hoisted |= {v: print_number(holds, torch.bool) for v, holds in known.items()}
        other.masks = self.masks
        return other

    def _emit(self, value: Value, rename: Any) -> Any:
        if value in self.hoisted:
            return self.hoisted[value]
        if value.op == "item":
            return self.names[value.args[0]][value.args[1]]
        if value.op == "scan":
            return self._scan(value, [self.names[a] for a in value.args[1:]])
        self._mask = self.masks.get(value.args[0]) if value.op == "where" else None
        return super()._emit(value, rename)

    def _scan(self, value: Value, args: list[Any]) -> str:
        """One step of a scan, whose accumulator was declared before the loop."""
        at = f"[{self.lane}]" if self.lane is not None else ""
        names = [name + at for name in self.printer.scans[value]]
        kind, dtype = value.args[0], value.args[1].dtype
        if kind in ("argmax", "argmin"):
            better = self.printer.fresh("better")
            compare = ">=" if kind == "argmax" else "<="
            line = self.printer.lines.line
            test = f"({args[0]} != {args[0]}) | ({args[0]} {compare} {names[0]})"
            line(f"const bool {better} = {test};")
            line(f"{names[0]} = {better} ? {args[0]} : {names[0]};")
            line(f"{names[1]} = {better} ? {args[1]} : {names[1]};")
            return self._define(names[1], value.dtype)
        wide = CTYPE[scan_dtype(kind, dtype)]
        new = f"log_add_exp({names[0]}, ({wide}){args[0]})"
        if kind != "logsumexp":
            new = combine(kind, names[0], f"({wide}){args[0]}")
        self.printer.lines.line(f"{names[0]} = {new};")
        return self._define(f"({CTYPE[dtype]}){names[0]}", value.dtype)

    def load(self, buffer: str, index: Expr, mask: Any, dtype: torch.dtype) -> str:
        if buffer in self.printer.recomputed:
            text = recompute(self, buffer, self.printer.recomputed)
        else:
            source = self.printer.load_source(buffer, index, self.lane)
            text = f"widen({source})" if self.kernel.dtypes[buffer] in LOW_PRECISION else source
        if mask == "false":
            return print_number(0, dtype)
        if mask not in (None, "true"):
            text = f"{mask} ? {text} : {CTYPE[dtype]}(0)"
        return self._define(text, dtype)

    def store(self, buffer: str, index: Expr, name: Any, dtype: torch.dtype, mode: Any) -> None:
        target = self.kernel.dtypes[buffer]
        text = str(name)
        wide = self.printer.halves.element("store", buffer, index)
        if wide is not None:
            self.printer.lines.line(f"{wide} = {text};")
            return
        if target in LOW_PRECISION:
            text = f"keep<{CTYPE[target]}>({text})"
        elif target != dtype:
            text = f"({CTYPE[target]}){text}"
        for lvalue in self.printer.store_targets(buffer, index, self.lane):
            if mode is not None:
                old = f"widen({lvalue})" if target in LOW_PRECISION else lvalue
                total = combine({"add": "sum", "mul": "prod"}.get(mode, mode), old, str(name))
                if target in LOW_PRECISION:
                    total = f"narrow<{CTYPE[target]}>({total})"
                self.printer.lines.line(f"{lvalue} = {total};")
            else:
                self.printer.lines.line(f"{lvalue} = {text};")

    def as_loaded(self, buffer: str, name: Any, dtype: torch.dtype) -> Any:
        return name  # already converted and rounded

    def operation(
        self, op: str, args: tuple[Any, ...], dtype: torch.dtype, dtypes: list[torch.dtype]
    ) -> Any:
        if op == "logical_and" and "true" in args:
            return args[args[0] == "true"]
        if op == "logical_and" and "false" in args:
            return "false"
        if op == "where" and args[0] in ("true", "false"):
            return args[1] if args[0] == "true" else args[2]
        if op == "where" and self._mask is not None and dtype.itemsize >= 4:
            return self._define(f"blend({self._mask}, {args[1]}, {args[2]})", dtype)
        if op == "constant":
            return print_number(args[0], dtype)
        if op == "index_expr":
            return self._define(f"({CTYPE[dtype]}){print_index(args[0])}", dtype)
        if op == "number":
            return self._define(f"({CTYPE[dtype]}){self.kernel.number(args[0])}", dtype)
        if op == "to_dtype":
            if dtype == torch.bool:
                return self._define(f"{args[0]} != 0", dtype)
            if dtypes[0].is_floating_point and not dtype.is_floating_point:
                # Out-of-range floats: eager's kernels convert to these two types first, and
                # truncate.
                wide = "i32" if dtype in (torch.int16, torch.int32) else "i64"
                return self._define(f"({CTYPE[dtype]})to_integer<{wide}>({args[0]})", dtype)
            return self._define(f"({CTYPE[dtype]}){args[0]}", dtype)
        if op == "round_to":
            return self._define(f"rounded<{CTYPE[args[1]]}>({args[0]})", dtype)
        if op == "bitcast":
            return self._define(f"bitcast<{CTYPE[dtype]}>({args[0]})", dtype)
        if op == "check":
            code = self.kernel.messages.index(args[1]) + 1
            self.printer.lines.line(f"bad{code} |= !{args[0]};")
            return None
        if not dtype.is_floating_point and op in _INTEGER:
            ctype = CTYPE[dtype]
            return self._define(f"int_{op}<{ctype}>({args[0]}, {args[1]})", dtype)
        if op in ("floordiv", "remainder"):
            return self._define(f"float_{op}({args[0]}, {args[1]})", dtype)
        if op == "truncdiv":
            return self._define(f"m_trunc({args[0]} / {args[1]})", dtype)
        if op == "bitwise_not":
            return self._define(f"{'!' if dtype == torch.bool else '~'}{args[0]}", dtype)
        if op in _INFIX:
            return self._define(f"{args[0]} {_INFIX[op]} {args[1]}", dtype)
        if op in _TEMPLATE:
            return self._define(_TEMPLATE[op].format(*args), dtype)
        ctype = CTYPE[dtypes[0]]
        joined = ", ".join(f"({ctype}){a}" for a in args)
        return self._define(f"m_{op}({joined})", dtype)
