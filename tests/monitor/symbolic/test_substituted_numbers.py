"""Numbers in containers from outside that native code goes through: one record serves them all."""

import threading

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


def _loop(x, given):
    for number in given:
        x = x * number
    return x


def _enumerated(x, given):
    for i, number in enumerate(given):
        x = x * number + i
    return x


def _beside_others(x, given):
    for number, weight in zip(given, (1.0, 2.0), strict=False):
        x = x * number + weight
    return x


def _comprehension(x, given):
    return [x * number for number in given]


def _backwards(x, given):
    for number in reversed(given):
        x = x - number
    return x


def _copied(x, given):
    return x * list(given)[0] + tuple(given)[1]


def _starred(x, given):
    return torch.add(x, *given[:1]) + _scaled(x, *given)


def _scaled(x, factor, shift):
    return x * factor + shift


def _total(x, given):
    return x * sum(given) + max(given)


def _as_tensor(x, given):
    return torch.tensor(given) * x.sum()


def _twice(x, given):
    for number in given:
        x = x + number
    for number in given:
        x = x * number
    return x * given[0]


def _rest(x, given):
    first, *rest = given
    return x * first + rest[0]


def _joined(x, given):
    return x * sum([*given, 1.0]), given


def _in_a_branch(x, given):
    if x.sum() > 0:
        for number in given:
            x = x * number
    return x


def _pairs(x, given):
    return sum(x * a + b for a, b in zip(*[given, given], strict=True))


SEQUENCES = (
    *(_loop, _enumerated, _beside_others, _comprehension, _backwards, _copied, _starred, _total),
    *(_as_tensor, _twice, _rest, _joined, _in_a_branch, _pairs),
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


_OF_ANY_LENGTH = (_loop, _enumerated, _comprehension, _backwards, _total, _as_tensor, _pairs)


def _values(x, given):
    for number in given.values():
        x = x * number
    return x


def _items(x, given):
    for name, number in given.items():
        x = x * number + len(name)
    return x


def _keys(x, given):
    for name in given:
        x = x * given[name]
    return x


def _keywords(x, given):
    return _scaled(x, **given)


def _merged(x, given):
    return x * {**given, "other": 1.0}["factor"]


@pytest.mark.parametrize("program", [_values, _items, _keys, _keywords, _merged])
def test_one_record_serves_all_numbers_of_a_dictionary(program):
    compiled = magpy.compile(program, backend="eager")
    for factor, shift in NUMBERS:
        _compare(program, compiled, *({"factor": factor, "shift": shift} for _ in range(2)))
    assert magpy.cache_info(compiled).misses == 2


def _sums_up_with_its_own(x, given):
    given.append(x[0].item())
    return x * sum(given)


def _takes_the_largest_beside_its_own(x, given):
    given[0] = x[0].item()
    return x * max(given)


def _asks(x, given):
    return x, str(given), given == [5, 7], {*given}, sorted(given), 9 in given


def _asks_behind_a_loop(x, given):
    for number in given:
        x = x * number
    return x, str(given), given == [5, 7], {*given}, sorted(given), 9 in given


def _looks_natively_first(x, given):
    text = str(given)
    for number in given:
        x = x * number
    return x, text


def _looks_at_one_first(x, given):
    known = given[0] if given[0] == 5 else 0
    for number in given:
        x = x * number
    return x + known


@pytest.mark.parametrize(
    "program",
    [
        *(_asks, _asks_behind_a_loop, _looks_natively_first, _looks_at_one_first),
        *(_sums_up_with_its_own, _takes_the_largest_beside_its_own),
    ],
)
def test_numbers_that_native_code_looks_at_are_guarded(program):
    compiled = magpy.compile(program, backend="eager")
    for numbers in [*NUMBERS, *NUMBERS]:
        _compare(program, compiled, list(numbers), list(numbers))


def _adds_to_it(x, given):
    for number in given:
        if len(given) < 4:
            given.append(number + 1)
        x = x * number
    return x, given


def _turns_it_around(x, given):
    for number in given:
        x = x + number
    given.reverse()
    return x * given[0]


def _replaces_one(x, given):
    for i, number in enumerate(given):
        given[i] = number * 2
    return x * given[1]


def _takes_one_away(x, given):
    total = sum(given)
    del given[0]
    return x * total


def _empties_it(x, given):
    found = [x * number for number in given]
    given.clear()
    return found


@pytest.mark.parametrize(
    "program", [_adds_to_it, _turns_it_around, _replaces_one, _takes_one_away, _empties_it]
)
def test_a_list_that_is_changed_while_it_is_gone_through(program):
    compiled = magpy.compile(program, backend="eager")
    for numbers in [*NUMBERS, *NUMBERS]:
        actual, expected = list(numbers), list(numbers)
        _compare(program, compiled, actual, expected)
        assert actual == expected


@pytest.mark.parametrize("kind", [list, tuple])
def test_containers_have_their_own_numbers_back(kind):
    inside = []

    @magpy.disable
    def look(given):
        inside.append([*given])

    def program(x, given, fail):
        for number in given:
            x = x * number
        look(given)
        y = x * sum(given)
        if fail:
            raise ValueError(fail)
        return y, kind(given)

    compiled = magpy.compile(program, backend="eager")
    for i, (first, second) in enumerate(NUMBERS):
        numbers = [first + 1000.5, second + 1000]
        given = kind(numbers)
        try:
            _, copy = compiled(torch.ones(3), given, "late" if i % 2 else "")
        except ValueError:
            copy = given
        for found in (given, inside[-1], copy):
            assert all(a is b for a, b in zip(found, numbers, strict=True))


def test_two_threads_go_through_one_list():
    compiled = magpy.compile(_loop, backend="eager")
    wrong = []

    def call(given):
        for _ in range(20):
            found = compiled(torch.ones(3), given)
            if found.tolist() != _loop(torch.ones(3), given).tolist():
                wrong.append(found)

    for numbers in NUMBERS:
        threads = [threading.Thread(target=call, args=([*numbers],)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
