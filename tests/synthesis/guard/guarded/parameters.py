"""Programs that rely on the metadata of a fixed tensor, which changes while the object stays."""

import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import Calls, relies_on, varied_state


@relies_on(Kind.FIXED_TENSOR)
def replaced_data_of_a_parameter() -> Calls:
    weight = nn.Parameter(torch.ones(2, 2))

    def change(i):
        weight.data = torch.ones(2 + i, 2)

    return varied_state(lambda x: x * weight.shape[0], change)


@relies_on(Kind.FIXED_TENSOR)
def replaced_data_of_a_parameter_with_many_dimensions() -> Calls:
    weight = nn.Parameter(torch.ones(1, 1, 1, 1, 2, 3))

    def change(i):
        weight.data = torch.ones(1, 1, 1, 1, 2 + i, 3 - i)

    return varied_state(lambda x: x * weight.shape[4], change)


@relies_on(Kind.FIXED_TENSOR)
def swapped_parameter() -> Calls:
    weight, other = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3, 2))

    def change(i):
        if i == 1:
            torch.utils.swap_tensors(weight, other)

    return varied_state(lambda x: x * weight.shape[0], change)
