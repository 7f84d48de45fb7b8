"""The loop IR: buffers, the operations that write them, and lazy tensors.

The IR has two layers. *Buffers* are memory with a layout; *operations* (``LoopOp``, ``ExternOp``)
write them in program order, and the scheduler works on those. Above it, during lowering, every
tensor of the ATen graph is a :class:`Box`: memory (``Strided``), a computation without memory
(``Computed``), or a view of another box (``View``). :meth:`Box.realize` turns a box into memory,
only where necessary or worthwhile (PyTorch 2, section 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy
import torch

from magpy_like.compiler.ir.index_arithmetic import Expr, product
from magpy_like.compiler.ir.ops import Body, Value, ops

if TYPE_CHECKING:
    from magpy_like.compiler.lowering.graph_lowering import Graph

Index = Sequence[Expr]

#: dtypes of the loop IR; operators on others run through ATen. Complex functions follow rules of
#: their own for infinities and branch cuts, which a pair of reals does not reproduce.
LOOP_DTYPES = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.bfloat16, torch.float16, torch.float32, torch.float64)
)  # fmt: skip


@dataclass(eq=False)
class Buffer:
    """Memory: one allocation of ``dtype`` elements of shape ``size`` and strides ``stride``.

    ``kind``: "input" (an argument of the graph), "constant" (a tensor the graph owns), "computed"
    (allocated by the launcher, written by LoopOps) or "extern" (returned by an ExternOp).
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    size: list[Expr]
    stride: list[Expr]
    kind: str
    aliased: bool = False  # another buffer may share its memory: never reused
    dense: bool = True  # no gaps: may take over memory of the same element count

    def address(self, index: Index) -> Expr:
        """Element offset of ``index`` from the first element."""
        return sum((i * s for i, s in zip(index, self.stride, strict=True)), sympy.S.Zero)

    def numel(self) -> Expr:
        """Number of elements."""
        return product(self.size)


@dataclass(eq=False)
class LoopOp:
    """A loop nest that writes one or several buffers.

    ``origins`` names the ATen nodes it computes; ``function`` is the number of the checkpointed
    function it recomputes a part of.
    """

    name: str
    body: Body
    origins: list[str] = field(default_factory=list)
    function: int | None = None

    @property
    def writes(self) -> list[str]:
        """Names of the buffers it writes, each once."""
        return list(dict.fromkeys(v.args[0] for v in self.body.of("store")))

    @property
    def reads(self) -> list[str]:
        """Names of the buffers it reads, each once."""
        return list(dict.fromkeys(v.args[0] for v in self.body.of("load")))


@dataclass(eq=False)
class ExternOp:
    """An ATen call: ``outputs = target(*args, **kwargs)``.

    ``args`` and ``kwargs`` hold ``Strided`` for tensors and expressions for symbolic numbers. An
    entry of ``outputs`` is a buffer name, None for an unused output or a non-tensor, or an
    expression: a symbol that the launcher binds to the returned number, or the value it is assumed
    to equal. ``mutates`` lists buffers written in place. ``ordered`` operators (random numbers,
    side effects) keep their program order among themselves.
    """

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Any]
    multiple: bool
    mutates: list[str] = field(default_factory=list)
    ordered: bool = False
    dynamic: bool = False  # result sizes, or their number, are known at run time only
    origins: list[str] = field(default_factory=list)

    @property
    def reads(self) -> list[str]:
        """Names of the buffers it reads, each once."""
        found = [s.buffer for s in strided_leaves((self.args, self.kwargs))]
        return list(dict.fromkeys(found))

    @property
    def writes(self) -> list[str]:
        """Names of the buffers it returns or writes in place."""
        return [o for o in self.outputs if isinstance(o, str)] + self.mutates


Operation = LoopOp | ExternOp


def strided_leaves(tree: Any) -> list[Strided]:
    """Every Strided in nested tuples, lists and dicts."""
    if isinstance(tree, Strided):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in strided_leaves(item)]
    return []


@dataclass(frozen=True, eq=False)
class Strided:
    """A window on a buffer, as a torch tensor is a window on its storage."""

    buffer: str
    size: list[Expr]
    stride: list[Expr]
    offset: Expr

    def address(self, index: Index) -> Expr:
        return sum((i * s for i, s in zip(index, self.stride, strict=True)), self.offset)


# Limits of a computation that each of several consumers repeats.
MAX_SHARED_OPERATIONS = 6
MAX_SHARED_READS = 2
# A computation from loop positions alone, such as token distances, repeats no memory read.
MAX_SHARED_INDEX_OPERATIONS = 16


@dataclass(frozen=True, eq=False)
class Cost:
    """Cost of inlining a computation: its operations, whether one is expensive, the buffers it
    reads."""

    operations: int
    expensive: bool
    reads: frozenset[str]

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.operations + other.operations,
            self.expensive or other.expensive,
            self.reads | other.reads,
        )

    @property
    def is_expensive(self) -> bool:
        """True if a computation with several consumers is stored rather than repeated."""
        few = MAX_SHARED_OPERATIONS if self.reads else MAX_SHARED_INDEX_OPERATIONS
        return self.expensive or self.operations > few or len(self.reads) > MAX_SHARED_READS


FREE = Cost(0, False, frozenset())


@dataclass(frozen=True, eq=False)
class Computed:
    """A computation per element without memory: ``function(index) -> Value``."""

    function: Callable[[Index], Value]
    cost: Cost


@dataclass(frozen=True, eq=False)
class View:
    """Another box under ``reindex`` (index of this view -> index of the base).

    ``restride`` maps the base's window to this view's, or to None if strides cannot express it.
    """

    base: Box
    reindex: Callable[[Index], Index]
    restride: Callable[[Strided], Strided | None]


@dataclass(eq=False)
class Box:
    """One tensor of the ATen graph: ``size`` in expressions, ``dtype`` and ``device`` as
    torch's."""

    graph: Graph
    dtype: torch.dtype
    device: torch.device
    size: list[Expr]
    data: Strided | Computed | View
    stride_hint: list[Expr] | None = None  # eager's strides, used when this box is realized
    origin: Any = None  # the ATen node whose result it is; None for a part of a lowering

    def load(self, index: Index) -> Value:
        """The element at ``index``, through the current ``ops`` handler."""
        data = self.data
        if isinstance(data, Strided):
            return ops.load(data.buffer, data.address(index))
        if isinstance(data, View):
            return data.base.load(data.reindex(index))
        value = data.function(index)
        if self.origin is not None:
            self.graph.inlined[self.origin] = None
        return value

    def cost(self) -> Cost:
        """Cost of loading one element."""
        data = self.data
        if isinstance(data, Strided):
            return Cost(0, False, frozenset((data.buffer,)))
        if isinstance(data, View):
            return data.base.cost()
        return data.cost

    def strided(self) -> Strided | None:
        """The box as a window on memory, if it is memory or a strided view of it; else None."""
        if isinstance(self.data, View):
            base = self.data.base.strided()
            if base is not None:
                window = self.data.restride(base)
                if window is not None:
                    self.data = window
        return self.data if isinstance(self.data, Strided) else None

    def realize(self) -> Strided:
        """Turn this box into memory with the strides of ``stride_hint`` (row-major without).

        A box that is memory already stays as it is.
        """
        if isinstance(self.data, View):
            self.data.base.realize()
        window = self.strided()
        if window is None:
            name = self.graph.store_computed(self)
            buffer = self.graph.buffers[name]
            window = self.data = Strided(name, buffer.size, buffer.stride, sympy.S.Zero)
        return window

    def numel(self) -> Expr:
        """Number of elements."""
        return product(self.size)


def pointwise(
    graph: Graph,
    device: torch.device,
    dtype: torch.dtype,
    size: Sequence[Expr],
    function: Callable[[Index], Value],
    sources: Iterable[Box],
    *,
    operations: int = 1,
    expensive: bool = False,
) -> Box:
    """A lazy box: ``function(index)`` per element, reading ``sources``."""
    cost = Cost(operations, expensive, frozenset())
    for source in sources:
        cost = cost + source.cost()
    return Box(graph, dtype, device, list(size), Computed(function, cost))
