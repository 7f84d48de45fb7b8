"""Index of many records: it leaves out only records that cannot match."""

import threading

import pytest
import torch

import magpy_like as magpy
from magpy_like.records.record_cache import INDEXED_FROM, RecordCache
from magpy_like.records.record_index import RecordIndex
from tests.compare import assert_same
from tests.programs import tensor

MANY = 40


def compiled(program, **options):
    return magpy.compile(
        program, backend="eager", dynamic=False, options={"record_limit": 10 * MANY, **options}
    )


def records(fast):
    return magpy.cache_info(fast).records


@pytest.fixture
def tried(monkeypatch):
    """The records whose guards have run."""
    found = []
    try_guard = RecordCache.try_guard

    def note(cache, record, args, kwargs):
        found.append(record)
        return try_guard(cache, record, args, kwargs)

    monkeypatch.setattr(RecordCache, "try_guard", note)
    return found


def scale(x, n):
    return x * n


def apply(x, module):
    return module(x)


def by_number(i):
    return tensor(1, 2), i


def by_text(i):
    return torch.ones(2), "a" * i


def by_sizes(i):
    return torch.ones(i + 2), 3


def by_module(i):
    torch.manual_seed(i)
    return torch.ones(2), torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    "program, arguments",
    [
        (scale, by_number),
        (lambda x, name: x + len(name), by_text),
        (scale, by_sizes),
        (apply, by_module),
    ],
    ids=["number", "text", "sizes", "module"],
)
def test_oldest_of_many_records_is_found_by_few_guards(program, arguments, tried):
    calls = [arguments(i) for i in range(MANY)]
    fast = compiled(program)
    for call in calls:
        assert_same(fast(*call), program(*call))
    assert records(fast) == MANY
    for call in calls:
        tried.clear()
        assert_same(fast(*call), program(*call))
        assert len(tried) <= 2, "the one that matched last, and the one of this call"
    assert magpy.cache_info(fast).misses == MANY


def test_keywords_are_indexed(tried):
    def program(x, *, n=0):
        return x * n

    fast = compiled(program)
    for _ in range(2):
        for n in range(MANY):
            tried.clear()
            assert_same(fast(tensor(1), n=n), tensor(n))
    assert len(tried) <= 2
    assert_same(fast(tensor(1)), tensor(0))  # without the keyword


def test_equal_values_of_different_types_have_records_of_their_own():
    def program(x, value):
        return x, type(value).__name__, repr(value)

    class Number(int):
        pass

    values = [*range(MANY), True, False, None, 1.0, 0.0, -0.0, "1", b"1", Number(1)]
    fast = compiled(program)
    for _ in range(2):
        for value in values:
            assert_same(fast(tensor(1), value), program(tensor(1), value))
    assert magpy.cache_info(fast).hits >= MANY


def test_call_that_no_record_matches_is_recorded():
    fast = compiled(scale)
    for i in range(MANY):
        fast(*by_number(i))
    for call in [(tensor(1, 2), 1.5), (tensor(1, 2, 3), 1), (tensor(1, 2), tensor(3))]:
        assert_same(fast(*call), scale(*call))
        assert_same(fast(*call), scale(*call))
    assert magpy.cache_info(fast).misses == MANY + 3


def test_records_that_accept_any_value_are_tried():
    def program(x, mode):
        return x.sum() if mode == "sum" else x.mean() if mode == "mean" else x * len(mode)

    fast = magpy.compile(program, backend="eager", options={"record_limit": 100})
    modes = ["sum", "mean", *("a" * i for i in range(2, MANY))]
    for mode in modes:
        fast(torch.ones(3), mode)
    for n in (3, 4, 5, 6):
        for mode in modes:
            x = torch.ones(n)
            assert_same(fast(x, mode), program(x, mode))


def test_each_condition_of_a_record_found_by_the_index_is_checked():
    factor = [2]

    def program(x, n):
        return x * n * factor[0]

    fast = compiled(program)
    for n in range(MANY):
        fast(tensor(1), n)
    factor[0] = 3
    for n in range(MANY):
        assert_same(fast(tensor(1), n), tensor(3 * n))


def test_argument_without_sizes_misses():
    def program(x):
        return x * 2

    fast = compiled(program)
    for i in range(MANY):
        fast(torch.ones(i + 2))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    result = fast(nested)
    assert [t.tolist() for t in result.unbind()] == [[2, 2], [2, 2, 2]]
    assert_same(fast(torch.eye(3).to_sparse()).to_dense(), 2 * torch.eye(3))


def test_reset_forgets_indexed_records():
    fast = compiled(scale)
    for i in range(MANY):
        fast(*by_number(i))
    magpy.reset()
    assert_same(fast(*by_number(3)), tensor(3, 6))
    assert magpy.cache_info(fast) == (0, 1, 1, 1)


def test_few_records_are_tried_in_turn(tried):
    fast = compiled(scale)
    for i in range(INDEXED_FROM):
        fast(*by_number(i))
    assert fast._magpy_dispatcher.cache._index is None
    fast(*by_number(MANY))
    assert isinstance(fast._magpy_dispatcher.cache._index, RecordIndex)


def test_threads_find_their_records_while_others_are_added():
    fast, wrong = compiled(scale), []

    def work(first):
        for i in range(60):
            n = (first + i) % MANY
            if fast(tensor(1, 2), n).tolist() != [n, 2 * n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(9 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for n in range(MANY):
        assert fast(tensor(1, 2), n).tolist() == [n, 2 * n]
