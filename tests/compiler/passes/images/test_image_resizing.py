"""Compiled image resizing equals eager: bytes exactly, in fixed point; floats with infinities."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.passes.images import interpolation
from tests.compiler.programs import same, same_gradients, schedule, seeded

IMAGES = seeded(2, 3, 17, 13).sigmoid().mul(256).byte()


@pytest.mark.cpu  # eager does not support bytes on a GPU
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resized_byte_images_equal_eager(mode):
    kernel = getattr(torch._C._nn, f"upsample_{mode}2d")

    def resize(x):
        return (
            F.interpolate(x, (9, 20), mode=mode, align_corners=True),
            F.interpolate(x, scale_factor=2.3, mode=mode),
            F.interpolate(x + 1, None, (0.7, 1.9), mode) // 2,
            F.interpolate(x, scale_factor=1.37, mode=mode, recompute_scale_factor=True),
            kernel(x, (9, 20), False),
            kernel(x, None, True, (1.7, 0.4)),
        )

    def enlarged(x):
        return F.interpolate(x, (9, 20), mode=mode)

    same(resize, IMAGES)
    same(enlarged, IMAGES.to(memory_format=torch.channels_last))
    same(enlarged, IMAGES, dynamic=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resized_float_images_are_kernels(mode):
    steps = schedule(lambda x: F.interpolate(x, (9, 20), mode=mode), IMAGES.float()).steps
    assert all(isinstance(step, Kernel) for step in steps)


def _with_infinities(shape, dtype):
    x = seeded(*shape).to(dtype)
    x.view(-1)[::7] = torch.tensor(torch.inf)
    x.view(-1)[1::29] = -torch.inf
    x.view(-1)[2::31] = torch.nan
    return x


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("linear", torch.bfloat16),
        ("bilinear", torch.float32),
        ("trilinear", torch.float32),
        ("bicubic", torch.bfloat16),
    ],
)
def test_resized_images_with_infinities_equal_eager(mode, dtype):
    rank = {"linear": 1, "trilinear": 3}.get(mode, 2)
    image = _with_infinities((1, 3, *[5] * rank), dtype)
    kernel = getattr(torch._C._nn, f"upsample_{mode}{rank}d")

    def some_sizes(x):
        return [] if rank == 1 or mode == "bicubic" else [kernel(x, [5] * (rank - 1) + [8], False)]

    def resize(x):
        parts = (
            F.interpolate(x, [8] * rank, mode=mode, align_corners=True),
            F.interpolate(x, scale_factor=1.7, mode=mode),
            kernel(x, [5] * rank, False),
            *some_sizes(x),
        )
        return torch.cat([part.reshape(-1) for part in parts])

    same_gradients(resize, image)


@pytest.mark.cpu  # uses a fake GPU
@pytest.mark.parametrize(("size", "loads"), [([5, 5], 0), ([5, 8], 4)])
def test_image_of_unchanged_size_is_copied_on_a_gpu(size, loads):
    def program(x):
        return interpolation.resize(x, size, "bilinear", False, None)

    with FakeTensorMode():
        graph = make_fx(program)(torch.empty(1, 3, 5, 5, device="cuda")).graph
    index = torch.ops.aten._unsafe_index.Tensor
    assert len(graph.find_nodes(op="call_function", target=index)) == loads
