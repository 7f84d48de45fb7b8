"""An exception that another thread sends is raised in the program, never in own work."""

import ctypes
import os
import sys
import threading
import time

import pytest
import torch

import magpy_like as magpy
from magpy_like.interruption import (
    Interruption,
    call_uninterrupted,
    check_interruption,
    is_interruption,
    own_work,
)
from magpy_like.monitor.event_handlers import EventHandlers
from magpy_like.split_reasons import SplitReason
from tests.compare import assert_same


class TimedOut(Exception):
    """Sent to threads. An ``Exception``, as most such classes."""


class Described(Exception):
    """Its initialiser sets arguments."""

    def __init__(self, text="timed out"):
        super().__init__(text)


def send(ident, kind=TimedOut):
    """Send an exception to a thread; the number of threads that receive it."""
    identifier = ctypes.c_ulong(ident)
    return ctypes.pythonapi.PyThreadState_SetAsyncExc(identifier, ctypes.py_object(kind))


def send_to_self(kind=TimedOut):
    assert send(threading.get_ident(), kind) == 1


def in_thread(function):
    """Call a function in a new thread; its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(60)
    assert results, "the thread has died"
    return results[0]


def here(function):
    """Call a function in this thread."""
    return function()


anywhere = pytest.mark.parametrize("run", [here, in_thread], ids=["main thread", "other thread"])
sent_kinds = pytest.mark.parametrize("kind", [TimedOut, Described, KeyboardInterrupt])


@anywhere
@sent_kinds
def test_exception_while_a_backend_compiles_reaches_the_caller(run, kind):
    compiled = []

    def backend(gm, inputs):
        if not compiled:
            send_to_self(kind)
        compiled.append(gm)  # not interrupted
        return gm.forward

    def call():
        fast = magpy.compile(lambda x: x * 2, backend=backend)
        with pytest.raises(kind):
            fast(torch.ones(2))
        assert len(compiled) == 1
        assert_same(fast(torch.ones(2)), torch.full((2,), 2.0))
        return magpy.cache_info(fast).records

    assert run(call) == 1


@anywhere
@sent_kinds
def test_exception_while_a_record_runs_reaches_the_caller(run, kind):
    def call():
        sends = []

        def backend(gm, inputs):
            def compiled(*args):
                if sends:
                    sends.pop()
                    send_to_self(kind)
                return gm.forward(*args)

            return compiled

        fast = magpy.compile(lambda x: x * 2, backend=backend)
        fast(torch.ones(2))
        sends.append(True)
        with pytest.raises(kind):
            fast(torch.ones(2))
        assert_same(fast(torch.ones(2)), torch.full((2,), 2.0))
        return magpy.cache_info(fast).hits

    assert run(call) >= 1


@anywhere
@sent_kinds
def test_exception_that_the_program_catches_is_not_recorded(run, kind):
    def call():
        sends = [True]

        @magpy.disable
        def wait():
            if sends:
                sends.pop()
                send_to_self(kind)

        def program(x):
            try:
                wait()
                return x * 2
            except kind:
                return x * 3

        fast = magpy.compile(program, backend="eager")
        return [fast(torch.ones(2)) for _ in range(4)]

    first, *later = run(call)
    assert_same(first, torch.full((2,), 3.0))
    for result in later:
        assert_same(result, torch.full((2,), 2.0))


def test_exception_in_a_loop_of_the_program_ends_the_recording():
    def program(x):
        y = x * 2
        began.append(True)
        try:
            while True:
                x.dim()
        except TimedOut:
            return y + 1

    def send_once():
        while not began:
            time.sleep(0.001)
        send(main)

    began, main = [], threading.get_ident()
    thread = threading.Thread(target=send_once)
    thread.start()
    report = magpy.explain(program, torch.ones(2))
    thread.join()
    assert report.split_points[0].reason is SplitReason.INTERRUPTED


@anywhere
def test_exception_in_an_isolated_run_reaches_the_program(run, monkeypatch):
    """Python 3.11 enters no function of the isolated run while the exception waits."""
    sends, original = [], EventHandlers.on_instruction

    def sending(self, *args):
        if sends and self.run.context.isolation.branch_run is not None:
            sends.pop()
            send_to_self()
        return original(self, *args)

    def double(y):
        return y * 2

    def program(x):
        if x.sum() > 100:
            return double(x)
        return double(x) + 1

    def call():
        fast = magpy.compile(program, backend="eager")
        sends.append(True)
        with pytest.raises(TimedOut):
            fast(torch.ones(2))
        assert not sends
        for _ in range(3):
            assert_same(fast(torch.ones(2)), torch.full((2,), 3.0))
        return magpy.cache_info(fast).hits

    monkeypatch.setattr(EventHandlers, "on_instruction", sending)
    assert run(call) == 2


HUGE = 1 << 62
"""A length at which native code raises a MemoryError that has no arguments, as a sent exception."""


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "fail", [lambda: bytes(HUGE), lambda: "a".ljust(HUGE)], ids=["bytes", "ljust"]
)
def test_exception_of_native_code_in_a_branch_not_taken_is_not_raised(fail, requires_grad, backend):
    def program(x):
        y = x * 2
        if y.sum() > 100:
            fail()
        return y + 1

    fast = magpy.compile(program, backend=backend)
    for _ in range(3):
        x = torch.ones(2, requires_grad=requires_grad)
        assert_same(fast(x), program(x))
    with pytest.raises(MemoryError):
        fast(torch.full((2,), 100.0, requires_grad=requires_grad))
    assert_same(fast(torch.zeros(2)), torch.ones(2))


def test_exception_of_native_code_that_an_isolated_branch_handles_is_not_raised():
    def program(x):
        if x.sum() > 100:
            try:
                bytes(HUGE)
            except MemoryError:
                return x * 3
        return x * 2

    fast = magpy.compile(program, backend="eager")
    for size in (1.0, 100.0, 1.0, 100.0):
        x = torch.full((2,), size)
        assert_same(fast(x), program(x))


def test_exception_of_native_code_in_a_loop_body_is_not_raised_after_the_last_iteration():
    def program(x):
        while x.sum() > 100:
            x = x * 0.5
            bytes(HUGE)
        return x

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        assert_same(fast(torch.ones(2)), torch.ones(2))
    with pytest.raises(MemoryError):
        fast(torch.full((2,), 100.0))


def test_threads_receive_their_own_exceptions():
    count = 4
    kinds = [type(f"Sent{k}", (Exception,), {}) for k in range(count)]
    barrier = threading.Barrier(count)
    received = {}

    def work(k):
        def compile_slowly():
            barrier.wait(60)
            for i in range(count):  # each thread sends to the next one, while all are at own work
                if i == k:
                    send(idents[(k + 1) % count], kinds[(k + 1) % count])
            barrier.wait(60)

        idents[k] = threading.get_ident()
        try:
            call_uninterrupted(compile_slowly)
        except Exception as error:
            received[k] = type(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    idents = {}
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert received == dict(enumerate(kinds))


# --- own work -------------------------------------------------------------------------------------


@anywhere
def test_exception_waits_for_the_end_of_own_work(run):
    def call():
        log = []

        def work():
            send_to_self()
            log.append("worked")

        with pytest.raises(TimedOut):
            call_uninterrupted(work)
        return log

    assert run(call) == ["worked"]


@anywhere
def test_own_work_that_checks_is_abandoned(run):
    def call():
        log = []

        def work():
            send_to_self()
            try:
                check_interruption()
            except Exception:
                log.append("taken for an error of the work")
            log.append("not abandoned")

        with pytest.raises(TimedOut):
            call_uninterrupted(work)
        return log

    assert run(call) == []


def test_exception_after_a_check_waits_as_well():
    log = []

    def work():
        send_to_self()
        try:
            check_interruption()
        except Interruption:
            log.append("abandoned")
        send_to_self()
        log.append("worked")

    with pytest.raises(TimedOut):
        call_uninterrupted(work)
    assert log == ["abandoned", "worked"]


def test_exception_can_be_withdrawn_during_own_work():
    def work():
        send_to_self()
        withdraw()
        return 1

    assert call_uninterrupted(work) == 1


def withdraw():
    """Withdraw what was sent to this thread, as debuggers do."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)


def test_nested_own_work_defers_until_the_outermost_ends():
    log = []
    with pytest.raises(TimedOut):
        with own_work:
            with own_work:
                send_to_self()
            log.append("inner ended")
        log.append("never")
    assert log == ["inner ended"]


def test_own_work_leaves_no_state_of_a_thread_behind():
    before = sys._current_frames().keys()
    with own_work:
        assert sys._current_frames().keys() == before
    assert sys._current_frames().keys() == before
    assert send(0) == 0  # no state that has no thread


def test_forked_child_receives_its_own_exceptions():
    with own_work:
        child = os.fork()
        if child == 0:
            try:
                call_uninterrupted(send_to_self)
            except TimedOut:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_function_that_is_traced_can_be_entered_while_an_exception_waits():
    """On Python 3.11 the interpreter would wait for the exception before it enters the function."""
    lines = []

    def trace(frame, event, argument):
        lines.append(event)
        return trace

    def backend(gm, inputs):
        send_to_self()
        (lambda: 1)()
        return gm.forward

    fast = magpy.compile(lambda x: x + 1, backend=backend)
    sys.settrace(trace)
    try:
        with pytest.raises(TimedOut):
            fast(torch.ones(1))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    assert lines


# --- recognition ----------------------------------------------------------------------------------


def _raised_by(function):
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@sent_kinds
def test_sent_exception_is_recognised(kind):
    def receive():
        send_to_self(kind)
        len("x")

    assert is_interruption(_raised_by(receive))


def _raise():
    raise TimedOut


@pytest.mark.parametrize(
    "function",
    [
        _raise,
        lambda: int("no number"),
        lambda: next(iter(())),
        lambda: {}["no key"],
        lambda: [].pop(),
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: (_ for _ in ()).throw(TimedOut),
    ],
    ids=["raise", "int", "next", "key", "pop", "operator", "throw"],
)
def test_other_exceptions_are_not_taken_for_sent_ones(function):
    assert not is_interruption(_raised_by(function))
