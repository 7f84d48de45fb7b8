"""Memory planning: live ranges of buffers, in-place writes and reuse of memory.

Buffers internal to a kernel are already removed by the scheduler. The others:

- A kernel that reads a buffer for the last time, each element just before it writes the same
position of a new buffer, writes the new buffer in place.
- A buffer is freed after its last use.
- A new buffer takes the memory of a freed one of the same size instead of allocating, unless
keeping that memory in between would raise the peak.

There is no arena. *Measured* on a CPU: a view of one takes 0.48 µs, a new tensor 0.41; and in BERT
and ResNet-18, 0 to 4 of up to 60 allocations of a call are for kernels only, which could do without
a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Node
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import ExternOp, strided_leaves
from magpy_like.compiler.ir.ops import Value
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.scheduling.scheduler import Schedule


@dataclass
class Step:
    """One step of the schedule with its memory actions: allocate, run, free.

    ``allocate``: (buffer, buffer whose memory it takes or None).
    """

    work: Kernel | ExternOp | None
    allocate: list[tuple[str, str | None]] = field(default_factory=list)
    free: list[str] = field(default_factory=list)


def plan_memory(graph: Graph, schedule: Schedule) -> list[Step]:
    """Add allocations, reuse and frees to a schedule; a last step without work stands for the
    outputs."""
    steps = [Step(work) for work in schedule.steps] + [Step(None)]
    returned = {w.buffer for w in strided_leaves(tuple(graph.outputs))}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for b in _touched(step.work):
            last[b] = k
    for b in returned:
        last[b] = len(steps) - 1
    in_place = _write_in_place(graph, steps, last, returned)
    dying: dict[int, list[str]] = {}
    for b, k in last.items():
        if b not in returned and b not in in_place.values() and graph.buffers[b].kind != "constant":
            dying.setdefault(k, []).append(b)
    pool: dict[tuple[Expr, object, object], list[str]] = {}
    present: set[str] = set()
    taken: set[str] = set()
    held = _bytes_held(graph, steps, last, in_place)
    for k, step in enumerate(steps):
        wanted = _touched(step.work) if step.work is not None else sorted(returned)
        for b in wanted:
            buffer = graph.buffers[b]
            if buffer.kind != "computed" or b in present:
                continue
            present.add(b)
            if b in in_place:
                step.allocate.append((b, in_place[b]))
                continue
            free = pool.get((_element_count(graph, b), buffer.dtype, buffer.device), [])
            source = _reuse_freed(graph, free, range(k), last, held) if buffer.dense else None
            step.allocate.append((b, source))
            if source is not None:
                taken.add(source)
        for b in dying.get(k, []):
            buffer = graph.buffers[b]
            if buffer.kind == "computed" and buffer.dense and not buffer.aliased:
                pool.setdefault((_element_count(graph, b), buffer.dtype, buffer.device), []).append(
                    b
                )
            else:
                step.free.append(b)
    # A buffer whose memory is not reused is freed after its last use.
    for k, names in dying.items():
        for b in names:
            if b in present and b not in taken and b not in steps[k].free:
                steps[k].free.append(b)
    return steps


def _write_in_place(
    graph: Graph, steps: list[Step], last: Mapping[str, int], returned: set[str]
) -> dict[str, str]:
    """New buffer -> dying buffer that it is written over.

    Rewrites the kernels to read the old elements through the new buffer.
    """
    in_place: dict[str, str] = {}
    born: set[str] = set()
    for k, step in enumerate(steps):
        if isinstance(step.work, Kernel):
            kernel = step.work
            old = [b for b in kernel.inputs if last[b] == k and b not in returned
                   and _is_own(graph, b)]  # fmt: skip
            for new in kernel.outputs:
                if new in born or graph.buffers[new].kind != "computed":
                    continue
                found = next((b for b in old if _can_write_in_place(graph, kernel, b, new)), None)
                if found is not None:
                    old.remove(found)
                    in_place[new] = found
                    _redirect_reads(kernel, found, new)
        born.update(_touched(step.work))
    return in_place


def _is_own(graph: Graph, name: str) -> bool:
    buffer = graph.buffers[name]
    return buffer.kind in ("computed", "extern") and not buffer.aliased


def _can_write_in_place(graph: Graph, kernel: Kernel, old: str, new: str) -> bool:
    """True if each iteration reads of ``old`` only the element of ``new`` that it then writes."""
    a, b = graph.buffers[old], graph.buffers[new]
    if (a.dtype, a.device, a.numel()) != (b.dtype, b.device, b.numel()) or not b.dense:
        return False
    if kernel.forward.get(new) not in (None, "value") or new in graph.concatenated:
        return False
    stores = [(at, node, v) for at, node, v in _accesses(kernel, new) if v.op == "store"]
    if len(stores) != 1:
        return False
    (when, node, store) = stores[0]
    loops = (*kernel.xs, *kernel.rs) if node.inner else kernel.xs
    once = not (node.inner and store.outer) and kernel.size(loops) == b.numel()
    if (
        not once
        or store.args[3] is not None
        or store.args[1].free_symbols & set(node.body.indirect)
    ):
        return False
    reads = list(_accesses(kernel, old))
    if any(v.op != "load" or v.args[1] != store.args[1] for _, _, v in reads):
        return False
    for recomputed in _recomputed_from(kernel, old):
        reads += (access for access in _accesses(kernel, recomputed) if access[2].op == "load")
    return all(at[0] < when[0] or (at[:2] == when[:2] and at < when) for at, _, _ in reads)


def _recomputed_from(kernel: Kernel, old: str) -> set[str]:
    """Unstored per-element buffers computed from ``old``: a later phase may recompute
    them from it."""
    recomputed: set[str] = set()
    for node in kernel.nodes():
        if node.reads & (recomputed | {old}):
            recomputed |= {
                b for b in node.writes & kernel.removed if kernel.forward.get(b) == "row"
            }
    return recomputed


def _accesses(kernel: Kernel, buffer: str) -> Iterator[tuple[tuple[int, int, int], Node, Value]]:
    """Accesses of a buffer as (when, node, value); when is (phase, outer level, position there)."""
    for k, phase in enumerate(kernel.phases):
        for level, nodes in enumerate((phase.inner, phase.outer)):
            position = 0
            for node in nodes:
                for value in node.body.values:
                    position += 1
                    if value.op in ("load", "store") and value.args[0] == buffer:
                        yield (k, level, position), node, value


def _redirect_reads(kernel: Kernel, old: str, new: str) -> None:
    for _, node, value in list(_accesses(kernel, old)):
        node.redirect_read(value, new)
    kernel.inputs.remove(old)


def _bytes_held(
    graph: Graph, steps: list[Step], last: Mapping[str, int], in_place: Mapping[str, str]
) -> list[int]:
    """Bytes held while each step runs, if every buffer is freed after its last use."""
    change = [0] * (len(steps) + 1)
    born: set[str] = set()
    for new, old in in_place.items():
        change[last[old]] -= graph.bytes_of(new)
        change[last[old] + 1] += graph.bytes_of(new)
    for k, step in enumerate(steps):
        for b in _touched(step.work):
            if b not in born:
                born.add(b)
                change[0 if graph.buffers[b].kind == "input" else k] += graph.allocated_bytes(b)
                change[last[b] + 1] -= graph.allocated_bytes(b)
    return list(itertools.accumulate(change[:-1]))


def _reuse_freed(
    graph: Graph, free: list[str], before: range, last: dict[str, int], held: list[int]
) -> str | None:
    """The freed buffer to reuse, the one freed last; None if keeping it until now would raise the
    peak."""
    if not free:
        return None
    idle = before[last[free[-1]] + 1 :]
    size = graph.bytes_of(free[-1])
    if any(held[j] + size > max(held) for j in idle):
        return None
    for j in idle:
        held[j] += size
    return free.pop()


def _element_count(graph: Graph, name: str) -> Expr:
    return graph.buffers[name].numel()


def _touched(work: Kernel | ExternOp | None) -> list[str]:
    if work is None:
        return []
    if isinstance(work, ExternOp):
        return [*work.reads, *work.writes]
    return [*work.inputs, *work.outputs]
