"""The ``ops`` namespace: operations of define-by-run loop bodies (PyTorch 2, section 4.3).

A loop body is a Python function that calls ``ops.load``, ``ops.add``, ... The current handler
defines their effect: recording (:class:`Recorder`) turns one run of the function into a
:class:`Body`, a list of :class:`Value`; analyses and printers read that list.

Every value has a torch dtype, never bfloat16 or float16: such buffers are loaded as float32, so a
kernel computes in float32 as eager's kernels do. At the end of every operator of such a dtype,
where eager's kernel stores its result, ``round_to`` rounds the value, stored here or not: fused
operators compute the same values as eager's one by one.
"""

from __future__ import annotations

import contextlib
import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol, simplify

LOW_PRECISION = (torch.bfloat16, torch.float16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of values loaded from a buffer of ``dtype``."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def round_number(number: float, dtype: torch.dtype) -> float:
    """``number`` rounded to the nearest value of a floating point ``dtype``."""
    if not math.isfinite(number) or dtype == torch.float64:
        return float(number)
    try:
        if dtype == torch.float32:
            return float(struct.unpack("<f", struct.pack("<f", number))[0])
        if dtype == torch.float16:
            return float(struct.unpack("<e", struct.pack("<e", number))[0])
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
    except OverflowError:
        return math.copysign(math.inf, number)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", rounded))[0])


def is_same_number(a: float, b: float) -> bool:
    """Equality in which NaN equals NaN."""
    return a == b or (a != a and b != b)


# Rules for the result dtype of an elementwise operation.
_SAME = "same"  # the dtype of the first non-condition argument
_BOOL = "bool"

#: Elementwise operations: name -> (number of arguments, result dtype rule). All arguments of one
#: call have the same dtype (lowerings promote); ``where`` takes a bool and two of one dtype.
ELEMENTWISE: dict[str, tuple[int, str]] = {
    # arithmetic; on integers these wrap around
    "add": (2, _SAME), "sub": (2, _SAME), "mul": (2, _SAME), "neg": (1, _SAME),
    "truediv": (2, _SAME),  # floats only
    # integer division by zero yields an arbitrary number; a lowering checks where eager raises
    "floordiv": (2, _SAME),  # rounds to -inf
    "truncdiv": (2, _SAME),  # rounds to 0
    "remainder": (2, _SAME),  # sign of the divisor
    "fmod": (2, _SAME),  # sign of the dividend
    "fma": (3, _SAME),  # floats only; a * b + c, rounded once
    "abs": (1, _SAME), "sign": (1, _SAME), "square": (1, _SAME),
    "maximum": (2, _SAME), "minimum": (2, _SAME),  # NaN if either is
    "fmax": (2, _SAME), "fmin": (2, _SAME),  # ignores one NaN
    "pow": (2, _SAME), "copysign": (2, _SAME), "nextafter": (2, _SAME), "hypot": (2, _SAME),
    "reciprocal": (1, _SAME), "gcd": (2, _SAME), "lcm": (2, _SAME),  # integers
    # float functions
    "exp": (1, _SAME), "exp2": (1, _SAME), "expm1": (1, _SAME),
    "exp_nonpositive": (1, _SAME),  # argument known to be <= 0 or NaN
    "exp_addend": (1, _SAME),  # the same, only ever summed with terms one of which is 1
    "log": (1, _SAME), "log2": (1, _SAME), "log10": (1, _SAME), "log1p": (1, _SAME),
    "sqrt": (1, _SAME), "rsqrt": (1, _SAME),
    "sin": (1, _SAME), "cos": (1, _SAME), "tan": (1, _SAME),
    "asin": (1, _SAME), "acos": (1, _SAME), "atan": (1, _SAME), "atan2": (2, _SAME),
    "sinh": (1, _SAME), "cosh": (1, _SAME), "tanh": (1, _SAME),
    "asinh": (1, _SAME), "acosh": (1, _SAME), "atanh": (1, _SAME),
    "erf": (1, _SAME), "erfc": (1, _SAME), "lgamma": (1, _SAME), "sigmoid": (1, _SAME),
    "normal_cdf": (1, _SAME),  # standard normal distribution; absolute error of an epsilon
    "floor": (1, _SAME), "ceil": (1, _SAME), "trunc": (1, _SAME),
    "round": (1, _SAME),  # half to even
    "isnan": (1, _BOOL), "isinf": (1, _BOOL), "signbit": (1, _BOOL),
    # comparison and logic
    "eq": (2, _BOOL), "ne": (2, _BOOL), "lt": (2, _BOOL), "le": (2, _BOOL),
    "gt": (2, _BOOL), "ge": (2, _BOOL),
    "logical_and": (2, _BOOL), "logical_or": (2, _BOOL),
    "logical_not": (1, _BOOL),
    "bitwise_and": (2, _SAME), "bitwise_or": (2, _SAME), "bitwise_xor": (2, _SAME),
    "bitwise_not": (1, _SAME),
    "shift_left": (2, _SAME), "shift_right": (2, _SAME),  # arithmetic; eager's out-of-range rule
    "where": (3, _SAME),
}  # fmt: skip

#: Special functions of floats: name -> number of arguments. Only the C++ printer has a library of
#: them, so lowerings use them on the CPU only. ``polygamma`` takes (x, n). The orthogonal
#: polynomials are left to ATen, whose source leaves the result for NaN undefined.
SPECIAL: dict[str, int] = {
    "digamma": 1, "polygamma": 2, "igamma": 2, "igammac": 2, "zeta": 2,
    "erfinv": 1, "erfcx": 1, "ndtri": 1, "log_ndtr": 1,
    "i0": 1, "i0e": 1, "i1": 1, "i1e": 1, "airy_ai": 1,
    "bessel_j0": 1, "bessel_j1": 1, "bessel_y0": 1, "bessel_y1": 1, "spherical_bessel_j0": 1,
    "modified_bessel_i0": 1, "modified_bessel_i1": 1,
    "modified_bessel_k0": 1, "modified_bessel_k1": 1,
    "scaled_modified_bessel_k0": 1, "scaled_modified_bessel_k1": 1,
}  # fmt: skip
ELEMENTWISE |= {f"special_{name}": (count, _SAME) for name, count in SPECIAL.items()}

#: Operations that return one of their arguments, possibly negated.
_SELECTIONS = frozenset(("where", "maximum", "minimum", "fmax", "fmin", "neg", "abs"))

#: Operations folded at compile time if their arguments are constants.
_FOLDED: dict[str, Callable[..., Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "neg": operator.neg, "abs": abs,
    "logical_and": operator.and_, "logical_or": operator.or_, "logical_not": operator.not_,
}  # fmt: skip

#: Operations that cost more to repeat than to store and load.
EXPENSIVE = frozenset(
    (
        "exp", "exp_nonpositive", "exp_addend", "exp2", "expm1", "log", "log2", "log10", "log1p",
        "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh", "erf", "erfc", "lgamma", "sigmoid", "normal_cdf", "pow", "hypot", "fmod",
        "remainder", "floordiv", "truncdiv", "gcd", "lcm", *(f"special_{name}" for name in SPECIAL),
    )
)  # fmt: skip

#: Reductions: name -> number of results. ``argmin``/``argmax`` take (value, flat index) and return
#: the index of the first extremum, NaN counting as the most extreme; ``fmax`` is the largest
#: non-NaN element (-inf without any); ``welford`` takes a value and returns (mean, sum of squared
#: differences from the mean, number of elements).
REDUCTIONS: dict[str, int] = {
    "sum": 1, "prod": 1, "max": 1, "min": 1, "fmax": 1, "any": 1,
    "argmax": 1, "argmin": 1, "welford": 3,
}  # fmt: skip

#: Scans along the reduction loops, in order: inclusive running results, one per element. Sums and
#: products of floats accumulate in double precision. ``argmax``/``argmin`` take (value, index) and
#: return the index of the last extremum so far, NaN counting as the most extreme.
SCANS = ("sum", "prod", "max", "min", "logsumexp", "argmax", "argmin")


@dataclass(eq=False, slots=True)
class Value:
    """One operation of a body. ``args`` hold Values, SymPy expressions and Python constants.

    ``op`` is a key of ELEMENTWISE or one of
    ``load``      (buffer, index, mask or None): ``dtype`` is the compute dtype
    ``store``     (buffer, index, value, mode): mode None, or for an accumulating scatter
                  "add", "mul", "max" or "min"
    ``constant``  (Python number,)
    ``number``    (expression of sizes and other numbers,): evaluated by the launcher in Python and
                  converted
    ``index_expr`` (expression,)
    ``to_dtype``  (value,): C conversion, as eager's
    ``round_to``  (value, low precision dtype): a float32 rounded to that dtype's values
    ``bitcast``   (value,)
    ``reduction`` (kind, values): over all reduction loops
    ``scan``      (kind, value), or (kind, value, index): along the reduction loops
    ``item``      (reduction, k): the k-th of several results
    ``check``     (condition, (error, message)): raises where the bool condition is false

    ``outer``: the value exists once per iteration of the outer loops (after the reduction), not per
    element of the reduction loops.
    """

    op: str
    args: tuple[Any, ...]
    dtype: torch.dtype
    outer: bool = False


@dataclass(eq=False)
class Body:
    """A recorded loop body over ``xs`` (outer loops) and ``rs`` (reduction loops).

    ``ranges``: size of each loop variable. ``indirect``: symbol of a computed index -> the Value
    that computes it. ``extents``: the same symbol -> size of the dimension it indexes.
    """

    xs: list[Symbol]
    rs: list[Symbol]
    ranges: dict[Symbol, Expr]
    values: list[Value] = field(default_factory=list)
    indirect: dict[Symbol, Value] = field(default_factory=dict)
    extents: dict[Symbol, Expr] = field(default_factory=dict)

    def of(self, op: str) -> list[Value]:
        """The values of operation ``op``, in order."""
        return [v for v in self.values if v.op == op]

    def is_reduction(self) -> bool:
        """True if the body reduces over its reduction loops."""
        return any(v.op == "reduction" for v in self.values)

    def remap(
        self,
        mapping: Mapping[Symbol, Expr],
        xs: Sequence[Symbol],
        rs: Sequence[Symbol],
        ranges: Mapping[Symbol, Expr],
    ) -> Body:
        """The same body over other loops; ``mapping`` has an expression for each old
        loop variable."""
        body = Body(list(xs), list(rs), dict(ranges))
        bounds = {**ranges}
        new: dict[Value, Value] = {}

        def convert(arg: Any) -> Any:
            if isinstance(arg, Value):
                return new[arg]
            if isinstance(arg, sympy.Basic):
                return simplify(arg.xreplace(mapping), bounds)
            if isinstance(arg, tuple):
                return tuple(convert(a) for a in arg)
            return arg

        for value in self.values:
            new[value] = Value(value.op, convert(value.args), value.dtype, value.outer)
            body.values.append(new[value])
        body.indirect = {symbol: new[value] for symbol, value in self.indirect.items()}
        body.extents = dict(self.extents)
        return body


class Recorder:
    """The handler that records a body, with common subexpression elimination."""

    def __init__(self, body: Body, dtype_of: Callable[[str], torch.dtype]) -> None:
        self.body = body
        self._dtype_of = dtype_of
        self._seen: dict[Any, Value] = {}
        self._rounded: dict[tuple[Value, torch.dtype], bool] = {}
        self._masks: list[Value] = []
        # Computed indices into possibly empty dimensions: symbol -> "the dimension has elements".
        self._nonempty: dict[Symbol, Value] = {}

    def _emit(self, op: str, args: tuple[Any, ...], dtype: torch.dtype, outer: bool) -> Value:
        # repr: 1, 1.0 and True are equal and hash alike, and so are 0.0 and -0.0.
        key = (
            op,
            tuple(a if isinstance(a, (Value, sympy.Basic)) else repr(a) for a in args),
            dtype,
        )
        if op in ("reduction", "scan"):
            key = (op, args, dtype)
        value = self._seen.get(key)
        if value is None:
            value = self._seen[key] = Value(op, args, dtype, outer)
            self.body.values.append(value)
        return value

    def _pure(self, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> Value:
        outer = any(a.outer for a in args if isinstance(a, Value))
        return self._emit(op, args, dtype, outer)

    def _index(self, index: Any) -> Expr:
        return simplify(sympy.sympify(index), self.body.ranges)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name not in ELEMENTWISE:
            raise AttributeError(name)
        count, rule = ELEMENTWISE[name]

        def operation(*args: Value) -> Value:
            assert len(args) == count, (name, args)
            known = self._fold(name, args)
            if known is not None:
                return known
            dtype = torch.bool if rule is _BOOL else args[-1 if name == "where" else 0].dtype
            return self._pure(name, args, dtype)

        return operation

    def _fold(self, name: str, args: Sequence[Value]) -> Value | None:
        """The folded result of constant arguments, or None.

        A choice left to run time would keep the C++ compiler from vectorising the loop.
        """
        if name == "where" and args[0].op == "constant":
            return args[1] if args[0].args[0] else args[2]
        if name not in _FOLDED or any(a.op != "constant" for a in args):
            return None
        dtype = args[0].dtype
        of_numbers = dtype == torch.int64 and ELEMENTWISE[name][1] is _BOOL
        if not (dtype.is_floating_point or dtype == torch.bool or of_numbers):
            return None
        numbers = [round_number(a.args[0], dtype) if dtype.is_floating_point else a.args[0]
                   for a in args]  # fmt: skip
        result = torch.bool if ELEMENTWISE[name][1] is _BOOL else dtype
        return self.constant(_FOLDED[name](*numbers), result)

    def load(self, buffer: str, index: Any) -> Value:
        """Element of ``buffer`` at element offset ``index``."""
        index = self._index(index)
        mask = self._masks[-1] if self._masks else None
        for symbol in self._nonempty.keys() & index.free_symbols:
            mask = (
                self._nonempty[symbol]
                if mask is None
                else self.logical_and(mask, self._nonempty[symbol])
            )
        return self._emit(
            "load", (buffer, index, mask), compute_dtype(self._dtype_of(buffer)), False
        )

    def constant(self, number: float | int | bool | Expr, dtype: torch.dtype) -> Value:
        """A constant of the program, or an expression of numbers known at launch."""
        dtype = compute_dtype(dtype)
        if isinstance(number, sympy.Basic) and not number.is_number:
            return self._pure("number", (number,), dtype)
        kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
        return self._pure("constant", (kind(number),), dtype)

    def index_expr(self, expression: Any, dtype: torch.dtype) -> Value:
        """An integer expression of loop variables and sizes, as a value."""
        return self._pure("index_expr", (self._index(expression),), compute_dtype(dtype))

    def to_dtype(self, value: Value, dtype: torch.dtype) -> Value:
        """Convert as eager does; for a low precision dtype, round to its values."""
        target = compute_dtype(dtype)
        if value.dtype != target:
            value = self._pure("to_dtype", (value,), target)
        if dtype in LOW_PRECISION and not self._is_rounded(value, dtype):
            value = self._pure("round_to", (value, dtype), torch.float32)
        return value

    def _is_rounded(self, value: Value, dtype: torch.dtype) -> bool:
        """True if every result of ``value`` is a value of the low precision ``dtype``."""
        known = self._rounded.get((value, dtype))
        if known is None:
            known = self._rounded[value, dtype] = self._compute_is_rounded(value, dtype)
        return known

    def _compute_is_rounded(self, value: Value, dtype: torch.dtype) -> bool:
        if value.op == "load":
            return self._dtype_of(value.args[0]) == dtype
        if value.op == "round_to":
            return bool(value.args[1] == dtype)
        if value.op == "constant":
            return is_same_number(round_number(value.args[0], dtype), value.args[0])
        if value.op in _SELECTIONS:
            sides = value.args[1:] if value.op == "where" else value.args
            return all(self._is_rounded(v, dtype) for v in sides)
        return False

    def bitcast(self, value: Value, dtype: torch.dtype) -> Value:
        """Reinterpret the bits as ``dtype``, of the same size."""
        return self._pure("bitcast", (value,), dtype)

    def masked(self, mask: Value, body: Callable[[], Value], other: float | int | bool) -> Value:
        """``body()`` where ``mask`` holds, else ``other``; masked-out elements are not loaded."""
        if self._masks:
            mask = self.logical_and(self._masks[-1], mask)
        self._masks.append(mask)
        try:
            value = body()
        finally:
            self._masks.pop()
        return self.where(mask, value, self.constant(other, value.dtype))

    def check(self, condition: Value, message: str, error: str = "IndexError") -> None:
        """Raise ``error(message)`` at run time if the condition fails for an element not masked
        out."""
        if self._masks:
            condition = self.logical_or(self.logical_not(self._masks[-1]), condition)
        self._pure("check", (condition, (error, message)), torch.bool)

    def indirect(
        self, index: Value, size: Any, message: str | None = None, error: str = "IndexError", *,
        from_end: bool = False,
    ) -> Symbol:  # fmt: skip
        """A symbol for a computed index into a dimension of ``size``.

        With ``message``, an index outside [0, size) raises ``error(message)``; ``from_end`` lets
        negative indices count from the end. Without, the caller guarantees the bounds.
        """
        index = self.to_dtype(index, torch.int64)
        zero = self.constant(0, torch.int64)
        extent = self.index_expr(size, torch.int64)
        if message is not None:
            if from_end:
                index = self.where(self.lt(index, zero), self.add(index, extent), index)
            within = self.logical_and(self.ge(index, zero), self.lt(index, extent))
            self.check(within, message, error)
            index = self.where(within, index, zero)  # the kernel runs on until it can report
        for symbol, value in self.body.indirect.items():
            if value is index:
                return symbol
        symbol = sympy.Symbol(f"j{len(self.body.indirect)}", integer=True, nonnegative=True)
        self.body.indirect[symbol] = index
        self.body.extents[symbol] = sympy.sympify(size)
        if not sympy.sympify(size).is_positive:  # an empty dimension has no element to load
            self._nonempty[symbol] = self.gt(extent, zero)
        return symbol

    def reduction(self, kind: str, *values: Value, dtype: torch.dtype | None = None) -> Any:
        """Combine over the reduction loops; a Value, or a tuple for kinds with several results.

        Without reduction loops (all of size 1) the result is the single element. ``dtype``: result
        dtype of Welford's recurrence, by default the elements'.
        """
        if not self.body.rs:
            if kind == "welford":
                value = self.to_dtype(values[0], dtype or values[0].dtype)
                return value, self.sub(value, value), self.constant(1, value.dtype)
            return self._reduce_one(kind, values[-1])  # argmin and argmax: the index
        if kind in ("argmax", "argmin"):
            dtype = torch.int64
        else:
            dtype = dtype or values[0].dtype
        result = self._emit("reduction", (kind, values), dtype, True)
        if REDUCTIONS[kind] == 1:
            return result
        return tuple(self._emit("item", (result, k), dtype, True) for k in range(REDUCTIONS[kind]))

    def scan(self, kind: str, value: Value, *index: Value) -> Value:
        """Running combination along the reduction loops, one value per element."""
        if not self.body.rs:
            return self._reduce_one(kind, index[0] if index else value)
        dtype = index[0].dtype if index else value.dtype
        return self._emit("scan", (kind, value, *index), dtype, False)

    def _reduce_one(self, kind: str, value: Value) -> Value:
        """The result over one element. A sum starts from 0.0, which turns -0.0 into 0.0."""
        if kind in ("sum", "logsumexp") and value.dtype.is_floating_point:
            return self.add(value, self.constant(0.0, value.dtype))
        return value

    def store(self, buffer: str, index: Any, value: Value, mode: str | None = None) -> None:
        """Write ``value``, converted to the buffer's dtype; ``mode`` combines with the old
        contents."""
        if self._dtype_of(buffer) in LOW_PRECISION:
            value = self.to_dtype(value, self._dtype_of(buffer))
        index = self._index(index)
        if self._nonempty.keys() & index.free_symbols:
            raise Unsupported("a scatter", "into a possibly empty dimension")
        args = (buffer, index, value, mode)
        self.body.values.append(Value("store", args, self._dtype_of(buffer), value.outer))


class _Ops:
    """Forwards each call to the innermost handler."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handlers[-1], name)

    @contextlib.contextmanager
    def set_handler(self, handler: Any) -> Iterator[None]:
        """Direct ``ops.*`` to ``handler.*`` within the block."""
        self._handlers.append(handler)
        try:
            yield
        finally:
            self._handlers.pop()


ops = _Ops()


def record(
    sizes: Sequence[Expr],
    reduction_sizes: Sequence[Expr],
    function: Callable[[list[Expr], list[Expr]], None],
    dtype_of: Callable[[str], torch.dtype],
) -> Body:
    """Run a define-by-run loop body once and return its recording.

    Loops of size 1 are dropped: the constant 0 replaces their variable.
    """
    xs, xargs = _loop_variables("x", sizes)
    rs, rargs = _loop_variables("r", reduction_sizes)
    ranges = dict(xs) | dict(rs)
    body = Body([v for v, _ in xs], [v for v, _ in rs], ranges)
    with ops.set_handler(Recorder(body, dtype_of)):
        function(xargs, rargs)
    return body


def _loop_variables(
    prefix: str, sizes: Sequence[Expr]
) -> tuple[list[tuple[Symbol, Expr]], list[Expr]]:
    loops: list[tuple[Symbol, Expr]] = []
    args: list[Expr] = []
    for size in sizes:
        if size == 1:
            args.append(sympy.S.Zero)
            continue
        symbol = loop_symbol(prefix, len(loops))
        loops.append((symbol, size))
        args.append(symbol)
    return loops, args


def loop_symbol(prefix: str, k: int) -> Symbol:
    """The k-th loop variable of a family."""
    return sympy.Symbol(f"{prefix}{k}", integer=True, nonnegative=True)
