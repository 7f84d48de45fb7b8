"""Dead code elimination and common subexpression elimination."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.graph_queries import is_pure, is_view


def eliminate_dead_code(gm: GraphModule) -> bool:
    """Remove unused nodes; True if any. Random operators stay: they advance the generator."""
    return bool(gm.graph.eliminate_dead_code())


def eliminate_common_subexpressions(gm: GraphModule) -> bool:
    """Merge equal calls; True if any.

    Two calls are equal when operator and arguments are equal in value *and type* (``1``, ``1.0``,
    ``True`` and ``-0.0`` make different tensors), no node in between writes into an argument, and
    the results need not be two tensors: not both returned, neither written to.
    """
    aliases = Aliases(gm.graph)
    seen: dict[Any, Node] = {}
    changed = False
    for node in list(gm.graph.nodes):
        if not (is_pure(node) or node.target is operator.getitem):
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if not aliases.is_unwritten_between(node.all_input_nodes, first, node):
            seen[key] = node
            continue
        if _can_merge(aliases, first, node):
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            changed = True
    return changed


def _can_merge(aliases: Aliases, first: Node, second: Node) -> bool:
    if is_view(second) or second.target is operator.getitem:
        # They share memory already. As results, they must be two objects.
        return not (_is_returned(first) and _is_returned(second))
    if aliases.is_written(first) or aliases.is_written(second):
        return False
    # The second's users become the first's: the first counts as returned from now on.
    if aliases.is_returned(first) and aliases.is_returned(second):
        return False
    if aliases.is_returned(second):
        aliases.escaping |= aliases.roots[first]
    return True


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _hashable(argument: Any) -> Any:
    """A hashable key that is equal only for arguments of equal meaning."""
    if isinstance(argument, (list, tuple)):
        return tuple(_hashable(item) for item in argument)
    if isinstance(argument, dict):
        return tuple((key, _hashable(argument[key])) for key in sorted(argument))
    if isinstance(argument, slice):
        return (slice, _hashable((argument.start, argument.stop, argument.step)))
    if isinstance(argument, (float, complex)):
        return (type(argument), repr(argument))
    if isinstance(argument, (Node, torch.dtype, torch.device)):
        return argument
    return (type(argument), argument)
