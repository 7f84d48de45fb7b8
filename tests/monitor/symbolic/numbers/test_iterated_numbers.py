"""Lifted numbers in iterators that native code consumes: read there, and specialized if needed."""

import itertools

import pytest
import torch

import magpy_like as magpy

pytestmark = pytest.mark.usefixtures("reset_magpy")


def _largest(numbers):
    return max(iter(numbers))


def _largest_pair(numbers):
    return max(zip(numbers, (1.0, 2.0), strict=True))[1]


def _smallest_of_iterators_inside(numbers):
    return min(zip(iter(numbers), reversed(numbers), strict=True))[0]


def _largest_reversed(numbers):
    return max(reversed(numbers))


def _in_order(numbers):
    return sorted(iter(numbers))[0]


def _largest_value(numbers):
    return max(iter(dict(zip("ab", numbers, strict=True)).values()))


def _largest_of_the_rest(numbers):
    rest = iter(numbers)
    return next(rest) + max(rest)


def _chained(numbers):
    return max(itertools.chain(numbers[:1], numbers[1:]))


def _differences(numbers):
    return max(itertools.pairwise([*numbers, 0.5]))[0]


def _keys(numbers):
    return len(dict(zip(map(int, numbers), "ab", strict=True)))


CONSUMERS = (
    *(
        _largest,
        _largest_pair,
        _smallest_of_iterators_inside,
        _largest_reversed,
        _in_order,
        _largest_value,
    ),
    *(_largest_of_the_rest, _chained, _differences, _keys),
)
PAIRS = [(1.0, 2.0), (1.5, 3.0), (3.0, 1.0), (2.0, 2.0), (0.5, -1.0), (-1.0, 4.0), (2.0, 2.0)]


@pytest.mark.parametrize("consume", CONSUMERS)
@pytest.mark.parametrize("split", [False, True])
def test_native_consumers_of_iterators_match_eager(consume, split):
    between = magpy.disable(lambda: None)

    def program(x):
        numbers = [x[0].item(), x[1].item()]
        if split:
            between()
        return x * consume(numbers)

    compiled = magpy.compile(program, backend="eager")
    for pair in PAIRS:
        x = torch.tensor(pair)
        assert compiled(x).tolist() == program(x).tolist()


def test_dictionary_of_pairs_reads_its_keys_only():
    def program(x):
        return x * dict(zip("ab", [x[0].item(), x[1].item()], strict=True))["b"]

    compiled = magpy.compile(program, backend="eager")
    for pair in PAIRS:
        x = torch.tensor(pair)
        assert compiled(x).tolist() == program(x).tolist()
    assert magpy.cache_info(compiled).misses == 1


def test_tuple_of_a_generator_rejects_keywords_as_in_eager():
    fast = magpy.compile(lambda n: tuple((i for i in (n,)), start=1), backend="eager")
    with pytest.raises(TypeError, match=r"tuple\(\) takes no keyword arguments"):
        fast(1.0)
