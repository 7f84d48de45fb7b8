"""Lifted numbers in external containers that native code traverses."""

import threading

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


def _loop(x, container):
    for number in container:
        x = x * number
    return x


def _enumerated(x, container):
    for i, number in enumerate(container):
        x = x * number + i
    return x


def _zipped_with_others(x, container):
    for number, weight in zip(container, (1.0, 2.0), strict=False):
        x = x * number + weight
    return x


def _comprehension(x, container):
    return [x * number for number in container]


def _reversed(x, container):
    for number in reversed(container):
        x = x - number
    return x


def _copied(x, container):
    return x * list(container)[0] + tuple(container)[1]


def _starred(x, container):
    return torch.add(x, *container[:1]) + _scaled(x, *container)


def _scaled(x, factor, shift):
    return x * factor + shift


def _total(x, container):
    return x * sum(container) + max(container)


def _as_tensor(x, container):
    return torch.tensor(container) * x.sum()


def _two_loops(x, container):
    for number in container:
        x = x + number
    for number in container:
        x = x * number
    return x * container[0]


def _unpacked(x, container):
    first, *rest = container
    return x * first + rest[0]


def _joined(x, container):
    return x * sum([*container, 1.0]), container


def _in_a_branch(x, container):
    if x.sum() > 0:
        for number in container:
            x = x * number
    return x


def _pairs(x, container):
    return sum(x * a + b for a, b in zip(*[container, container], strict=True))


SEQUENCES = (
    *(
        _loop,
        _enumerated,
        _zipped_with_others,
        _comprehension,
        _reversed,
        _copied,
        _starred,
        _total,
    ),
    *(_as_tensor, _two_loops, _unpacked, _joined, _in_a_branch, _pairs),
)
NUMBERS = [(2, 3), (5, 7), (4, 9), (300, 500), (8, 6), (9, 9)]


def _compare(program, compiled, first, second):
    x = torch.arange(1.0, 4.0)
    assert_same(compiled(x.clone(), first), program(x.clone(), second))


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("number", [int, float])
@pytest.mark.parametrize("program", SEQUENCES)
def test_one_record_serves_all_numbers_of_a_sequence(program, number, kind):
    compiled = magpy.compile(program, backend="eager")
    for numbers in NUMBERS:
        _compare(program, compiled, *(kind(map(number, numbers)) for _ in range(2)))
    assert magpy.cache_info(compiled).misses == 2
    _compare(program, compiled, *(kind((3.5, 2)) for _ in range(2)))
    _compare(program, compiled, *(kind((3.5, 2.5, 4.5)[: 2 + (program in _OF_ANY_LENGTH)])
                                  for _ in range(2)))  # fmt: skip


_OF_ANY_LENGTH = (_loop, _enumerated, _comprehension, _reversed, _total, _as_tensor, _pairs)


def _values(x, container):
    for number in container.values():
        x = x * number
    return x


def _items(x, container):
    for name, number in container.items():
        x = x * number + len(name)
    return x


def _keys(x, container):
    for name in container:
        x = x * container[name]
    return x


def _keywords(x, container):
    return _scaled(x, **container)


def _merged(x, container):
    return x * {**container, "other": 1.0}["factor"]


@pytest.mark.parametrize("program", [_values, _items, _keys, _keywords, _merged])
def test_one_record_serves_all_numbers_of_a_dictionary(program):
    compiled = magpy.compile(program, backend="eager")
    for factor, shift in NUMBERS:
        _compare(program, compiled, *({"factor": factor, "shift": shift} for _ in range(2)))
    assert magpy.cache_info(compiled).misses == 2


def _sums_with_a_new_number(x, container):
    container.append(x[0].item())
    return x * sum(container)


def _takes_the_largest_with_a_new_number(x, container):
    container[0] = x[0].item()
    return x * max(container)


def _reads_natively(x, container):
    return x, str(container), container == [5, 7], {*container}, sorted(container), 9 in container


def _reads_natively_after_a_loop(x, container):
    for number in container:
        x = x * number
    return x, str(container), container == [5, 7], {*container}, sorted(container), 9 in container


def _reads_natively_before_a_loop(x, container):
    text = str(container)
    for number in container:
        x = x * number
    return x, text


def _compares_one_before_a_loop(x, container):
    known = container[0] if container[0] == 5 else 0
    for number in container:
        x = x * number
    return x + known


@pytest.mark.parametrize(
    "program",
    [
        *(
            _reads_natively,
            _reads_natively_after_a_loop,
            _reads_natively_before_a_loop,
            _compares_one_before_a_loop,
        ),
        *(_sums_with_a_new_number, _takes_the_largest_with_a_new_number),
    ],
)
def test_numbers_read_natively_match_eager(program):
    compiled = magpy.compile(program, backend="eager")
    for numbers in [*NUMBERS, *NUMBERS]:
        _compare(program, compiled, list(numbers), list(numbers))


def _appends(x, container):
    for number in container:
        if len(container) < 4:
            container.append(number + 1)
        x = x * number
    return x, container


def _reverses(x, container):
    for number in container:
        x = x + number
    container.reverse()
    return x * container[0]


def _replaces_elements(x, container):
    for i, number in enumerate(container):
        container[i] = number * 2
    return x * container[1]


def _deletes_element(x, container):
    total = sum(container)
    del container[0]
    return x * total


def _clears(x, container):
    found = [x * number for number in container]
    container.clear()
    return found


@pytest.mark.parametrize(
    "program", [_appends, _reverses, _replaces_elements, _deletes_element, _clears]
)
def test_list_changed_around_its_iteration_matches_eager(program):
    compiled = magpy.compile(program, backend="eager")
    for numbers in [*NUMBERS, *NUMBERS]:
        actual, expected = list(numbers), list(numbers)
        _compare(program, compiled, actual, expected)
        assert actual == expected


@pytest.mark.parametrize("kind", [list, tuple])
def test_substituted_numbers_are_restored(kind):
    inside = []

    @magpy.disable
    def inspect(container):
        inside.append([*container])

    def program(x, container, fail):
        for number in container:
            x = x * number
        inspect(container)
        y = x * sum(container)
        if fail:
            raise ValueError(fail)
        return y, kind(container)

    compiled = magpy.compile(program, backend="eager")
    for i, (first, second) in enumerate(NUMBERS):
        numbers = [first + 1000.5, second + 1000]
        container = kind(numbers)
        try:
            _, copy = compiled(torch.ones(3), container, "late" if i % 2 else "")
        except ValueError:
            copy = container
        for found in (container, inside[-1], copy):
            assert all(a is b for a, b in zip(found, numbers, strict=True))


def test_two_threads_may_traverse_one_list():
    compiled = magpy.compile(_loop, backend="eager")
    wrong = []

    def call(container):
        for _ in range(20):
            found = compiled(torch.ones(3), container)
            if found.tolist() != _loop(torch.ones(3), container).tolist():
                wrong.append(found)

    for numbers in NUMBERS:
        threads = [threading.Thread(target=call, args=([*numbers],)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
