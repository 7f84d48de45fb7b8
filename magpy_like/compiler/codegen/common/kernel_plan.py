"""The plan of one kernel, and the walk over the values of its bodies, for all printers.

A :class:`Kernel` is a fused list of loop nests over common loops ``xs`` (outer, independent) and
``rs`` (reduction). Its nodes are arranged in :class:`Phase` s. For each outer iteration a phase
runs its ``inner`` nodes once per element of the reduction loops, then its ``outer`` nodes once. A
softmax row is three phases: maximum; exponential and its sum; division. A pointwise kernel is one
phase with ``outer`` nodes only. A printer maps iterations to threads, vectors and blocks; the plan
fixes where each value is computed.

A buffer written and read inside the kernel is forwarded (:attr:`Kernel.forward`):
``"value"``  written and read in the same phase and level: the value itself is reused;
``"outer"``  one value per outer iteration, read in a later phase;
``"row"``    one value per element, read in a later phase: kept in scratch, or re-read from
             memory when the buffer is stored anyway.
Buffers in ``removed`` are not stored at all: nothing outside the kernel reads them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Body, Value


@dataclass(eq=False)
class Node:
    """One loop nest of a kernel; ``inner``: its loops include the kernel's reduction loops.

    Its facts are cached, since fusion compares many pairs: change loads through
    :meth:`redirect_read` only.
    """

    name: str
    body: Body
    inner: bool
    origins: list[str] = field(default_factory=list)

    @functools.cached_property
    def reads(self) -> Set[str]:
        return frozenset(v.args[0] for v in self.body.of("load"))

    @functools.cached_property
    def writes(self) -> Set[str]:
        return frozenset(v.args[0] for v in self.body.of("store"))

    @functools.cached_property
    def accesses(self) -> Mapping[str, Sequence[Expr]]:
        """The addresses of its loads and stores in order, by buffer."""
        found: dict[str, list[Expr]] = {}
        for value in self.body.values:
            if value.op in ("load", "store"):
                found.setdefault(value.args[0], []).append(value.args[1])
        return found

    @functools.cached_property
    def divided_bases(self) -> Set[Expr]:
        """What its addresses divide."""
        return frozenset(
            part.args[0]
            for address in addresses(self.body)
            for part in address.atoms(index_arithmetic.Div, index_arithmetic.Mod)
        )

    def redirect_read(self, value: Value, buffer: str) -> None:
        """Let one of the node's loads read another buffer at the same address."""
        value.args = (buffer, *value.args[1:])
        for cached in ("reads", "accesses"):
            vars(self).pop(cached, None)


@dataclass(eq=False)
class Phase:
    """Nodes run per element of the reduction loops, then nodes run per outer iteration."""

    inner: list[Node] = field(default_factory=list)
    outer: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Kernel:
    """The plan of one kernel, for any printer.

    ``ranges``: size of each loop. ``inputs`` and ``outputs``: buffers passed (one updated in place
    is an output only). After them come ``size_symbols`` as 64-bit integers, and the values of
    ``numbers``, which the launcher computes, as 64-bit integers or doubles. ``messages``: (error,
    message) pairs of its checks, by position.
    """

    name: str
    device: torch.device
    xs: list[Symbol]
    rs: list[Symbol]
    ranges: dict[Symbol, Expr]
    phases: list[Phase]
    dtypes: dict[str, torch.dtype]
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    forward: dict[str, str] = field(default_factory=dict)
    size_symbols: list[Symbol] = field(default_factory=list)
    numbers: list[Expr] = field(default_factory=list)
    messages: list[tuple[str, str]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """A name for profiles: the operators that it computes."""
        operators = re.findall(r": \w+\.(\w+)", " ".join(self.origins))
        return "_".join(["magpy", *dict.fromkeys(operators)])[:80].rstrip("_")

    def number(self, expression: Expr) -> str:
        """The name of the argument that holds the value of ``expression``."""
        return f"n{self.numbers.index(expression)}"

    def nodes(self) -> list[Node]:
        """All nodes in execution order."""
        return [n for p in self.phases for n in (*p.inner, *p.outer)]

    def scratch_rows(self) -> list[str]:
        """Buffers kept in scratch between phases, one value per element of the reduction."""
        return [b for b, kind in self.forward.items() if kind == "row" and b in self.removed]

    def size(self, variables: Iterable[Symbol]) -> Expr:
        """Number of iterations of the given loops together."""
        return index_arithmetic.product(self.ranges[v] for v in variables)


def plan_kernel(
    name: str,
    device: torch.device,
    nodes: Sequence[Node],
    xs: list[Symbol],
    rs: list[Symbol],
    ranges: dict[Symbol, Expr],
    dtypes: Mapping[str, torch.dtype],
    removable: set[str],
) -> Kernel:
    """Arrange fused nodes (in program order, over common loops) into a kernel.

    ``removable``: buffers that nothing outside the kernel reads.
    """
    xs, rs, ranges, nodes = _normalize_loops(xs, rs, ranges, nodes)
    kernel = Kernel(name, device, xs, rs, ranges, _assign_phases(nodes), {})
    stored_at = _find_stores(kernel.phases)
    written: set[str] = set()  # so far: a buffer updated in place is also read before
    for node in nodes:
        for buffer in node.reads & written:
            kernel.forward[buffer] = _widest_forwarding(
                kernel.forward.get(buffer),
                _forwarding(stored_at[buffer], load_position(kernel, node)),
            )
        written |= node.writes
    kernel.removed = written & removable
    _collect_arguments(kernel, nodes, dtypes)
    return kernel


_FORWARDING_ORDER = ["value", "outer", "row"]


def _widest_forwarding(a: str | None, b: str) -> str:
    return b if a is None or _FORWARDING_ORDER.index(b) > _FORWARDING_ORDER.index(a) else a


def _forwarding(source: tuple[int, bool], reader: tuple[int, bool]) -> str:
    """The kind of forwarding from a store at (phase, is per element) to a reader."""
    if source == reader:
        return "value"
    return "row" if source[1] else "outer"


def _find_stores(phases: Sequence[Phase]) -> dict[str, tuple[int, bool]]:
    """The position of each buffer's store: (phase, is the store per element)."""
    stored_at: dict[str, tuple[int, bool]] = {}
    for k, phase in enumerate(phases):
        for node in (*phase.inner, *phase.outer):
            for store in node.body.of("store"):
                stored_at[store.args[0]] = (k, node.inner and not store.outer)
    return stored_at


def load_position(kernel: Kernel, node: Node) -> tuple[int, bool]:
    """(phase, is per element) of a node's loads. Raises KeyError for a node of another kernel."""
    for k, phase in enumerate(kernel.phases):
        if node in phase.inner or node in phase.outer:
            return k, node.inner
    raise KeyError(node.name)


def _assign_phases(nodes: Sequence[Node]) -> list[Phase]:
    """Assign each node to the earliest phase in which its inputs are available.

    An inner node may share a phase with inner nodes that feed it element by element. The result of
    a reduction is available one phase later to inner nodes, and in the same phase to outer nodes. A
    buffer updated in place is written after every earlier node has read it.
    """
    ready_inner: dict[str, int] = {}  # buffer -> first phase whose inner nodes may read it
    ready_outer: dict[str, int] = {}
    last_read: dict[str, tuple[int, bool]] = {}  # buffer -> (phase, by an outer node)
    phases: list[Phase] = []
    for node in nodes:
        ready = ready_inner if node.inner else ready_outer
        k = max(
            [ready.get(b, 0) for b in node.reads]
            + [
                last_read[b][0] + (last_read[b][1] and node.inner)
                for b in node.writes & last_read.keys()
            ]
            + [ready.get(b, 0) for b in node.writes],
            default=0,
        )
        while len(phases) <= k:
            phases.append(Phase())
        (phases[k].inner if node.inner else phases[k].outer).append(node)
        for b in node.reads:
            last_read[b] = max(last_read.get(b, (0, False)), (k, not node.inner))
        for store in node.body.of("store"):
            per_element = node.inner and not store.outer
            ready_inner[store.args[0]] = k if per_element else k + 1
            ready_outer[store.args[0]] = k
    return [p for p in phases if p.inner or p.outer]


def _normalize_loops(
    xs: list[Symbol], rs: list[Symbol], ranges: dict[Symbol, Expr], nodes: Sequence[Node]
) -> tuple[list[Symbol], list[Symbol], dict[Symbol, Expr], list[Node]]:
    """Split loops at the divisors of addresses, then merge adjacent loops that all addresses see as
    one.

    Afterwards an address contains a division only where the layout requires it.
    """
    nodes = list(nodes)
    split = _find_split_sizes(xs + rs, ranges, nodes)
    if split:
        mapping: dict[Symbol, Expr] = {v: v for v in xs + rs}
        new_ranges: dict[Symbol, Expr] = {}

        def cut(variables: list[Symbol]) -> list[Symbol]:
            result = []
            for v in variables:
                parts = split.get(v, [])
                symbols = [
                    sympy.Symbol(f"{v.name}_{k}", integer=True, nonnegative=True)
                    for k in range(len(parts))
                ]
                if not parts:
                    symbols, parts = [v], [ranges[v]]
                else:
                    mapping[v] = index_arithmetic.flatten(symbols, parts)
                new_ranges.update(zip(symbols, parts, strict=True))
                result += symbols
            return result

        xs, rs = cut(xs), cut(rs)
        ranges = new_ranges
        nodes = [_remap_node(n, mapping, xs, rs, ranges) for n in nodes]
    indices = [e for n in nodes for e in addresses(n.body)]
    mapping, ranges = {}, dict(ranges)
    for group in (xs, rs):
        for outer, inner in index_arithmetic.mergeable_loops(group, ranges, indices):
            mapping[outer] = sympy.S.Zero
            ranges[inner] = ranges[inner] * ranges.pop(outer)
    if mapping:
        xs = [v for v in xs if v not in mapping]
        rs = [v for v in rs if v not in mapping]
        nodes = [_remap_node(n, mapping, xs, rs, ranges) for n in nodes]
    # Canonical names x0, x1, ... r0, r1, ... make equal kernels equal texts.
    rename = {v: sympy.Symbol(f"x{k}", integer=True, nonnegative=True) for k, v in enumerate(xs)}
    rename |= {v: sympy.Symbol(f"r{k}", integer=True, nonnegative=True) for k, v in enumerate(rs)}
    if any(a != b for a, b in rename.items()):
        nodes = [
            _remap_node(n, rename, [rename[v] for v in xs], [rename[v] for v in rs],
                  {rename[v]: s for v, s in ranges.items()})
            for n in nodes
        ]  # fmt: skip
        ranges = {rename[v]: ranges[v] for v in (*xs, *rs)}
        xs, rs = [rename[v] for v in xs], [rename[v] for v in rs]
    return xs, rs, {v: ranges[v] for v in (*xs, *rs)}, nodes


def _remap_node(
    node: Node,
    mapping: Mapping[Symbol, Expr],
    xs: list[Symbol],
    rs: list[Symbol],
    ranges: dict[Symbol, Expr],
) -> Node:
    body = node.body.remap(mapping, xs, rs if node.inner else [], ranges)
    return Node(node.name, body, node.inner, node.origins)


def addresses(body: Body) -> list[Expr]:
    """Every expression of loop variables in a body: addresses and index values."""
    found = []
    for v in body.values:
        if v.op in ("load", "store"):
            found.append(v.args[1])
        elif v.op == "index_expr":
            found.append(v.args[0])
    return found


def _find_split_sizes(
    variables: Sequence[Symbol], ranges: Mapping[Symbol, Expr], nodes: Sequence[Node]
) -> dict[Symbol, list[Expr]]:
    """Sizes to split loops into that appear as ``Div(v, d)`` or ``Mod(Div(v, d), m)``."""
    quotient = index_arithmetic.exact_quotient
    cuts: dict[Symbol, set[Expr]] = {}
    for node in nodes:
        for e in addresses(node.body):
            for f in e.atoms(index_arithmetic.Div, index_arithmetic.Mod):
                base, d = f.args
                if isinstance(base, index_arithmetic.Div):
                    base, d = base.args[0], base.args[1] * d
                if base in ranges:
                    cuts.setdefault(base, set()).add(d)
    split = {}
    for v, points in cuts.items():
        chain: list[Expr] = [sympy.S.One]
        for d in sorted(points, key=lambda p: (len(p.free_symbols), sympy.default_sort_key(p))
                        if not p.is_Integer else (0, (int(p),))):  # fmt: skip
            if quotient(chain[-1], d) is not None and quotient(d, ranges[v]):
                chain.append(d)
        chain.append(ranges[v])
        sizes = [quotient(a, b) for a, b in itertools.pairwise(chain)]
        sizes = [s for s in sizes if s is not None and s != 1]
        if len(sizes) > 1:
            split[v] = sizes[::-1]
    return split


def _collect_arguments(
    kernel: Kernel, nodes: Sequence[Node], dtypes: Mapping[str, torch.dtype]
) -> None:
    """Fill in the buffers, size symbols, numbers and messages that the kernel's code refers to."""
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    symbols: set[Symbol] = set()
    messages: dict[tuple[str, str], None] = {}
    numbers: dict[Expr, None] = {}
    loops = set(kernel.ranges)
    for size in kernel.ranges.values():
        symbols |= size.free_symbols
    for node in nodes:
        for v in node.body.values:
            if v.op == "check":
                messages[v.args[1]] = None
            if v.op == "number":
                numbers[v.args[0]] = None
            if v.op in ("load", "store"):
                buffer, index = v.args[0], v.args[1]
                kernel.dtypes[buffer] = dtypes[buffer]
                symbols |= index.free_symbols
                if buffer in kernel.removed:
                    continue
                if v.op == "store":
                    outputs[buffer] = None
                elif kernel.forward.get(buffer) not in ("value", "outer"):
                    inputs[buffer] = None
            elif v.op == "index_expr":
                symbols |= v.args[0].free_symbols
        symbols -= set(node.body.indirect)
        kernel.origins += node.origins
    kernel.inputs = [b for b in inputs if b not in outputs]
    kernel.outputs = list(outputs)
    kernel.size_symbols = sorted(symbols - loops, key=lambda s: s.name)
    kernel.numbers = list(numbers)
    kernel.messages = list(messages)


# --- printing -----------------------------------------------------------------------------------


def is_integral(number: Expr) -> bool:
    """True if a number's value is an integer or a bool, not a float."""
    return bool(number.is_integer) or bool(number.is_Boolean)


class Lines:
    """Source text under construction, with its indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """Append a line at the current indentation."""
        self._lines.append("    " * self._depth + text if text else "")

    def indent(self, by: int = 1) -> None:
        """Change the indentation by levels of four spaces."""
        self._depth += by

    def append(self, others: Lines) -> None:
        """Append other lines at the current indentation."""
        for text in others._lines:
            self.line(text)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def __len__(self) -> int:
        return len(self._lines)


@dataclass(frozen=True)
class IndexPrinter:
    """Prints size and index expressions as 64-bit integers of a target language.

    ``divide``: template of the division of non-negative integers. ``function`` and ``extremum``:
    templates of the names of the prelude's floor division and remainder, and its minimum and
    maximum.
    """

    language: str
    divide: str
    function: str
    extremum: str
    number: Callable[[int], str] = str

    def __call__(self, e: Expr) -> str:
        """``e`` in the target language. Raises Unsupported for an expression without a
        form there."""
        if e.is_Integer:
            return self.number(int(e))
        if e.is_Symbol:
            return str(e.name)
        if e.is_Pow and e.exp.is_Integer and e.exp > 0:
            return "(" + " * ".join([self(e.base)] * int(e.exp)) + ")"
        name = type(e).__name__
        args = [self(a) for a in e.args] if not e.is_Pow else []
        if e.is_Add or e.is_Mul:
            return "(" + (" + " if e.is_Add else " * ").join(args) + ")"
        if name in ("Div", "CleanDiv", "IntTrueDiv"):
            return f"({self.divide.format(*args)})"
        if isinstance(e, index_arithmetic.Mod):
            return f"({args[0]} % {args[1]})"
        if name == "FloorDiv":
            return self._divided(*args)
        if name in ("Mod", "PythonMod"):
            return self._remaining(*args)
        if name == "ModularIndexing":
            return self._remaining(self._divided(*args[:2]), args[2])
        if name in ("Max", "Min"):
            better = self.extremum.format(f"{name.lower()}imum")
            return functools.reduce(lambda a, b: f"{better}({a}, {b})", args)
        raise Unsupported("a size expression", f"{e} cannot be printed in {self.language}")

    def _divided(self, a: str, b: str) -> str:
        return f"{self.function.format('int_floordiv')}({a}, {b})"

    def _remaining(self, a: str, b: str) -> str:
        return f"{self.function.format('int_remainder')}({a}, {b})"


class Emitter:
    """Base class of emitters: walks the values of bodies and names each result.

    One emitter serves one phase at one level (per element or per outer iteration), so nodes share
    values: equal operations on equal names are one name, and a load after a store of its buffer is
    the stored value. A subclass prints the statements.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[Value, Any] = {}
        self._known: dict[tuple[Any, ...], Any] = {}
        self._stored: dict[str, Any] = {}

    def run(self, body: Body, values: Iterable[Value]) -> None:
        """Print ``values`` of ``body``, given in order."""
        indirect = {value: symbol for symbol, value in body.indirect.items()}
        rename: dict[Symbol, Expr] = {}
        for value in values:
            self.names[value] = self._emit(value, rename)
            if value in indirect:
                rename[indirect[value]] = sympy.Symbol(str(self.names[value]), integer=True)

    def _emit(self, value: Value, rename: Mapping[Symbol, Expr]) -> Any:
        args = tuple(self._arg(a, rename) for a in value.args)
        if value.op == "store":
            buffer, index, name, mode = args
            self.store(buffer, index, name, value.args[2].dtype, mode)
            if mode is None:
                self.remember(buffer, self.as_loaded(buffer, name, value.args[2].dtype))
            return None
        if value.op == "load" and args[0] in self._stored:
            return self._stored[args[0]]
        # repr of numbers, since 0.0 == -0.0 and 1 == True.
        exact = (a if isinstance(a, (str, sympy.Basic)) else repr(a) for a in args)
        key = (value.op, value.dtype, *exact)
        name = self._known.get(key)
        if name is None:
            if value.op == "load":
                name = self.load(args[0], args[1], args[2], value.dtype)
            else:
                dtypes = [a.dtype for a in value.args if isinstance(a, Value)]
                name = self.operation(value.op, args, value.dtype, dtypes)
            self._known[key] = name
        return name

    def remember(self, buffer: str, name: Any) -> Any:
        """Let later loads of the buffer return this name; returns it."""
        self._stored[buffer] = name
        return name

    def _arg(self, arg: Any, rename: Mapping[Symbol, Expr]) -> Any:
        if isinstance(arg, Value):
            return self.names[arg]
        if isinstance(arg, sympy.Basic):
            return arg.xreplace(rename) if rename else arg
        return arg

    # The printer's part. A name is any object that ``str`` identifies.

    def load(self, buffer: str, index: Expr, mask: Any, dtype: torch.dtype) -> Any:
        """Read memory (or the scratch of a forwarded buffer), converted to ``dtype``."""
        raise NotImplementedError

    def store(self, buffer: str, index: Expr, name: Any, dtype: torch.dtype, mode: Any) -> None:
        """Write memory or scratch, or both."""
        raise NotImplementedError

    def as_loaded(self, buffer: str, name: Any, dtype: torch.dtype) -> Any:
        """The value a load returns after storing ``name``: converted to the buffer's dtype."""
        raise NotImplementedError

    def operation(
        self, op: str, args: tuple[Any, ...], dtype: torch.dtype, dtypes: list[torch.dtype]
    ) -> Any:
        """Any other operation of :class:`magpy_like.compiler.ir.ops.Value`."""
        raise NotImplementedError


def loop_invariants(body: Body, loop: Symbol, readable: Collection[str]) -> list[Value]:
    """The values of ``body`` that are the same in all iterations of ``loop``, in order.

    Loads count only from ``readable`` buffers, which nothing writes meanwhile.
    """
    moves: set[Value] = set()
    for value in body.values:
        free = {s for a in value.args if isinstance(a, sympy.Basic) for s in a.free_symbols}
        if (
            loop in free
            or any(d in moves for d in dependencies(value, body))
            or value.op in ("store", "reduction", "scan")
            or (value.op == "load" and value.args[0] not in readable)
        ):
            moves.add(value)
    return [v for v in body.values if v not in moves]


def votes_across_rows(
    nodes: Iterable[Node], xs: Sequence[Symbol], rs: Sequence[Symbol], near: Collection[Symbol]
) -> int:
    """Positive if reductions run across rows of memory, negative if along them.

    The number of accesses contiguous in an outer loop minus those contiguous in a reduction loop,
    both loops of ``near``. Accesses that vary with outer and reduction loops decide; accesses
    repeated for each row or column only break a tie.
    """
    total, few = 0, 0
    for node in nodes:
        for value in node.body.values:
            if value.op not in ("load", "store"):
                continue
            form = index_arithmetic.coefficients(value.args[1], (*xs, *rs))
            if form is None or not form[0].keys() & set(rs):
                continue
            next_to = [v for v, step in form[0].items() if step == 1 and v in near]
            votes = sum(-1 if v in rs else 1 for v in next_to)
            if form[0].keys() & set(xs):
                total += votes
            else:
                few += votes
    return total or few


def split_levels(body: Body) -> tuple[list[Value], list[Value], list[Value]]:
    """Partition a body's values into (per element, reductions, after the reductions).

    Constants and loads invariant in the reduction loops may be needed at both levels, and then are
    in both lists.
    """
    reductions = body.of("reduction")
    effects = [v for v in body.values if v.op in ("store", "check")]
    inner = _needed([*reductions, *(v for v in effects if not v.outer)], body) - set(reductions)
    after = _needed([v for v in effects if v.outer], body, stop=reductions)
    return (
        [v for v in body.values if v in inner],
        reductions,
        [v for v in body.values if v in after],
    )


def _needed(roots: Sequence[Value], body: Body, stop: Sequence[Value] = ()) -> set[Value]:
    found: set[Value] = set()
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value in found or value in stop:
            continue
        found.add(value)
        pending += dependencies(value, body)
    return found


def dependencies(value: Value, body: Body) -> list[Value]:
    """The values that ``value`` is computed from, computed indices included."""
    found: list[Value] = []
    for arg in value.args:
        for item in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(item, Value):
                found.append(item)
            elif isinstance(item, sympy.Basic) and body.indirect:
                found += [body.indirect[s] for s in item.free_symbols if s in body.indirect]
    return found
