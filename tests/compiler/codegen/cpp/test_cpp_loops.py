"""What C++ kernels compute outside of their loops, and where they need no masks."""

import re

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.cpp import cpp_printer
from tests.compiler.programs import compiled, kernels, same

IMAGE = torch.randn(2, 3, 40, 40)


def text(function, *inputs):
    """The C++ of the one kernel that ``function`` becomes."""
    (kernel,) = kernels(function, *inputs)
    return cpp_printer.print_function(kernel, int)


def vectors(source):
    """The bodies of the loops that become vectors."""
    return re.findall(r"#pragma omp simd[^\n]*\n([^}]*)", source)


def masked_loads(body):
    return re.findall(r"= \w+ \? \w+\[", body)


def pooled(x):
    return F.max_pool2d(x, 3, 2, 1)


def padded(x):
    return F.pad(x, (1, 2, 3, 0))


@pytest.mark.parametrize("function", [pooled, padded, lambda x: F.avg_pool2d(x, 3, 2, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_inside_the_border_nothing_is_masked(function, layout):
    border, inside = vectors(text(function, IMAGE.contiguous(memory_format=layout)))
    assert masked_loads(border)
    assert not masked_loads(inside)


def folded(x):
    """What a gradient of padding is: places near the border get more than one element."""
    y = x[..., 1:-1] + F.pad(x[..., :2].flip(-1), (1, x.shape[-1] - 5))
    y = y + F.pad(x[..., -1:], (x.shape[-1] - 4, 1))
    return y[..., 1:-1, :] + F.pad(y[..., :1, :], (0, 0, y.shape[-2] - 4, 1))


def test_what_only_the_border_gets_is_not_looked_for_inside():
    border, inside = vectors(text(lambda x: x + F.pad(x[..., :1], (2, 37)), IMAGE))
    assert masked_loads(border)
    assert len(re.findall(r"\w+\[", inside)) == 2  # an element read, and one written
    border, inside = vectors(text(lambda x: x + F.pad(x[..., :1, :], (0, 0, 2, 37)), IMAGE))
    assert masked_loads(border)
    assert len(re.findall(r"\w+\[", inside)) == 2


@pytest.mark.parametrize("size", [(1, 1, 5, 5), (2, 3, 6, 40), (2, 3, 40, 9), (2, 1, 33, 21)])
def test_a_border_that_gets_more_is_eagers(size):
    x = torch.randn(size)
    x[..., 0, 0] = float("inf")
    x[..., -1, -1] = float("nan")
    same(folded, x)


def folded_back(grad, x, padding):
    """The gradient of a reflection."""
    operator = getattr(torch.ops.aten, f"reflection_pad{len(padding) // 2}d_backward")
    return operator(grad, x, padding)


def test_gradients_of_reflections_read_one_element_for_each_inside():
    images, padded = torch.randn(2, 3, 40, 40), torch.randn(2, 3, 43, 45)
    for kernel in kernels(lambda g, x: folded_back(g, x, [2, 3, 1, 2]), padded, images):
        _, inside = vectors(cpp_printer.print_function(kernel, int))
        assert len(re.findall(r"\w+\[", inside)) == 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("size", "padding"),
    [((2, 5), [4, 4]), ((2, 3, 4, 9), [8, 1, 3, 0]), ((2, 3, 4, 9), [-1, 2, 1, -2]),
     ((2, 2, 3, 4, 5), [1, 4, 0, 3, 2, 1])],
)  # fmt: skip
def test_gradients_of_reflections_are_eagers(size, padding, dynamic):
    x = torch.randn(size)
    grad = torch.randn_like(F.pad(x, padding, mode="reflect"))
    same(lambda g, x: folded_back(g, x, padding), grad, x, dynamic=dynamic)


def test_where_most_is_border_every_load_is_masked():
    (body,) = vectors(text(lambda x: F.pad(x, (8, 8)), torch.randn(2, 3, 5, 4)))
    assert masked_loads(body)


@pytest.mark.parametrize("function", [pooled, padded, lambda x: F.avg_pool2d(x, 3, 2, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1), (2, 3, 2, 40), (2, 3, 40, 2), (2, 1, 7, 9), (1, 20, 17, 33)], ids=str
)
def test_borders_and_interior_are_eagers(function, layout, size):
    x = torch.randn(size).contiguous(memory_format=layout)
    same(function, x)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_special_values_are_pooled_as_eager_does(special):
    x = IMAGE.clone()
    x[0, 0, 0, 0] = x[0, 1, 39, 39] = x[1, 2, 20, 21] = x[1, 0, 17, 0] = special
    same(lambda x: (pooled(x), padded(x), F.max_pool2d(x, 3, 1, 1, return_indices=True)), x)
    same(pooled, torch.full((1, 2, 20, 20), special))


def test_nothing_is_pooled_and_padded_as_eager_does():
    same(pooled, torch.randn(0, 3, 8, 8))
    same(lambda x: F.pad(x, (1, 2, 3, 0), value=7.0), torch.randn(2, 0, 4))
    same(lambda x: F.pad(x, (3, 1)), torch.randn(2, 0))


def test_gradients_of_pooling_are_eagers():
    x = IMAGE.clone().requires_grad_()
    y = IMAGE.clone().requires_grad_()
    compiled(pooled)(x).square().sum().backward()
    pooled(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


WEIGHT, ROWS = torch.randn(9, 32), torch.tensor([[0, 8, 3], [8, 8, 1]])


def test_an_index_is_read_and_checked_once_for_a_row():
    (body,) = vectors(text(lambda i, w: F.embedding(i, w) * 2, ROWS, WEIGHT))
    assert len(re.findall(r"\w+\[", body)) == 2  # an element read, and one written
    assert "bad" not in body


@pytest.mark.parametrize("width", [1, 2, 32])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:0], ROWS[:1, :1], torch.tensor(4)], ids=range(4))
def test_rows_are_looked_up_as_eager_does(rows, width):
    same(lambda i, w: F.embedding(i, w), rows, WEIGHT[:, :width].contiguous())


def test_a_wrong_index_is_found_outside_the_loop_too():
    look_up = compiled(lambda i, w: F.embedding(i, w))
    look_up(ROWS, WEIGHT)
    with pytest.raises(IndexError):
        look_up(ROWS + 1, WEIGHT)


def test_a_number_in_a_tensor_is_read_once():
    x, scale = torch.randn(40, 30), torch.tensor(3.0)
    (body,) = vectors(text(lambda x, s: x.t() * s.exp(), x, scale)) or [""]
    same(lambda x, s: (x.t() * s.exp(), x * s), x, scale)
    assert "exp" not in body


def test_what_a_kernel_updates_is_not_read_ahead():
    def function(x, total):
        y = x * total
        total.add_(1)
        return y + total

    same(function, torch.randn(8, 16), torch.randn(8, 1))
    same(function, torch.randn(8, 16), torch.tensor(2.0))


# --- buffers that are contiguous along another loop -----------------------------------------------


def crossed(x, y):
    return x + y.t() * 2


def test_what_jumps_along_the_vector_is_transposed_and_not_gathered():
    source = text(crossed, torch.randn(200, 300), torch.randn(300, 200))
    assert source.count("transpose(") == 1
    for body in vectors(source):
        assert not re.findall(r"= \w+\[\(x0 \+ \(\d+ \* x1\)\)\]", body)


@pytest.mark.parametrize("size", [(128, 256), (127, 300), (17, 2000), (300, 301)], ids=str)
def test_tiles_and_what_is_left_beside_them_are_transposed(size):
    same(crossed, torch.randn(size), torch.randn(size[::-1]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.int64], ids=str)
def test_elements_of_every_width_are_transposed(dtype):
    x, y = torch.randn(150, 211) * 9, torch.randn(211, 150) * 9
    same(crossed, x.to(dtype), y.to(dtype))


def test_transposed_truth_values():
    same(lambda x, y: x ^ y.t(), torch.randn(150, 200) > 0, torch.randn(200, 150) > 0)


def test_several_transposed_inputs_and_an_outer_loop():
    def function(x, y, z):
        return x + y.permute(0, 2, 3, 1) / (1 + z.permute(0, 2, 3, 1).abs()), y.mT

    same(function, torch.randn(2, 33, 35, 70), *(torch.randn(2, 70, 33, 35) for _ in range(2)))


def test_large_transposed_inputs_go_block_by_block():
    same(crossed, torch.randn(1030, 1040), torch.randn(1040, 1030))


@pytest.mark.parametrize("place", [(0, 3, 4), (0, 29, 9), (0, 0, 0)])
def test_nan_is_the_extremum_of_what_two_loops_reduce(place):
    """The rows are parts of longer ones, so two loops reduce them, and either may see NaN."""
    x = torch.randn(2, 30, 40)
    x[place] = float("nan")
    same(lambda x: (x[:, :, :10].amax((1, 2)), x[:, :, :10].amin(), x[:, :10].amax((0, 2))), x)
    same(lambda x: (x.permute(2, 0, 1)[:10].amin((0, 2)) * 2, x[:, :, ::3].max()), x)
    same(lambda x: F.adaptive_max_pool2d(x, (1, 2)), x)


def test_what_is_rolled_is_copied_and_not_looked_up():
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
