"""Layouts of tensors that operators write to.

An operator in place keeps the strides of the tensor; its functional form, which AOTAutograd traces
instead, may lay out a result anew. Such a write becomes a copy of the functional result into the
tensor, whose functional form keeps the strides.
"""

from __future__ import annotations

from torch import fx

_RELAYOUT = frozenset(
    f"{name}_"
    for name in (
        "addbmm", "addmm", "baddbmm", "cumprod", "cumsum", "index_add", "index_copy",
        "index_reduce", "masked_fill", "masked_scatter", "mvlgamma", "renorm", "scatter",
        "scatter_add", "scatter_reduce", "tril", "triu",
    )
)  # fmt: skip
"""Methods in place whose functional form returns a contiguous result for any argument."""


def keep_layouts_of_writes(gm: fx.GraphModule) -> bool:
    """Rewrite such calls, in place; True if there are any.

    Inputs need no rewriting: their new values are copied into them.
    """
    methods = gm.graph.find_nodes(op="call_method")
    found = [n for n in methods if n.target in _RELAYOUT and n.args[0].op != "placeholder"]
    for node in found:
        with gm.graph.inserting_before(node):
            value = gm.graph.call_method(node.target[:-1], node.args, node.kwargs)
            new = gm.graph.call_method("copy_", (node.args[0], value))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    if found:
        gm.recompile()
    return bool(found)
