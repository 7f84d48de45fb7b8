"""Recomputation: values per element that a later phase computes again from memory.

They are values the kernel does not store (:attr:`Kernel.removed`).
"""

from __future__ import annotations

from typing import Any

from magpy_like.compiler.codegen.common.kernel_plan import (
    Emitter,
    Kernel,
    Node,
    dependencies,
)
from magpy_like.compiler.ir.ops import Value

Producers = dict[str, tuple[Node, Value]]


def producers(kernel: Kernel) -> Producers:
    """Buffer stored per element -> the node and the store."""
    return {
        store.args[0]: (node, store)
        for node in kernel.nodes()
        for store in node.body.of("store")
        if node.inner and not store.outer
    }


def recompute(emitter: Emitter, buffer: str, producer: Producers) -> Any:
    """Print the value that a buffer's producer stores; returns its name."""
    node, store = producer[buffer]
    wanted = _closure(store.args[2], node)
    emitter.run(node.body, [v for v in node.body.values if v in wanted])
    return emitter.remember(buffer, emitter.names[store.args[2]])


def recomputed_values(buffer: str, producer: Producers, kernel: Kernel) -> list[Value]:
    """All values computed to recompute ``buffer``, down to loads from memory."""
    node, store = producer[buffer]
    found: list[Value] = []
    for v in _closure(store.args[2], node):
        if v.op == "load" and v.args[0] in kernel.removed and v.args[0] in producer:
            found += recomputed_values(v.args[0], producer, kernel)
        else:
            found.append(v)
    return found


def recomputed_buffers(buffer: str, producer: Producers, kernel: Kernel) -> set[str]:
    """The buffers in memory that recomputing ``buffer`` reads."""
    return {v.args[0] for v in recomputed_values(buffer, producer, kernel) if v.op == "load"}


def _closure(root: Value, node: Node) -> set[Value]:
    """The values of a node that ``root`` is computed from, itself included."""
    found: set[Value] = set()
    pending = [root]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += dependencies(value, node.body)
    return found
