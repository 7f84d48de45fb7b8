"""Varying numbers through functions with a cache (``functools.lru_cache``)."""

import functools
import threading

import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins

BACKENDS = pytest.mark.parametrize("backend", ["eager", "magpy"])


def cached(maxsize=128):
    """``lru_cache`` of a function, whose ``made`` are the arguments of its calls."""

    def wrap(function):
        made = []

        @functools.wraps(function)
        def noted(*args, **kwargs):
            made.append((args, kwargs))
            return function(*args, **kwargs)

        found = functools.lru_cache(maxsize)(noted)
        found.made = made
        return found

    return wrap


def run(make, calls, backend="eager"):
    """Calls of a program with its cache in both modes; returns the counters of the compiled one."""
    twins = Twins(make, backend=backend)
    for call in calls:
        twins.call(lambda call=call: tuple(torch.ones(a) if type(a) is tuple else a for a in call))
        assert twins.target.cache.made == twins.eager.cache.made
        mine, eager = twins.target.cache.cache_info(), twins.eager.cache.cache_info()
        assert (mine.misses, mine.currsize) == (eager.misses, eager.currsize)
    return magpy.cache_info(twins.compiled)


def of_sizes(n, *, maxsize=128):
    @cached(maxsize)
    def plan(shape):
        return shape[0] * 2, 2, [shape[1] // 4], {"rows": shape[0], "name": "a"}, None

    def program(x):
        first, second, (third,), more, _ = plan(x.shape)
        return x.reshape(first, second, third) * more["rows"], plan(tuple(x.shape))[n]

    program.cache = plan
    return program


@BACKENDS
def test_one_record_serves_sizes_that_pass_a_cache(backend):
    calls = [((n, 8),) for n in (2, 3, 4, 5, 6, 7, 3, 9)]
    info = run(lambda: of_sizes(0), calls, backend)
    assert (info.hits, info.records) == (6, 2)


def test_look_ups_of_matched_calls_count_once_each():
    program = of_sizes(0)
    fast = magpy.compile(program, backend="eager")
    for n in (2, 3):
        fast(torch.ones(n, 8))
    before = program.cache.cache_info()
    for n in (4, 4, 5):
        fast(torch.ones(n, 8))
    after = program.cache.cache_info()
    # The key by `x.shape` is that by the tuple: of six look-ups two are of new sizes.
    assert (after.hits - before.hits, after.misses - before.misses) == (4, 2)


@pytest.mark.parametrize("maxsize", [1, 2, None])
def test_caches_forget_the_entries_of_eager_mode(maxsize):
    def make():
        @cached(maxsize)
        def doubled(n):
            return n * 2

        def program(x, a, b, c):
            return x * doubled(a) + doubled(b) - doubled(c)

        program.cache = doubled
        return program

    numbers = [(1, 2, 3), (4, 5, 6), (4, 6, 4), (7, 4, 7), (5, 6, 7), (2, 2, 3)]
    info = run(make, [((2,), *three) for three in numbers])
    assert info.hits == 4


def test_program_receives_the_object_in_the_cache():
    @functools.lru_cache
    def pair(n):
        return [n, [n + 1]]

    def program(x):
        found = pair(x.shape[0])
        return x.sum() * found[1][0], found, found[1]

    fast = magpy.compile(program, backend="eager")
    for n in (2, 3, 4, 5):
        total, found, inner = fast(torch.ones(n))
        assert total == n * (n + 1)
        assert found is pair(n)
        assert inner is pair(n)[1]
        assert found == [n, [n + 1]]


def test_change_of_what_a_cache_holds_is_seen_by_later_calls():
    def make():
        @cached()
        def items(n):
            return [n]

        def program(x):
            found = items(x.shape[0])
            found.append(1)
            return x * sum(found)

        program.cache = items
        return program

    run(make, [((n,),) for n in (2, 3, 4, 4, 4, 2, 3)])


def two_plans(read):
    """A program that reads two plans by numbers, which may be one entry, and one that it keeps."""

    def make():
        @cached()
        def plan(n):
            return n * 2, [n, n // 2], "plan"

        kept = {}

        def program(x, n, m):
            if not kept:
                kept["first"] = plan(1)
            return x + 1, read(plan, kept["first"], n, m)

        program.cache = plan
        return program

    return make


def changes_kept(plan, kept, n, m):
    found = plan(n)[1]
    kept[1].append(found[0])
    length = len(found)
    del kept[1][-1]
    return length


@BACKENDS
@pytest.mark.parametrize(
    "read",
    [
        lambda plan, kept, n, m: (plan(n)[0], plan(1)[0]),
        lambda plan, kept, n, m: (plan(1)[1], plan(n)[1][0])[0][0],
        lambda plan, kept, n, m: [(a[0], b[1][0]) for a, b in [(plan(n), plan(m))]],
        lambda plan, kept, n, m: (plan(n), plan(m)[1], plan(1)),
        lambda plan, kept, n, m: (plan(n) is plan(m), plan(n)[1] is plan(1)[1]),
        lambda plan, kept, n, m: plan(n) in [plan(m)] or plan(m)[1] is kept[1],
        lambda plan, kept, n, m: (plan(n)[0], kept[0], kept[1][0]),
        lambda plan, kept, n, m: (kept[1], plan(n)[0])[0][0],
        changes_kept,
    ],
    ids=[
        "number_then_known", "known_list_then_number", "two_numbers", "returned", "identity",
        "identity_with_a_variable", "read_from_a_variable", "variable_read_later", "changed",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "numbers",
    [
        [(2, 3), (4, 5), (1, 1), (1, 1), (2, 3), (3, 3), (5, 1), (1, 2), (2, 2)],
        [(1, 1), (2, 1), (3, 3), (3, 4), (1, 5), (1, 1), (4, 4), (5, 6)],
        [(5, 4), (1, 5), (1, 7), (1, 8), (6, 2), (3, 2), (2, 1)],
    ],
    ids=["apart_first", "together_first", "apart_by_one"],
)
def test_look_ups_of_one_entry_and_of_two_are_told_apart(backend, read, numbers):
    run(two_plans(read), [((2,), *pair) for pair in numbers], backend)


def test_old_entry_serves_until_the_cache_is_cleared():
    def make():
        factor = 2

        @cached()
        def scaled(n):
            return n * factor

        def program(x):
            return x * scaled(x.shape[0])

        def change(value, clear):
            nonlocal factor
            factor = value
            if clear:
                scaled.cache_clear()

        program.change = change
        return program

    twins = Twins(make)
    for n in (2, 3, 4, 5):
        twins.call(lambda n=n: (torch.ones(n),))
    twins.change(lambda p: p.change(5, False))
    for n in (5, 6, 4):
        twins.call(lambda n=n: (torch.ones(n),), hit=True)
    twins.change(lambda p: p.change(7, True))
    for n in (5, 6, 4):
        twins.call(lambda n=n: (torch.ones(n),), hit=True)


def test_result_of_another_form_needs_another_record():
    def make():
        @cached()
        def plan(n):
            return (n, n + 1) if n < 5 else [n] if n < 8 else None if n < 10 else float(n)

        def program(x):
            found = plan(x.shape[0])
            number = found if type(found) is float else found[0] if found else 0
            return x * number, found

        program.cache = plan
        return program

    info = run(make, [((n,),) for n in (2, 3, 4, 5, 6, 7, 8, 9, 8, 11, 12, 3, 6, 9, 12)])
    assert info.hits >= 8


def test_look_ups_of_looked_up_numbers():
    def make():
        @cached()
        def half(n):
            return n // 2

        def program(x):
            n = half(half(x.shape[0]) * 2) + 1
            return x[:n] * half(n)

        program.cache = half
        return program

    assert run(make, [((n,),) for n in (8, 10, 12, 14, 22, 12)]).hits >= 3


def test_cached_function_that_raises_raises():
    """Its effects are had twice once: then its arguments are no longer lifted."""

    def make():
        @functools.lru_cache
        def checked(n):
            if n % 5 == 0:
                raise ValueError(n)
            return n

        def program(x):
            try:
                return x * checked(x.shape[0])
            except ValueError as error:
                return x - error.args[0]

        return program

    twins = Twins(make)
    for n in (2, 3, 4, 5, 6, 10, 7, 5):
        twins.call(lambda n=n: (torch.ones(n),))


def test_result_that_holds_itself_is_that_of_the_cache():
    @functools.lru_cache
    def ring(n):
        found = [n]
        found.append(found)
        return found

    def program(x):
        found = ring(x.shape[0])
        return x * found[0], found

    fast = magpy.compile(program, backend="eager")
    for n in (2, 3, 4, 4, 3):
        result, found = fast(torch.ones(n))
        assert torch.equal(result, torch.full((n,), float(n)))
        assert found is ring(n)


def test_tensors_in_a_cache_stay_those_of_the_cache():
    def make():
        @cached()
        def ramp(n):
            return torch.arange(n) * 1.0

        def program(x):
            return x + ramp(x.shape[0])

        program.cache = ramp
        return program

    run(make, [((n,),) for n in (2, 3, 4, 3, 2, 4, 4)])


def test_threads_read_their_own_look_ups():
    @functools.lru_cache
    def tripled(n):
        return n * 3, n

    fast = magpy.compile(lambda x: x * tripled(x.shape[0])[0], backend="eager")
    for n in (2, 3, 4):
        fast(torch.ones(n))
    wrong = []

    def call(n):
        for _ in range(200):
            if fast(torch.ones(n))[0] != 3 * n:
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(5, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert magpy.cache_info(fast).hits >= 1200


def test_cached_function_that_calls_the_compiled_program():
    @functools.lru_cache
    def depth(n):
        return n if n < 3 else int(fast(torch.ones(n - 2))[0])

    def program(x):
        return x * depth(x.shape[0]) + depth(x.shape[0])

    fast = magpy.compile(program, backend="eager")

    @functools.lru_cache
    def eager_depth(n):
        return n if n < 3 else int((torch.ones(n - 2) * eager_depth(n - 2) + eager_depth(n - 2))[0])

    for n in (2, 4, 3, 9, 5, 12, 15, 20, 21, 22):
        expected = torch.ones(n) * eager_depth(n) + eager_depth(n)
        assert torch.equal(fast(torch.ones(n)), expected)
