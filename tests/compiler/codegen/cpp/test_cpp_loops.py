"""Loops of C++ kernels: hoisted invariants, interiors without masks, and transposed tiles."""

import re

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.cpp import cpp_printer
from tests.compiler.programs import compiled, kernels, same

IMAGE = torch.randn(2, 3, 40, 40)


def kernel_text(function, *inputs):
    """The C++ source of the one kernel of ``function``."""
    (kernel,) = kernels(function, *inputs)
    return cpp_printer.print_function(kernel, int)


def vector_bodies(source):
    """The bodies of the loops marked ``omp simd``."""
    return re.findall(r"#pragma omp simd[^\n]*\n([^}]*)", source)


def masked_loads(body):
    return re.findall(r"= \w+ \? \w+\[", body)


def pooled(x):
    return F.max_pool2d(x, 3, 2, 1)


def padded(x):
    return F.pad(x, (1, 2, 3, 0))


@pytest.mark.parametrize("function", [pooled, padded, lambda x: F.avg_pool2d(x, 3, 2, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_interior_loads_are_not_masked(function, layout):
    border, inside = vector_bodies(kernel_text(function, IMAGE.contiguous(memory_format=layout)))
    assert masked_loads(border)
    assert not masked_loads(inside)


def fold_borders(x):
    """Like a gradient of padding: elements near the border receive several terms."""
    y = x[..., 1:-1] + F.pad(x[..., :2].flip(-1), (1, x.shape[-1] - 5))
    y = y + F.pad(x[..., -1:], (x.shape[-1] - 4, 1))
    return y[..., 1:-1, :] + F.pad(y[..., :1, :], (0, 0, y.shape[-2] - 4, 1))


def test_border_terms_are_absent_from_the_interior():
    border, inside = vector_bodies(kernel_text(lambda x: x + F.pad(x[..., :1], (2, 37)), IMAGE))
    assert masked_loads(border)
    assert len(re.findall(r"\w+\[", inside)) == 2  # one load and one store
    border, inside = vector_bodies(
        kernel_text(lambda x: x + F.pad(x[..., :1, :], (0, 0, 2, 37)), IMAGE)
    )
    assert masked_loads(border)
    assert len(re.findall(r"\w+\[", inside)) == 2


@pytest.mark.parametrize("size", [(1, 1, 5, 5), (2, 3, 6, 40), (2, 3, 40, 9), (2, 1, 33, 21)])
def test_border_with_several_terms_equals_eager(size):
    x = torch.randn(size)
    x[..., 0, 0] = float("inf")
    x[..., -1, -1] = float("nan")
    same(fold_borders, x)


def reflection_gradient(grad, x, padding):
    """The gradient of reflection padding."""
    operator = getattr(torch.ops.aten, f"reflection_pad{len(padding) // 2}d_backward")
    return operator(grad, x, padding)


def test_interior_of_reflection_gradients_reads_one_element():
    images, padded = torch.randn(2, 3, 40, 40), torch.randn(2, 3, 43, 45)
    for kernel in kernels(lambda g, x: reflection_gradient(g, x, [2, 3, 1, 2]), padded, images):
        _, inside = vector_bodies(cpp_printer.print_function(kernel, int))
        assert len(re.findall(r"\w+\[", inside)) == 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("size", "padding"),
    [((2, 5), [4, 4]), ((2, 3, 4, 9), [8, 1, 3, 0]), ((2, 3, 4, 9), [-1, 2, 1, -2]),
     ((2, 2, 3, 4, 5), [1, 4, 0, 3, 2, 1])],
)  # fmt: skip
def test_reflection_gradients_equal_eager(size, padding, dynamic):
    x = torch.randn(size)
    grad = torch.randn_like(F.pad(x, padding, mode="reflect"))
    same(lambda g, x: reflection_gradient(g, x, padding), grad, x, dynamic=dynamic)


def test_loops_without_an_interior_mask_every_load():
    (body,) = vector_bodies(kernel_text(lambda x: F.pad(x, (8, 8)), torch.randn(2, 3, 5, 4)))
    assert masked_loads(body)


@pytest.mark.parametrize("function", [pooled, padded, lambda x: F.avg_pool2d(x, 3, 2, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1), (2, 3, 2, 40), (2, 3, 40, 2), (2, 1, 7, 9), (1, 20, 17, 33)], ids=str
)
def test_borders_and_interior_equal_eager(function, layout, size):
    x = torch.randn(size).contiguous(memory_format=layout)
    same(function, x)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_pooling_of_special_values_equals_eager(special):
    x = IMAGE.clone()
    x[0, 0, 0, 0] = x[0, 1, 39, 39] = x[1, 2, 20, 21] = x[1, 0, 17, 0] = special
    same(lambda x: (pooled(x), padded(x), F.max_pool2d(x, 3, 1, 1, return_indices=True)), x)
    same(pooled, torch.full((1, 2, 20, 20), special))


def test_pooling_and_padding_of_empty_tensors_equal_eager():
    same(pooled, torch.randn(0, 3, 8, 8))
    same(lambda x: F.pad(x, (1, 2, 3, 0), value=7.0), torch.randn(2, 0, 4))
    same(lambda x: F.pad(x, (3, 1)), torch.randn(2, 0))


def test_pooling_gradients_equal_eager():
    x = IMAGE.clone().requires_grad_()
    y = IMAGE.clone().requires_grad_()
    compiled(pooled)(x).square().sum().backward()
    pooled(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


WEIGHT, ROWS = torch.randn(9, 32), torch.tensor([[0, 8, 3], [8, 8, 1]])


def test_index_is_loaded_and_checked_once_per_row():
    (body,) = vector_bodies(kernel_text(lambda i, w: F.embedding(i, w) * 2, ROWS, WEIGHT))
    assert len(re.findall(r"\w+\[", body)) == 2  # one load and one store
    assert "bad" not in body


@pytest.mark.parametrize("width", [1, 2, 32])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:0], ROWS[:1, :1], torch.tensor(4)], ids=range(4))
def test_embedding_lookups_equal_eager(rows, width):
    same(lambda i, w: F.embedding(i, w), rows, WEIGHT[:, :width].contiguous())


def test_invalid_index_raises_outside_the_loop():
    look_up = compiled(lambda i, w: F.embedding(i, w))
    look_up(ROWS, WEIGHT)
    with pytest.raises(IndexError):
        look_up(ROWS + 1, WEIGHT)


def test_scalar_tensor_is_loaded_once():
    x, scale = torch.randn(40, 30), torch.tensor(3.0)
    (body,) = vector_bodies(kernel_text(lambda x, s: x.t() * s.exp(), x, scale)) or [""]
    same(lambda x, s: (x.t() * s.exp(), x * s), x, scale)
    assert "exp" not in body


def test_mutated_inputs_are_not_hoisted():
    def function(x, total):
        y = x * total
        total.add_(1)
        return y + total

    same(function, torch.randn(8, 16), torch.randn(8, 1))
    same(function, torch.randn(8, 16), torch.tensor(2.0))


# --- buffers that are contiguous along another loop -----------------------------------------------


def add_transposed(x, y):
    return x + y.t() * 2


def test_strided_inputs_are_transposed_instead_of_gathered():
    source = kernel_text(add_transposed, torch.randn(200, 300), torch.randn(300, 200))
    assert source.count("transpose(") == 1
    for body in vector_bodies(source):
        assert not re.findall(r"= \w+\[\(x0 \+ \(\d+ \* x1\)\)\]", body)


@pytest.mark.parametrize("size", [(128, 256), (127, 300), (17, 2000), (300, 301)], ids=str)
def test_whole_and_partial_tiles_are_transposed(size):
    same(add_transposed, torch.randn(size), torch.randn(size[::-1]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.int64], ids=str)
def test_elements_of_every_width_are_transposed(dtype):
    x, y = torch.randn(150, 211) * 9, torch.randn(211, 150) * 9
    same(add_transposed, x.to(dtype), y.to(dtype))


def test_booleans_are_transposed():
    same(lambda x, y: x ^ y.t(), torch.randn(150, 200) > 0, torch.randn(200, 150) > 0)


def test_several_inputs_are_transposed_within_an_outer_loop():
    def function(x, y, z):
        return x + y.permute(0, 2, 3, 1) / (1 + z.permute(0, 2, 3, 1).abs()), y.mT

    same(function, torch.randn(2, 33, 35, 70), *(torch.randn(2, 70, 33, 35) for _ in range(2)))


def test_large_inputs_are_transposed_in_blocks():
    same(add_transposed, torch.randn(1030, 1040), torch.randn(1040, 1030))


@pytest.mark.parametrize("index", [(0, 3, 4), (0, 29, 9), (0, 0, 0)])
def test_nan_is_the_extremum_of_a_reduction_over_two_loops(index):
    """The rows are parts of longer rows, so two loops reduce them, and either may read NaN."""
    x = torch.randn(2, 30, 40)
    x[index] = float("nan")
    same(lambda x: (x[:, :, :10].amax((1, 2)), x[:, :, :10].amin(), x[:, :10].amax((0, 2))), x)
    same(lambda x: (x.permute(2, 0, 1)[:10].amin((0, 2)) * 2, x[:, :, ::3].max()), x)
    same(lambda x: F.adaptive_max_pool2d(x, (1, 2)), x)


def test_roll_computes_no_index_tensor():
    x = torch.randn(30, 40)
    for source in (
        kernels(lambda x: x.roll(3, 1), x),
        kernels(lambda x: x.roll((1, 2), (0, 1)), x),
    ):
        assert all(
            value.dtype != torch.int64 for k in source for n in k.nodes() for value in n.body.values
        )
    for shifts, dims in ((3, 1), (0, 0), (-75, 1), ((1, 2), (0, 1)), ((1, 1), (1, 1)), (7, ())):
        same(lambda x, s=shifts, d=dims: x.roll(s, d), x)
    same(lambda x: x.roll(1, 0), torch.randn(0, 3))
