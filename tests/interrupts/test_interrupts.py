"""A signal's handler runs in the program, never inside the monitor or the compiler."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from torch._subclasses import FakeTensorMode

import magpy_like as magpy
from magpy_like.interruption import (
    Interruption,
    call_uninterrupted,
    check_interruption,
    is_interruption,
    own_work,
)
from magpy_like.split_reasons import SplitReason
from tests.compare import assert_same
from tests.interrupts.cases import CASES
from tests.interrupts.injection import KINDS, SIGNALS, Alarm, Case, injector, interrupt, points
from tests.interrupts.points import numbered, representatives
from tests.interrupts.trials import points_of, run_trials

SAMPLED = 8
"""Points per program and kind in the quick test."""


@pytest.fixture
def handlers():
    """Restores the handlers of signals."""
    kept = {number: signal.getsignal(number) for number, _ in SIGNALS.values()}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def alarm(handlers):
    """Has SIGALRM raise ``Alarm``."""

    def ring(number, frame):
        raise Alarm("now")

    signal.signal(signal.SIGALRM, ring)


# --- any point ------------------------------------------------------------------------------------


@functools.cache
def _points(name, call="first"):
    return points_of(name, call)


def _some(points, count):
    return points[len(points) % 7 :: max(1, len(points) // count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_interruption_at_any_point_of_a_first_call_leaves_nothing_behind(name, kind):
    outcomes = run_trials(name, kind, _some(_points(name), SAMPLED))
    assert {n: o.wrong for n, o in outcomes.items() if o.wrong} == {}
    assert sum(o.fired for o in outcomes.values()) >= SAMPLED - 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["compiled module", "compiled training", "split"])
def test_interruption_at_any_point_of_a_later_call_leaves_nothing_behind(name, kind):
    outcomes = run_trials(name, kind, _some(_points(name, "later"), SAMPLED), "later")
    assert {n: o.wrong for n, o in outcomes.items() if o.wrong} == {}
    assert sum(o.fired for o in outcomes.values()) >= SAMPLED - 3


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_interruption_at_each_of_many_points_leaves_nothing_behind(name, kind):
    chosen = representatives({name: _points(name)})[name]
    outcomes = run_trials(name, kind, _some(chosen, 400))
    assert {n: o.wrong for n, o in outcomes.items() if o.wrong} == {}


class Finalized:
    def __del__(self):
        len("a point")


def _finalizing():
    def program(x):
        Finalized()
        return x * 2

    return program, lambda: (torch.ones(3),)


@pytest.mark.parametrize("kind", KINDS)
def test_exception_that_cpython_ignores_is_no_lost_one(kind):
    case = Case(_finalizing)
    inside = [p for p in points(case) if p.place.function.endswith("Finalized.__del__")]
    outcomes = [interrupt(case, point, kind) for point in inside]
    assert any(o.ignored for o in outcomes)
    assert all(o.fired and not o.wrong for o in outcomes if o.ignored)


def test_injector_reaches_the_points_of_a_loop():
    def body():
        pass

    def loop():
        for _ in range(5):
            body()

    injector().record()
    loop()
    passed = numbered(injector().disarm())
    assert {p.occurrence for p in passed if p.place.function.endswith("loop")} >= set(range(5))


# --- handlers -------------------------------------------------------------------------------------


def test_handler_that_raises_nothing_does_not_disturb_the_recording(handlers):
    rings = []
    signal.signal(signal.SIGALRM, lambda number, frame: rings.append(number))

    def backend(gm, inputs):
        signal.raise_signal(signal.SIGALRM)
        return gm.forward

    fast = magpy.compile(lambda x: x * 2, backend=backend)
    for _ in range(3):
        assert_same(fast(torch.ones(2)), torch.full((2,), 2.0))
    assert rings == [signal.SIGALRM]
    assert magpy.cache_info(fast).hits == 2


@pytest.mark.parametrize("kind", SIGNALS)
def test_signal_while_a_backend_compiles_reaches_the_caller(kind, alarm):
    number, expected = SIGNALS[kind]
    compiled = []

    def backend(gm, inputs):
        if not compiled:
            signal.raise_signal(number)
        compiled.append(gm)  # not interrupted
        return gm.forward

    fast = magpy.compile(lambda x: x * 2, backend=backend)
    with pytest.raises(expected):
        fast(torch.ones(2))
    assert len(compiled) == 1
    assert_same(fast(torch.ones(2)), torch.full((2,), 2.0))
    assert magpy.cache_info(fast).records == 1


@pytest.mark.parametrize("kind", SIGNALS)
def test_signal_while_a_record_runs_reaches_the_caller(kind, alarm):
    number, expected = SIGNALS[kind]
    rings = []

    def backend(gm, inputs):
        def run(*args):
            if rings:
                signal.raise_signal(rings.pop())
            return gm.forward(*args)

        return run

    fast = magpy.compile(lambda x: x * 2, backend=backend)
    fast(torch.ones(2))
    rings.append(number)
    with pytest.raises(expected):
        fast(torch.ones(2))
    assert_same(fast(torch.ones(2)), torch.full((2,), 2.0))
    assert magpy.cache_info(fast).hits >= 1


@pytest.mark.parametrize("kind", SIGNALS)
def test_signal_that_the_program_catches_is_not_recorded(kind, alarm):
    number, expected = SIGNALS[kind]
    rings = [number]

    def program(x):
        try:
            ring()
            return x * 2
        except expected:
            return x * 3

    @magpy.disable
    def ring():
        if rings:
            signal.raise_signal(rings.pop())

    fast = magpy.compile(program, backend="eager")
    assert_same(fast(torch.ones(2)), torch.full((2,), 3.0))
    for _ in range(3):
        assert_same(fast(torch.ones(2)), torch.full((2,), 2.0))


def test_handler_in_the_middle_of_the_program_ends_the_recording(handlers):
    total, began = [], []

    def ring(number, frame):
        total.append(frame.f_code.co_name)

    signal.signal(signal.SIGALRM, ring)

    def program(x):
        y = x * 2
        began.append(True)
        for _ in range(2_000_000):
            if total:
                break
        return y + 1

    def send_signal():
        while not began:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    thread = threading.Thread(target=send_signal)
    thread.start()
    report = magpy.explain(program, torch.ones(2))
    thread.join()
    assert total == ["program"]
    assert report.split_points[0].reason is SplitReason.INTERRUPTED


def test_signal_in_an_isolated_run_reaches_the_program_that_has_set_its_handler(
    handlers, monkeypatch
):
    """The new handler is CPython's own, which nothing defers; the branch must not handle it."""
    sends, handled, original = [True], [], FakeTensorMode.__torch_dispatch__

    def interrupted(self, function, *args):
        if sends and function is torch.ops.aten.cosh.default:
            sends.pop()
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, function, *args)

    def program(x):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        y = x + 1
        if y.sum() > 100:
            try:
                return y.cosh()
            except KeyboardInterrupt:
                handled.append(True)
                return y
        return y * 2

    monkeypatch.setattr(FakeTensorMode, "__torch_dispatch__", interrupted)
    fast = magpy.compile(program, backend="eager")
    with pytest.raises(KeyboardInterrupt):
        fast(torch.ones(2))
    assert not sends and not handled
    for _ in range(3):
        assert_same(fast(torch.ones(2)), torch.full((2,), 4.0))


def test_program_sees_its_own_handlers(handlers):
    def handler(number, frame): ...

    signal.signal(signal.SIGALRM, handler)
    seen = []

    def backend(gm, inputs):
        seen.append(signal.getsignal(signal.SIGALRM))
        return gm.forward

    magpy.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert seen == [handler]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_handler_that_own_work_installs_stays(handlers):
    def handler(number, frame): ...

    def backend(gm, inputs):
        signal.signal(signal.SIGALRM, handler)
        return gm.forward

    magpy.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert signal.getsignal(signal.SIGALRM) is handler
    rings = []
    signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
    signal.raise_signal(signal.SIGALRM)
    assert rings == [1]


def test_ignored_signals_and_those_without_a_handler_keep_their_effect(handlers):
    code = """
        import os, signal, torch, magpy_like as magpy
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        def backend(gm, inputs):
            signal.raise_signal(signal.SIGUSR1)
            print("ignored", flush=True)
            signal.raise_signal(signal.SIGUSR2)  # terminates
            print("survived", flush=True)
            return gm.forward
        magpy.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout.split() == ["ignored"]
    assert ended.returncode == -signal.SIGUSR2


# --- own work -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIGNALS)
def test_signal_waits_for_the_end_of_own_work(kind, alarm):
    number, expected = SIGNALS[kind]
    log = []

    def work():
        signal.raise_signal(number)
        log.append("worked")

    with pytest.raises(expected):
        call_uninterrupted(work)
    assert log == ["worked"]


def test_nested_own_work_defers_until_the_outermost_ends(alarm):
    log = []
    with pytest.raises(Alarm):
        with own_work:
            with own_work:
                signal.raise_signal(signal.SIGALRM)
            log.append("inner ended")
        log.append("never")
    assert log == ["inner ended"]


def test_own_work_that_checks_is_abandoned(alarm):
    log = []

    def work():
        signal.raise_signal(signal.SIGALRM)
        try:
            check_interruption()
        except Exception:
            log.append("taken for an error of the work")
        log.append("not abandoned")

    with pytest.raises(Alarm) as caught:
        call_uninterrupted(work)
    assert log == []
    assert caught.value.__cause__ is None


def test_check_without_a_signal_does_nothing():
    with own_work:
        check_interruption()
    check_interruption()


def test_signal_while_another_thread_is_at_own_work_is_not_deferred(alarm):
    began, end = threading.Event(), threading.Event()

    def work():
        with own_work:
            began.set()
            end.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait(30)
    try:
        with pytest.raises(Alarm):
            signal.raise_signal(signal.SIGALRM)
            time.sleep(0)
    finally:
        end.set()
        thread.join()


def test_signal_for_the_process_during_own_work_is_deferred_once(handlers):
    rings = []
    signal.signal(signal.SIGALRM, lambda *_: rings.append(time.monotonic()))
    with own_work:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.01)
        assert rings == []
    assert len(rings) == 1  # as signals that arrive while one is pending


def test_exception_of_own_work_does_not_stop_signals(alarm):
    with pytest.raises(ValueError):
        call_uninterrupted(int, "no number")
    with pytest.raises(Alarm):
        signal.raise_signal(signal.SIGALRM)


def test_forked_child_handles_its_own_signals(alarm):
    with own_work:
        child = os.fork()
        if child == 0:
            try:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(Alarm):
        signal.raise_signal(signal.SIGALRM)


class Handler:
    def __call__(self, number, frame):
        raise TimeoutError("of an object")

    def method(self, number, frame):
        raise TimeoutError("of a method")


@pytest.mark.parametrize("handler", [Handler(), Handler().method], ids=["object", "method"])
def test_exceptions_of_handlers_are_recognised(handler, handlers):
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(TimeoutError) as caught:
        signal.raise_signal(signal.SIGALRM)
    assert is_interruption(caught.value)


def test_other_exceptions_are_not_taken_for_interruptions():
    with pytest.raises(TimeoutError) as caught:
        raise TimeoutError
    assert not is_interruption(caught.value)
    assert is_interruption(KeyboardInterrupt())
    assert is_interruption(Interruption(TimeoutError()))


def test_trace_function_of_the_program_is_restored_after_an_interruption(alarm):
    def trace(frame, event, argument):
        return None

    def backend(gm, inputs):
        signal.raise_signal(signal.SIGALRM)
        return gm.forward

    sys.settrace(trace)
    try:
        with pytest.raises(Alarm):
            magpy.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
