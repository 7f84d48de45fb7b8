"""Fusion: when two loop nests may become one kernel, and over which loops (PyTorch 2, section 4.4).

Two nests fuse if their loops can be matched so that every buffer that one writes and the other
accesses is accessed at the same address in the same iteration. Addresses are SymPy expressions over
the loops, so the test compares expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Node, votes_across_rows
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.loop_ir import LoopOp

MAX_NODES = 48  # per kernel; more spill registers and cost more compile time than they save
MAX_PARTS = 8  # of one concatenation per kernel: each is a memory stream of its own


@dataclass(eq=False)
class Group:
    """Loop nests of one future kernel, over common loops ``xs`` and ``rs``; ``key``
    orders groups."""

    nodes: list[Node]
    device: torch.device
    xs: list[Symbol]
    rs: list[Symbol]
    ranges: dict[Symbol, Expr]
    key: int
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    scatters: bool = False
    scans: bool = False
    _loop_strides: dict[str, dict[Symbol, Expr]] | None = None

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.reads |= node.reads
            self.writes |= node.writes
            self.scans |= bool(node.body.of("scan"))
            for store in node.body.of("store"):
                indirect = set(node.body.indirect)
                if store.args[3] is not None or (
                    indirect and store.args[1].free_symbols & indirect
                ):
                    self.scatters = True

    @property
    def loop_strides(self) -> dict[str, dict[Symbol, Expr]]:
        """buffer -> stride of each loop in it, in elements (from its first affine access)."""
        if self._loop_strides is None:
            self._loop_strides = {}
            loops = [*self.xs, *self.rs]
            for node in self.nodes:
                for value in node.body.values:
                    if value.op in ("load", "store") and value.args[0] not in self._loop_strides:
                        form = index_arithmetic.coefficients(value.args[1], loops)
                        if form is not None:
                            self._loop_strides[value.args[0]] = form[0]
        return self._loop_strides

    @functools.cached_property
    def votes_across_rows(self) -> int:
        """See :func:`kernel_plan.votes_across_rows`."""
        return votes_across_rows(self.nodes, self.xs, self.rs, (*self.xs, *self.rs))

    @functools.cached_property
    def has_divided_addresses(self) -> bool:
        """True if addresses contain divisions that splitting loops does not remove."""
        bases = {base for node in self.nodes for base in node.divided_bases}
        bases = {base.args[0] if isinstance(base, index_arithmetic.Div) else base for base in bases}
        return not bases <= self.ranges.keys()

    @property
    def x_size(self) -> Expr:
        """Iterations of the outer loops."""
        return index_arithmetic.product(self.ranges[v] for v in self.xs)

    @property
    def r_size(self) -> Expr:
        """Iterations of the reduction loops."""
        return index_arithmetic.product(self.ranges[v] for v in self.rs)


def make_group(operation: LoopOp, key: int, device: torch.device) -> Group:
    """A group of one operation; ``key`` is its position in the program."""
    body = operation.body
    inner = bool(body.rs) or body.is_reduction()
    node = Node(operation.name, body, inner, operation.origins)
    return Group([node], device, body.xs, body.rs, dict(body.ranges), key)


@dataclass(frozen=True)
class Conflict:
    """A buffer that two nests access at two addresses.

    Text only on demand: printing an address takes far longer than comparing it.
    """

    buffer: str
    written: Expr
    index: Expr

    def __str__(self) -> str:
        return f"{self.buffer} is accessed at {self.written} and at {self.index}"


def try_fuse(
    first: Group, second: Group, in_parts: Set[str] = frozenset()
) -> Group | Conflict | str:
    """One group that runs ``first`` before ``second``; or the reason why not.

    ``in_parts``: buffers each of whose writers writes a part of its own (concatenations).
    """
    if first.device != second.device:
        return "different devices"
    if first.scatters or second.scatters:
        return "a scatter writes at computed addresses"
    if (first.scans or second.scans) and max(len(first.rs), len(second.rs)) > 1:
        return "a scan fixes the order of its loop"
    if first.rs and second.rs and first.votes_across_rows * second.votes_across_rows < 0:
        return "one reduces along rows of memory, the other across them"
    if len(first.nodes) + len(second.nodes) > MAX_NODES:
        return "the kernel would be too large"
    reason: Conflict | str = "loop sizes differ"
    for fused in _candidate_fusions(first, second):
        conflict = _find_conflict(fused, first.writes, second.writes, in_parts)
        if (
            conflict is None
            and fused.has_divided_addresses
            and not (first.has_divided_addresses or second.has_divided_addresses)
        ):
            conflict = "their rows differ: addresses would need divisions"
        if conflict is None:
            return fused
        reason = conflict
    return reason


def _find_conflict(
    group: Group, first: set[str], second: set[str], in_parts: Set[str]
) -> Conflict | str | None:
    """The conflict over a buffer that one side writes and that has more than one
    address, if any."""
    for buffer in (first | second) & group.writes:
        if buffer in in_parts and buffer not in group.reads:
            if sum(buffer in node.writes for node in group.nodes) > MAX_PARTS:
                return f"too many parts of the concatenation {buffer}"
            continue
        written: Expr | None = None
        for node in group.nodes:
            for index in node.accesses.get(buffer, ()):
                if written is None:
                    written = index
                elif index != written:
                    return Conflict(buffer, written, index)
        if group.rs and _is_read_before_and_after(group.nodes, buffer):
            return f"{buffer} is read before and after it is updated"
    # A per-element value exists once its loop has run; a reduction's result cannot feed an earlier
    # iteration. Phases order both. Nodes outside the reduction loops cannot read per element.
    if group.rs:
        per_element = {
            s.args[0]
            for node in group.nodes
            if node.inner
            for s in node.body.of("store")
            if not s.outer
        }
        for node in group.nodes:
            if not node.inner and node.reads & per_element:
                return "a buffer is read outside the reduction loops that write it"
    return None


def _is_read_before_and_after(nodes: Sequence[Node], buffer: str) -> bool:
    """True if nodes up to the writer of a buffer read it, and nodes after it too."""
    writer = next(k for k, n in enumerate(nodes) if buffer in n.writes)
    before = any(buffer in n.reads for n in nodes[: writer + 1])
    return before and any(buffer in n.reads for n in nodes[writer + 1 :])


def _candidate_fusions(first: Group, second: Group) -> Iterator[Group]:
    """Candidate fusions over common loops, the simplest first."""
    if bool(first.rs) == bool(second.rs):
        if first.x_size == second.x_size and first.r_size == second.r_size:
            yield from _merge(first, second, second.xs, second.rs, levels=None)
        return
    # The host has the reduction loops. The guest is pointwise and runs per element of them, or once
    # per outer iteration.
    host, guest = (first, second) if first.rs else (second, first)
    swapped = host is second
    if guest.x_size == host.x_size:
        yield from _merge(host, guest, guest.xs, [], levels=False, swapped=swapped)
    if guest.x_size == host.x_size * host.r_size:
        yield from _merge(host, guest, guest.xs, [], levels=True, swapped=swapped)


def _merge(
    host: Group, guest: Group, xs: Sequence[Symbol], rs: Sequence[Symbol], *,
    levels: bool | None, swapped: bool = False,
) -> Iterator[Group]:  # fmt: skip
    """The guest's nodes over the host's loops.

    ``levels``: True or False puts guest nodes inside or outside the reduction loops; None leaves
    their level as it is.
    """
    target = [*host.xs, *host.rs] if levels else list(host.xs)
    for mapping in _candidate_mappings(host, guest, list(xs), target):
        if rs:
            for inner in _candidate_mappings(host, guest, list(rs), list(host.rs)):
                yield _combine(host, guest, {**mapping, **inner}, levels, swapped)
        else:
            yield _combine(host, guest, mapping, levels, swapped)
    # Reversed roles: the guest's loops may be finer and then need no division.
    if levels is None and not rs and len(guest.xs) > len(host.xs):
        for mapping in _candidate_mappings(guest, host, list(host.xs), list(guest.xs)):
            yield _combine(guest, host, mapping, None, not swapped)


def _candidate_mappings(
    host: Group, guest: Group, variables: list[Symbol], target: list[Symbol]
) -> Iterator[dict[Symbol, Expr]]:
    """Candidate expressions of the guest's loop variables in terms of the host's."""
    sizes = [guest.ranges[v] for v in variables]
    new_sizes = [host.ranges[v] for v in target]
    by_address = _match_by_strides(host, guest, variables, target)
    plain: dict[Symbol, Expr] | None
    if sizes == new_sizes:
        plain = dict(zip(variables, target, strict=True))
    else:
        # A loop of size 1 has no variable, so the products of sizes match or nothing does.
        reindex = index_arithmetic.reshape_index(sizes, new_sizes)
        plain = dict(zip(variables, reindex(list(target)), strict=True))
    if by_address is not None and by_address != plain:
        yield by_address
    yield plain


def _match_by_strides(
    host: Group, guest: Group, variables: list[Symbol], target: list[Symbol]
) -> dict[Symbol, Expr] | None:
    """Match loops one to one by their strides in the buffers that both access."""
    if len(variables) != len(target):
        return None
    shared = sorted((host.reads | host.writes) & (guest.reads | guest.writes))
    if not shared:
        return None
    host_strides, guest_strides = host.loop_strides, guest.loop_strides
    common = [b for b in shared if b in host_strides and b in guest_strides]
    if not common:
        return None

    def signature(steps: Mapping[str, Mapping[Symbol, Expr]], v: Symbol, size: Expr) -> tuple:
        return (size, *(steps[b].get(v, sympy.S.Zero) for b in common))

    table: dict[tuple, Symbol] = {}
    for v in target:
        if table.setdefault(signature(host_strides, v, host.ranges[v]), v) is not v:
            return None
    mapping: dict[Symbol, Expr] = {}
    for v in variables:
        match = table.pop(signature(guest_strides, v, guest.ranges[v]), None)
        if match is None:
            return None
        mapping[v] = match
    return mapping


def _combine(
    host: Group, guest: Group, mapping: Mapping[Symbol, Expr], inner: bool | None, swapped: bool
) -> Group:
    moved = []
    for node in guest.nodes:
        level = node.inner if inner is None else inner
        if all(mapping.get(v, v) == v for v in (*node.body.xs, *node.body.rs)) and inner is None:
            moved.append(node)
            continue
        body = node.body.remap(mapping, host.xs, host.rs if level else [], host.ranges)
        moved.append(Node(node.name, body, level, node.origins))
    nodes = [*moved, *host.nodes] if swapped else [*host.nodes, *moved]
    key = max(host.key, guest.key)
    return Group(nodes, host.device, host.xs, host.rs, dict(host.ranges), key)
