"""Whole programs whose compiled graphs are replayed, on a stand-in for CUDA graphs."""

import gc
import re
import threading
import weakref

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.compiler.runtime.cuda_graphs import capture_reports, capture_site
from tests.compare import assert_same
from tests.compiler.runtime.cuda_graphs import stand_in

pytestmark = pytest.mark.cpu

CALLS = capture_site.MIN_CALLS + 5


@pytest.fixture
def gpu(monkeypatch):
    stand_in.compile_operator_by_operator(monkeypatch)
    yield stand_in.install(monkeypatch)
    magpy.reset()


def layers(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))


def compiled(target, **options):
    return magpy.compile(target, mode="reduce-overhead", options=options or None)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def reports(target, *args):
    return magpy.explain(target, *args).cuda_graphs


# --- results -------------------------------------------------------------------------------------


def test_training_with_inputs_at_new_addresses(gpu):
    model, twin = layers(), layers()
    fast = compiled(model)
    pairs = [(fast, model), (twin, twin)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for _, m in pairs]
    for step in range(12):
        x, losses = torch.randn(4, 8), []
        for (run, _), optimizer in zip(pairs, optimizers, strict=True):
            losses.append(run(x).square().mean())
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        assert_close(*losses)
    assert_close(dict(model.named_parameters()), dict(twin.named_parameters()))
    assert len(set(gpu.replays)) > 1, "forward and backward"


def test_backward_passes_in_another_order_than_their_forward_passes(gpu):
    model = layers()
    fast = compiled(model)
    for _ in range(CALLS):
        inputs = [torch.randn(4, 8, requires_grad=True) for _ in range(3)]
        results = [fast(x) for x in inputs]
        for k in (1, 0, 2):
            results[k].sum().backward()
        for x in inputs:
            assert_close(x.grad, *torch.autograd.grad(model(x).sum(), x))
    assert gpu.replays


def test_retained_autograd_graphs_and_gradients_that_are_kept(gpu):
    model = layers()
    fast = compiled(model)
    kept, expected = [], []
    for _ in range(CALLS):
        x = torch.randn(4, 8, requires_grad=True)
        y, z = fast(x).sum(), model(x).sum()
        for _ in range(2):
            kept.append(torch.autograd.grad(y, [x, *model.parameters()], retain_graph=True))
            expected.append(torch.autograd.grad(z, [x, *model.parameters()], retain_graph=True))
    assert_close(kept, expected)
    assert gpu.replays


@torch.no_grad()
def test_a_program_that_splits(gpu):
    seen = []

    def program(x):
        y = x * 2
        print(end="")
        seen.append(y)
        return y.relu() + 1

    fast = compiled(program)
    for _ in range(CALLS):
        x = torch.randn(4)
        assert_same(fast(x), (x * 2).relu() + 1)
        assert_same(seen[-1], x * 2)
    assert len(set(gpu.replays)) == 2


@torch.no_grad()
def test_two_threads(gpu):
    model = layers()
    fast = compiled(model)
    fast(torch.randn(4, 8))
    problems = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        try:
            for _ in range(20):
                x = torch.randn(4, 8, generator=generator)
                assert_close(fast(x), model(x))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


# --- explain -------------------------------------------------------------------------------------


def test_explain_reports_each_compiled_graph(gpu):
    model = layers()
    fast = compiled(model)
    x = torch.randn(4, 8)
    for _ in range(CALLS):
        fast(x).sum().backward()
    report = magpy.explain(fast, x)
    assert [r.kind for r in report.cuda_graphs] == ["forward", "backward"]
    assert all(r.graphs > 0 and r.nbytes > 0 and not r.obstacles for r in report.cuda_graphs)
    text = str(report)
    assert re.search(r"compiled graphs on a GPU: 2\n  forward: \d CUDA graphs?, \d", text)


def test_explain_reports_a_backward_pass_that_another_thread_compiles(gpu):
    fast = compiled(layers())
    x = torch.randn(4, 8)
    losses = [fast(x).sum() for _ in range(2)]
    assert [r.kind for r in reports(fast, x)] == ["forward"]
    thread = threading.Thread(target=losses[-1].backward)
    thread.start()
    thread.join()
    assert [r.kind for r in reports(fast, x)] == ["forward", "backward"]


def test_explain_reports_all_segments_of_a_program(gpu):
    def program(x):
        y = x * 2
        print(end="")
        return y.relu()

    fast = compiled(program)
    fast(torch.randn(4))
    assert [str(r) for r in reports(fast, torch.randn(4))] == [
        "inference: no CUDA graph yet: the first calls are launched kernel by kernel"
    ] * 2


def test_explain_says_why_a_mode_captures_nothing(gpu):
    for settings in ({"mode": "max-autotune-no-cudagraphs"}, {"options": {"cuda_graphs": False}}):
        fast = magpy.compile(lambda x: x * 2, **settings)
        for _ in range(CALLS):
            fast(torch.randn(4))
        (report,) = reports(fast, torch.randn(4))
        assert report.obstacles == (capture_reports.FORBIDDEN,)
    assert not gpu.replays


def test_explain_reports_no_graphs_of_programs_that_are_not_compiled_or_were_reset(gpu):
    fast = compiled(lambda x: x * 2)
    x = torch.randn(4)
    assert reports(lambda x: x * 2, x) == reports(fast, x) == []
    fast(x)
    assert len(reports(fast, x)) == 1
    magpy.reset(fast)
    assert reports(fast, x) == []


def test_reports_of_one_program_do_not_name_graphs_of_another(gpu):
    first, second = compiled(lambda x: x * 2), compiled(lambda x: x * 3)
    x = torch.randn(4)
    first(x)
    assert len(reports(first, x)) == 1 and reports(second, x) == []


def test_launchers_that_are_reported_do_not_live_longer(gpu, monkeypatch):
    made = []
    add = capture_reports.ProgramLaunchers.add

    def noted(launchers, launcher, kind):
        made.append(weakref.ref(launcher))
        add(launchers, launcher, kind)

    monkeypatch.setattr(capture_reports.ProgramLaunchers, "add", noted)
    fast = compiled(lambda x: x * 2)
    for _ in range(CALLS):
        fast(torch.randn(4))
    assert made[0]() is not None and gpu.replays
    gpu.replays.clear()
    fast._magpy_dispatcher.cache.clear()
    gc.collect()
    fast._magpy_dispatcher.program.graphs = None
    gc.collect()
    assert made[0]() is None
    assert fast._magpy_dispatcher.program.launchers.reports() == []
