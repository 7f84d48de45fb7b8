"""When buffers live, and which memory a new one may take over.

Buffers that never leave a kernel are already gone (the scheduler removes them). Here: each
buffer is freed after its last use, and a buffer that a kernel is about to write takes the memory
of one that was freed before and has the same size, rather than asking the allocator, unless
keeping that memory in between would raise the peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magpy_like.compiler.codegen.common import Kernel
from magpy_like.compiler.graph import Graph
from magpy_like.compiler.indexing import Expr
from magpy_like.compiler.ir import ExternOp, strided_leaves
from magpy_like.compiler.scheduler import Schedule


@dataclass
class Step:
    """What to do around one step of the schedule, in this order: allocate, run, free.

    ``allocate`` has (buffer, buffer whose memory it takes or None).
    """

    work: Kernel | ExternOp | None
    allocate: list[tuple[str, str | None]] = field(default_factory=list)
    free: list[str] = field(default_factory=list)


def plan_memory(graph: Graph, schedule: Schedule) -> list[Step]:
    """Add allocations, reuse and frees to a schedule; a last step without work serves outputs."""
    steps = [Step(work) for work in schedule.steps] + [Step(None)]
    returned = {w.buffer for w in strided_leaves(tuple(graph.outputs))}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for b in _touched(step.work):
            last[b] = k
    for b in returned:
        last[b] = len(steps) - 1
    dying: dict[int, list[str]] = {}
    for b, k in last.items():
        if b not in returned and graph.buffers[b].kind != "constant":
            dying.setdefault(k, []).append(b)
    pool: dict[tuple[Expr, object, object], list[str]] = {}
    present: set[str] = set()
    taken: set[str] = set()
    held = _held(graph, steps, last)
    for k, step in enumerate(steps):
        wanted = _touched(step.work) if step.work is not None else sorted(returned)
        for b in wanted:
            buffer = graph.buffers[b]
            if buffer.kind != "computed" or b in present:
                continue
            present.add(b)
            free = pool.get((_span(graph, b), buffer.dtype, buffer.device), [])
            source = _take(graph, free, range(k), last, held)
            step.allocate.append((b, source))
            if source is not None:
                taken.add(source)
        for b in dying.get(k, []):
            buffer = graph.buffers[b]
            if buffer.kind == "computed" and not buffer.aliased:
                pool.setdefault((_span(graph, b), buffer.dtype, buffer.device), []).append(b)
            else:
                step.free.append(b)
    # What nobody took over is freed where it died after all.
    for k, names in dying.items():
        for b in names:
            if b in present and b not in taken and b not in steps[k].free:
                steps[k].free.append(b)
    return steps


def _held(graph: Graph, steps: list[Step], last: dict[str, int]) -> list[int]:
    """Bytes that are held while each step runs, when everything is freed after its last use."""
    held = [0] * len(steps)
    born: set[str] = set()
    for k, step in enumerate(steps):
        for b in _touched(step.work):
            if b not in born and graph.buffers[b].kind in ("computed", "extern"):
                born.add(b)
                for j in range(k, last[b] + 1):
                    held[j] += _bytes(graph, b)
    return held


def _take(
    graph: Graph, free: list[str], before: range, last: dict[str, int], held: list[int]
) -> str | None:
    """A freed buffer to reuse, the one freed last. Until now its memory was then not free, which
    must not raise the peak."""
    if not free:
        return None
    idle = before[last[free[-1]] + 1 :]
    size = _bytes(graph, free[-1])
    if any(held[j] + size > max(held) for j in idle):
        return None
    for j in idle:
        held[j] += size
    return free.pop()


def _bytes(graph: Graph, name: str) -> int:
    buffer = graph.buffers[name]
    return graph.hint(buffer.numel()) * buffer.dtype.itemsize


def _span(graph: Graph, name: str) -> Expr:
    return graph.buffers[name].numel()


def _touched(work: Kernel | ExternOp | None) -> list[str]:
    if work is None:
        return []
    if isinstance(work, ExternOp):
        return [*work.reads, *work.writes]
    return [*work.inputs, *work.outputs]
