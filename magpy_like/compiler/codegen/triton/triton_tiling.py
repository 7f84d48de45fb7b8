"""Tiling for Triton: a kernel's loops as axes of blocks, block sizes, warps and split reductions.

The outer loops become one axis, or up to three if accesses are contiguous along different loops (a
transposed read): each such loop is then the last of an axis, so that every access is contiguous
along some axis. The reduction loops are the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Node, split_levels
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Value

Hint = Callable[[Expr], int]

#: Elements of a row that one block keeps in registers.
MAX_PERSISTENT = 8192
#: The same where a block holds several columns of a reduction across rows.
MAX_COLUMNS = 1024
MAX_AXES = 3
#: A contiguous loop shorter than this is not worth an axis of its own.
MIN_TILED_LOOP = 4
#: Elements per thread of a block that holds only whole rows of one buffer, where there are many
#: such blocks. Fewer warps wait less for each other: *measured* on an H200, losses of 256 and 1024
#: classes took a tenth to a sixth less, softmax as long.
ROW_ELEMENTS_PER_THREAD = 32
#: The same for rows that are only read, of several buffers. *Measured* on an H200, a matrix of 2048
#: columns in bfloat16 times a vector, microseconds with 8 and with 16: 2048 rows 4.3 and 4.0, 16384
#: rows 19.8 and 16.8.
READ_ELEMENTS_PER_THREAD = 16
#: The same for a walk across rows, by about two programs per multiprocessor. *Measured* on an H100,
#: nine batch norms of a ResNet in training with their gradients: 448 µs, with 8 elements and four
#: programs per multiprocessor 499.
COLUMN_ELEMENTS_PER_THREAD = 16
#: Programs that share a row.
MAX_SPLIT = 1024
#: Elements that one program may walk along; splitting shorter rows costs more in launches.
MAX_PROGRAM_ELEMENTS = 32768
#: Blocks that occupy a large device: twice its multiprocessors.
BUSY_BLOCKS = 264


@dataclass(frozen=True)
class Axis:
    """One dimension of a block: ``loops`` flattened row-major, ``block`` elements at a time.

    ``exact``: the size is known to be a multiple of the block, so no mask is needed.
    """

    name: str
    loops: tuple[Symbol, ...]
    size: Expr
    block: int

    @property
    def is_exact(self) -> bool:
        return bool(self.size.is_Integer) and int(self.size) % self.block == 0


@dataclass(frozen=True)
class Tiling:
    """The outer axes (slowest first), the reduction axis if any, and the shape of programs.

    ``persistent``: a block holds whole rows, so every element is read once. ``split``: the number
    of programs that share a row, a power of two.
    """

    outer: tuple[Axis, ...]
    reduced: Axis | None
    persistent: bool
    num_warps: int
    split: int = 1

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.outer if self.reduced is None else (*self.outer, self.reduced)


def tile(kernel: Kernel, hint: Hint) -> Tiling:
    """Choose axes and block sizes from the kernel's plan and its example sizes."""
    if any(n.inner for n in kernel.nodes()):
        return _reduction(kernel, hint)
    return _pointwise(kernel, hint)


def next_power_of_two(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()


def _axis(kernel: Kernel, name: str, loops: Sequence[Symbol], block: int) -> Axis:
    return Axis(name, tuple(loops), kernel.size(loops), block)


def _warps(elements: int, per_thread: int) -> int:
    return min(max(next_power_of_two(elements // (32 * per_thread)), 1), 16)


# --- pointwise -----------------------------------------------------------------------------------


def _pointwise(kernel: Kernel, hint: Hint) -> Tiling:
    groups = outer_groups(kernel, hint)
    sizes = [max(hint(kernel.size(g)), 1) for g in groups]
    if len(groups) == 1:
        block = 1024
        while block > 128 and sizes[0] < block * BUSY_BLOCKS:
            block //= 2
        axis = _axis(kernel, "x", groups[0], min(block, next_power_of_two(sizes[0])))
        return Tiling((axis,), None, True, _warps(axis.block, 8))
    side = 32 if len(groups) == 2 else 16
    blocks = [min(side, next_power_of_two(s)) for s in sizes]
    # Other axes take the elements that short axes leave.
    for k in reversed(range(len(blocks))):
        while (
            next_power_of_two(sizes[k]) > blocks[k] < 256
            and index_arithmetic.product(blocks) < 1024
        ):
            blocks[k] *= 2
    names = "zyx"[-len(groups) :]
    axes = [_axis(kernel, n, g, b) for n, g, b in zip(names, groups, blocks, strict=True)]
    return Tiling(tuple(axes), None, True, _warps(int(index_arithmetic.product(blocks)), 8))


def outer_groups(kernel: Kernel, hint: Hint) -> list[list[Symbol]]:
    """The outer loops, split after each loop along which an access is contiguous."""
    xs = kernel.xs
    if len(xs) < 2:
        return [list(xs)]
    last, votes = xs[-1], dict.fromkeys(xs[:-1], 0)
    for index in _accesses(kernel):
        form = index_arithmetic.coefficients(index, xs)
        if form is None or last not in form[0]:
            continue  # invariant along the last loop: neighbours share the read
        for v, step in form[0].items():
            if v != last and step == 1 and hint(kernel.ranges[v]) >= MIN_TILED_LOOP:
                votes[v] += 1
    if hint(kernel.ranges[last]) < MIN_TILED_LOOP and len([v for v in votes if votes[v]]) == 0:
        return [list(xs)]
    cuts = sorted((v for v in votes if votes[v]), key=lambda v: -votes[v])[: MAX_AXES - 1]
    groups: list[list[Symbol]] = [[]]
    for v in xs:
        groups[-1].append(v)
        if v in cuts:
            groups.append([])
    return groups


def _accesses(kernel: Kernel) -> list[Expr]:
    """Addresses of all accesses to memory."""
    found = []
    for node in kernel.nodes():
        for v in node.body.values:
            if v.op in ("load", "store") and v.args[0] not in kernel.removed:
                found.append(v.args[1])
    return list(dict.fromkeys(found))


# --- reductions ----------------------------------------------------------------------------------


def _reduction(kernel: Kernel, hint: Hint) -> Tiling:
    xs, rs = kernel.xs, kernel.rs
    x_size, r_size = max(hint(kernel.size(xs)), 1), max(hint(kernel.size(rs)), 1)
    static = bool(kernel.size(rs).is_Integer)
    columns = runs_across_rows(kernel)
    least = 8 if columns else 1  # neighbouring columns share memory transactions
    limit = MAX_COLUMNS if columns else MAX_PERSISTENT
    persistent = static and r_size <= limit
    if persistent:
        r_block = next_power_of_two(r_size)
        wanted = 4096 if columns else 1024
        x_block = min(
            max(wanted // r_block, least), 32 if columns else 64, next_power_of_two(x_size)
        )
    elif columns:
        x_block = min(32, next_power_of_two(x_size))
        r_block = min(next_power_of_two(r_size), 2048 // x_block)
    else:
        x_block = 1
        r_block = min(next_power_of_two(r_size), 2048)
    in_order = any(node.body.of("scan") for node in kernel.nodes())
    # Columns of split rows are processed 32 at a time: *measured* on an H200, .82 to .97 of a
    # copy's bandwidth for 64 of them and .40 to .52 for 8 at a time.
    shared = (
        not (persistent or in_order or keeps_old_values(kernel))
        and r_size * (x_block if columns else least) >= MAX_PROGRAM_ELEMENTS
    )
    while x_block > least and x_size < x_block * BUSY_BLOCKS and not (shared and columns):
        x_block //= 2
    outer = _axis(kernel, "x", xs, x_block)
    reduced = _axis(kernel, "r", rs, r_block)
    split, blocks = 1, -(-x_size // x_block)
    # Rows updated in place are split only where few rows would leave a GPU idle: *measured*,
    # splitting the 64 and more of U-Net's gradients of batch norms took a step from 1.04 to .88 of
    # eager's speed.
    alone = BUSY_BLOCKS // 8 if _updates_rows(kernel) and not columns else BUSY_BLOCKS
    if shared and blocks < alone:
        programs = BUSY_BLOCKS * (2 if columns else 4)
        while split < MAX_SPLIT and blocks * split < programs and r_size > 2 * r_block * split:
            split *= 2
    many = persistent and not columns and blocks >= 4 * BUSY_BLOCKS
    per_thread = 8
    if many and _holds_one_row(kernel):
        per_thread = ROW_ELEMENTS_PER_THREAD
    elif persistent and not columns and not _stored_in_rows(kernel):
        per_thread = READ_ELEMENTS_PER_THREAD
    if columns and not persistent:
        per_thread = COLUMN_ELEMENTS_PER_THREAD
    return Tiling((outer,), reduced, persistent, _warps(x_block * r_block, per_thread), split)


def _holds_one_row(kernel: Kernel) -> bool:
    """True if all elements that the kernel reads per row come from one buffer."""
    rs = set(kernel.rs)
    read = {
        v.args[0]
        for node in kernel.nodes()
        if node.inner
        for v in node.body.of("load")
        if v.args[0] not in kernel.removed and v.args[1].free_symbols & rs
    }
    return len(read) == 1


def updated_in_place(kernel: Kernel) -> set[str]:
    """The buffers whose old contents the kernel reads before it writes to them."""
    updated: set[str] = set()
    read: set[str] = set()
    for node in kernel.nodes():
        read |= node.reads
        updated |= node.writes & read
    return updated


def _stored_in_rows(kernel: Kernel) -> set[str]:
    """The buffers whose elements are stored per element of a row, not per row."""
    return {
        store.args[0]
        for node in kernel.nodes()
        if node.inner
        for store in node.body.of("store")
        if not store.outer
    }


def _updates_rows(kernel: Kernel) -> bool:
    """True if elements of a row are updated in place, not only values per row."""
    return bool(_stored_in_rows(kernel) & updated_in_place(kernel))


def keeps_old_values(kernel: Kernel) -> bool:
    """True if a later phase uses a value per row computed from row memory that is updated since.

    Later stages of a split row recompute such values, and would read the new contents. Sums over
    elements come from the parts, whatever happens to the elements.
    """
    by_row = {v.args[0] for node in kernel.nodes() for v in _per_row(node)}
    old = updated_in_place(kernel) & by_row
    later = {b for b, kind in kernel.forward.items() if kind == "outer"}
    dependent: set[str] = set()
    for node in kernel.nodes():
        if node.reads & (old | dependent):
            dependent |= node.writes
    return bool(dependent & later)


def _per_row(node: Node) -> list[Value]:
    """The loads and stores that happen once per row."""
    values = split_levels(node.body)[2] if node.inner else node.body.values
    return [v for v in values if v.op in ("load", "store")]


def runs_across_rows(kernel: Kernel) -> bool:
    """True if memory is contiguous along the last outer loop, not along the last reduction loop."""
    if not kernel.xs or not kernel.rs:
        return False
    x, r = kernel.xs[-1], kernel.rs[-1]
    votes = 0
    for index in _accesses(kernel):
        form = index_arithmetic.coefficients(index, (*kernel.xs, *kernel.rs))
        if form is None or not form[0].keys() & set(kernel.rs):
            continue
        votes += (form[0].get(x) == 1) - (form[0].get(r) == 1)
    return votes > 0


# --- index width ---------------------------------------------------------------------------------


def magnitude(e: Expr, ranges: dict[Symbol, Expr]) -> Expr | None:
    """A bound on the absolute value of an index expression over the loops, in size symbols."""
    if e.is_Integer:
        return abs(e)
    if e.is_Symbol:
        return ranges.get(e, e)
    name = type(e).__name__
    if e.is_Add or e.is_Mul or name in ("Max", "Min"):
        parts = [magnitude(a, ranges) for a in e.args]
        if any(p is None for p in parts):
            return None
        total: Expr = sympy.S.One if e.is_Mul else sympy.S.Zero
        for p in parts:
            total = total * p if e.is_Mul else total + p
        return total
    if name in ("Div", "FloorDiv", "CleanDiv"):
        return magnitude(e.args[0], ranges)
    if name in ("Mod", "PythonMod", "ModularIndexing"):
        return magnitude(e.args[-1], ranges)
    return None
