"""Writes that autograd does not record: ``x.detach().add_(1)``.

They change the elements of ``x`` and nothing in autograd's graph. AOTAutograd takes them for
writes to record: its wrapper makes ``x`` a result of the compiled graph's node. Then no gradient of
the graph's results with respect to ``x`` can be computed any more. Writes under ``no_grad`` it
leaves alone, so such a write runs under ``no_grad``.

A write of a value that requires gradients gives the detached tensor a gradient of its own, and none
to the tensor that was detached: ``x.detach().mul_(weight)``. Functionalisation computes the new
value of the memory, and makes each tensor in it from that, the detached one by ``detach``: so the
gradient would go to the other tensor. Such a graph is left to eager, unless nothing else uses that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.mutations.overlapping_writes import (
    is_write,
    possible_aliases,
    written_arguments,
)
from magpy_like.compiler.passes.mutations.tensor_subscripts import returns_new_memory
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.operators import OperatorBase


def disable_gradients_of_detached_writes(gm: GraphModule) -> None:
    """Run the writes of a graph to detached tensors under ``no_grad``, in place.

    Whether a write is recorded is decided when AOTAutograd traces the graph: then it is known which
    tensors require gradients.
    """
    changed = False
    for node in list(gm.graph.nodes):
        if not is_write(node):
            continue
        if isinstance(node.target, OperatorBase) and not str(node.target).startswith("aten."):
            continue  # a custom operator, which other passes know by its type
        aliases = possible_aliases(written_arguments(node))
        if detached := [each for each in aliases if name_of(each) == "detach"]:
            with gm.graph.inserting_after(node):
                visible = [each for each in detached if _is_source_used(each)]
                gm.graph.call_function(_check_gradients, (visible,))
            operation = getattr(Tensor, node.target) if node.op == "call_method" else node.target
            node.op, node.target = "call_function", UnrecordedWrite(operation)
            changed = True
    if changed:
        gm.recompile()


def _is_source_used(detached: Node) -> bool:
    """True if anything but this tensor uses the one that was detached, or may share its memory."""
    waiting, seen = detached.all_input_nodes, {detached}
    while waiting:
        node = waiting.pop()
        if node.op in ("placeholder", "get_attr") or not seen.issuperset(node.users):
            return True
        seen.add(node)
        waiting += [] if returns_new_memory(node) else node.all_input_nodes
    return False


def _check_gradients(detached: list[Tensor]) -> None:
    """Raises Unsupported if a write has given one of these tensors a gradient.

    That of ``requires_grad_`` is no result of an operator: it concerns no other tensor.
    """
    if any(tensor.requires_grad and not tensor.is_leaf for tensor in detached):
        raise Unsupported("a graph", "it writes a value that requires gradients to detached memory")


class UnrecordedWrite:
    """An operator that writes, under ``no_grad`` if autograd would not record the call.

    ``torch.fx`` prints a graph with the names of its functions: these are looked up in the printed
    source, where the operation as an argument would have no name.
    """

    def __init__(self, operation: Callable[..., Any]) -> None:
        self._operation = operation
        self.__name__ = self.__qualname__ = "write_unrecorded"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = (each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        records = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        with torch.set_grad_enabled(records):
            return self._operation(*args, **kwargs)
