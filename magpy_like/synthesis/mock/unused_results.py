"""Unused results of operators that may raise for other values.

A backend eliminates such operators as dead code, and with them the exceptions of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import NUMBER, RESULT_VERSIONS
from magpy_like.native.instance_checks import is_instance
from magpy_like.synthesis.mock.raising_operators import may_fail
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule

Compile = Callable[[fx.GraphModule], Callable[..., Any]]


def compile_with_unused_results(
    graph: fx.GraphModule, compile_graph: Compile
) -> Callable[..., Any]:
    """Compile a graph so that unused results of operators that may raise are computed, too."""
    unused = _unused(graph.graph)
    if not unused or not is_instance(graph.graph.output_node().args[0], (tuple, list)):
        return compile_graph(graph)
    found: dict[fx.Node, fx.Node] = {}
    more = fx.Graph()
    results = more.graph_copy(graph.graph, found)
    seen = [more.call_function(_some_tensor, (found[node],)) for node in unused]
    output = more.output((*results, *seen))
    output.meta.update(graph.graph.output_node().meta)
    if (versions := output.meta.get(RESULT_VERSIONS)) is not None:
        output.meta[RESULT_VERSIONS] = (*versions, *[0] * len(seen))
    run, count = compile_graph(UnobservedGraphModule(graph, more)), len(results)
    return lambda *args: run(*args)[:count]


def _unused(graph: fx.Graph) -> list[fx.Node]:
    """Operators that may raise, without side effects, whose results reach no output or write."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in needed or node.op == "output" or (not node.users and _changes(node)):
            needed.add(node)
            needed.update(node.all_input_nodes)
    return [
        node
        for node in graph.nodes
        if node not in needed and not node.meta.get(NUMBER) and may_fail(node)
    ]


def _changes(node: fx.Node) -> bool:
    """True if a call may have side effects."""
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.strip("_") in _STATEMENTS or "out" in node.kwargs


_STATEMENTS = frozenset(
    (
        "setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
        "irshift", "isub", "itruediv", "ixor",
    )
)  # fmt: skip


def _some_tensor(result: Any) -> torch.Tensor:
    """One tensor of a result, as an output that depends on the operator."""
    tensors = (leaf for leaf in pytree.tree_leaves(result) if is_instance(leaf, torch.Tensor))
    return next(tensors, torch.empty(0)).detach()
