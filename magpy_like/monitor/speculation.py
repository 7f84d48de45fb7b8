"""Speculation on tensors' values that decide control flow.

A guard cannot check whether ``if loss.isnan().any():`` takes the recorded branch. The mock can: it
runs the operator graph, compares the condition with the speculated value, and proceeds to the
effects only if they agree. Otherwise it has had no effect yet, and the program runs natively. After
a misspeculation the program is split there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.config import config
from magpy_like.monitor.operator_graph.graph_numbers import REAL_NUMBERS
from magpy_like.monitor.symbolic.expressions import Computed, EntryValue, GraphNumber
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.operators import is_left_aligned

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]

TRUTHS = {bool, torch.Tensor.__bool__, torch.Tensor.is_nonzero, torch.is_nonzero}
"""Functions of one tensor that return its truth."""
COMPARISONS = {
    torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
    is_left_aligned,
}  # fmt: skip
"""Functions of tensors that return a ``bool``."""


def is_truth_query(operation: Any, args: tuple[Any, ...]) -> bool:
    """True if a call returns the truth of its only argument, a tensor."""
    if len(args) != 1 or not is_instance(args[0], torch.Tensor):
        return False
    return operation in TRUTHS or (operation is torch.Tensor.item and args[0].dtype is torch.bool)


def is_value_query(operation: Any, args: tuple[Any, ...]) -> bool:
    """True if a call returns plain values that are unlikely to differ at every call."""
    if operation is torch.Tensor.tolist:
        tensor = args[0]
        return not tensor.is_floating_point() and not tensor.is_complex()
    return operation in COMPARISONS


def returns_few_numbers(operation: Any, args: tuple[Any, ...]) -> bool:
    """True if a call returns a list of few numbers, whose length is the same at every call."""
    if operation is not torch.Tensor.tolist or args[0].dtype not in REAL_NUMBERS:
        return False
    return 0 < args[0].numel() <= config.max_tolist_numbers


def speculate_on_branch(context: Context, tensor: torch.Tensor) -> None:
    """Speculate on the truth of a tensor. For an unwritten external tensor, the guard checks it.

    Raises:
        Split: the truth cannot be speculated on, or the tensor has several elements.
    """
    rec = context.recording
    cause = SplitReason.DATA_DEPENDENT_BRANCH, "branches on a tensor's value"
    if tensor.numel() != 1:
        raise Split(*cause)
    context.lifted.tensors.specialize_sizes(tensor)
    node = rec.variables.node(tensor)
    if node is not None and not rec.writes.is_written(node):
        context.lifted.guards.conditions.append(
            (Computed(operator.truth, (EntryValue(node),)), bool(tensor))
        )
        return
    position = context.lifted.speculated.require_position(*cause)
    truth = Computed(operator.truth, (GraphNumber(context.recording.graph.snapshot(tensor)),))
    context.lifted.speculated.values.append((truth, bool(tensor), position))


def speculate_on_values(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Speculate on the result of a comparison of tensors, or of a tensor's ``tolist``.

    Raises:
        Split: the result cannot be speculated on.
    """
    position = context.lifted.speculated.require_position(
        SplitReason.TENSOR_VALUE_READ, "reads a tensor's value into Python"
    )
    result = operation(*args, **kwargs)
    node = context.recording.graph.add_plain_result(operation, args, kwargs)
    context.lifted.speculated.values.append((GraphNumber(node), result, position))
