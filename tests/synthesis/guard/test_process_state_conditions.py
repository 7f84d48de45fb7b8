"""State of the process that a program reads or writes: loggers, warnings, threads, locks."""

import contextlib
import functools
import logging
import os
import threading
import types
import warnings

import numpy as np
import pytest
import torch

import magpy_like as magpy
from magpy_like.split_reasons import SplitReason
from tests.programs import check, check_results, one


@pytest.fixture
def log():
    """A logger of the test's own, and its records: text, level, line, function."""
    logger, seen = logging.getLogger("tests.process_state"), []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append((record.getMessage(), record.levelno, record.lineno, record.funcName))

    handler = Keep()
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger, seen
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def _compare_logs(program, compiled, x, seen):
    seen.clear()
    program(x)
    expected = list(seen)
    seen.clear()
    compiled(x)
    actual = list(seen)
    seen.clear()
    assert actual == expected


def test_log_record_of_a_mock_has_the_programs_line(log):
    logger, seen = log

    def program(x):
        logger.info("rows: %d", x.shape[0])
        return x * 2

    compiled = magpy.compile(program, backend="eager")
    for _ in range(3):
        _compare_logs(program, compiled, torch.ones(2), seen)
    assert magpy.cache_info(compiled).hits == 2


def test_log_record_contains_numbers_read_at_this_call(log):
    logger, seen = log

    def program(x):
        y = x * 2
        logger.info("%s: %.2f", [y.mean().item()], y.sum().item())
        logger.info(f"at most {y.max().item():.1f}")
        return y

    compiled = magpy.compile(program, backend="eager", fullgraph=True)
    for scale in (1.0, 2.0, 7.0, 0.5):
        _compare_logs(program, compiled, torch.arange(3.0) * scale, seen)
    assert magpy.cache_info(compiled).hits == 3


def test_log_record_shows_a_list_as_it_was_when_logged(log):
    logger, seen = log

    def program(x):
        sizes = [1]
        logger.info("%s", sizes)
        sizes.append(2)
        logger.info("%s of %s", {"s": sizes}, (sizes, "all"))
        sizes[0] = 3
        return x * len(sizes)

    compiled = magpy.compile(program, backend="eager")
    for _ in range(3):
        _compare_logs(program, compiled, torch.ones(2), seen)
    assert magpy.cache_info(compiled).hits == 2


def test_logging_call_at_a_split_happens_once(log):
    logger, seen = log

    def program(x):
        logger.info("large", extra={"value": x.sum().item()})
        return x * 2

    compiled = magpy.compile(program, backend="eager")
    for scale in (1.0, 2.0, 7.0, 0.5):
        _compare_logs(program, compiled, torch.arange(3.0) * scale, seen)
    assert magpy.cache_info(compiled).hits


@pytest.mark.parametrize("passed", [False, True], ids=["a global name", "an argument"])
def test_level_of_a_logger_is_guarded(log, passed):
    logger, seen = log

    def program(x, argument):
        (argument or logger).debug("checked")
        return x * (3 if (argument or logger).isEnabledFor(logging.DEBUG) else 2)

    compiled = magpy.compile(program, backend="eager")
    argument = logger if passed else None
    for level in (logging.INFO, logging.DEBUG, logging.INFO, logging.DEBUG):
        logger.setLevel(level)
        for _ in range(2):
            _compare_logs(
                lambda x: program(x, argument), lambda x: compiled(x, argument), torch.ones(2), seen
            )
        assert torch.equal(compiled(torch.ones(2), argument), program(torch.ones(2), argument))
    logging.disable(logging.CRITICAL)
    try:
        _compare_logs(
            lambda x: program(x, argument), lambda x: compiled(x, argument), torch.ones(2), seen
        )
    finally:
        logging.disable(logging.NOTSET)
    assert magpy.cache_info(compiled).hits >= 7


def test_logged_exception_is_the_handled_one(log):
    logger, _ = log
    errors = []
    keep = logging.Filter()
    keep.filter = lambda record: errors.append(record.exc_info[0]) or True
    logger.addFilter(keep)

    def program(x):
        try:
            {}["missing"]
        except KeyError:
            logger.exception("not there")
        return x * 2

    compiled = magpy.compile(program, backend="eager")
    try:
        for _ in range(3):
            compiled(torch.ones(2))
    finally:
        logger.removeFilter(keep)
    assert errors == [KeyError] * 3


@pytest.mark.parametrize("shown", ["always", "default", "once", "ignore"])
def test_warning_is_shown_as_often_as_in_eager_mode(shown):
    def program(x):
        warnings.warn("careful", stacklevel=1)
        return x * 2

    found = []
    compiled = magpy.compile(program, backend="eager")
    for target in (program, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(shown)
            for _ in range(4):
                target(torch.ones(2))
        found.append([(str(w.message), w.category, w.filename, w.lineno) for w in caught])
    assert found[1] == found[0]
    assert magpy.cache_info(compiled).hits == 3


def test_error_handling_of_numpy_is_guarded():
    def program(x):
        return x * (2 if np.geterr()["divide"] == "warn" else 3)

    compiled = magpy.compile(program, backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x), x * 2)
    with np.errstate(divide="ignore"):
        assert torch.equal(compiled(x), x * 3)


def test_current_thread_is_guarded():
    def program(x):
        return x * (2 if threading.current_thread() is threading.main_thread() else 3)

    compiled = magpy.compile(program, backend="eager")
    x, found = torch.ones(2), []
    assert torch.equal(compiled(x), x * 2)
    thread = threading.Thread(target=lambda: found.append(compiled(x)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], x * 3)
    assert torch.equal(compiled(x), x * 2)


def test_state_under_a_lock_is_read_while_the_lock_is_held():
    state, lock = {"count": 0}, threading.Lock()

    def program(x):
        with lock:
            state["count"] += 1
        return x + 1

    compiled = magpy.compile(program, backend="eager")
    x = torch.ones(2)
    compiled(x)
    lock.acquire()
    thread = threading.Thread(target=compiled, args=(x,))
    thread.start()
    state["count"] = 10  # while the other thread waits, or before it has begun
    lock.release()
    thread.join()
    assert state["count"] == 11
    reasons = [point.reason for point in magpy.explain(compiled, x).split_points]
    assert SplitReason.BLOCKING_OR_CLOCK in reasons


def test_new_lock_causes_no_split():
    def program(x):
        lock = threading.RLock()
        with lock, lock:
            x = x * 2
        return x + 1

    check(program, one())


def test_lock_released_by_an_exception_is_not_held_at_a_split(capsys):
    def program(x):
        for lock in threading.Lock(), threading.RLock():
            with contextlib.suppress(ValueError), lock:
                raise ValueError
        print("split")
        return x + 1

    compiled = magpy.compile(program, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) + 1)
    assert magpy.cache_info(compiled).hits == 2
    assert capsys.readouterr().out == "split\n" * 3


class CachedProperties:
    """Before Python 3.12 a cached property is computed under a lock."""

    def __init__(self, scale):
        self.scale = scale

    @functools.cached_property
    def plain(self):
        return torch.ones(2) * self.scale

    @functools.cached_property
    def shown(self):
        print(self.scale)
        return self.scale * 2


def test_computed_cached_property_causes_no_split():
    check(lambda holder: holder.plain * 2, lambda: (CachedProperties(2.0),))


def test_cached_property_that_splits_the_program(capsys):
    def with_scale(scale):
        return lambda: (CachedProperties(scale),)

    check_results(lambda: lambda holder: holder.shown + 1, with_scale(1), with_scale(2))
    assert capsys.readouterr().out.splitlines() == ["1", "1", "2", "2"] * 2


def test_warnings_and_log_records_name_the_caller_at_every_call(recwarn):
    logger, callers = logging.Logger("test"), []

    class Places(logging.Handler):
        def emit(self, record):
            callers.append((record.filename, record.funcName))

    logger.addHandler(Places())

    def program(x):
        warnings.warn("careful", stacklevel=2)
        logger.warning("careful", stacklevel=2)
        logger.warning("here")
        return x * 2

    fast = magpy.compile(program, backend="eager")

    def caller(function):
        warnings.simplefilter("always")
        return function(torch.ones(2))

    for function in (program, fast, fast):
        caller(function)
    assert magpy.cache_info(fast).hits == 1
    shown = [(w.filename, w.lineno) for w in recwarn]
    assert shown == [(__file__, caller.__code__.co_firstlineno + 2)] * 3
    file = os.path.basename(__file__)
    assert callers == [(file, "caller"), (file, "program")] * 3


def test_counters_include_increments_of_other_threads():
    """Eager mode reads and writes a counter at once; a graph runs between a guard and a mock's
    writes."""
    thing, table, row, cell, meanwhile = types.SimpleNamespace(n=0), {"n": 0}, [0], 0, 0

    def count(step):
        nonlocal cell
        thing.n += step
        table["n"] += step
        row[0] += step
        cell = cell + step * 2

    def backend(graph, inputs):
        def run(*args):
            count(meanwhile)  # another thread
            return graph(*args)

        return run

    def program(x):
        count(1)
        return x * 2

    compiled = magpy.compile(program, backend=backend)
    for _ in range(3):
        compiled(torch.ones(2))
    meanwhile = 100
    for _ in range(2):
        compiled(torch.ones(2))
    assert magpy.cache_info(compiled).hits >= 3
    assert (thing.n, table["n"], row[0], cell) == (205, 205, 205, 410)
