"""The GPUs of a graph and the streams of its backward pass, with stubs for the streams."""

import pytest
import torch
from torch._subclasses import fake_tensor

from magpy_like.compiler.autograd import backward_streams
from magpy_like.compiler.autograd.backward_streams import gpus_of, on_default_streams


@pytest.fixture
def streams(monkeypatch):
    """The number of each GPU's current stream; 0 is the default one."""
    found = {0: 0, 1: 0}
    monkeypatch.setattr(backward_streams, "current_raw_stream", found.__getitem__)
    return found


@pytest.mark.parametrize("gpu", [0, 1])
def test_gradients_on_several_gpus_run_eagerly_on_other_streams(streams, gpu):
    run = on_default_streams(lambda x: "compiled", lambda x: "eager", {0, 1})
    assert run(1) == "compiled"
    streams[gpu] = 140_000
    assert run(1) == "eager"
    with torch.no_grad():
        assert run(1) == "compiled"
    streams[gpu] = 0
    assert run(1) == "compiled"


def test_streams_of_unused_gpus_are_ignored(streams):
    streams[1] = 140_000
    assert on_default_streams(lambda: "compiled", lambda: "eager", {0})() == "compiled"


def test_gpus_of_a_graph_are_collected(monkeypatch):
    # A fake tensor needs no GPU, but torch initialises its context, which fails on fewer GPUs.
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    with fake_tensor.FakeTensorMode():
        for device in ("cuda:0", "cuda:2", "cpu", "cuda:2"):
            node = graph.call_function(torch.ops.aten.to.device, (node, torch.device(device)))
            node.meta["val"] = torch.empty(3, device=device)
    graph.output(node)
    assert gpus_of(torch.fx.GraphModule({}, graph)) == {0, 2}
