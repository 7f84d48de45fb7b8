"""``torch.profiler`` around compiled calls, and ``record_function`` inside them."""

import json

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import magpy_like as magpy
from tests.ecosystem.side_by_side import assert_as_eager
from tests.profiles import profiled


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)

    def forward(self, x):
        with record_function("the_block"):
            x = torch.relu(self.net(x))
        return x.sum(-1)


def test_profiled_calls_have_eager_results():
    def program(wrap):
        model, x = wrap(Model()), torch.randn(4, 8)
        found = [model(x), model(x)]
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as events:
            with record_function("the_step"):
                found += [model(x), model(x)]
            found[-1].sum().backward()
        names = {event.key for event in events.key_averages()}
        assert "the_step" in names
        return found, model.net.weight.grad

    assert_as_eager(program, hits=2)


def test_a_schedule_of_steps_profiles_a_training_loop(tmp_path):
    def program(wrap):
        model = wrap(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        traces = []

        def keep(profiler):
            profiler.export_chrome_trace(str(tmp_path / "trace.json"))
            traces.append(json.loads((tmp_path / "trace.json").read_text()))

        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=1, warmup=1, active=2),
            on_trace_ready=keep,
        ) as profiler:
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
                profiler.step()
        assert len(traces) == 1 and traces[0]["traceEvents"]
        return model.state_dict()

    assert_as_eager(program, hits=2)


def test_the_autograd_profiler_has_eager_results():
    def program(wrap):
        model, x = wrap(Model()), torch.randn(4, 8)
        model(x)
        with torch.autograd.profiler.profile() as events:
            result = model(x)
        assert len(events.function_events) > 0
        return result

    assert_as_eager(program)


def test_a_trace_of_training_shows_calls_graphs_kernels_and_blocks():
    model = magpy.compile(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    for _ in range(2):
        step()
    _, trace = profiled(step)
    assert len(trace.starting("magpy: Model (record ")) == 1
    assert [name.rpartition(" ")[2] for name in trace.starting("magpy: graph")] == [
        "(forward)",
        "(backward)",
    ]
    (kernel,) = [name for name in trace.inside("the_block") if name.startswith("magpy_")]
    assert "relu" in kernel and "ecosystem/test_profiler.py:" in kernel
    assert trace.labels()["the_block"] == 1
    assert magpy.cache_info(model).misses == 1


def test_the_table_of_averages_counts_each_block_once_a_call():
    model, x = magpy.compile(Model()), torch.randn(4, 8)
    model(x)
    with profile(activities=[ProfilerActivity.CPU]) as events:
        for _ in range(3):
            model(x)
    counts = {event.key: event.count for event in events.key_averages()}
    assert counts["the_block"] == 3
    assert [n for name, n in counts.items() if name.startswith("magpy: Model (record")] == [3]
