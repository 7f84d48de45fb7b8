"""Graphs whose calls use the current GPU, with a stub of two GPUs.

The device `meta` replaces `cuda` in programs that run.
"""

import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.compiler.runtime import captured_graph_cache
from magpy_like.torch_interop import current_gpu
from magpy_like.torch_interop.current_gpu import has_current_gpu_calls, may_use_current_gpu
from tests.programs import Twins, one


@pytest.fixture
def gpus(monkeypatch):
    """A stub of a machine with two GPUs; ``gpus.now`` is the current one."""
    found = types.SimpleNamespace(now=0, count=2)
    found.cuda = types.SimpleNamespace(
        device_count=lambda: found.count,
        is_initialized=lambda: True,
        current_device=lambda: found.now,
    )
    monkeypatch.setattr(
        current_gpu, "torch", types.SimpleNamespace(cuda=found.cuda, device=torch.device)
    )
    return found


@pytest.fixture
def meta(gpus, monkeypatch):
    """``meta`` is treated like ``cuda``."""
    original = current_gpu._is_current

    def is_current(value):
        return original(value) or (type(value) in (str, torch.device) and str(value) == "meta")

    monkeypatch.setattr(current_gpu, "_is_current", is_current)
    return gpus


X = torch.ones(2)


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (torch.Tensor.to, (X, "cuda"), {}),
        (torch.Tensor.to, (X, torch.device("cuda")), {}),
        ("to", (X, "cuda"), {}),
        (torch.ones, (3,), {"device": "cuda"}),
        (torch.zeros_like, (X,), {"device": torch.device("cuda")}),
        (torch.Tensor.cuda, (X,), {}),
        ("cuda", (X, None), {}),
        (torch.ops.aten.cuda.default, (X,), {}),
        (torch.ops.aten.to.device, (X, "cuda", torch.float32), {}),
        (torch.ops.prims.device_put, (X, "cuda"), {}),
        (torch.Tensor.type, (X, "torch.cuda.HalfTensor"), {}),
    ],
)
def test_calls_with_unspecific_device_use_the_current_gpu(gpus, target, args, kwargs):
    assert may_use_current_gpu(target, args, kwargs)
    gpus.count = 1
    assert not may_use_current_gpu(target, args, kwargs), "there is only one GPU"


@pytest.mark.parametrize("value", ["cuda:0", torch.device("cuda", 0), "cpu", 0, torch.FloatTensor])
def test_calls_with_specific_device_do_not_use_the_current_gpu(gpus, value):
    assert not may_use_current_gpu(torch.Tensor.to, (X, value), {"device": value})


def test_analysis_runs_no_code_of_the_program(gpus):
    class Claims:
        @property
        def __class__(self):
            raise AssertionError("the class was read")

        def __eq__(self, other):
            raise AssertionError("compared")

    assert not may_use_current_gpu(torch.ones, (Claims(),), {"device": Claims()})


def test_nested_graphs_are_searched(gpus):
    inner = torch.fx.symbolic_trace(lambda x: x.to("cuda"))
    graph = torch.fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    assert has_current_gpu_calls(torch.fx.GraphModule({"inner": inner}, graph))
    assert not has_current_gpu_calls(torch.fx.symbolic_trace(lambda x: (x + 1, "cuda")))


@pytest.mark.parametrize(("device_name", "cache_clears"), [("meta", 1), ("cpu", 0)])
def test_tracing_clears_the_fake_tensor_cache_for_current_gpu_calls_only(
    meta, monkeypatch, device_name, cache_clears
):
    cleared = []
    monkeypatch.setattr(FakeTensorMode, "cache_clear", lambda: cleared.append(1))
    gm = torch.fx.symbolic_trace(
        lambda x: (x + 1, torch.ops.aten.to.device(x, device_name, x.dtype))
    )
    compile_fx(gm, [X])
    assert len(cleared) == cache_clears


@pytest.mark.parametrize(("device_name", "is_equal"), [("meta", False), ("cpu", True)])
def test_disk_cache_key_includes_the_current_gpu(meta, device_name, is_equal):
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ones, (3,), {"device": device_name}))
    gm = torch.fx.GraphModule({}, graph)
    on_first = captured_graph_cache.key(gm, [])
    meta.now = 1
    assert (captured_graph_cache.key(gm, []) == on_first) == is_equal


PROGRAMS = {
    "keyword": lambda x: (x + 1, torch.ones(3, device="meta")),
    "position": lambda x: (x + 1, x.to("meta")),
    "under vmap": lambda x: torch.vmap(lambda row: row + torch.ones(3, device="meta").shape[0])(x),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(
        lambda y: (y + 1, y.to("meta").shape[0]), x, use_reentrant=False
    )[0],
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_record_with_current_gpu_call_serves_one_gpu(meta, program):
    twins = Twins(lambda: program, backend="magpy")
    for now, hit in ((0, False), (0, True), (1, False), (1, True), (0, True)):
        meta.now = now
        twins.call(one(1.0, 2.0), hit=hit)


@pytest.mark.parametrize("name", ["keyword", "under vmap"])
def test_any_backend_compiles_once_per_gpu_with_cleared_cache(meta, monkeypatch, name):
    done = []
    monkeypatch.setattr(FakeTensorMode, "cache_clear", lambda: done.append("cleared"))

    def backend(gm, inputs):
        done.append("compiled")
        return gm.forward

    fast = magpy.compile(PROGRAMS[name], backend=backend)
    for meta.now in (0, 1):
        fast(torch.ones(2, 3))
    assert done == ["cleared", "compiled"] * 2


def test_default_device_without_index_uses_the_current_gpu(meta):
    with torch.device("meta"):
        fast = magpy.compile(lambda x: (x + 1, torch.ones(3)))
        for meta.now in (0, 0, 1, 1, 0):
            fast(X)
    assert magpy.cache_info(fast).misses == 2


def test_other_records_serve_all_gpus(meta):
    twins = Twins(lambda: lambda x: (x + 1, torch.ones(3, device=x.device)), backend="magpy")
    for now, hit in ((0, False), (0, True), (1, True), (0, True)):
        meta.now = now
        twins.call(one(1.0, 2.0), hit=hit)


def test_single_gpu_needs_no_condition(meta):
    meta.count = 1
    twins = Twins(lambda: PROGRAMS["keyword"], backend="magpy")
    for now, hit in ((0, False), (0, True), (1, True)):
        meta.now = now
        twins.call(one(1.0, 2.0), hit=hit)
