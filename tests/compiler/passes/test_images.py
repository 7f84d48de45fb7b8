"""Images of bytes come out of a compiled resize pixel by pixel as eager's, which is fixed-point."""

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.common import Kernel
from tests.compiler.programs import same, schedule, seeded

IMAGES = seeded(2, 3, 17, 13).sigmoid().mul(256).byte()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_pixels_are_eagers(mode):
    kernel = getattr(torch._C._nn, f"upsample_{mode}2d")

    def resized(x):
        return (
            F.interpolate(x, (9, 20), mode=mode, align_corners=True),
            F.interpolate(x, scale_factor=2.3, mode=mode),
            F.interpolate(x + 1, None, (0.7, 1.9), mode) // 2,
            F.interpolate(x, scale_factor=1.37, mode=mode, recompute_scale_factor=True),
            kernel(x, (9, 20), False),
            kernel(x, None, True, (1.7, 0.4)),
        )

    same(resized, IMAGES)
    same(resized, IMAGES.to(memory_format=torch.channels_last))
    same(lambda x: F.interpolate(x, (9, 20), mode=mode), IMAGES, dynamic=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_floats_are_still_loops(mode):
    steps = schedule(lambda x: F.interpolate(x, (9, 20), mode=mode), IMAGES.float()).steps
    assert all(isinstance(step, Kernel) for step in steps)
