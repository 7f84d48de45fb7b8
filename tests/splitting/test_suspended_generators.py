"""Generators that are suspended at a split, rebuilt by a mock."""

import contextlib

import pytest
import torch

import magpy_like as magpy
from magpy_like.splitting.suspended_generators import capture_generator, rebuild_generator
from tests.compare import assert_same

LOG = []


@magpy.disable
def opaque(value):
    LOG.append(value)
    return len(LOG)


def rebuilt(generator):
    return rebuild_generator(*capture_generator(generator))


def counting(start, log):
    total = start
    try:
        while True:
            for step in range(3):
                sent = yield total, step
                total += sent or step
    except ValueError as error:
        yield str(error)
    finally:
        log.append("end")


@pytest.mark.parametrize("taken", [0, 1, 2, 5])
def test_rebuilt_generator_continues_where_it_was(taken):
    def run(generator):
        out = [next(generator), generator.send(10), generator.throw(ValueError("thrown"))]
        return [*out, list(generator)]

    ends = []
    for make in (rebuilt, lambda generator: generator):
        log = []
        generator = counting(100, log)
        for _ in range(taken):
            next(generator)
        ends.append((run(make(generator)), list(log)))
    assert ends[0][0] == ends[1][0]
    assert "end" in ends[0][1]


def test_rebuilt_generator_runs_its_cleanup_when_closed():
    log = []
    generator = counting(1, log)
    next(generator)
    made = rebuilt(generator)
    made.close()
    assert log == ["end"]
    assert list(made) == []


def test_generator_with_cells_and_a_with_block_is_rebuilt():
    log = []

    @contextlib.contextmanager
    def noted(name):
        log.append(f"enter {name}")
        yield
        log.append(f"exit {name}")

    def program(values):
        total = 0
        add = lambda: total  # noqa: E731
        with noted("a"):
            for value in values:
                total += value
                yield add()

    generator = program([1, 2, 3])
    assert next(generator) == 1
    made = rebuilt(generator)
    assert [next(made), next(made)] == [3, 6]
    assert list(made) == []
    assert log == ["enter a", "exit a"]


def test_finished_generator_stays_finished():
    generator = (x for x in [1])
    assert [list(generator), list(rebuilt(generator))] == [[1], []]


def test_generator_that_delegates_is_refused():
    def outer():
        yield from (x for x in [1, 2])

    generator = outer()
    next(generator)
    with pytest.raises(ValueError, match="delegates to another"):
        capture_generator(generator)


@contextlib.contextmanager
def scaled(state, factor):
    before = state["factor"]
    state["factor"] = factor
    LOG.append("enter")
    try:
        yield factor
    except ValueError as error:
        LOG.append(f"caught {error}")
    finally:
        state["factor"] = before
        LOG.append("exit")


def in_managed_block(x, state):
    with scaled(state, 3.0) as factor:
        y = x * factor
        opaque(state["factor"])
        y = y + state["factor"]
    return y * state["factor"]


def raises_in_managed_block(x, state):
    with scaled(state, 2.0):
        x = x + 1
        opaque("inside")
        raise ValueError("own")
    return x * state["factor"]


def iterates_over_a_generator(x, state):
    def steps(x):
        for i in range(3):
            x = x * (i + 1)
            yield x

    total = x
    for step in steps(x):
        opaque("step")
        total = total + step
    return total


def two_consumers(x, state):
    numbers = (x * i for i in range(4))
    first = next(numbers)
    opaque("between")
    second = next(numbers)
    opaque("again")
    return first, second, list(numbers)


@pytest.mark.parametrize(
    "program", [in_managed_block, raises_in_managed_block, iterates_over_a_generator, two_consumers]
)
def test_program_with_a_started_generator_splits(program):
    fast = magpy.compile(program, backend="eager")
    for i in range(5):
        ends = []
        for run in (fast, program):
            LOG.clear()
            state = {"factor": 1.0 + (i == 3)}
            ends.append((run(torch.ones(2) + i, state), state, list(LOG)))
        assert_same(*ends)
    if program is raises_in_managed_block:
        return  # exception handlers run natively
    info = magpy.cache_info(fast)
    assert info.records >= 2  # one for each segment, at least
    assert info.hits >= 3


def breaks_out_of_an_enumerated_generator(x):
    def steps(x):
        for _ in range(6):
            x = x - 1
            yield x

    for i, step in enumerate(steps(x)):
        if step.sum() < 0:
            break
    return step, i


def test_branch_run_preserves_the_generator_under_an_iterator():
    program = breaks_out_of_an_enumerated_generator
    fast = magpy.compile(program, backend="eager")
    for start in (2.5, -1.0, 4.5, 2.5, 20.0):
        x = torch.full((2,), start)
        assert_same(fast(x), program(x))
