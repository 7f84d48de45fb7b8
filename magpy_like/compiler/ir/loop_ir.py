"""The intermediate representation between the ATen graph and the kernels.

Two layers. *Buffers* are memory with a layout; *operations* (``LoopOp``, ``ExternOp``) write
them, in program order: that is what the scheduler sees. Above it, while lowering, every tensor
of the ATen graph is a :class:`Box`: memory (``Strided``), a computation nobody has stored yet
(``Computed``), or a view of another box (``View``). A box becomes memory by :meth:`Box.realize`,
which happens only when that is worth it or necessary (PyTorch 2, section 4.3).
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

#: dtypes the loop IR computes; operators on others run through ATen: complex numbers because their
#: functions have rules of their own for infinities and branch cuts, which a pair of reals has not.
LOOP_DTYPES = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.bfloat16, torch.float16, torch.float32, torch.float64)
)  # fmt: skip


@dataclass(eq=False)
class Buffer:
    """Memory: one allocation of ``dtype`` elements, shaped ``size`` with ``stride``.

    ``kind``: "input" (an argument of the graph), "constant" (a tensor the graph owns),
    "computed" (allocated here, written by LoopOps) or "extern" (returned by an ExternOp).
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    size: list[Expr]
    stride: list[Expr]
    kind: str
    aliased: bool = False  # another buffer may share its memory: never reused
    dense: bool = True  # fills its memory: may take over other memory of as many elements

    def address(self, index: Index) -> Expr:
        """Position of an element, in elements from the first."""
        return sum((i * s for i, s in zip(index, self.stride, strict=True)), sympy.S.Zero)

    def numel(self) -> Expr:
        return product(self.size)


@dataclass(eq=False)
class LoopOp:
    """A loop nest that writes one buffer or several. ``origins`` names the ATen nodes in it, and
    ``function`` is the number of the checkpointed function of which it computes a part again."""

    name: str
    body: Body
    origins: list[str] = field(default_factory=list)
    function: int | None = None

    @property
    def writes(self) -> list[str]:
        return list(dict.fromkeys(v.args[0] for v in self.body.of("store")))

    @property
    def reads(self) -> list[str]:
        return list(dict.fromkeys(v.args[0] for v in self.body.of("load")))


@dataclass(eq=False)
class ExternOp:
    """A call of an ATen operator: ``outputs = target(*args, **kwargs)``.

    Arguments hold ``Strided`` in place of tensors and expressions in place of symbolic numbers.
    ``outputs`` has a buffer name, None for a non-tensor or unused output, or an expression: a
    symbol that the launcher binds to the number returned, or what is assumed to equal it.
    ``mutates`` lists buffers written in place. ``ordered`` operators (random numbers, anything
    with an effect) keep their program order among themselves.
    """

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Any]
    multiple: bool
    mutates: list[str] = field(default_factory=list)
    ordered: bool = False
    dynamic: bool = False  # only a run can tell the sizes, or the number, that it returns
    origins: list[str] = field(default_factory=list)

    @property
    def reads(self) -> list[str]:
        found = [s.buffer for s in strided_leaves((self.args, self.kwargs))]
        return list(dict.fromkeys(found))

    @property
    def writes(self) -> list[str]:
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
    """A window on a buffer: what a torch tensor is to its storage."""

    buffer: str
    size: list[Expr]
    stride: list[Expr]
    offset: Expr

    def address(self, index: Index) -> Expr:
        return sum((i * s for i, s in zip(index, self.stride, strict=True)), self.offset)


# A computation with several consumers is repeated only if it is this cheap.
MAX_SHARED_OPERATIONS = 6
MAX_SHARED_READS = 2
# What is made of positions alone, such as distances of tokens, reads no memory when repeated.
MAX_SHARED_INDEX_OPERATIONS = 16


@dataclass(frozen=True, eq=False)
class Cost:
    """What inlining a computation repeats: operations, and whether an expensive one is there."""

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
        """Whether a computation with several consumers is stored rather than repeated."""
        few = MAX_SHARED_OPERATIONS if self.reads else MAX_SHARED_INDEX_OPERATIONS
        return self.expensive or self.operations > few or len(self.reads) > MAX_SHARED_READS


FREE = Cost(0, False, frozenset())


@dataclass(frozen=True, eq=False)
class Computed:
    """A computation per element that has no memory yet: ``function(index) -> Value``."""

    function: Callable[[Index], Value]
    cost: Cost


@dataclass(frozen=True, eq=False)
class View:
    """Another box seen through ``reindex`` (index here -> index there).

    ``restride`` maps the base's window to this view's when strides can express it, else to None.
    """

    base: Box
    reindex: Callable[[Index], Index]
    restride: Callable[[Strided], Strided | None]


@dataclass(eq=False)
class Box:
    """One tensor of the ATen graph. ``size`` has expressions; ``dtype`` is torch's."""

    graph: Graph
    dtype: torch.dtype
    device: torch.device
    size: list[Expr]
    data: Strided | Computed | View
    stride_hint: list[Expr] | None = None  # eager's layout, for when this box becomes memory

    def load(self, index: Index) -> Value:
        """The element at ``index``, as the ``ops`` in force have it."""
        data = self.data
        if isinstance(data, Strided):
            return ops.load(data.buffer, data.address(index))
        if isinstance(data, View):
            return data.base.load(data.reindex(index))
        return data.function(index)

    def cost(self) -> Cost:
        """What loading one element costs."""
        data = self.data
        if isinstance(data, Strided):
            return Cost(0, False, frozenset((data.buffer,)))
        if isinstance(data, View):
            return data.base.cost()
        return data.cost

    def strided(self) -> Strided | None:
        """The window, when this box is memory or a view of memory that strides can express."""
        if isinstance(self.data, View):
            base = self.data.base.strided()
            if base is not None:
                window = self.data.restride(base)
                if window is not None:
                    self.data = window
        return self.data if isinstance(self.data, Strided) else None

    def realize(self) -> Strided:
        """Make this box memory, laid out as ``stride_hint`` says (row-major without). A box that
        is memory already stays where it is."""
        if isinstance(self.data, View):
            self.data.base.realize()
        window = self.strided()
        if window is None:
            name = self.graph.store_computed(self)
            buffer = self.graph.buffers[name]
            window = self.data = Strided(name, buffer.size, buffer.stride, sympy.S.Zero)
        return window

    def numel(self) -> Expr:
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
    """A box computed element by element from ``sources``."""
    cost = Cost(operations, expensive, frozenset())
    for source in sources:
        cost = cost + source.cost()
    return Box(graph, dtype, device, list(size), Computed(function, cost))
