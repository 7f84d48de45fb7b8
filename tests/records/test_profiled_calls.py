"""Compiled calls in a profile: a region each, and no effect on records or on calls without one."""

import threading

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.profiles import profiled

X = torch.eye(3) + 0.5


def program(x):
    return torch.relu(x * 2 + 1).sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.net(x)).sum()


def test_a_matched_call_is_a_region_with_name_record_and_graph():
    fast = magpy.compile(program)
    fast(X)
    _, trace = profiled(lambda: [fast(X), fast(X)])
    call, graph, kernel = trace.names[:3]
    assert call.startswith("magpy: program (record ")
    assert graph == "magpy: graph 0 of program (inference)"
    assert kernel.startswith("magpy_mul_add_relu_sum (records/test_profiled_calls.py:")
    assert trace.names[:3] == trace.names[3:]


def test_the_region_of_a_module_has_its_name():
    fast = magpy.compile(Model())
    with torch.no_grad():
        fast(X)
        _, trace = profiled(lambda: fast(X))
    assert trace.names[0].startswith("magpy: Model (record ")


def test_a_recorded_call_is_a_region_too():
    fast = magpy.compile(program)
    result, trace = profiled(lambda: fast(X))
    assert torch.equal(result, program(X))
    assert "aten::relu" in trace.inside("magpy: program (new record)")


def test_records_do_not_depend_on_the_profiler():
    fast = magpy.compile(program)
    for _ in range(2):
        profiled(lambda: fast(X))
        fast(X)
        profiled(lambda: fast(X), record_shapes=True, with_stack=True, profile_memory=True)
    assert magpy.cache_info(fast)[:3] == (5, 1, 1)


def test_forward_and_backward_graphs_of_a_call_have_one_number():
    model = Model()
    fast = magpy.compile(model)
    fast(X).backward()
    _, trace = profiled(lambda: fast(X).backward())
    graphs = trace.starting("magpy: graph")
    assert graphs == ["magpy: graph 0 of Model (forward)", "magpy: graph 0 of Model (backward)"]
    backward = trace.inside("CompiledFunctionBackward")
    assert [name for name in backward if name.startswith("magpy_")] and graphs[1] in backward


def test_a_profiler_that_starts_after_the_forward_pass_sees_the_backward_graph():
    fast = magpy.compile(Model())
    fast(X).backward()
    loss = fast(X)
    _, trace = profiled(loss.backward)
    assert trace.starting("magpy: graph") == ["magpy: graph 0 of Model (backward)"]


def test_segments_of_a_program_that_splits_are_regions_each():
    def splitting(x):
        x = x * 2
        magpy.disable(len)(())
        return x + 1

    fast = magpy.compile(splitting)
    for _ in range(2):
        fast(X)
    _, trace = profiled(lambda: fast(X))
    assert len(trace.starting("magpy: ")) - len(trace.starting("magpy: graph")) == 2
    assert len(trace.kernels()) == 2


def test_a_call_that_raises_ends_its_region():
    def failing(x):
        return torch.linalg.cholesky(x) * 2

    fast = magpy.compile(failing)
    fast(X @ X)

    def call():
        with pytest.raises(RuntimeError, match="cholesky"):
            fast(-X)
        return fast(X @ X)

    result, trace = profiled(call)
    assert torch.equal(result, failing(X @ X))
    failed, passed = (e for e in trace.events if "failing (record" in e["name"])
    assert failed["ts"] + failed["dur"] <= passed["ts"]


def test_another_thread_than_the_profiled_one_is_not_in_the_profile():
    fast = magpy.compile(program)
    fast(X)
    results = []

    def call():
        other = threading.Thread(target=lambda: results.extend(fast(X) for _ in range(3)))
        other.start()
        other.join()
        return fast(X)

    result, trace = profiled(call)
    assert all(torch.equal(found, result) for found in results)
    assert len(trace.starting("magpy: program")) == 1 and len(trace.kernels()) == 1


def test_threads_that_call_while_profilers_come_and_go_get_right_results():
    fast = magpy.compile(program)
    expected, failures, stop = fast(X), [], threading.Event()

    def call():
        while not stop.is_set():
            if not torch.equal(fast(X), expected):
                failures.append(1)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        _, trace = profiled(lambda: fast(X))
        assert len(trace.kernels()) == 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and magpy.cache_info(fast).misses == 1


def test_a_name_with_other_letters_is_readable():
    def größe(x):
        return x * 2

    fast = magpy.compile(größe)
    fast(X)
    _, trace = profiled(lambda: fast(X))
    assert "gr??e (record" in trace.names[0]


def test_a_program_that_profiles_itself_has_eagers_result():
    def profiling(x):
        with torch.autograd.profiler.profile() as events:
            x = x * 2
        return x, len(events.function_events) > 0

    fast = magpy.compile(profiling)
    for _ in range(3):
        result, has_events = fast(X)
        assert torch.equal(result, X * 2) and has_events
