"""Nearest-neighbour resizing copies the same pixels as eager's kernels."""

import math

import numpy
import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.passes.images import nearest_pixels
from tests.compiler.programs import compiled, same, schedule

MODES = ["nearest", "nearest-exact"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8]
FACTORS = [0.5, 0.7, 1.01, 1.07, 1.3, 2.0, 2.1, 2.3, 3.0, 1 / 3]
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def image(*shape, dtype=torch.float32, last=False):
    """An image whose pixels have distinct values (modulo 251)."""
    pixels = torch.arange(math.prod(shape)).reshape(shape).remainder(251).to(dtype)
    return pixels.to(memory_format=FORMATS[len(shape) - 2]) if last else pixels


def assert_equals_eager(program, *images, dynamic=False):
    """Compares results and, for floats, gradients with eager."""
    fast = compiled(program, dynamic=dynamic)
    for x in images:
        compiled_image, eager_image = (
            x.clone().requires_grad_(x.is_floating_point()) for _ in range(2)
        )
        actual, expected = fast(compiled_image), program(eager_image)
        assert torch.equal(actual, expected)
        assert actual.stride() == expected.stride()
        if x.is_floating_point():
            upstream = torch.empty_like(expected).copy_(image(*expected.shape))
            (actual_gradient,) = torch.autograd.grad(actual, compiled_image, upstream)
            (expected_gradient,) = torch.autograd.grad(expected, eager_image, upstream)
            torch.testing.assert_close(actual_gradient, expected_gradient)
            assert actual_gradient.stride() == expected_gradient.stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_lines_of_all_lengths_equal_eager(mode, dtype):
    exact = mode == "nearest-exact"
    for old in range(1, 65):
        line = image(1, 1, old, dtype=dtype)
        for new in range(1, 65):
            actual = nearest_pixels.resize(line, [new], exact, None)
            assert torch.equal(actual, F.interpolate(line, new, mode=mode)), (old, new)
        for factor in FACTORS:
            if new := int(old * factor):
                actual = nearest_pixels.resize(line, [new], exact, [factor])
                expected = F.interpolate(line, scale_factor=factor, mode=mode)
                assert torch.equal(actual, expected), (old, factor)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mode", "old", "new"), [(MODES[0], 30, 58), (MODES[1], 2, 41)])
def test_nearly_integral_quotients_equal_eager(mode, old, new, dtype, dynamic):
    lines = image(2, 3, old, dtype=dtype)
    assert_equals_eager(lambda x: F.interpolate(x, new, mode=mode), lines, dynamic=dynamic)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "factor"),
    [
        ((1, 1, 4, 3), 1.3),  # the same width
        ((2, 5, 4, 1), 2.3),  # twice as wide
        ((1, 5, 70, 61), (1.3, 1.01)),  # large, and the same width
        ((2, 5, 4, 3, 3), 1.3),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_images_scaled_by_a_factor_equal_eager(mode, shape, factor, last):
    def program(x):
        scaled = F.interpolate(x, scale_factor=factor, mode=mode)
        recomputed = F.interpolate(x, scale_factor=factor, mode=mode, recompute_scale_factor=True)
        return torch.cat([scaled, recomputed], 1)

    assert_equals_eager(program, image(*shape, last=last))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8])
def test_native_kernels_called_directly_equal_eager(dtype):
    def program(x):
        return (
            torch._C._nn.upsample_nearest2d(x, [4, 3], 1.3, None),
            torch._C._nn._upsample_nearest_exact2d(x, [50, 99], None, scales_w=33.3),
            torch._C._nn.upsample_nearest2d(x, None, scale_factors=[1.3, 1.3]),
            torch.ops.aten.upsample_nearest2d(x, None, [1.3, 1.3]),
            torch.ops.aten.upsample_nearest2d.default(x, [4, 3], 1.3, 1.3),
        )

    same(program, image(2, 5, 4, 3, dtype=dtype), rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_one_record_serves_images_of_all_sizes(mode):
    def program(x):
        return F.interpolate(x, scale_factor=1.3, mode=mode) * 2

    fast = magpy.compile(program, dynamic=True, options={"strict": True})
    for n in (40, 3, 20, 41, 80):  # width 3 stays the same; 80 exceeds the limit of small images
        x = image(2, 3, 4, n)
        assert torch.equal(fast(x), program(x))
    assert magpy.cache_info(fast).records == 1


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_images_of_all_sizes_equal_eager(mode):
    def program(x):
        return F.interpolate(x, scale_factor=1.3, mode=mode)

    assert_equals_eager(
        program, image(2, 3, 4, 40), image(2, 3, 5, 3), image(2, 3, 9, 99), dynamic=True
    )


@pytest.mark.parametrize("mode", MODES)
def test_nearest_resizing_is_compiled_to_kernels(mode):
    steps = schedule(lambda x: F.interpolate(x, scale_factor=1.3, mode=mode), image(2, 3, 9, 8))
    assert all(isinstance(step, Kernel) for step in steps.steps)


@pytest.mark.parametrize("exact", [False, True])
def test_gpu_gradient_indices_follow_the_starts_of_pixels(exact):
    before = 0.5 if exact else 0.0
    for old in range(1, 40):
        for new in (*range(1, 40, 3), 73, 99):
            step = numpy.float32(new) / numpy.float32(old)
            starts = [
                math.ceil(numpy.float32(float(step) * pixel - before)) for pixel in range(old + 1)
            ]
            expected = [sum(start <= pixel for start in starts) - 1 for pixel in range(new)]
            (actual,) = nearest_pixels._gradient_indices(
                image(1, 1, new), [old], [new], exact, [None]
            )
            assert actual.tolist() == expected
