"""Graphs name the GPU that ``cuda`` means; with no GPU, that is stood in for."""

import pytest
import torch

from magpy_like.compiler.current_gpu import is_for_current_gpu, name_current_gpu
from magpy_like.compiler.runtime import graph_cache

SECOND = torch.device("cuda", 1)


@pytest.fixture
def second_is_current(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def devices(gm):
    """The devices that calls in the graph are given."""
    name_current_gpu(gm)
    calls = [n for n in gm.graph.nodes if n.op.startswith("call")]
    values = [value for n in calls for value in (*n.args, *n.kwargs.values())]
    return [v for v in values if isinstance(v, torch.device) or v == "cuda"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to("cuda"),
        lambda x: x.to(torch.device("cuda")),
        lambda x: x.new_ones(3, device="cuda"),
        lambda x: torch.zeros_like(x, device=torch.device("cuda")),
        lambda x: x.cuda(),
        lambda x: x.cuda(None),
        lambda x: x.cuda(device=None, non_blocking=True),
    ],
)
def test_cuda_is_the_current_gpu(second_is_current, function):
    gm = torch.fx.symbolic_trace(function)
    assert devices(gm) == [SECOND]
    assert "index=1" in gm.code


def test_cuda_as_a_function_goes_there_too(second_is_current):
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.Tensor.cuda, (graph.placeholder("x"),)))
    assert devices(torch.fx.GraphModule({}, graph)) == [SECOND]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to("cuda:0"),
        lambda x: x.cuda(torch.device("cuda", 0)),
        lambda x: x.cuda(device=torch.device("cuda", 0)),
        lambda x: x.to("cpu"),
    ],
)
def test_a_device_that_is_named_stays(second_is_current, function):
    assert SECOND not in devices(torch.fx.symbolic_trace(function))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.amp.autocast_mode._enter_autocast, ("cuda", None, True, None)),
        (torch.set_autocast_enabled, ("cuda", True)),
        (torch.set_autocast_dtype, ("cuda", torch.float16)),
    ],
)
def test_a_kind_of_device_is_none_of_its_devices(second_is_current, function, args):
    graph = torch.fx.Graph()
    graph.output(graph.call_function(function, args))
    gm = torch.fx.GraphModule({}, graph)
    name_current_gpu(gm)
    assert next(iter(gm.graph.nodes)).args == args
    assert not is_for_current_gpu(function, args, {})


def test_a_result_is_no_device(second_is_current):
    gm = torch.fx.symbolic_trace(lambda x: (x + 1, "cuda"))
    name_current_gpu(gm)
    assert gm(torch.ones(1))[1] == "cuda"


def test_inner_graphs_are_named_too(second_is_current):
    inner = torch.fx.symbolic_trace(lambda x: x.to("cuda"))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("inner", (x,)))
    gm = torch.fx.GraphModule({"inner": inner}, graph)
    name_current_gpu(gm)
    assert "index=1" in gm.inner.code


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"device": "cuda"}), (("cuda",), {}), ((torch.device("cuda"),), {}),
     (("torch.cuda.HalfTensor",), {})],
)  # fmt: skip
def test_calls_that_leave_it_to_the_current_gpu(args, kwargs):
    assert is_for_current_gpu(torch.Tensor.to, (torch.ones(2), *args), kwargs)


def test_a_call_of_cuda_leaves_it_to_the_current_gpu_unless_it_is_told():
    x = torch.ones(2)
    assert is_for_current_gpu(torch.Tensor.cuda, (x,), {"non_blocking": True})
    assert not is_for_current_gpu(torch.Tensor.cuda, (x, 0), {})
    assert not is_for_current_gpu(torch.Tensor.cuda, (x,), {"device": "cuda:0"})


@pytest.mark.parametrize("value", ["cuda:0", torch.device("cuda", 0), "cpu", 0, torch.FloatTensor])
def test_calls_that_do_not(value):
    assert not is_for_current_gpu(torch.Tensor.to, (torch.ones(2), value), {"device": value})


def test_what_is_kept_on_disk_is_for_one_current_gpu(monkeypatch):
    on_first = graph_cache.flags()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert graph_cache.flags() != on_first
