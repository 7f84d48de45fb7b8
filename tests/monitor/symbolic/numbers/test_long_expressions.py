"""Numbers that a loop computes from themselves: no expression grows without bound."""

import enum
import time

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


def named_bits(n, x):
    return Access(int(n) & 7), x + 1


def joined_bits(n, x):
    return Access(int(n) & 3) | Access.RUN, x + 1


def count_bits(n, x):
    bits, count = int(n) & 255, 0
    while bits:
        bits &= bits - 1
        count += 1
    return x + count


def lowest_bits(n, x):
    bits, found = int(n), []
    while bits:
        found.append(bits & (~bits + 1))
        bits ^= found[-1]
    return x + sum(found), found


def shifted_bits(n, x):
    bits, count = int(n), 0
    while bits:
        count += bits & 1
        bits >>= 1
    return x + count


def generator_of_squares(n, x):
    state = int(n)
    for _ in range(25):
        state = (state * state + 12345 + state) % 2147483
    return x + state % 7


def congruential_generator(n, x):
    state = int(n)
    for _ in range(50):
        state = (state * 1103515245 + 12345) % 2147483648
    return x + state % 7


def hash_of_numbers(n, x):
    state = int(n)
    for k in range(40):
        state = ((state ^ k) * 16777619) & 0xFFFFFFFF
    return x + state % 5


def doubling_sum(n, x):
    a, b = n, 1
    for _ in range(40):
        a, b = b, a + b
    return x + a


def size_from_loop(n, x):
    size = int(n) + 2
    for _ in range(20):
        size = (size * size + 1) % 11 + 1
    return x.new_zeros(size)


def item_of_tensor(n, x):
    state = int(x.item()) + int(n)
    for _ in range(25):
        state = (state * state + state) % 1013
    return x + state


def long_text(n, x):
    text = ""
    for _ in range(100):
        text = text + str(n) + text[:1]
    return text, x + 1


PROGRAMS = [
    named_bits, joined_bits, count_bits, lowest_bits, shifted_bits, generator_of_squares,
    congruential_generator, hash_of_numbers, doubling_sum, size_from_loop, item_of_tensor,
    long_text,
]  # fmt: skip


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_number_computed_from_itself_in_a_loop(program, kind):
    fast = magpy.compile(program, backend="eager")
    began = time.monotonic()
    for n in (1, 3, 2, 0, 7, 5, 6, 3):
        x = torch.tensor(float(n % 3))
        assert_same(fast(kind(n), x), program(kind(n), x))
    assert time.monotonic() - began < 60


def chase(links, n, x):
    for _ in range(200):
        n = links[n]
    return x + n


def test_an_index_read_from_a_list_again_and_again():
    fast = magpy.compile(chase, backend="eager")
    for links, n in (
        ([1, 2, 0], 0),
        ([1, 2, 0], 1),
        ([1, 2, 0], 2),
        ([2, 0, 1], 1),
        ([0, 1, 2], 2),
    ):
        x = torch.ones(2)
        assert_same(fast(links, n, x), chase(links, n, x))


def test_few_operations_still_serve_all_numbers():
    def program(n, x):
        for k in range(20):
            n = n * 2 + k
        return x + n

    fast = magpy.compile(program, backend="eager")
    for n in (1.0, 2.0, 3.0, 4.0, 5.0):
        x = torch.ones(2)
        assert_same(fast(n, x), program(n, x))
    assert magpy.cache_info(fast).records <= 2
