"""Dead code, and common subexpressions."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.graph_queries import Aliases, is_pure, is_view


def eliminate_dead_code(gm: GraphModule) -> bool:
    """Remove nodes nobody uses. Random operators stay: they advance the generator."""
    return bool(gm.graph.eliminate_dead_code())


def eliminate_common_subexpressions(gm: GraphModule) -> bool:
    """Compute what two nodes have in common once.

    Two calls are one when operator and arguments are equal in value *and type* (``1``, ``1.0``,
    ``True`` and ``-0.0`` make different tensors), nothing writes into an argument in between, and
    the results need not be two tensors: not both returned, neither written into.
    """
    aliases = Aliases(gm.graph)
    seen: dict[Any, Node] = {}
    changed = False
    for node in list(gm.graph.nodes):
        if not (is_pure(node) or node.target is operator.getitem):
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if not aliases.unwritten_between(node.all_input_nodes, first, node):
            seen[key] = node
            continue
        if _one_is_enough(aliases, first, node):
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            changed = True
    return changed


def _one_is_enough(aliases: Aliases, first: Node, second: Node) -> bool:
    if is_view(second) or second.target is operator.getitem:
        # They are views of one tensor already. Returned, they are two objects.
        return not (_returned(first) and _returned(second))
    if aliases.is_written(first) or aliases.is_written(second):
        return False
    # The second's users become the first's, so a later look must see the first as returned too.
    if aliases.leaves(first) and aliases.leaves(second):
        return False
    if aliases.leaves(second):
        aliases.escaping |= aliases.roots[first]
    return True


def _returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _frozen(argument: Any) -> Any:
    """A hashable stand-in that is equal only for arguments that mean the same."""
    if isinstance(argument, (list, tuple)):
        return tuple(_frozen(item) for item in argument)
    if isinstance(argument, dict):
        return tuple((key, _frozen(argument[key])) for key in sorted(argument))
    if isinstance(argument, slice):
        return (slice, _frozen((argument.start, argument.stop, argument.step)))
    if isinstance(argument, (float, complex)):
        return (type(argument), repr(argument))
    if isinstance(argument, (Node, torch.dtype, torch.device)):
        return argument
    return (type(argument), argument)
