"""Numbers that native code takes out of iterators: it sees what they are, and they may differ."""

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


def _last(numbers):
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


LOOKS = (
    *(_largest, _largest_pair, _smallest_of_iterators_inside, _last, _in_order, _largest_value),
    *(_largest_of_the_rest, _chained, _differences, _keys),
)
PAIRS = [(1.0, 2.0), (1.5, 3.0), (3.0, 1.0), (2.0, 2.0), (0.5, -1.0), (-1.0, 4.0), (2.0, 2.0)]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("split", [False, True])
def test_native_code_sees_the_numbers_that_an_iterator_gives(look, split):
    between = magpy.disable(lambda: None)

    def program(x):
        numbers = [x[0].item(), x[1].item()]
        if split:
            between()
        return x * look(numbers)

    compiled = magpy.compile(program, backend="eager")
    for pair in PAIRS:
        x = torch.tensor(pair)
        assert compiled(x).tolist() == program(x).tolist()


def test_a_dictionary_made_of_pairs_looks_at_its_keys_alone():
    def program(x):
        return x * dict(zip("ab", [x[0].item(), x[1].item()], strict=True))["b"]

    compiled = magpy.compile(program, backend="eager")
    for pair in PAIRS:
        x = torch.tensor(pair)
        assert compiled(x).tolist() == program(x).tolist()
    assert magpy.cache_info(compiled).misses == 1


def test_a_tuple_of_an_iterator_refuses_keywords_as_eagers_does():
    fast = magpy.compile(lambda n: tuple((i for i in (n,)), start=1), backend="eager")
    with pytest.raises(TypeError, match=r"tuple\(\) takes no keyword arguments"):
        fast(1.0)
