"""Writes that autograd does not record: ``x.detach().add_(1)``.

They change the elements of ``x`` and nothing in autograd's graph. AOTAutograd takes them for
writes to record: its wrapper makes ``x`` a result of the compiled graph's node. Then no gradient of
the graph's results with respect to ``x`` can be computed any more. Writes under ``no_grad`` it
leaves alone, so such a write runs under ``no_grad``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from magpy_like.compiler.passes.mutations.metadata_mutations import is_mutating
from magpy_like.compiler.passes.mutations.overlapping_writes import (
    possible_aliases,
    written_arguments,
)
from magpy_like.compiler.passes.mutations.tensor_subscripts import has_inplace_flag
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.operators import OperatorBase


def disable_gradients_of_detached_writes(gm: GraphModule) -> None:
    """Run the writes of a graph to detached tensors under ``no_grad``, in place.

    Whether a write is recorded is decided when AOTAutograd traces the graph: then it is known which
    tensors require gradients.
    """
    changed = False
    for node in gm.graph.nodes:
        if not (node.op.startswith("call") and (is_mutating(node) or has_inplace_flag(node))):
            continue
        if isinstance(node.target, OperatorBase) and not str(node.target).startswith("aten."):
            continue  # a custom operator, which other passes know by its type
        if any(name_of(each) == "detach" for each in possible_aliases(written_arguments(node))):
            operation = getattr(Tensor, node.target) if node.op == "call_method" else node.target
            node.op, node.target = "call_function", UnrecordedWrite(operation)
            changed = True
    if changed:
        gm.recompile()


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
