"""Begin and end of a monitored run: trace functions, threads and exceptions stay the program's."""

import bdb
import gc
import importlib
import subprocess
import sys
import threading
import weakref

import pytest
import torch

import magpy_like as magpy
from magpy_like.monitor.context import Context
from magpy_like.monitor.entering_frames import Entering
from magpy_like.monitor.event_handlers import EventHandlers
from tests.compare import assert_same
from tests.programs import collect, matrix, tensor


def program(x):
    return helper(x) * 2


def helper(x):
    return x + 1


def compiled(function=program, **settings):
    return magpy.compile(function, **{"backend": "eager", **settings})


@pytest.fixture
def restored_trace_function():
    previous = sys.gettrace()
    yield
    sys.settrace(previous)


def test_trace_function_is_restored(restored_trace_function):
    events = []

    def tracer(frame, event, arg):
        events.append((event, frame.f_code.co_name))
        return tracer

    fast = compiled()
    sys.settrace(tracer)
    fast(tensor(1))
    assert sys.gettrace() is tracer
    fast(tensor(1))
    assert sys.gettrace() is tracer
    events.clear()
    helper(tensor(1))
    sys.settrace(None)
    assert ("call", "helper") in events and ("return", "helper") in events


def test_trace_function_is_restored_when_the_program_raises(restored_trace_function):
    def fails(x):
        raise KeyError("no")

    def tracer(frame, event, arg):
        return tracer

    fast = compiled(fails)
    sys.settrace(tracer)
    with pytest.raises(KeyError):
        fast(tensor(1))
    assert sys.gettrace() is tracer


def test_absent_trace_function_stays_absent(restored_trace_function):
    sys.settrace(None)
    fast = compiled()
    fast(tensor(1))
    assert sys.gettrace() is None


def test_line_tracer_of_the_caller_continues_after_the_call(restored_trace_function):
    lines = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name == "caller":
            lines.append((event, frame.f_lineno))
            return tracer
        return None

    def caller(fast):
        before = 1
        result = fast(tensor(1))
        after = 2
        return result

    fast = compiled()
    sys.settrace(tracer)
    caller(fast)
    sys.settrace(None)
    first = caller.__code__.co_firstlineno
    seen = [line - first for event, line in lines if event == "line"]
    assert seen == [1, 2, 3, 4]


def test_profile_function_receives_events_of_the_program():
    calls = []
    fast = compiled()
    sys.setprofile(lambda frame, event, arg: calls.append((event, frame.f_code.co_name)))
    try:
        result = fast(tensor(1))
    finally:
        sys.setprofile(None)
    assert ("call", "helper") in calls
    assert_same(result, program(tensor(1)))


def test_program_may_set_a_trace_function(restored_trace_function):
    def tracer(frame, event, arg):
        return None

    def sets_trace_function(x):
        sys.settrace(tracer)
        y = x + 1
        sys.settrace(None)
        return y * 2

    fast = compiled(sets_trace_function)
    for _ in range(3):
        assert_same(fast(tensor(1, 2)), sets_trace_function(tensor(1, 2)))


def test_program_may_inspect_its_frames():
    def inspects(x):
        return sys._getframe().f_code.co_name, x * len(locals())

    fast = compiled(inspects)
    for _ in range(3):
        assert_same(fast(tensor(1, 2)), inspects(tensor(1, 2)))


def test_exception_has_the_traceback_of_the_program():
    def fails(x):
        return helper(x)[7]

    fast = compiled(fails)
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            fast(tensor(1))
        names = [entry.name for entry in caught.traceback]
        assert names[-1] == "fails"


def test_two_threads_may_call_one_function():
    fast = compiled()
    errors = []
    start = threading.Barrier(2)

    def work(offset):
        start.wait()
        try:
            for i in range(30):
                x = torch.full((1 + (i + offset) % 3,), float(i))
                assert_same(fast(x), program(x))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    info = magpy.cache_info(fast)
    assert 1 <= info.records <= 6 and info.hits >= 50


def test_threads_may_compile_their_own_functions():
    def other(x):
        return helper(x) - 3

    errors = []

    def work(function):
        try:
            fast = compiled(function)
            for i in range(10):
                assert_same(fast(tensor(i, 2)), function(tensor(i, 2)))
            assert magpy.cache_info(fast).hits == 9
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f,)) for f in (program, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_may_begin_and_end_monitored_runs_simultaneously():
    errors = []

    def work(offset, start):
        start.wait()
        try:
            fast = compiled(lambda x: program(x) + offset)
            for i in range(3):
                assert_same(fast(torch.ones(1 + i)), torch.full((1 + i,), 4.0 + offset))
        except BaseException as error:
            errors.append(error)

    for _ in range(20):
        start = threading.Barrier(2)
        threads = [threading.Thread(target=work, args=(i, start)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


def test_generator_of_a_monitored_run_continues_during_a_run_of_another_thread():
    generators = []

    def numbers(x):
        for i in range(200):
            yield x + i

    def keeps_generator(x):
        generator = numbers(x)
        generators.append(generator)
        return next(generator)

    compiled(keeps_generator)(tensor(1))
    running = threading.Event()
    done = threading.Event()

    def work():
        while not done.is_set():
            compiled()(tensor(1))
            running.set()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    rest = [value.item() for value in generators[0]]
    done.set()
    thread.join()
    assert rest == [float(i) for i in range(2, 201)]


def test_first_use_may_be_in_a_thread_that_ends():
    script = (
        "import threading\n"
        "def work():\n"
        "    import torch, magpy_like\n"
        "    fast = magpy_like.compile(lambda x: x * 2 + 1, backend='aot_eager')\n"
        "    for n in (2, 3, 4):\n"
        "        assert torch.equal(fast(torch.ones(n)), torch.full((n,), 3.0))\n"
        "for _ in range(3):\n"
        "    thread = threading.Thread(target=work)\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "work()\n"
        "print('done')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.stdout == "done\n", result.stderr


class Breakpoints(bdb.Bdb):
    """A debugger that records where it stops and steps on from there."""

    def __init__(self):
        super().__init__()
        self.stops = []

    def user_line(self, frame):
        self.stops.append(frame.f_code.co_name)
        self.set_step()


def test_debugger_steps_through_the_caller_and_through_native_runs():
    def debug(function):
        debugger = Breakpoints()

        def caller(x):
            y = function(x)
            return y + 1

        results = [debugger.runcall(caller, tensor(i)) for i in range(3)]
        return results, debugger.stops

    fast = compiled()
    results, stops = debug(fast)
    assert_same(results, [(tensor(i) + 1) * 2 + 1 for i in range(3)])
    assert stops.count("caller") == 3 * 2  # two lines of the caller in each of three calls
    assert magpy.cache_info(fast).hits == 2
    assert sys.gettrace() is None


def test_breakpoint_in_a_compiled_program_stops_in_eager_mode():
    fast = compiled()
    fast(tensor(1))
    debugger = Breakpoints()
    assert debugger.set_break(__file__, helper.__code__.co_firstlineno + 1) is None
    assert_same(debugger.runcall(program, tensor(1)), tensor(4))
    assert "helper" in debugger.stops
    assert_same(fast(tensor(1)), tensor(4))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("owner, method", [(Entering, "enter"), (Context, "account")])
def test_interrupt_in_the_monitor_reaches_the_program(owner, method, kind, monkeypatch):
    """On Ctrl-C the signal's handler may run in the monitor's code."""
    log = []

    def interrupted(x):
        log.append("began")
        try:
            return x.sum().item() * 2.0 + helper(x)
        finally:
            log.append("ended")

    original = getattr(owner, method)

    def interrupt(*args):
        if log == ["began"]:
            raise kind("now")
        return original(*args)

    monkeypatch.setattr(owner, method, interrupt)
    fast = compiled(interrupted)
    before = sys.gettrace()
    with pytest.raises(kind, match="now"):
        fast(tensor(1))
    assert log == ["began", "ended"]
    assert sys.gettrace() is before
    monkeypatch.undo()
    for i in range(3):
        assert_same(fast(tensor(i)), interrupted(tensor(i)))
    assert magpy.cache_info(fast).hits == 2


def _context_of(value):
    if isinstance(value, EventHandlers):
        value = value.run.context
    return value if isinstance(value, Context) else None


def _interrupt_once(monkeypatch, callback, when, owner=EventHandlers):
    """Run a signal's handler at the first line of one of the monitor's callbacks."""
    original, interrupted = getattr(owner, callback), []

    def interrupt(*args):
        if not interrupted and any(when(context) for context in map(_context_of, args) if context):
            interrupted.append(callback)
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(owner, callback, interrupt)
    return interrupted


@pytest.mark.parametrize("callback", ["on_frame", "on_instruction", "on_result", "on_return"])
def test_interrupt_caught_by_the_program_is_not_recorded(callback, monkeypatch):
    def program(x):
        try:
            y = x + 1
            return helper(y) - y
        except KeyboardInterrupt:
            return "interrupted"

    fast = compiled(program)
    interrupted = _interrupt_once(
        monkeypatch, callback, lambda context: context.root_frame is not None
    )
    assert fast(tensor(1)) == "interrupted"
    assert interrupted == [callback]
    for i in range(3):
        assert_same(fast(tensor(i)), program(tensor(i)))
    assert magpy.cache_info(fast).hits == 2


@pytest.mark.parametrize(
    "owner, callback",
    [(Entering, "enter"), (EventHandlers, "on_instruction"), (EventHandlers, "on_result")],
)
def test_interrupt_in_a_branch_run_reaches_the_program(owner, callback, monkeypatch):
    """The monitor runs both branches of a data-dependent branch in isolation."""

    def program(x):
        if x.sum() > 0:
            y = helper(x) + 1
        else:
            y = x - 1
        return y

    fast = compiled(program)
    interrupted = _interrupt_once(
        monkeypatch, callback, lambda context: context.isolation.branch_run, owner
    )
    with pytest.raises(KeyboardInterrupt):
        fast(tensor(1))
    assert interrupted == [callback]
    for i in (1, -1, 2):
        assert_same(fast(tensor(i)), program(tensor(i)))
    assert magpy.cache_info(fast).hits == 2


def test_interrupted_import_does_not_count_as_failed(monkeypatch):
    def stops(name):
        raise KeyboardInterrupt

    def imports(x):
        import colorsys

        return x + len(colorsys.__name__)

    fast = compiled(imports)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(importlib, "import_module", stops)
    with pytest.raises(KeyboardInterrupt):
        fast(tensor(1))


def test_thread_started_by_the_program_is_not_monitored():
    def starts(x):
        out = []
        thread = threading.Thread(target=lambda: out.append(x + 1))
        thread.start()
        thread.join()
        return out[0]

    fast = compiled(starts)
    for _ in range(3):
        assert_same(fast(tensor(1)), tensor(2))


def test_compiled_function_may_call_a_compiled_function():
    inner = compiled(helper)

    def outer(x):
        return inner(x) * inner(x)

    fast = compiled(outer)
    for i in range(3):
        assert_same(fast(tensor(i, 2)), outer(tensor(i, 2)))
    assert magpy.cache_info(fast)[:4] == (2, 1, 1, 1)


def test_program_may_compile_a_function_inside():
    def outer(x):
        fast = compiled(helper)
        return fast(x) + fast(x)

    fast = compiled(outer)
    for _ in range(3):
        assert_same(fast(tensor(1, 2)), tensor(4, 6))


def test_recursion_may_pass_through_the_compiled_function():
    def countdown(x, n):
        return x if n == 0 else fast(x + n, n - 1)

    fast = compiled(countdown)
    for n in (3, 3, 2, 4):
        assert_same(fast(tensor(1), n), tensor(1 + n * (n + 1) // 2))


def test_is_compiling_is_true_inside_the_region_only():
    seen = []

    def inspects(x):
        seen.append((magpy.is_compiling(), torch.compiler.is_compiling()))
        return x

    assert not magpy.is_compiling()
    compiled(inspects)(tensor(1))
    assert seen == [(True, True)] or seen == [(False, True)]
    assert not magpy.is_compiling() and not torch.compiler.is_compiling()


def test_monitored_run_keeps_no_argument_or_result_alive():
    fast = compiled()
    x = torch.ones(3)
    y = fast(x)
    kept = weakref.ref(x), weakref.ref(y)
    del x, y
    collect()
    assert [r() for r in kept] == [None, None]


def test_record_keeps_no_deleted_model_alive():
    model = torch.nn.Linear(3, 3)
    fast = compiled(model)
    fast(matrix(2, 3))
    fast(matrix(2, 3))
    kept = weakref.ref(model), weakref.ref(model.weight)
    del model, fast
    collect()
    assert [r() for r in kept] == [None, None]


def test_finalizers_run_as_often_as_in_eager():
    class Closing:
        closed = 0

        def __del__(self):
            Closing.closed += 1

    def makes(x):
        thing = Closing()
        return x + 1

    counts = []
    for f in (makes, compiled(makes)):
        Closing.closed = 0
        f(tensor(1))
        gc.collect()
        counts.append(Closing.closed)
    assert counts == [1, 1]


def test_garbage_collection_callbacks_are_not_recorded():
    import time

    collections = []

    def record_collection(phase, info):
        collections.append((phase, time.perf_counter()))

    def allocates(x):
        return x + len([[i] for i in range(3000)])

    fast = compiled(allocates)
    gc.callbacks.append(record_collection)
    try:
        fast(tensor(1))
    finally:
        gc.callbacks.remove(record_collection)
    assert collections, "the test is void: no collection has happened"
    assert_same(fast(tensor(1)), allocates(tensor(1)))
    assert magpy.cache_info(fast).hits == 1


def test_finalizers_run_by_the_garbage_collector_are_not_recorded():
    finalized = []

    class Knot:
        def __init__(self):
            self.itself, self.numbers = self, self.count()
            next(self.numbers)

        def count(self):
            try:
                yield 1
            finally:
                finalized.append("generator")

        def __del__(self):
            finalized.append("object")

    lists, names = "[]", {}
    for _ in range(3):
        lists = f"[{', '.join([lists] * 30)}]"  # no instruction in it is reported
    exec(f"def allocates(x):\n    return x + len({lists})", names)
    allocates = names["allocates"]
    fast, thresholds = compiled(allocates, fullgraph=True), gc.get_threshold()
    gc.collect()
    gc.set_threshold(20_000)
    try:
        Knot()
        fast(tensor(1))
    finally:
        gc.set_threshold(*thresholds)
    assert sorted(finalized) == ["generator", "object"], (
        "the test is void: no collection has happened"
    )
    assert_same(fast(tensor(1)), allocates(tensor(1)))
    assert len(finalized) == 2
    assert magpy.cache_info(fast).hits == 1


@pytest.mark.parametrize(
    "container",
    [weakref.WeakSet, weakref.WeakValueDictionary, weakref.WeakKeyDictionary],
    ids=lambda container: container.__name__,
)
def test_object_destroyed_in_the_region_leaves_weak_containers(container):
    class Thing:
        pass

    known = container()

    def drops(x, things):
        things.pop()
        return x + 1

    fast = compiled(drops, fullgraph=True)
    for _ in range(3):
        thing = Thing()
        if isinstance(known, weakref.WeakSet):
            known.add(thing)
        elif isinstance(known, weakref.WeakKeyDictionary):
            known[thing] = 0
        else:
            known[0] = thing
        things = [thing]
        del thing
        fast(tensor(1), things)
        assert len(known) == 0


def test_keyboard_interrupt_of_the_program_propagates():
    def interrupted(x):
        raise KeyboardInterrupt

    fast = compiled(interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fast(tensor(1))


def test_generator_that_outlives_the_run_continues_unmonitored():
    def steps(x):
        for i in range(3):
            yield x + i

    fast = compiled(steps)
    for _ in range(2):
        assert_same(list(fast(tensor(1))), list(steps(tensor(1))))


def test_recursion_error_of_the_program_propagates():
    def endless(x):
        return endless(x)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        with pytest.raises(RecursionError):
            compiled(endless)(tensor(1))
    finally:
        sys.setrecursionlimit(limit)
    assert_same(compiled()(tensor(1)), program(tensor(1)))
