"""Switches of the gradient mode in a captured graph, and the mode in which the graph is entered.

AOTAutograd traces a graph's switches, so that operators under ``no_grad`` record nothing. Outside
the traced graph its wrapper writes the new values to modified arguments, and makes views of
arguments anew, both in the mode in which the graph is *entered*, and it assumes that mode for the
gradients of results. So a graph that begins under ``no_grad`` and enables gradients later would
lose some: here such a graph is entered with gradients enabled, and disables them itself.

No entry mode is right for a view that is made under ``no_grad``, of a tensor that requires
gradients, and returned: AOTAutograd makes it anew from that tensor, and then it has gradients that
eager mode does not compute. Such a graph is cut at its switches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.autograd.overwritten_saved_values import Effect, memory_effect
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.graph_operators.node_metadata import AS_IS
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule


@dataclass(frozen=True)
class GradientModes:
    """The gradient modes of a graph."""

    entry: bool
    """The mode in which ``graph`` is traced and called."""
    last: bool
    """The mode that the program leaves."""
    graph: fx.GraphModule
    """The captured graph with the fewest switches; it ends in the mode of its entry."""
    is_cut: bool
    """Whether the switches of ``graph`` run between its parts."""

    def enter(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, entered in the mode ``entry``; if it returns, the mode is ``last``."""
        entry, last = self.entry, self.last

        def run(*args: Any) -> Any:
            before = torch.is_grad_enabled()
            set_grad_enabled(entry)
            left = before
            try:
                results = call(*args)
                left = last
            finally:
                set_grad_enabled(left)
            return results

        return run


def find_gradient_modes(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> GradientModes | None:
    """The modes of a graph that is entered in the present one; None if it never switches."""
    if not any(map(_is_switch, gm.graph.nodes)):
        return None
    all_modes = modes_of_nodes(gm.graph)
    last = all_modes[gm.graph.output_node()]
    modes = {
        node: mode
        for node, mode in all_modes.items()
        if node.op.startswith("call") and not _is_switch(node)
    }
    entry = any(modes.values())
    graph = copy.deepcopy(gm.graph)
    is_cut = (
        entry
        and not all(modes.values())
        and any(_is_tensor_with_gradient(value) for value in (*example_inputs, *_constants(gm)))
        and any(_is_view_without_gradients(node, modes) for node in _results(gm.graph))
    )
    _insert_fewest_switches(graph, list(modes.values()), entry, is_cut=is_cut)
    return GradientModes(entry, last, UnobservedGraphModule(gm, graph), is_cut)


def modes_of_nodes(graph: fx.Graph) -> dict[fx.Node, bool]:
    """Whether gradients are recorded when each node runs, or after it if it is a switch, of a graph
    that is entered in the present mode."""
    modes, mode = {}, torch.is_grad_enabled()
    for node in graph.nodes:
        if _is_switch(node):
            mode = bool(node.args[0])
        modes[node] = mode
    return modes


def _is_switch(node: fx.Node) -> bool:
    return node.target is set_grad_enabled


def _insert_fewest_switches(
    graph: fx.Graph, modes: Sequence[bool], entry: bool, *, is_cut: bool
) -> None:
    """Replace the switches of a graph whose operators have these modes, in their order.

    ``is_cut``: the switches are marked to run between the parts of the graph.
    """
    for node in list(graph.nodes):
        if _is_switch(node):
            graph.erase_node(node)
    operators = [node for node in graph.nodes if node.op.startswith("call")]
    current = entry
    for node, mode in zip([*operators, graph.output_node()], [*modes, entry], strict=True):
        if mode is not current:
            with graph.inserting_before(node):
                switch = graph.call_function(set_grad_enabled, (mode,))
            if is_cut:
                switch.meta[AS_IS] = "switches the mode in which a result is viewed"
            current = mode


def _is_tensor_with_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _constants(gm: fx.GraphModule) -> list[torch.Tensor]:
    return [*gm.parameters(), *gm.buffers()]


def _results(graph: fx.Graph) -> list[fx.Node]:
    leaves = pytree.tree_leaves(graph.output_node().args[0])
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _is_view_without_gradients(node: fx.Node, modes: dict[fx.Node, bool]) -> bool:
    """True if a node may be a view, made where no gradients are recorded, of a tensor that requires
    them: of an argument, or of a value computed where they are recorded."""
    waiting = {(node, False)}
    seen: set[tuple[fx.Node, bool]] = set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        node, disabled = each
        if disabled and modes.get(node, True):
            return True
        if node not in modes or name_of(node) in ("detach", "detach_"):
            continue
        effect = memory_effect(node)
        if effect in (Effect.VIEW, Effect.MIXED):
            disabled |= not modes[node]
        elif effect is not Effect.WRITES:
            continue
        waiting.update((source, disabled) for source in node.all_input_nodes)
    return False
