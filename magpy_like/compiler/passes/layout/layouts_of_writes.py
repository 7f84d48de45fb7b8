"""Layouts of tensors that operators write to.

An operator in place keeps the strides of the tensor; its functional form, which AOTAutograd traces
instead, may lay out a result anew. Such a write becomes a copy of the functional result into the
tensor, whose functional form keeps the strides.

The functional form of most operators gives a tensor with gaps between its elements a layout without
gaps. A write to an input with gaps, such as a slice, or to a view of it goes to a copy, which is
copied into the input. Graphs that write to other tensors with gaps, such as a result of
``torch.empty_strided``, are left to eager.

Where layouts were lost, operators such as ``contiguous`` would return the tensor itself instead of
a copy, or the other way round, and later writes would change the wrong tensors.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.graph_queries import is_in_order
from magpy_like.compiler.passes.mutations.metadata_mutations import may_change_metadata
from magpy_like.compiler.passes.mutations.overlapping_writes import (
    is_write,
    possible_aliases,
    written_arguments,
)
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.graph_operators.node_metadata import CUSTOM_WRITES
from magpy_like.torch_compat.operators import operator_tags

_RELAYOUT = frozenset(
    f"{name}_"
    for name in (
        "addbmm", "addmm", "baddbmm", "cumprod", "cumsum", "index_add", "index_copy",
        "index_reduce", "masked_fill", "masked_scatter", "mvlgamma", "renorm", "scatter",
        "scatter_add", "scatter_reduce", "tril", "triu",
    )
)  # fmt: skip
"""Methods in place whose functional form returns a contiguous result for any argument."""
_SCATTERS = frozenset(("index_add_", "index_copy_", "scatter_", "scatter_add_"))
"""Those of them that may store their rows in an input itself, as in a cache: see
:mod:`~magpy_like.compiler.lowering.scatters_in_place`."""


def keep_layouts_of_writes(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Rewrite such calls, in place; True if there are any.

    Inputs with gaps, and inputs that take rows, are concerned only if a later call copies by the
    layout.

    Args:
        example_inputs: one tensor (real or fake) or number per placeholder.

    Raises:
        Unsupported: an input with gaps is written to in a way that no copy stands for: by random
            numbers, or through an expanded view or one of another type.
    """
    nodes = list(gm.graph.nodes)
    last = max((k for k, node in enumerate(nodes) if _copies_by_layout(node)), default=0)
    inputs = zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
    strided = {node: e for node, e in inputs if _is_strided(e)}
    kept = frozenset() if last else _SCATTERS
    reordered = {node for node, e in strided.items() if not is_in_order(e)}
    with_gaps = {node for node in reordered if not _is_dense(strided[node])}
    found = [_write_to_copies(node, with_gaps) for node in nodes[:last] if with_gaps]
    relayouts = [
        node
        for node in gm.graph.find_nodes(op="call_method")
        if node.target in _RELAYOUT
        and (
            node.args[0].op != "placeholder"
            or (node.args[0] in reordered and node.target not in kept)
        )
    ]
    for node in relayouts:
        with gm.graph.inserting_before(node):
            value = gm.graph.call_method(node.target[:-1], node.args, node.kwargs)
            new = gm.graph.call_method("copy_", (node.args[0], value))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    changed = bool(relayouts) or any(found)
    if changed:
        gm.recompile()
    return changed


def _copies_by_layout(node: fx.Node) -> bool:
    """True if a call returns its argument, a view or a copy of it by its strides."""
    return node.op.startswith("call") and name_of(node).split(".")[0] in _COPIES_BY_LAYOUT


_COPIES_BY_LAYOUT = frozenset(
    ("contiguous", "flatten", "ravel", "reshape", "reshape_as", "to", "type", "type_as", "view_as")
)
_NO_VALUES = frozenset(("requires_grad_", "detach_"))
"""Methods in place that write no elements."""
_EXPANSIONS = frozenset(("broadcast_tensors", "broadcast_to", "expand", "expand_as"))


def _write_to_copies(node: fx.Node, with_gaps: Set[fx.Node]) -> bool:
    """Let a call that writes to inputs, or to views of them, write to copies, which are then copied
    into these; True if it does."""
    if not is_write(node) or name_of(node) in _NO_VALUES:
        return False
    is_out = "out" in node.kwargs
    if CUSTOM_WRITES in node.meta or (may_change_metadata(node) and not is_out):
        return False
    aliases = {each: set(possible_aliases([each])) for each in written_arguments(node)}
    written = [each for each, found in aliases.items() if found & with_gaps]
    if any(map(_loses_gaps, set().union(*(aliases[each] for each in written)))):
        raise Unsupported(
            "a graph",
            "it expands or reinterprets an input with gaps, and writes to it",
        )
    if name_of(node) == "copy_" or is_out:
        return False  # the functional form of `copy_` keeps the strides, and `out=` becomes one
    if written and torch.Tag.nondeterministic_seeded in operator_tags(node.target):
        # The numbers depend on the layout of the memory.
        raise Unsupported("a graph", "it draws numbers into an input with gaps")
    returned = next(iter((*node.args, *node.kwargs.values())))
    for source in written:
        with node.graph.inserting_before(node):
            copy = node.graph.call_method("clone", (source,))
        node.replace_input_with(source, copy)
        with node.graph.inserting_after(node):
            new = node.graph.call_method("copy_", (source, copy))
        if returned is source:
            node.replace_all_uses_with(new)
    return bool(written)


def _loses_gaps(view: fx.Node) -> bool:
    """True for views from which functionalisation makes the viewed tensor anew, without its gaps:
    expansions, and views as another type."""
    arguments = (*view.args, *view.kwargs.values())
    return name_of(view) in _EXPANSIONS or any(isinstance(a, torch.dtype) for a in arguments)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


_TAKES_STRIDES = frozenset(("empty_strided", "new_empty_strided"))
"""Operators that return new memory with strides that the program chooses."""


def reject_writes_between_gaps(gm: fx.GraphModule) -> None:
    """Insert checks that raise Unsupported where a graph writes to a tensor with gaps, in place.

    They run when AOTAutograd traces the graph: then strides are known.
    """
    made = {node for node in gm.graph.nodes if name_of(node).split(".")[0] in _TAKES_STRIDES}
    for node in list(gm.graph.nodes) if made else ():
        if not is_write(node):
            continue
        written = written_arguments(node)
        if name_of(node) == "copy_" and written[0] in made:
            continue  # its functional form keeps the strides
        aliases = possible_aliases(list(written))
        reached = {*written, *(source for alias in aliases for source in alias.all_input_nodes)}
        if tensors := [source for source in made if source in reached]:
            with gm.graph.inserting_before(node):
                gm.graph.call_function(_check_gaps, (tensors,))
            gm.recompile()


def _check_gaps(tensors: Sequence[torch.Tensor]) -> None:
    if not all(map(_is_dense, tensors)):
        raise Unsupported("a graph", "it writes to a tensor with gaps between its elements")


def _is_dense(t: torch.Tensor) -> bool:
    """True if the elements are known to lie side by side in memory, in some order."""
    expected: int | torch.SymInt = 1
    left = [d for d in range(t.dim()) if not statically_known_true(t.shape[d] == 1)]
    while left:
        found = [d for d in left if statically_known_true(t.stride(d) == expected)]
        if not found:
            return False
        left.remove(found[0])
        expected = expected * t.shape[found[0]]
    return True
