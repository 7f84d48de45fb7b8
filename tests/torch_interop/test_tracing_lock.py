"""Tracing in one thread at a time; meanwhile other threads run natively."""

import threading

import pytest
import torch
from torch import fx, nn

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from tests.compare import assert_same

active = 0
max_active = 0
both_arrived = threading.Event()


def wait_for_another_thread():
    """Waits longer than another thread needs to arrive here, unless the lock excludes it."""
    global active, max_active
    active += 1
    max_active = max(max_active, active)
    if active > 1:
        both_arrived.set()
    both_arrived.wait(0.2)
    active -= 1


def waiting_graph():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(wait_for_another_thread)
    graph.output((graph.call_function(torch.sin, (x,)),))
    return fx.GraphModule(nn.Module(), graph)


def run_in_threads(*work):
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")
def test_graphs_are_traced_one_at_a_time():
    call, found = nn.Module.__call__, {}

    def work(key):
        found[key] = compile_fx(waiting_graph(), [torch.ones(key)])(torch.ones(key))

    run_in_threads(lambda: work(2), lambda: work(3))
    assert max_active == 1 and nn.Module.__call__ is call
    assert_same(found, {key: (torch.ones(key).sin(),) for key in found})


def while_another_thread_traces(meanwhile):
    has_begun, may_end = threading.Event(), threading.Event()

    def trace():
        with TRACING_LOCK:
            has_begun.set()
            may_end.wait()

    thread = threading.Thread(target=trace)
    thread.start()
    has_begun.wait()
    meanwhile()
    may_end.set()
    thread.join()


def normalized(x):
    return x / x.norm() * interrupted(1)


def interrupted(number):
    for _ in range(INTERRUPTIONS.pop() if INTERRUPTIONS else 0):
        while_another_thread_traces(lambda: None)
    return number


INTERRUPTIONS = []
magpy.annotate(interrupted, pure_closure=True)


def test_calls_run_natively_while_another_thread_traces():
    fast = magpy.compile(normalized, backend="eager", fullgraph=True)
    while_another_thread_traces(lambda: assert_same(fast(torch.ones(4)), torch.full((4,), 0.5)))
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 1, 0)
    fast(torch.ones(4))
    fast(torch.ones(4))
    assert magpy.cache_info(fast) == (1, 1, 1, 1, 1, 0)


def test_runs_interrupted_by_another_threads_trace_are_not_recorded_and_do_not_count_as_failures():
    fast = magpy.compile(normalized, backend="eager", fullgraph=True)
    for count in range(1, 6):
        INTERRUPTIONS.append(1)
        assert_same(fast(torch.ones(4)), torch.full((4,), 0.5))
        assert magpy.cache_info(fast)[:3] == (0, count, 0)
    fast(torch.ones(4))
    fast(torch.ones(4))
    assert magpy.cache_info(fast).hits == 1
