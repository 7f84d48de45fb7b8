"""Reductions of columns over many rows in C++: the rows are split among threads."""

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.cpp import cpp_printer
from magpy_like.compiler.codegen.cpp.cpp_column_reduction import Columns
from magpy_like.compiler.codegen.cpp.cpp_split_column_reduction import SplitColumns
from tests.compiler.programs import compiled, kernels, same, seeded

pytestmark = pytest.mark.cpu
SHAPES = [(4099, 17), (70001, 1), (300, 1030)]  # rows and columns


def printers(function, *args):
    return [cpp_printer.printer_of(kernel, int) for kernel in kernels(function, *args)]


def column_reductions(x):
    return x.sum(0), x.amax(0), x.argmin(0), x.var(0), (x > 3).any(0)


def centred(x):
    y = x.relu() + 1
    return (y - y.mean(0)) * y.amax(0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("program", [column_reductions, centred])
def test_column_reductions_over_many_rows_equal_eager(program, shape):
    same(program, seeded(*shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int8, torch.bool]
)
def test_column_reductions_of_every_width_equal_eager(dtype):
    x = (seeded(5000, 33) * 9).to(dtype)
    same(lambda x: (x.sum(0), x.amax(0), (x.relu() if x.dtype != torch.bool else x).any(0)), x)


def test_column_reductions_over_varying_rows_equal_eager():
    for rows in (2000, 2001, 3, 40000):
        same(centred, seeded(rows, 40), dynamic=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_result_is_deterministic_for_any_number_of_threads(threads):
    x, fast = seeded(4099, 17), compiled(centred)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            actual = [fast(x) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(actual[0], centred(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(*actual)  # in a fixed order


def test_nan_and_infinity_are_found_in_every_part():
    x = seeded(4099, 6)
    x[4000, 0] = x[3, 1] = torch.nan
    x[4098, 2] = x[0, 3] = torch.inf
    x[9, 4], x[4000, 4] = torch.inf, -torch.inf
    same(column_reductions, x, rtol=1e-4, atol=1e-4)


def test_few_columns_of_many_rows_split_the_rows():
    assert [type(p) for p in printers(lambda x: x.sum(0), seeded(4096, 64))] == [SplitColumns]
    assert [type(p) for p in printers(lambda x: x.sum(0), seeded(64, 4096))] == [Columns]


def test_cheap_values_are_recomputed_instead_of_stored():
    (printer,) = printers(centred, seeded(262144, 16))
    printer.print_body()
    text = printer.lines.text()
    assert isinstance(printer, SplitColumns) and "row_" not in text
    assert text.count("m_relu") + text.count("m_maximum") >= 2


def test_expensive_values_are_not_recomputed():
    (printer,) = printers(lambda x: x.softmax(0), seeded(4096, 16))
    assert isinstance(printer, Columns) and not isinstance(printer, SplitColumns)


@pytest.mark.parametrize("count", [8, 130])
def test_batch_norm_gradients_of_channels_last_images_equal_eager(count):
    x = seeded(2, count, 40, 40).to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = seeded(count, seed=1).requires_grad_(), seeded(count, seed=2).requires_grad_()

    def program(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, training=True).relu().square()

    results = []
    for call in (compiled(program), program):
        y = call(x, weight, bias)
        results.append([y, *torch.autograd.grad(y, (x, weight, bias), seeded(*y.shape, seed=3))])
    for a, b in zip(*results, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
