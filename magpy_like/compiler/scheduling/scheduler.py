"""Scheduling: which loop nests become one kernel, and the execution order (PyTorch 2, section 4.4).

Greedy, as in the paper: among all pairs that share memory, fuse the best first, by (category, bytes
saved, distance in the program), until no pair is left. :attr:`Schedule.decisions` has the reason
for each pair.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, plan_kernel
from magpy_like.compiler.ir.loop_ir import (
    ExternOp,
    LoopOp,
    Operation,
    Strided,
    strided_leaves,
)
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.scheduling import fusion
from magpy_like.compiler.scheduling.fusion import Conflict, Group, try_fuse
from magpy_like.compiler.scheduling.topological_order import TopologicalOrder

MAX_DISTANCE = 256  # in operations: farther pairs are not considered, to stay near linear


@dataclass
class Decision:
    """A pair considered for fusion: the operations of both sides, the verdict and its reason."""

    first: list[str]
    second: list[str]
    fused: bool
    reason: Conflict | str


@dataclass
class Schedule:
    """Kernels and ATen calls in execution order."""

    steps: list[Kernel | ExternOp]
    decisions: list[Decision] = field(default_factory=list)


@dataclass(eq=False)
class _Item:
    """A schedulable unit: a group of loop nests, or one ATen call."""

    work: Group | ExternOp
    position: int  # of its last operation in the program
    first_position: int  # of its first operation
    predecessors: set[int]  # direct ones: items that must run earlier
    functions: frozenset[int] = frozenset()  # checkpointed functions it recomputes a part of
    touched: frozenset[str] = field(init=False)  # buffers that a group reads or writes

    def __post_init__(self) -> None:
        work = self.work
        self.touched = frozenset(work.reads | work.writes if isinstance(work, Group) else ())


class Scheduler:
    """Schedules the operations of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.decisions: list[Decision] = []
        self._live_out = {w.buffer for w in returned_windows(graph)} | graph.mutated_inputs
        self._held_bytes: list[int] | None = (
            None  # bytes per slot; None while fusion ignores memory
        )
        self._budget = 0
        # Few graphs read numbers out of tensors: symbols are not collected for the others.
        self._reads_numbers = any(
            _symbols_defined(o, graph) for o in graph.operations if isinstance(o, ExternOp)
        )

    def run(self) -> Schedule:
        """Fuse and order the operations."""
        operations = self._live_operations(self.graph.operations)
        as_written = self._bytes_held(list(self._make_items(operations).values()))
        self._budget = max(as_written)
        order = self._fuse_operations(operations)
        if max(self._bytes_held(order)) > self._budget:
            # Fused work keeps its buffers alive together: a copy for a late concatenation, made
            # next to its source, lives until then. Fuse again within the memory of the unfused
            # program.
            freely, decisions = order, self.decisions
            self._held_bytes, self.decisions = as_written, []
            order = self._fuse_operations(operations)
            if max(self._bytes_held(order)) >= max(self._bytes_held(freely)):
                order, self.decisions = freely, decisions
        return Schedule(self._make_steps(order), self.decisions)

    def _fuse_operations(self, operations: list[Operation]) -> list[_Item]:
        """Fuse operations into items, in the order of the two that needs less memory.

        Fused work runs as late as its last operation or as early as its first, dependences
        permitting.
        """
        items = self._make_items(operations)
        self._fuse(items)
        orders = [
            self._sink_fills(_topological_order(items, key))
            for key in (_last_position, _first_position)
        ]
        return min(orders, key=lambda order: max(self._bytes_held(order)))

    def _sink_fills(self, order: list[_Item]) -> list[_Item]:
        """Move items that read nothing right before the first item that touches their outputs, so
        that no memory waits while other values are computed."""
        waiting: list[_Item] = []
        found = []
        for item in order:
            own = all(self.graph.buffers[b].kind == "computed" for b in item.work.writes)
            if own and isinstance(item.work, Group) and not item.work.reads:
                waiting.append(item)
                continue
            touched = {*item.work.reads, *item.work.writes}
            for fill in [f for f in waiting if not touched.isdisjoint(f.work.writes)]:
                waiting.remove(fill)
                found.append(fill)
            found.append(item)
        return found + waiting

    # --- dependences ---------------------------------------------------------------------------

    def _live_operations(self, operations: list[Operation]) -> list[Operation]:
        """The operations without those whose results are unused."""
        needed = set(self._live_out)
        returned = [e for e in self.graph.outputs if isinstance(e, sympy.Basic)]
        for window in returned_windows(self.graph):
            returned += [*window.size, *window.stride, window.offset]
        sizes = {s.name for e in returned for s in e.free_symbols if isinstance(s, sympy.Symbol)}
        live = []
        for operation in reversed(operations):
            effect = isinstance(operation, ExternOp) and (
                operation.ordered
                or operation.mutates
                or any(o is not None and not isinstance(o, str) for o in operation.outputs)
                or not sizes.isdisjoint(_symbols_defined(operation, self.graph))
            )
            if effect or needed & set(operation.writes) or _can_raise(operation):
                live.append(operation)
                needed |= set(operation.reads)
                sizes |= self._symbols_used(operation)
        return live[::-1]

    def _make_items(self, operations: list[Operation]) -> dict[int, _Item]:
        items: dict[int, _Item] = {}
        writers: dict[str, int] = {}  # buffer -> bit mask of the items that wrote it
        readers: dict[str, int] = {}
        alias = {name: min(shared) for name, shared in self.graph.shared_memory.items()}
        ordered = 0
        for k, operation in enumerate(operations):
            before = 0
            for b in operation.reads:
                before |= writers.get(alias.get(b, b), 0)
            for b in operation.writes:
                b = alias.get(b, b)
                before |= readers.get(b, 0) | (
                    writers.get(b, 0) if not self._has_disjoint_writers(b, operation) else 0
                )
            if isinstance(operation, ExternOp) and operation.ordered:
                before |= ordered
                ordered = 1 << k
            functions: frozenset[int] = frozenset()
            if isinstance(operation, LoopOp):
                device = self.graph.buffers[operation.writes[0]].device
                functions = frozenset(() if operation.function is None else (operation.function,))
                work: Group | ExternOp = fusion.make_group(operation, k, device)
            else:
                work = operation
                for symbol in _symbols_defined(operation, self.graph):
                    writers.setdefault(symbol, 1 << k)
            for symbol in self._symbols_used(operation):
                before |= writers.get(symbol, 0)
            items[k] = _Item(work, k, k, set(_set_bits(before & ~(1 << k))), functions)
            for b in operation.reads:
                b = alias.get(b, b)
                readers[b] = readers.get(b, 0) | 1 << k
            for b in operation.writes:
                b = alias.get(b, b)
                writers[b] = writers.get(b, 0) | 1 << k
        return items

    def _symbols_used(self, operation: Operation) -> set[str]:
        return _symbols_used(operation, self.graph) if self._reads_numbers else set()

    def _has_disjoint_writers(self, buffer: str, operation: Operation) -> bool:
        """True if the writers of ``buffer`` write disjoint parts (a concatenation)."""
        return buffer in self.graph.concatenated and isinstance(operation, LoopOp)

    # --- fusion --------------------------------------------------------------------------------

    def _fuse(self, items: dict[int, _Item]) -> None:
        """Fuse the best pair until none is left. ``items``: bit position -> item."""
        order = TopologicalOrder({k: item.predecessors for k, item in items.items()})
        refused: dict[int, set[int]] = {k: set() for k in items}  # symmetric
        versions = dict.fromkeys(items, 0)  # how often each item has grown
        # Score, numbers and versions of pairs. A large program has a million: the tuples are flat.
        queue: list[tuple[int, int, int, int, int, int, int]] = []

        def push_pairs(k: int, others: Iterable[int]) -> None:
            for other in others:
                a, b = (k, other) if items[k].position < items[other].position else (other, k)
                score = self._score_pair(items[a], items[b])
                if score is not None and b not in refused[a]:
                    heapq.heappush(queue, (*score, a, b, versions[a], versions[b]))

        self._users: dict[str, set[int]] = {}
        self._slots = {k: k for k in items}  # position in the program at which an item would run
        self._calls: dict[str, list[int]] = {}  # buffer -> slots of the ATen calls that touch it
        for k, item in items.items():
            if isinstance(item.work, Group):
                for name in item.work.reads | item.work.writes:
                    self._users.setdefault(name, set()).add(k)
            else:
                for name in {*item.work.reads, *item.work.writes}:
                    self._calls.setdefault(name, []).append(k)
        for k in items:
            push_pairs(k, [other for other in self._neighbours(items, k) if other < k])
        while queue:
            *_, a, b, version_a, version_b = heapq.heappop(queue)
            if a not in items or b not in items or b in refused[a]:
                continue
            if versions[a] != version_a or versions[b] != version_b:
                continue  # an item has grown since, and its pairs were pushed again
            if order.depends_on(a, b):
                a, b = b, a
            fused = self._try_fuse_pair(items, order, a, b)
            if fused is None:
                refused[a].add(b)
                refused[b].add(a)
                continue
            order.merge(a, b)
            items[a] = _merge_items(items[a], items.pop(b), fused)
            versions[a] += 1
            for name in fused.reads | fused.writes:
                users = self._users.setdefault(name, set())
                users.discard(b)
                users.add(a)
            for gone in (a, b):
                for other in refused[gone]:
                    refused[other].discard(gone)
                refused[gone] = set()
            push_pairs(a, self._neighbours(items, a))

    def _neighbours(self, items: dict[int, _Item], k: int) -> set[int]:
        found: set[int] = set()
        for b in items[k].touched:
            found |= self._users.get(b, set())
        return {o for o in found if o != k and o in items
                and abs(items[o].position - items[k].position) <= MAX_DISTANCE}  # fmt: skip

    def _score_pair(self, a: _Item, b: _Item) -> tuple[int, int, int] | None:
        """Sort key of a pair, smaller is better; None if fusing saves nothing."""
        if not isinstance(a.work, Group) or not isinstance(b.work, Group):
            return None
        saved = sum(map(self.graph.bytes_of, a.touched & b.touched))
        if saved == 0:
            return None
        category = 0 if bool(a.work.rs) == bool(b.work.rs) else 1
        if not (a.work.writes & b.work.reads or b.work.writes & a.work.reads):
            category += 2  # horizontal fusion: saves a read, not a write
            if a.functions and b.functions and a.functions.isdisjoint(b.functions):
                return None  # one would be recomputed, and held, long before its use
        return (category, -saved, abs(a.position - b.position))

    def _try_fuse_pair(
        self, items: dict[int, _Item], order: TopologicalOrder, a: int, b: int
    ) -> Group | None:
        first, second = items[a].work, items[b].work
        assert isinstance(first, Group) and isinstance(second, Group)
        between = order.between(a, b)
        if between is not None:
            result: Group | Conflict | str = f"{_names(items[between].work)} must run between"
        elif self._meet_in_memory(first, second) or self._meet_in_memory(second, first):
            result = "one writes memory that the other uses under another name"
        else:
            result = try_fuse(first, second, self.graph.concatenated)
        names = [n.name for n in first.nodes], [n.name for n in second.nodes]
        if not isinstance(result, Group):
            self.decisions.append(Decision(*names, False, result))
            return None
        shared = (first.reads | first.writes) & (second.reads | second.writes)
        saved = sum(self.graph.bytes_of(s) for s in shared)
        why = f"share {', '.join(sorted(shared))}: {saved} bytes less traffic"
        if self._held_bytes is not None and not self._fits_memory_budget(items, a, b):
            self.decisions.append(Decision(*names, False, "would exceed the memory budget"))
            return None
        self.decisions.append(Decision(*names, True, why))
        return result

    def _meet_in_memory(self, writer: Group, other: Group) -> bool:
        """True if a group writes a buffer that shares memory with a different one of another."""
        used = other.reads | other.writes
        return any(used & self.graph.buffers_sharing(name) - {name} for name in writer.writes)

    def _fits_memory_budget(self, items: dict[int, _Item], a: int, b: int) -> bool:
        """True if fusing two items keeps the program within its memory budget; then updates the
        held bytes.

        The fused item runs as soon as both items' predecessors have run, everything else where it
        would run unfused. Until then inputs of the first item stay alive; from then on, outputs of
        the second.
        """
        assert self._held_bytes is not None
        first, second = items[a].work, items[b].work
        needed = (items[a].predecessors | items[b].predecessors) - {a, b}
        slot = max(min(self._slots[a], self._slots[b]), *(self._slots[k] for k in needed), 0)
        end = len(self._held_bytes) - 1
        changes: list[tuple[range, int]] = []
        for name in {*first.reads, *first.writes, *second.reads, *second.writes}:
            users = self._users[name]
            others = [self._slots[k] for k in users if k not in (a, b)] + self._calls.get(name, [])
            if name in self._live_out:
                others.append(end)
            if self.graph.buffers[name].kind == "input":
                others.append(0)
            before = others + [self._slots[k] for k in (a, b) if k in users]
            after = [*others, slot] if others else []  # buffers private to the pair disappear
            was = range(min(before), max(before) + 1)
            becomes = range(min(after), max(after) + 1) if after else range(0)
            bytes_ = self.graph.allocated_bytes(name)
            if was != becomes and bytes_:
                changes += [(was, -bytes_), (becomes, bytes_)]
        held = self._held_bytes.copy()
        for slots, count in changes:
            for k in slots:
                held[k] += count
        grown = {k for slots, count in changes if count > 0 for k in slots}
        if any(held[k] > max(self._held_bytes[k], self._budget) for k in grown):
            return False
        self._held_bytes = held
        self._slots[a] = slot
        return True

    def _bytes_held(self, order: list[_Item]) -> list[int]:
        """Bytes held at each slot; buffers internal to one item do not count."""
        touched = [item.work.reads | item.work.writes if isinstance(item.work, Group)
                   else {*item.work.reads, *item.work.writes} for item in order]  # fmt: skip
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for k, names in enumerate(touched):
            for b in names:
                first.setdefault(b, 0 if self.graph.buffers[b].kind == "input" else k)
                last[b] = len(order) if b in self._live_out else k
        change = [0] * (len(order) + 2)
        for b, k in first.items():
            if last[b] > k or isinstance(order[k].work, ExternOp):
                change[k] += self.graph.allocated_bytes(b)
                change[last[b] + 1] -= self.graph.allocated_bytes(b)
        return list(itertools.accumulate(change))

    # --- kernels -------------------------------------------------------------------------------

    def _make_steps(self, order: list[_Item]) -> list[Kernel | ExternOp]:
        outside: dict[str, set[int]] = {}
        for k, item in enumerate(order):
            for b in item.work.reads:
                outside.setdefault(b, set()).add(k)
        dtypes = {name: b.dtype for name, b in self.graph.buffers.items()}
        steps: list[Kernel | ExternOp] = []
        for k, item in enumerate(order):
            if isinstance(item.work, ExternOp):
                steps.append(item.work)
                continue
            group = item.work
            removable = {
                b for b in group.writes
                if b not in self._live_out and outside.get(b, set()) <= {k}
                and self.graph.buffers[b].kind == "computed"
                and b not in self.graph.concatenated
            }  # fmt: skip
            count = sum(isinstance(s, Kernel) for s in steps)
            kernel = plan_kernel(
                f"kernel{count}",
                group.device,
                group.nodes,
                group.xs,
                group.rs,
                group.ranges,
                dtypes,
                removable,
            )
            steps.append(kernel)
        return steps


def returned_windows(graph: Graph) -> list[Strided]:
    """The windows that the graph returns."""
    return strided_leaves(tuple(graph.outputs))


def _names(work: Group | ExternOp) -> str:
    return work.name if isinstance(work, ExternOp) else "+".join(n.name for n in work.nodes)


def _can_raise(operation: Operation) -> bool:
    return isinstance(operation, LoopOp) and bool(operation.body.of("check"))


def _symbols_defined(operation: ExternOp, graph: Graph) -> list[str]:
    """Symbols bound by a call: a returned number, or a size known from its result only."""
    numbers = [str(o) for o in operation.outputs if o is not None and not isinstance(o, str)]
    sizes = [e for o in operation.outputs if isinstance(o, str) for e in graph.buffers[o].size]
    return numbers + [e.name for e in sizes if e.is_Symbol and e.name.startswith("u")]


def _symbols_used(operation: Operation, graph: Graph) -> set[str]:
    """Unbacked symbols (numbers read out of tensors) that an operation's sizes depend on."""
    found: set[str] = set()
    for name in (*operation.reads, *operation.writes):
        buffer = graph.buffers[name]
        for e in (*buffer.size, *buffer.stride):
            found |= {s.name for s in e.free_symbols}
    if isinstance(operation, ExternOp):
        pending = [operation.args, operation.kwargs]
        while pending:
            tree = pending.pop()
            if isinstance(tree, sympy.Basic):
                found |= {str(s) for s in tree.free_symbols}
            elif isinstance(tree, dict):
                pending += list(tree.values())
            elif isinstance(tree, (tuple, list)):
                pending += list(tree)
    else:
        for value in operation.body.values:
            for arg in value.args:
                if hasattr(arg, "free_symbols"):
                    found |= {s.name for s in arg.free_symbols}
    return found


def _set_bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _merge_items(a: _Item, b: _Item, fused: Group) -> _Item:
    """Merge two items, the first of which already has the predecessors of both."""
    position, first = max(a.position, b.position), min(a.first_position, b.first_position)
    return _Item(fused, position, first, a.predecessors, a.functions | b.functions)


def _last_position(item: _Item) -> int:
    return item.position


def _first_position(item: _Item) -> int:
    return item.first_position


def _topological_order(items: dict[int, _Item], key: Callable[[_Item], int]) -> list[_Item]:
    """Items in order of ``key``, a position in the program, as far as dependences allow."""
    waiting = {k: len(item.predecessors) for k, item in items.items()}
    later: dict[int, list[int]] = {}
    for k, item in items.items():
        for needed in item.predecessors:
            later.setdefault(needed, []).append(k)
    ready = [(key(items[k]), k) for k, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, k = heapq.heappop(ready)
        order.append(items[k])
        for j in later.get(k, []):
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, (key(items[j]), j))
    assert len(order) == len(items), "the schedule has a cycle"
    return order
