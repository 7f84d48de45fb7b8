"""Views that custom functions return, and tensors that they write to, as autograd knows them.

Autograd keeps with the result of an ``autograd.Function`` that it is a view made inside one. By
that it refuses writes to the view, and uses of it after a write to its base. A compiled graph
returns a view, or another tensor, without this. It may even lose the function's gradient:
AOTAutograd makes a result in the memory of an argument, or of another result, again as a plain
view of that.

So a function whose view leaves a graph, or the part of a graph that a backend compiles, runs as it
was recorded. Inside a part, as in a layer that reverses gradients, nobody sees the view.

A tensor that a function writes to (``ctx.mark_dirty``) has the function's gradient from then on. If
the tensor comes from outside the part, AOTAutograd returns its new value, and writes that to the
tensor as by ``copy_``, or as the operators of the function do, with their gradient. The function
runs as recorded then, and also if other tensors share the memory; it is compiled with a part that
makes the tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch import fx

from magpy_like.graph_operators.control_operators import (
    custom_writes,
    has_parts,
    is_between_parts,
    may_write,
)
from magpy_like.graph_operators.node_metadata import AS_IS, CUSTOM_VIEW, CUSTOM_WRITES

REASON = "is a custom function that returns a view, which code outside the compiled graph sees"
WRITES_REASON = "is a custom function that writes to a tensor from outside the compiled graph"
SHARED_REASON = "is a custom function that writes to memory that several tensors share"


def mark_custom_functions(gm: fx.GraphModule) -> None:
    """Mark the custom functions that have to run as recorded, in a graph and in its subgraphs."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            while _mark_some(module):
                pass  # a function that runs as recorded divides a part: views leave the new parts


def _mark_some(gm: fx.GraphModule) -> bool:
    """Mark functions whose view leaves its part of a graph, or that write to a tensor from outside
    the part; True if there were any."""
    functions = [
        n
        for n in gm.graph.nodes
        if (CUSTOM_VIEW in n.meta or CUSTOM_WRITES in n.meta) and AS_IS not in n.meta
    ]
    if not functions:
        return False
    parts = _parts(gm)
    found = False
    for node in functions:
        if CUSTOM_VIEW in node.meta and any(
            parts[user] != parts[node] for view in _views(node) for user in view.users
        ):
            node.meta[AS_IS] = REASON
        elif any(parts[each] != parts[node] for each in _written(node)):
            node.meta[AS_IS] = WRITES_REASON
        found |= AS_IS in node.meta
    return found


def _written(function: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose results are tensors that a custom function writes to: what makes each, and
    the earlier writes that return it."""
    waiting: list[Any] = [*custom_writes(function)]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node):
            continue
        yield node
        if CUSTOM_WRITES in node.meta:
            waiting += custom_writes(node)
        elif node.target is operator.getitem or may_write(node):
            waiting += [node.kwargs.get("out"), *node.args[:1]]


def _views(function: fx.Node) -> Iterator[fx.Node]:
    """The results of a custom function, and the results of operators in their memory."""
    waiting, seen = [function], {function}
    while waiting:
        node = waiting.pop()
        yield node
        for user in node.users:
            is_item = user.target is operator.getitem and user.args[0] is node
            if user not in seen and (CUSTOM_VIEW in user.meta or is_item):
                seen.add(user)
                waiting.append(user)


def _parts(gm: fx.GraphModule) -> dict[fx.Node, int]:
    """The number of the part that each node is in; nodes that are in none have numbers of their
    own, as inputs and attributes have together."""
    numbers, number, divided = {}, 0, has_parts(gm)
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            numbers[node] = -1
            continue
        is_outside = node.op == "output" or (divided and is_between_parts(node))
        number += is_outside
        numbers[node] = number
        number += is_outside
    return numbers
