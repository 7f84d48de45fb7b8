"""Torch traces in one thread at a time, and no other thread records what it finds meanwhile."""

import threading

import pytest
import torch
from torch import fx, nn

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from tests.compare import assert_same

together = 0
most_together = 0
meeting = threading.Event()


def wait_for_company():
    """Longer than another thread needs to come here too, unless it is kept out."""
    global together, most_together
    together += 1
    most_together = max(most_together, together)
    if together > 1:
        meeting.set()
    meeting.wait(0.2)
    together -= 1


def waiting_graph():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(wait_for_company)
    graph.output((graph.call_function(torch.sin, (x,)),))
    return fx.GraphModule(nn.Module(), graph)


def in_threads(*work):
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")
def test_graphs_are_traced_one_after_the_other():
    call, found = nn.Module.__call__, {}

    def work(key):
        found[key] = compile_fx(waiting_graph(), [torch.ones(key)])(torch.ones(key))

    in_threads(lambda: work(2), lambda: work(3))
    assert most_together == 1 and nn.Module.__call__ is call
    assert_same(found, {key: (torch.ones(key).sin(),) for key in found})


def held_by_another_thread(meanwhile):
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


def normalised(x):
    return x / x.norm() * disturbed(1)


def disturbed(number):
    for _ in range(DISTURBANCES.pop() if DISTURBANCES else 0):
        held_by_another_thread(lambda: None)
    return number


DISTURBANCES = []
magpy.annotate(disturbed, pure_closure=True)


def test_calls_run_natively_while_another_thread_traces():
    fast = magpy.compile(normalised, backend="eager", fullgraph=True)
    held_by_another_thread(lambda: assert_same(fast(torch.ones(4)), torch.full((4,), 0.5)))
    assert magpy.cache_info(fast)[:3] == (0, 1, 0)
    fast(torch.ones(4))
    fast(torch.ones(4))
    assert magpy.cache_info(fast)[:3] == (1, 2, 1)


def test_runs_during_which_another_thread_has_traced_are_not_recorded_nor_given_up_for():
    fast = magpy.compile(normalised, backend="eager", fullgraph=True)
    for count in range(1, 6):
        DISTURBANCES.append(1)
        assert_same(fast(torch.ones(4)), torch.full((4,), 0.5))
        assert magpy.cache_info(fast)[:3] == (0, count, 0)
    fast(torch.ones(4))
    fast(torch.ones(4))
    assert magpy.cache_info(fast).hits == 1
