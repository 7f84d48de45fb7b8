"""External lists whose contents and lengths vary between calls."""

import collections
import statistics

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, tensor


class _KeepsList:
    """A program with a list that it keeps between calls."""

    def __init__(self, program, kept):
        self.program, self.kept = program, kept

    def __call__(self, *args):
        return self.program(self.kept, *args)


def twins_with_list(program, make=list):
    return Twins(lambda: _KeepsList(program, make()))


def inputs(i):
    return lambda: (tensor(float(i), -1.0, 2.0 + i % 3),)


def _appends(kept, x):
    kept.append(x.sum().item())
    return x * 2, len(kept)


def _counts(kept, x):
    kept.append(x.detach())
    return x * len(kept) + (1 if len(kept) > 1 else 0)


def _reads_last(kept, x):
    last = kept[-1] if kept else 0.0
    kept.append(x.sum().item())
    return x + last, kept[-1]


def _accumulates(kept, x):
    y = x + kept[-1] if kept else x
    kept.append(y)
    return y


def _averages(kept, x):
    kept.append(x.sum().item())
    return x * 2, sum(kept) / len(kept), max(kept), np.mean(kept)


def _keeps_window(kept, x):
    kept.append(x.sum().item())
    if len(kept) > 4:
        kept.pop(0)
    return x * 2, sum(kept) / len(kept)


def _extends(kept, x):
    before = len(kept)
    kept.extend([x.sum().item(), 1.0])
    kept.extend((2.0,))
    return x * before, len(kept), min(kept)


GROWING = [
    _appends, _counts, _reads_last, _accumulates, _averages, _keeps_window, _extends,
]  # fmt: skip


@pytest.mark.parametrize("program", GROWING, ids=lambda program: program.__name__)
def test_growing_lists_hit(program):
    twins = twins_with_list(program)
    for i in range(12):
        twins.call(inputs(i), hit=True if i > 5 else None)
    assert magpy.cache_info(twins.compiled).records < 5


@pytest.mark.parametrize("program", GROWING, ids=lambda program: program.__name__)
def test_external_changes_of_a_list_match_eager(program):
    changes = {
        4: lambda kept: kept.clear(),
        6: lambda kept: kept.extend([1.5, 2.5, 3.5]),
        8: lambda kept: kept.append(7),
        9: lambda kept: kept.insert(0, True),
        10: lambda kept: kept.append(torch.ones(3)),
    }
    twins = twins_with_list(program)
    for i in range(12):
        twins.call(inputs(i))
        if i in changes:
            twins.change(lambda program, i=i: changes[i](program.kept))


@pytest.mark.parametrize("program", [_averages, _reads_last, _appends], ids=lambda p: p.__name__)
@pytest.mark.parametrize("maxlen", [1, 3, None])
def test_growing_deques_hit(program, maxlen):
    twins = twins_with_list(program, lambda: collections.deque(maxlen=maxlen))
    for i in range(12):
        twins.call(inputs(i), hit=True if i > 5 else None)


def test_full_deque_hits():
    def program(kept, x):
        kept.append(x.sum().item())
        return x * 2, sum(kept) / len(kept)

    twins = twins_with_list(program, lambda: collections.deque([1.0, 2.0, 3.0], maxlen=3))
    for i in range(6):
        twins.call(inputs(i), hit=i > 1)


def test_traversed_list_is_guarded_completely():
    def program(kept, x):
        kept.append(x.sum().item())
        return [x * n for n in kept]

    twins = twins_with_list(program)
    for i in range(5):
        twins.call(inputs(i), hit=False)


def test_last_element_that_is_no_number_is_guarded():
    def program(kept, x):
        doubled = bool(kept) and kept[-1] == "double"
        kept.append("double" if len(kept) % 4 == 3 else None)
        return x * 2 if doubled else x

    twins = twins_with_list(program)
    for i in range(12):
        twins.call(inputs(i))
    twins.change(lambda program: program.kept.clear())
    for i in range(12):
        twins.call(inputs(i))


def test_constant_list_next_to_a_varying_one_is_guarded():
    fixed = [1.0, 2.0]

    def program(kept, x):
        kept.append(x.sum().item())
        return x * 2, np.mean([sum(kept), sum(fixed)]), max([sum(kept), *fixed]), kept < fixed

    twins = twins_with_list(program)
    for i in range(5):
        twins.call(inputs(i))
    fixed[0] = 100.0
    twins.call(inputs(5), hit=False)

    def nested(kept, x):
        kept.append(1.0)
        if len(kept) > 2:
            kept.pop()
        return x * float(np.mean([kept, fixed]))

    twins = twins_with_list(nested, lambda: [1.0])
    for i in range(5):
        twins.call(inputs(i))
    fixed[0] = 3.0
    twins.call(inputs(5), hit=False)


def test_varying_list_may_be_returned():
    def program(kept, x):
        kept.append(1.0)
        return kept, [kept], x * len(kept)

    twins = twins_with_list(program)
    for i in range(6):
        twins.call(inputs(i), hit=i > 1)


def test_exception_group_of_a_varying_list_is_recorded_per_length():
    def program(x, errors):
        errors.append(ValueError("last"))
        group = ExceptionGroup("all", errors)
        return len(group.exceptions), [str(error) for error in group.exceptions], x * 2

    twins = Twins(lambda: program)
    for i in range(4):
        twins.call(lambda i=i: (tensor(1.0), [KeyError(n) for n in range(i)]), hit=False)


def test_aliasing_of_two_varying_lists_misses():
    def program(one, other, x):
        one.append(1.0)
        return x * len(other), sum(other)

    twins = Twins(lambda: program)
    for i in range(5):
        twins.call(lambda i=i: ([0.5] * i, [1.0] * (i + 1), tensor(1.0)), hit=i > 1 or None)

    def same():
        both = [2.0, 3.0]
        return both, both, tensor(1.0)

    twins.call(same, hit=False)


def _histogram(kept, x):
    for value in x.tolist():
        kept[int(value) % 3] += 1
    return x * 2


def _updates_average(kept, x):
    at = int(x.sum().item()) % 3
    kept[at] = 0.75 * kept[at] + 0.25 * x.max().item()
    return x + 1, kept[at], kept[0], sum(kept)


def _swaps(kept, x):
    i, j = int(x[0].item()) % 3, -1 - int(x[2].item()) % 3
    kept[i], kept[j] = kept[j], kept[i]
    return x, kept[i]


def _raises(kept, x):
    try:
        kept[int(x[0].item())] += 1
    except IndexError as error:
        return x, str(error)
    return x, ""


@pytest.mark.parametrize(
    "program", [_histogram, _updates_average, _swaps, _raises], ids=lambda p: p.__name__
)
def test_numbers_are_written_at_varying_indices(program):
    twins = twins_with_list(program, lambda: [1.0, 2.0, 3.0])
    for i in [0, 1, 2, 4, 5, 3, 2, 1, 7]:
        twins.call(inputs(i))
    info = magpy.cache_info(twins.compiled)
    assert program is _raises or info.misses == 2, info


def test_number_is_written_at_an_index_argument():
    def program(kept, x, at):
        kept[at] += 1
        return x * kept[at]

    twins = twins_with_list(program, lambda: [0, 1, 2, 3])
    for i, at in enumerate([0, 2, 1, 3, -1, 2, 2]):
        twins.call(lambda at=at: (tensor(1.0), at), hit=i > 1)
    twins.change(lambda program: program.kept.__setitem__(1, 0.5))
    twins.call(lambda: (tensor(1.0), 1), hit=False, why="a number of another type")


def test_list_is_appended_to_before_and_after_a_split():
    cut = magpy.disable(lambda: None)

    def program(kept, x):
        kept.append(x.sum().item())
        cut()
        kept.append(len(kept))
        return x * 2, kept[-1], kept[-2]

    twins = twins_with_list(program)
    for i in range(8):
        twins.call(inputs(i), hit=True if i > 3 else None)


def test_statistics_of_a_varying_list_match_eager():
    def program(kept, x):
        kept.append(x.sum().item())
        return x * 2, statistics.mean(kept)

    twins = twins_with_list(program, lambda: collections.deque(maxlen=3))
    for i in range(6):
        twins.call(inputs(i))


def test_dynamic_false_has_a_record_for_each_length():
    twins = Twins(lambda: _KeepsList(_counts, []), dynamic=False)
    for i in range(4):
        twins.call(inputs(i), hit=False)
