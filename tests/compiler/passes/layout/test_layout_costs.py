"""Layouts of convolutions on a GPU, by their costs."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import fake_impls

from magpy_like.compiler.passes.layout import layout_costs
from magpy_like.compiler.passes.layout.channels_last import use_channels_last
from tests.compiler.codegen.triton.fake_gpu import traced

aten = torch.ops.aten
IMAGE, WEIGHT, POINT = (4, 64, 14, 14), (64, 64, 3, 3), (64, 64, 1, 1)


@pytest.fixture(autouse=True)
def cudnn(monkeypatch):
    """The layouts of cuDNN's results, which fake tensors know only where it is installed."""

    def layout(image, weight, backend):
        images = (image, weight)
        last = any(t.is_contiguous(memory_format=torch.channels_last) for t in images)
        return torch.channels_last if last else torch.contiguous_format

    monkeypatch.setattr(layout_costs, "gpu_convolutions_use_tf32", lambda: True)
    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", layout)
    assert fake_impls.conv  # the rule for convolutions that reads it


def copies(graph):
    """The shapes of tensors that are copied to channels-last."""
    nodes = graph.graph.find_nodes(op="call_function", target=aten.clone.default)
    found = [n for n in nodes if n.kwargs.get("memory_format") == torch.channels_last]
    return [tuple(n.meta["val"].shape) for n in found]


def block(image, weight, point):
    return F.conv2d(F.conv2d(image, weight, padding=1).relu(), point).sum((2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_image_is_copied_once_and_each_weight_of_several_pixels(dtype):
    """A weight of one pixel has the same memory in both layouts."""
    graph = traced(block, IMAGE, WEIGHT, POINT, dtype=dtype)
    assert use_channels_last(graph)
    assert copies(graph) == [IMAGE, WEIGHT]
    convolutions = graph.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert [n.meta["val"].stride(1) for n in convolutions] == [1, 1]


def test_float32_without_matrix_units_keeps_its_layout(monkeypatch):
    monkeypatch.setattr(layout_costs, "gpu_convolutions_use_tf32", lambda: False)
    assert not use_channels_last(traced(block, IMAGE, WEIGHT, POINT))
    assert use_channels_last(traced(block, IMAGE, WEIGHT, POINT, dtype=torch.float16))
    assert not use_channels_last(traced(block, IMAGE, WEIGHT, POINT, dtype=torch.float64))


def test_graph_with_grouped_convolution_keeps_its_layout():
    def grouped(image, weight, narrow):
        return F.conv2d(F.conv2d(image, weight), narrow, groups=4)

    assert not use_channels_last(traced(grouped, IMAGE, WEIGHT, (64, 16, 3, 3)))


def test_depthwise_convolution_follows_its_image():
    def depthwise(image, weight, thin):
        return F.conv2d(F.conv2d(image, weight), thin, groups=64)

    graph = traced(depthwise, IMAGE, WEIGHT, (64, 1, 3, 3), dtype=torch.float16)
    assert use_channels_last(graph)
    assert copies(graph) == [IMAGE, WEIGHT]
    assert not use_channels_last(
        traced(lambda x, w: F.conv2d(x, w, groups=64), IMAGE, (64, 1, 3, 3), dtype=torch.float16)
    )


def test_gradients_read_the_same_copies():
    def training(image, weight, gradient):
        result = F.conv2d(image, weight)
        both = aten.convolution_backward(
            gradient, image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
            [True, True, False],
        )  # fmt: skip
        return result, both[0], both[1]

    graph = traced(training, IMAGE, WEIGHT, (4, 64, 12, 12), dtype=torch.bfloat16)
    assert use_channels_last(graph)
    assert copies(graph) == [IMAGE, WEIGHT]
    (node,) = graph.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert all(n.target is aten.clone.default for n in node.args[1:3])
    assert all(n.meta["val"].is_contiguous() for n in graph.graph.output_node().args[0])
