"""Gradients that are None in eager: of what only those results were made of that nobody used.

A compiled backward pass gives a gradient for everything, zeros where a result took no part: it
takes zeros for the gradient of such a result. An optimizer tells zeros from None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


class Absent:
    """Which gradients there are, by the results that took part."""

    def __init__(self) -> None:
        self._tensors: list[bool] = []  # for each input of the forward graph
        self._made_of: list[frozenset[int]] | None = None  # one for each input that is a tensor
        self._count = 0  # of results
        self._needed = False  # is there a gradient that not all results lead to?

    def see_forward(self, graph: fx.GraphModule) -> None:
        """Learn which inputs are tensors: only these have a gradient."""
        inputs = graph.graph.find_nodes(op="placeholder")
        self._tensors = [isinstance(n.meta.get("val"), torch.Tensor) for n in inputs]

    def see_backward(self, graph: fx.GraphModule) -> None:
        """Learn of which results' gradients (tangents) each input's gradient is made."""
        reached: dict[fx.Node, frozenset[int]] = {}
        count = 0
        for node in graph.graph.nodes:
            if node.op == "placeholder" and node.name.startswith("tangents"):
                reached[node] = frozenset([count])
                count += 1
            else:
                reached[node] = frozenset().union(*(reached[a] for a in node.all_input_nodes))
        gradients: Any = graph.graph.output_node().args[0]
        if len(gradients) != len(self._tensors):
            return  # the graph hands on more than gradients
        self._count = count
        self._made_of = [
            reached[g] if isinstance(g, fx.Node) else frozenset[int]()
            for g, is_tensor in zip(gradients, self._tensors, strict=True)
            if is_tensor
        ]
        self._needed = any(len(results) < count for results in self._made_of if results)

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, whose backward pass gives None where eager's does."""

        def run(*args: Any) -> Any:
            results = call(*args)
            if self._made_of is None or self._needed:
                self._watch(results)
            return results

        return run

    def _watch(self, results: Sequence[Any]) -> None:
        tracked = [r for r in results if isinstance(r, torch.Tensor) and r.grad_fn is not None]
        if len(tracked) < 2 or any(r.grad_fn is not tracked[0].grad_fn for r in tracked):
            return
        places = sorted({r.output_nr for r in tracked})

        def leave_out(gradients: Sequence[Any], tangents: Sequence[Any]) -> Any:
            made_of = self._made_of
            if made_of is None or (len(made_of), self._count) != (len(gradients), len(places)):
                return None
            used = {k for k, place in enumerate(places) if tangents[place] is not None}
            if len(used) == len(places):
                return None
            return tuple(
                None if needed and not needed & used else gradient
                for gradient, needed in zip(gradients, made_of, strict=True)
            )

        node: Any = tracked[0].grad_fn
        node.register_hook(leave_out)
