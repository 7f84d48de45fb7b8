"""Software prefetch in C++ kernels.

The processor prefetches memory that it reads in sequence, but not far enough ahead. Kernels ask for
memory further on in a row, or in one of the next rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Node
from magpy_like.compiler.codegen.cpp.cpp_expressions import print_index
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.cpp.cpp_kernel import CppKernel

#: Bytes of a kernel's memory traffic from which a core's own caches do not hold them.
MIN_PREFETCH_BYTES = 2**20
#: Bytes of a row that are still cached when a kernel reads them again.
MAX_CACHED_ROW_BYTES = 2**18
#: Bytes between the prefetched address and the one being computed, in memory read in pieces.
PREFETCH_DISTANCE_BYTES = 8192
#: Bytes of a row of non-contiguous rows worth prefetching: the prefetch of shorter ones costs more
#: than it saves, longer ones the processor prefetches itself.
PREFETCH_ROW_BYTES = 512, 16384

LoopPositions = dict[Symbol, Expr]  # loop -> position in it
LoopStrides = dict[Symbol, Expr]  # loop -> stride of a load, in elements


class Prefetcher:
    """Prints the prefetches of one kernel, each load's once."""

    def __init__(self, printer: CppKernel) -> None:
        self._printer = printer
        self._prefetched: set[tuple[str, Expr]] = set()  # (buffer, index)

    @property
    def is_needed(self) -> bool:
        """True if the kernel's memory traffic exceeds a core's own caches."""
        return self._printer.traffic >= MIN_PREFETCH_BYTES

    def prefetch(
        self, nodes: Sequence[Node], loop: Symbol, begin: str, count: int | None = None,
        rows_of: Sequence[Node] | None = None, late: int = 0,
    ) -> None:  # fmt: skip
        """Prefetch the memory that ``nodes`` will read along ``loop`` some time later: further on
        in the same row, or in one of the next rows.

        Args:
            nodes: Loop nests whose loads are prefetched.
            loop: The contiguous loop.
            begin: Position in ``loop``, as C++.
            count: Elements to prefetch from ``begin`` on; by default a whole row, and only where
                rows are not adjacent in memory.
            rows_of: Loop nests whose loads are prefetched in rows of later outer iterations, if
                not ``nodes``.
            late: Additional rows of distance: this row, and perhaps the next, have been read.

        Memory that stays in a core's own caches is prefetched once.
        """
        if not self.is_needed:
            return
        printer, kernel = self._printer, self._printer.kernel
        rows_of = nodes if rows_of is None else rows_of
        start = sympy.S.Zero if begin == "0" else sympy.Symbol(begin, integer=True)
        extent = kernel.ranges[loop]
        loops = (*kernel.xs, *kernel.rs)
        outer = loops[loops.index(loop) - 1] if loops.index(loop) > 0 else None

        def positions(node: Node, width: int, strides: LoopStrides) -> list[LoopPositions]:
            row = printer.hint(extent) * width
            stride = 0 if outer is None else strides.get(outer, 0)
            jumps = (
                stride not in (0, extent) and PREFETCH_ROW_BYTES[0] <= row <= PREFETCH_ROW_BYTES[1]
            )
            position: LoopPositions = {loop: start}
            if stride != 0 and outer is not None and row < 2 * PREFETCH_DISTANCE_BYTES:
                another = outer in kernel.xs  # a row that this outer iteration does not read
                rows = max(1, PREFETCH_DISTANCE_BYTES // row)
                position[outer] = outer + (rows + (late if another else 0))
            else:
                another = False
                position[loop] = start + PREFETCH_DISTANCE_BYTES // width
            if node not in (rows_of if another else nodes):
                return []
            within_row = row < PREFETCH_DISTANCE_BYTES and outer not in position
            return [] if not jumps and (count is None or within_row) else [position]

        candidates = dict.fromkeys((*nodes, *rows_of))
        self.prefetch_at(candidates, loop, positions, str(count or print_index(extent)))

    def prefetch_at(
        self, nodes: Iterable[Node], loop: Symbol,
        positions: Callable[[Node, int, LoopStrides], list[LoopPositions]], count: str,
    ) -> None:  # fmt: skip
        """Prefetch ``count`` elements at each of the positions of each load of ``nodes``.

        ``positions(node, element size in bytes, strides of the load)`` yields them.
        """
        kernel = self._printer.kernel
        for node in nodes:
            for v in node.body.of("load"):
                buffer, index, _ = v.args
                strides = self._strides(node, v, loop)
                if strides is None:
                    continue
                for position in positions(node, kernel.dtypes[buffer].itemsize, strides):
                    self._prefetched.add((buffer, index))
                    ahead = print_index(index.xreplace(position))
                    self._printer.lines.line(f"fetch(&{buffer}[{ahead}], {count});")

    def _strides(self, node: Node, load: Value, loop: Symbol) -> LoopStrides | None:
        """The stride of each loop in a load; None if it cannot be, or has been, prefetched."""
        buffer, index, mask = load.args
        kernel = self._printer.kernel
        form = index_arithmetic.coefficients(index, kernel.ranges)
        width = kernel.dtypes[buffer].itemsize
        evicted = self._printer.hint(kernel.size(kernel.rs)) * width > MAX_CACHED_ROW_BYTES
        if (
            form is None
            or form[0].get(loop) != 1
            or mask is not None
            or buffer not in (*kernel.inputs, *kernel.outputs)
            or index.free_symbols & set(node.body.indirect)
            or ((buffer, index) in self._prefetched and not evicted)
        ):
            return None
        return form[0]
