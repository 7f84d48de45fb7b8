"""Lists from outside that are another one at every call: one record holds for all of them."""

import collections
import statistics

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, tensor


class _Keeps:
    """A program with a list of its own."""

    def __init__(self, program, kept):
        self.program, self.kept = program, kept

    def __call__(self, *args):
        return self.program(self.kept, *args)


def keeping(program, make=list):
    return Twins(lambda: _Keeps(program, make()))


def inputs(i):
    return lambda: (tensor(float(i), -1.0, 2.0 + i % 3),)


def _logs(kept, x):
    kept.append(x.sum().item())
    return x * 2, len(kept)


def _counts(kept, x):
    kept.append(x.detach())
    return x * len(kept) + (1 if len(kept) > 1 else 0)


def _looks_back(kept, x):
    last = kept[-1] if kept else 0.0
    kept.append(x.sum().item())
    return x + last, kept[-1]


def _adds_to_the_last(kept, x):
    y = x + kept[-1] if kept else x
    kept.append(y)
    return y


def _averages(kept, x):
    kept.append(x.sum().item())
    return x * 2, sum(kept) / len(kept), max(kept), np.mean(kept)


def _has_a_window(kept, x):
    kept.append(x.sum().item())
    if len(kept) > 4:
        kept.pop(0)
    return x * 2, sum(kept) / len(kept)


def _grows_by_several(kept, x):
    before = len(kept)
    kept.extend([x.sum().item(), 1.0])
    kept.extend((2.0,))
    return x * before, len(kept), min(kept)


GROWING = [
    _logs, _counts, _looks_back, _adds_to_the_last, _averages, _has_a_window, _grows_by_several,
]  # fmt: skip


@pytest.mark.parametrize("program", GROWING, ids=lambda program: program.__name__)
def test_a_list_that_grows(program):
    twins = keeping(program)
    for i in range(12):
        twins.call(inputs(i), hit=True if i > 5 else None)
    assert magpy.cache_info(twins.compiled).records < 5


@pytest.mark.parametrize("program", GROWING, ids=lambda program: program.__name__)
def test_that_somebody_else_changes_between_calls(program):
    changes = {
        4: lambda kept: kept.clear(),
        6: lambda kept: kept.extend([1.5, 2.5, 3.5]),
        8: lambda kept: kept.append(7),
        9: lambda kept: kept.insert(0, True),
        10: lambda kept: kept.append(torch.ones(3)),
    }
    twins = keeping(program)
    for i in range(12):
        twins.call(inputs(i))
        if i in changes:
            twins.change(lambda program, i=i: changes[i](program.kept))


@pytest.mark.parametrize("program", [_averages, _looks_back, _logs], ids=lambda p: p.__name__)
@pytest.mark.parametrize("most", [1, 3, None])
def test_a_deque(program, most):
    twins = keeping(program, lambda: collections.deque(maxlen=most))
    for i in range(12):
        twins.call(inputs(i), hit=True if i > 5 else None)


def test_a_deque_that_is_full_from_the_start():
    def program(kept, x):
        kept.append(x.sum().item())
        return x * 2, sum(kept) / len(kept)

    twins = keeping(program, lambda: collections.deque([1.0, 2.0, 3.0], maxlen=3))
    for i in range(6):
        twins.call(inputs(i), hit=i > 1)


def test_all_that_it_holds_is_relied_on_when_it_is_gone_through():
    def program(kept, x):
        kept.append(x.sum().item())
        return [x * n for n in kept]

    twins = keeping(program)
    for i in range(5):
        twins.call(inputs(i), hit=False)


def test_what_stands_at_the_end_is_relied_on_where_it_is_no_number():
    def program(kept, x):
        doubled = bool(kept) and kept[-1] == "double"
        kept.append("double" if len(kept) % 4 == 3 else None)
        return x * 2 if doubled else x

    twins = keeping(program)
    for i in range(12):
        twins.call(inputs(i))
    twins.change(lambda program: program.kept.clear())
    for i in range(12):
        twins.call(inputs(i))


def test_a_list_that_does_not_vary_beside_one_that_does():
    fixed = [1.0, 2.0]

    def program(kept, x):
        kept.append(x.sum().item())
        return x * 2, np.mean([sum(kept), sum(fixed)]), max([sum(kept), *fixed]), kept < fixed

    twins = keeping(program)
    for i in range(5):
        twins.call(inputs(i))
    fixed[0] = 100.0
    twins.call(inputs(5), hit=False)

    def nested(kept, x):
        kept.append(1.0)
        if len(kept) > 2:
            kept.pop()
        return x * float(np.mean([kept, fixed]))

    twins = keeping(nested, lambda: [1.0])
    for i in range(5):
        twins.call(inputs(i))
    fixed[0] = 3.0
    twins.call(inputs(5), hit=False)


def test_the_list_itself_is_handed_on():
    def program(kept, x):
        kept.append(1.0)
        return kept, [kept], x * len(kept)

    twins = keeping(program)
    for i in range(6):
        twins.call(inputs(i), hit=i > 1)


def test_a_group_of_exceptions_has_those_of_each_call():
    def program(x, errors):
        errors.append(ValueError("last"))
        group = ExceptionGroup("all", errors)
        return len(group.exceptions), [str(error) for error in group.exceptions], x * 2

    twins = Twins(lambda: program)
    for i in range(4):
        twins.call(lambda i=i: (tensor(1.0), [KeyError(n) for n in range(i)]), hit=False)


def test_two_lists_that_turn_out_to_be_one():
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


def _running(kept, x):
    at = int(x.sum().item()) % 3
    kept[at] = 0.75 * kept[at] + 0.25 * x.max().item()
    return x + 1, kept[at], kept[0], sum(kept)


def _exchanges(kept, x):
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
    "program", [_histogram, _running, _exchanges, _raises], ids=lambda p: p.__name__
)
def test_numbers_are_written_at_places_that_vary(program):
    twins = keeping(program, lambda: [1.0, 2.0, 3.0])
    for i in [0, 1, 2, 4, 5, 3, 2, 1, 7]:
        twins.call(inputs(i))
    info = magpy.cache_info(twins.compiled)
    assert program is _raises or info.misses == 2, info


def test_at_an_index_that_is_an_argument():
    def program(kept, x, at):
        kept[at] += 1
        return x * kept[at]

    twins = keeping(program, lambda: [0, 1, 2, 3])
    for i, at in enumerate([0, 2, 1, 3, -1, 2, 2]):
        twins.call(lambda at=at: (tensor(1.0), at), hit=i > 1)
    twins.change(lambda program: program.kept.__setitem__(1, 0.5))
    twins.call(lambda: (tensor(1.0), 1), hit=False, why="a number of another type")


def test_a_split_between_the_writes():
    cut = magpy.disable(lambda: None)

    def program(kept, x):
        kept.append(x.sum().item())
        cut()
        kept.append(len(kept))
        return x * 2, kept[-1], kept[-2]

    twins = keeping(program)
    for i in range(8):
        twins.call(inputs(i), hit=True if i > 3 else None)


def test_statistics_of_it_are_right():
    def program(kept, x):
        kept.append(x.sum().item())
        return x * 2, statistics.mean(kept)

    twins = keeping(program, lambda: collections.deque(maxlen=3))
    for i in range(6):
        twins.call(inputs(i))


def test_dynamic_false_has_a_record_for_each_length():
    twins = Twins(lambda: _Keeps(_counts, []), dynamic=False)
    for i in range(4):
        twins.call(inputs(i), hit=False)
