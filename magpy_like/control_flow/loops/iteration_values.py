"""Values that an isolated iteration leaves for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from magpy_like.control_flow.paths.path_ends import PathEnd
from magpy_like.control_flow.paths.value_comparison import describe
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.control_flow.loops.loop_iteration import Iteration


def preexists(iteration: Iteration, value: Any, end: PathEnd) -> bool:
    """True for a tensor that the path to ``end`` has not created.

    Raises:
        Split: the next iteration must not receive the value.
    """
    if not is_instance(value, torch.Tensor):
        if not is_number(value):
            raise LoopNotMergeable(f"an iteration carries {describe(value)}")
        return False
    if iteration.plan.context.recording.operators.has_data_dependent_shape(value):
        raise LoopNotMergeable("the sizes of a tensor that an iteration creates depend on data")
    exists = not end.created(value)
    if exists and iteration.reads.elements:
        raise LoopNotMergeable("iterations over a list carry tensors that they did not create")
    if exists and value.is_inference():
        raise LoopNotMergeable("an iteration carries an inference tensor that it did not create")
    return exists
