"""Views that custom functions return: autograd knows how they were made, which a program may see.

Autograd keeps with the result of an ``autograd.Function`` that it is a view made inside one. By
that it refuses writes to the view, and uses of it after a write to its base. A compiled graph
returns a view, or another tensor, without this. It may even lose the function's gradient:
AOTAutograd makes a result in the memory of an argument, or of another result, again as a plain
view of that.

So a function whose view leaves a graph, or the part of a graph that a backend compiles, runs as it
was recorded. Inside a part, as in a layer that reverses gradients, nobody sees the view.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch import fx

from magpy_like.graph_operators.control_operators import has_parts, is_between_parts
from magpy_like.graph_operators.node_metadata import AS_IS, CUSTOM_VIEW

REASON = "is a custom function that returns a view, which code outside the compiled graph sees"


def mark_seen_views(gm: fx.GraphModule) -> None:
    """Mark the custom functions that have to run as recorded, in a graph and in its subgraphs."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            while _mark_some(module):
                pass  # a function that runs as recorded divides a part: views leave the new parts


def _mark_some(gm: fx.GraphModule) -> bool:
    """Mark functions whose view leaves its part of a graph; True if there were any."""
    functions = [n for n in gm.graph.nodes if CUSTOM_VIEW in n.meta and AS_IS not in n.meta]
    if not functions:
        return False
    parts = _parts(gm)
    found = [
        node
        for node in functions
        if any(parts[user] != parts[node] for view in _views(node) for user in view.users)
    ]
    for node in found:
        node.meta[AS_IS] = REASON
    return bool(found)


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
    own."""
    numbers, number, divided = {}, 0, has_parts(gm)
    for node in gm.graph.nodes:
        is_outside = node.op == "output" or (divided and is_between_parts(node))
        number += is_outside
        numbers[node] = number
        number += is_outside
    return numbers
