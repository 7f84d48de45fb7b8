"""A captured graph with the arguments and results of the graph that is compiled.

Passes replace operators by others that have no second derivative, make arguments of sizes and
tensors of floats, and compute some views after the compiled graph. A second run for gradients of
gradients runs the graph as it was captured.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx

from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule


def results_as_captured(whole: fx.GraphModule, gm: fx.GraphModule) -> list[Any] | None:
    """The nodes of ``whole`` that ``gm``, a changed copy of it, returns, and other results as they
    are; None if a node is not in ``whole``."""
    nodes = {node.name: node for node in whole.graph.nodes}
    leaves = pytree.tree_leaves(gm.graph.output_node().args[0])
    found = [nodes.get(r.name) if isinstance(r, fx.Node) else r for r in leaves]
    missing = (a is None and b is not None for a, b in zip(found, leaves, strict=True))
    return None if any(missing) else found


def program_as_captured(
    whole: fx.GraphModule, results: Sequence[Any], floats: Collection[int]
) -> Callable[..., Any]:
    """The captured graph as a function of the compiled one's arguments.

    Args:
        whole: the captured graph.
        results: its results: nodes of ``whole``, and constants.
        floats: the indices of float arguments that arrive as tensors.

    Arguments after those of ``whole`` are ignored.
    """

    @functools.cache
    def build() -> tuple[fx.GraphModule, int]:
        graph = copy.deepcopy(whole.graph)
        nodes = dict(zip(whole.graph.nodes, graph.nodes, strict=True))
        graph.output_node().args = (
            tuple(nodes[r] if isinstance(r, fx.Node) else r for r in results),
        )
        return UnobservedGraphModule(whole, graph), sum(n.op == "placeholder" for n in graph.nodes)

    def run(*args: Any) -> Any:
        gm, count = build()
        return gm(*(a.item() if k in floats else a for k, a in enumerate(args[:count])))

    return run
