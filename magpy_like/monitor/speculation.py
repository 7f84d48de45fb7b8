"""Values of tensors that steer the program are speculated on, where nothing speaks against it.

The guard cannot know whether ``if loss.isnan().any():`` will go the recorded way. The mock can: it
runs the operator graph, looks at the condition, and goes on to the effects only when it is what it
was. Otherwise nothing has happened yet, and the program runs as it is written. Where a value was
misspeculated, the program is split from then on.
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

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]

TRUTHS = {bool, torch.Tensor.__bool__, torch.Tensor.is_nonzero, torch.is_nonzero}
"""Functions of one tensor that say what a branch on it would do."""
COMPARISONS = {torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose}
"""Functions of tensors that give a ``bool``."""


def is_truth_query(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call gives the truth of the one tensor that it is given."""
    if len(args) != 1 or not is_instance(args[0], torch.Tensor):
        return False
    return operation in TRUTHS or (operation is torch.Tensor.item and args[0].dtype is torch.bool)


def is_value_query(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call gives plain values that are not likely to be others every time."""
    if operation is torch.Tensor.tolist:
        tensor = args[0]
        return not tensor.is_floating_point() and not tensor.is_complex()
    return operation in COMPARISONS


def returns_few_numbers(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call makes a list of few numbers, as many at every call."""
    if operation is not torch.Tensor.tolist or args[0].dtype not in REAL_NUMBERS:
        return False
    return 0 < args[0].numel() <= config.max_tolist_numbers


def speculate_on_branch(context: Context, tensor: torch.Tensor) -> None:
    """The program branches on a tensor, or asks for its truth.

    Of a tensor from outside that nothing was written to, the guard can ask as well.

    Raises:
        Split: what it does cannot be speculated on, or the tensor has no truth.
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
    place = context.lifted.speculated.require_place(*cause)
    truth = Computed(operator.truth, (GraphNumber(context.recording.graph.snapshot(tensor)),))
    context.lifted.speculated.values.append((truth, bool(tensor), place))


def speculate_on_values(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """The program compares tensors as a whole, or makes a list of one.

    Raises:
        Split: what it gives cannot be speculated on.
    """
    place = context.lifted.speculated.require_place(
        SplitReason.TENSOR_VALUE_READ, "reads a tensor's value into Python"
    )
    result = operation(*args, **kwargs)
    node = context.recording.graph.add_plain_result(operation, args, kwargs)
    context.lifted.speculated.values.append((GraphNumber(node), result, place))
