"""Index of many records: it leaves out only records that cannot match."""

import threading

import pytest
import torch

import magpy_like as magpy
from magpy_like.records.dispatcher import Dispatcher
from magpy_like.records.record_cache import INDEXED_FROM
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
    synthesise = Dispatcher.synthesise

    def noted(*args):
        record = synthesise(*args)
        guard = record.guard

        def noted_guard(args, kwargs):
            found.append(record)
            return guard(args, kwargs)

        record.guard = noted_guard
        return record

    monkeypatch.setattr(Dispatcher, "synthesise", noted)
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


class Settings:
    """An instance whose attribute the program reads."""


SETTINGS, FACTORS, FACTOR = Settings(), [0], 0


def set_global(i):
    global FACTOR
    FACTOR = i


def set_attribute(i):
    SETTINGS.factor = i


def set_element(i):
    FACTORS[0] = i


def closure():
    factor = 0

    def set_variable(i):
        nonlocal factor
        factor = i

    return lambda x: x * factor, set_variable


SCALES = [lambda x, i=i: x * i for i in range(MANY)]


def set_function(i):
    SETTINGS.scale = SCALES[i]


@pytest.mark.parametrize(
    "program, change",
    [
        (lambda x: x * FACTOR, set_global),
        (lambda x: x * SETTINGS.factor, set_attribute),
        (lambda x: x * FACTORS[0], set_element),
        closure(),
        (lambda x: SETTINGS.scale(x), set_function),
    ],
    ids=["global", "attribute", "element", "closure", "function"],
)
def test_records_that_expect_different_contents_of_a_location_are_found_by_few_guards(
    program, change, tried
):
    fast = compiled(program)
    for _ in range(2):
        for i in range(MANY):
            change(i)
            tried.clear()
            assert_same(fast(tensor(1, 2)), program(tensor(1, 2)))
    assert len(tried) <= 2, "the one that matched last, and the one of this call"
    assert records(fast) == magpy.cache_info(fast).misses == MANY


def test_location_of_which_a_record_expects_an_equal_value_of_another_type():
    def program(x):
        return x, type(SETTINGS.factor).__name__, repr(SETTINGS.factor)

    class Number(int):
        pass

    values = [*range(10), True, False, None, 1.0, 0.0, -0.0, "1", b"1", Number(1), (1,), (True,)]
    fast = compiled(program)
    for _ in range(3):
        for value in values:
            SETTINGS.factor = value
            assert_same(fast(tensor(1)), program(tensor(1)))
    assert magpy.cache_info(fast).hits >= len(values)


def test_emptied_and_replaced_holders_of_indexed_locations():
    class Missing(dict):
        def __missing__(self, key):
            raise AssertionError("the index runs code of the program")

    table, items = Missing(factor=0), [0]

    def program(x):
        try:
            return x * dict.get(table, "factor", 100) + items[0] + SETTINGS.factor
        except (IndexError, AttributeError):
            return x

    def check():
        x = tensor(1, 2)
        assert_same(fast(x), program(x))
        assert_same(fast(x), program(x))

    fast = compiled(program)
    for i in range(MANY):
        table["factor"] = items[0] = SETTINGS.factor = i
        check()
    del table["factor"]
    check()
    items.clear()
    check()
    items.append(3)
    table["factor"] = 3
    SETTINGS.__dict__ = {"factor": 7}
    check()
    del SETTINGS.factor
    check()
    SETTINGS.factor = 3
    check()


def test_records_of_objects_that_one_attribute_held_are_told_apart_by_it(tried):
    class Scale(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return x * self.factor

    models = [Scale(i % 5) for i in range(MANY // 2)]

    def program(x):
        return SETTINGS.model(x)

    fast = compiled(program)
    for factor in (None, 1, 2, 1, None):
        for i, model in enumerate(models):
            SETTINGS.model = model
            model.factor = i % 5 if factor is None else factor
            tried.clear()
            assert_same(fast(tensor(1)), program(tensor(1)))
    assert len(tried) <= 4, "the last, and those of this model"


def test_programs_that_go_different_ways_after_a_location_are_told_apart_by_it(tried):
    ways = {f"way {i}": Settings() for i in range(MANY)}
    for i, way in enumerate(ways.values()):
        way.factor = i

    def program(x):
        return x * ways[SETTINGS.mode].factor

    fast = compiled(program)
    for _ in range(2):
        for mode in ways:
            SETTINGS.mode = mode
            tried.clear()
            assert_same(fast(tensor(1)), program(tensor(1)))
    assert len(tried) <= 2


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
    assert magpy.cache_info(fast)[:4] == (0, 1, 1, 1)


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
