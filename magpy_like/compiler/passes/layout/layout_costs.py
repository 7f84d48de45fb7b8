"""Where a convolution is faster on a channels-last image: the costs behind ``channels_last``.

On a CPU, oneDNN convolves channels-last images in place; any others it copies into blocks and back.
*Measured* on one core with AVX-512, 3 x 3 convolutions of float32: 1.6 times as fast at 256 x 256
and 128 x 128 pixels, equal for single pixels. So large images are converted.

The gain is per pixel, the loss per weight: for such images oneDNN takes longer to reorder the
weights, which it does at each call. *Measured*, by the ratio of weights to elements of the images
in and out: 1.2 to 2.1 times as fast at a tenth, 1.0 at 0.7 and at 1.5, 0.78 at 6, 0.55 at 12 and
24. So a convolution with many more weights than pixels gets its image in the original layout: the
last layers of most networks.

With gradients, oneDNN holds three more copies of the weights for a while, which takes more memory
than eager mode (*measured*, ResNet-18: 3 %) unless there are at most half as many weights as
elements. *Measured*, training steps on two cores of two processors with AVX-512: ResNet-18 0.99 and
MonoDepth 1.12 times as fast; before that limit, ResNet-18 1.01, TridentNet 1.04, U-Net 1.10,
MonoDepth 1.11 to 1.13 and DenseNet-121 1.15 to 1.6.

On a GPU, the matrix units read channels-last images, and cuDNN converts any others for each
convolution and back. *Measured* on an H100, time of all kernels with channels-last over that
without: ResNet-101 .60 in float16, .85 in TF32 and .66 in training with bfloat16, DenseNet-121 .82
in TF32, MobileNet-v3 .71 in float16. It is 1.3 for RegNet-Y, in TF32 and float16: images of grouped
convolutions are converted all the same.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Graph, Node

from magpy_like.compiler.passes.graph_queries import aten, tensor
from magpy_like.compiler.passes.layout.dimension_orders import (
    is_channels_last,
    size_hints,
)
from magpy_like.torch_compat.float32_precision import gpu_convolutions_use_tf32
from magpy_like.torch_interop.onednn import has_onednn

MIN_PIXELS = 64 * 64
"""Pixels (height times width) of an image that is converted, on a CPU."""
MAX_WEIGHTS_PER_ELEMENT = 2
"""Weights of a convolution per element of its input and output images, on a CPU."""
MAX_TRAINED_WEIGHTS_PER_ELEMENT = 0.5
"""As above, for weights that have gradients."""


class LayoutCosts:
    """The costs of layouts in one graph."""

    def __init__(self, graph: Graph) -> None:
        convolutions = graph.find_nodes(op="call_function", target=aten.convolution.default)
        self._on_gpu = not any(map(_is_grouped, convolutions))

    def favour_channels_last(self, node: Node) -> bool:
        """True if a convolution's image is worth a channels-last copy."""
        x, w = tensor(node.args[0]), tensor(node.args[1])
        if x is None or w is None or x.dim() != 4 or size_hints(w) is None:
            return False
        if (sizes := size_hints(x)) is None or not x.is_contiguous() or is_channels_last(x):
            return False
        if x.device.type == "cuda":
            return self._on_gpu and _has_matrix_units(x) and _groups(node) == 1
        return (
            x.device.type == "cpu"
            and has_onednn()
            and x.dtype == torch.float32
            and math.prod(sizes[2:]) >= MIN_PIXELS
            and w.shape[2] * w.shape[3] > 1
        )

    def favour_traced_layout(self, node: Node) -> bool:
        """True if a convolution loses more by a channels-last image than a copy of it costs."""
        image = tensor(node.args[0])
        return (image is None or image.device.type == "cpu") and not _has_few_weights(node)

    def favour_channels_last_weight(self, node: Node) -> bool:
        """True if the weight of a convolution of a channels-last image is worth a copy.

        On a GPU, each of the convolution and its gradients would copy it.
        """
        x, w = tensor(node.args[0]), tensor(node.args[1])
        return (
            x is not None
            and w is not None
            and x.device.type == "cuda"
            and _has_matrix_units(x)
            and is_channels_last(x)
            and w.dim() == 4
            and _groups(node) == 1
            and size_hints(w) is not None
            and w.is_contiguous()
            and not is_channels_last(w)
        )


def gradients(node: Node) -> list[Node]:
    """The nodes of a joint graph that compute the gradients of a convolution."""
    image, weight = node.args[:2]
    assert isinstance(image, Node)
    return [
        user
        for user in image.users
        if user.target is aten.convolution_backward.default and user.args[1:3] == (image, weight)
    ]


def _groups(node: Node) -> int:
    groups = node.args[8]
    assert isinstance(groups, int)
    return groups


def _is_grouped(node: Node) -> bool:
    """True for a convolution with groups of several channels."""
    weight = tensor(node.args[1])
    return _groups(node) > 1 and weight is not None and weight.shape[1] != 1


def _has_matrix_units(image: torch.Tensor) -> bool:
    """True if a GPU multiplies the image's elements by its matrix units."""
    if image.dtype == torch.float32:
        return gpu_convolutions_use_tf32()
    return image.dtype in (torch.float16, torch.bfloat16)


def _has_few_weights(node: Node) -> bool:
    """True if the gain for the images exceeds the loss for the weights, on a CPU."""
    parts = [tensor(part) for part in (node.args[1], node.args[0], node)]
    sizes = [
        found for part in parts if part is not None and (found := size_hints(part)) is not None
    ]
    if len(sizes) < len(parts):
        return False
    weights, image, result = (math.prod(found) for found in sizes)
    return weights <= (
        MAX_TRAINED_WEIGHTS_PER_ELEMENT if gradients(node) else MAX_WEIGHTS_PER_ELEMENT
    ) * (image + result)
