"""Views of an argument under another dtype, and writes to the argument.

Such a view is a buffer of its own, in the memory of the argument: values that were computed from it
before a write are those of before.
"""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

INDEX = torch.tensor([3, 0, 5])


def real_part_before_a_product(x):
    doubled = torch.view_as_complex(x.view(-1, 2)).real * 2
    x.mul_(3)
    return doubled + 1


def bits_before_a_sum(x):
    doubled = x.view(torch.int32) * 2
    x.add_(1)
    return doubled + 1, x.view(torch.int32) + 1


def reversed_bits_beside_a_product(x):
    found = x.view(torch.int32).flip(0) ^ 5
    x.mul_(2)
    return found


def written_from_its_reversed_bits(x):
    x.copy_(x.view(torch.int32).flip(0).to(torch.float32))
    return x + 1


def written_early(x):
    bits = x.view(torch.int32)
    new = (x * 2) + 3
    found = bits + 1
    total = found.sum(0)
    x.copy_(new)
    return found * total


def several_writes(x):
    bits = x.unsqueeze(0).view(torch.int32)
    found = bits + 1
    x.relu_()
    doubled = found * 2
    x.mul_(0.5)
    return doubled, found.sum(), bits + 1


def parts_of_bits(x):
    first, second = x.view(torch.int32).unbind(0)[:2]
    found = first * 2 + second
    x.mul_(2)
    return found


def narrow_bits(x):
    bits = x.view(torch.int16)
    new = x * 3
    found = bits.sum(1)
    x.copy_(new)
    x.add_(found[:, None])
    return found, bits.sum()


def elements_set(x):
    found = x.view(torch.int32) * 2
    x[INDEX.to(x.device)] = 0
    return found + 1


def elements_set_where_bits_say(x):
    bits = x.view(torch.int32)
    found = bits.flip(0) * 2
    x[bits[:, 0].abs() % 8] = 1
    return found + 1


def filled_where_bits_say(x):
    bits = x.view(torch.int32)
    found = bits * 2
    x.masked_fill_(bits.flip(0) > 0, 1)
    return found + 1


def written_through_the_view(x):
    bits = x.view(torch.int32)
    found = x * 2
    bits.bitwise_xor_(1)
    return found + 1, bits + 1


PROGRAMS = [
    real_part_before_a_product, bits_before_a_sum, reversed_bits_beside_a_product,
    written_from_its_reversed_bits, written_early, several_writes, parts_of_bits, narrow_bits,
    elements_set, elements_set_where_bits_say, filled_where_bits_say, written_through_the_view,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_before_a_write_are_those_of_before(program):
    fast = magpy.compile(program)
    device = torch.get_default_device()
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(8, 8, device="cpu").to(device)
        twin = x.clone()
        assert_same((fast(x), x), (program(twin), twin))
    assert magpy.cache_info(fast).hits == 2
