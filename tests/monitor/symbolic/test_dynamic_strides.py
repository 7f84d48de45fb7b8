"""Strides that vary between calls: windows on tensors of varying sizes."""

import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins

WIDTHS = (6, 7, 9, 12, 30)


def window(rows, columns, width, start=0, grad=False):
    """A function that returns a window on a new tensor with rows of ``width`` elements."""

    def inputs():
        whole = torch.arange(8.0 * width).reshape(8, width) / 7 - 1
        return (whole[:rows, start : start + columns].detach().requires_grad_(grad),)

    return inputs


def strided(sizes, strides, offset=0):
    return lambda: (torch.as_strided(torch.arange(400.0), sizes, strides, offset),)


def lifted(twins):
    return [record.lifted for record in magpy.api._dispatcher(twins.compiled).records]


def adds(x):
    return x + 1, x.sum(0), x @ x.t()


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_windows_of_growing_tensors_share_a_record(backend, grad):
    twins = Twins(lambda: adds, backend=backend)
    for calls, width in enumerate(WIDTHS):
        twins.call(window(3, 4, width, grad=grad), hit=calls > 1)
    assert lifted(twins) == [["args[0].stride(0)"]]


def test_last_columns_of_growing_tensors_share_a_record():
    twins = Twins(lambda: lambda x: x * 2)
    for calls, width in enumerate(WIDTHS):
        twins.call(window(8, 1, width, start=width - 1), hit=calls > 1)


def test_a_whole_tensor_and_windows_on_it_share_a_record():
    twins = Twins(lambda: lambda x: x * 2)
    twins.call(window(8, 6, 6), hit=False)
    twins.call(window(8, 6, 9), hit=False)
    twins.call(window(8, 6, 12), hit=True)
    twins.call(window(8, 6, 6), hit=True)


def test_sizes_and_strides_vary_together():
    twins = Twins(lambda: adds)
    twins.call(window(3, 4, 6), hit=False)
    twins.call(window(4, 5, 9), hit=False)
    twins.call(window(7, 3, 8), hit=True)
    (record,) = magpy.api._dispatcher(twins.compiled).records
    assert any("with strides (2.., 1)" in c.description for c in record.conditions)


def test_windows_on_images_share_a_record():
    def images(height, width):
        return lambda: (
            torch.arange(6.0 * height * width).reshape(2, 3, height, width)[..., :4, :4],
        )

    twins = Twins(lambda: lambda x: (x - x.mean((2, 3), keepdim=True)).flatten(1))
    for calls, sizes in enumerate([(5, 6), (7, 9), (8, 5), (20, 30)]):
        twins.call(images(*sizes), hit=calls > 1)


def test_program_computes_with_strides():
    twins = Twins(lambda: lambda x: (x * x.stride(0), x.stride(), torch.zeros(x.stride(0) - 5)))
    for calls, width in enumerate(WIDTHS):
        twins.call(window(3, 4, width), hit=calls > 1)


def test_program_branches_on_strides():
    def program(x):
        if x.stride(0) > 10:
            return x - 1
        return x + 1 if x.is_contiguous() else x * 2

    twins = Twins(lambda: program)
    for width in (6, 7):
        twins.call(window(3, 4, width), hit=False)
    twins.call(window(3, 4, 9), hit=True)
    twins.call(window(3, 4, 11), hit=False, why="more than 10")
    twins.call(window(3, 4, 30), hit=True)
    twins.call(window(3, 4, 4), hit=False, why="a contiguous tensor")
    twins.call(window(3, 4, 8), hit=True)


def test_views_that_some_strides_do_not_admit():
    def program(x):
        try:
            return x.view(-1) + 1
        except RuntimeError:
            return x * 2

    twins = Twins(lambda: program, backend="eager")
    for width in (6, 7, 9, 4, 8, 4):
        twins.call(window(3, 4, width))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_windows_are_written_in_place(backend):
    def program(x):
        x.mul_(2).t().add_(x.sum(1))
        return x.stride(0)

    wholes = [torch.ones(3, width) for width in WIDTHS]
    fast = magpy.compile(program, backend=backend)
    for whole in wholes:
        expected = whole.clone()
        square = slice(1, 4)
        assert fast(whole[:, square]) == program(expected[:, square])
        assert torch.equal(whole, expected)
    assert magpy.cache_info(fast).hits == len(WIDTHS) - 2


OTHER_LAYOUTS = {
    "transposed": ((4, 3), (1, 20)),
    "expanded": ((4, 3), (0, 1)),
    "overlapping": ((4, 3), (2, 1)),
    "all the same": ((4, 3), (1, 1)),
    "every second": ((4, 3), (20, 2)),
    "dense columns": ((4, 3), (1, 4)),
}


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_record_of_windows_does_not_serve_other_layouts(layout, backend):
    def program(x):
        return x + 1, x.cumsum(1), x.clone(), x.stride()

    twins = Twins(lambda: program, backend=backend)
    for calls, step in enumerate((5, 6, 9)):
        twins.call(strided((4, 3), (step, 1)), hit=calls > 1)
    twins.call(strided(*OTHER_LAYOUTS[layout]), hit=False)
    twins.call(strided((4, 3), (17, 1)), hit=True)


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_other_layouts_make_no_stride_vary(layout):
    twins = Twins(lambda: lambda x: x + 1)
    twins.call(strided((4, 3), (3, 1)), hit=False)
    twins.call(strided(*OTHER_LAYOUTS[layout]), hit=False)
    assert not any("stride" in name for names in lifted(twins) for name in names)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_record_of_varying_sizes_does_not_serve_a_window_whose_rows_overlap(backend):
    """What a write does depends on the overlap; the stride is the same in all calls."""
    twins = Twins(lambda: lambda x: x.add_(1), backend=backend)
    for calls, columns in enumerate((4, 5, 6, 8)):
        twins.call(strided((3, columns), (10, 1)), hit=calls > 1)
    twins.call(strided((3, 12), (10, 1)), hit=False)
    twins.call(strided((3, 9), (10, 1)), hit=True)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_record_of_interleaved_rows_does_not_serve_rows_that_overlap(backend):
    twins = Twins(lambda: lambda x: x.add_(1), backend=backend)
    for rows in (3, 2, 4):
        twins.call(strided((rows, 3), (5, 2)))
    for rows in (3, 2, 4):
        twins.call(strided((rows, 3), (4, 2)), hit=False if rows == 3 else None)


def test_later_tensor_may_have_fewer_dimensions():
    twins = Twins(lambda: lambda x: x + 1)
    for width in (6, 7):
        twins.call(window(3, 4, width), hit=False)
    twins.call(lambda: (torch.ones(()),), hit=False)
    twins.call(lambda: (torch.ones(5),), hit=False)
    twins.call(lambda: (torch.ones(6),), hit=False)
    twins.call(lambda: (torch.ones(7),), hit=True)
    twins.call(window(3, 4, 9), hit=True)


def test_strides_of_shared_memory_are_constants():
    """Where an argument is written to, overlaps would depend on the strides."""

    def program(x, y):
        x.add_(1)
        return y * 2

    def inputs(width):
        def make():
            whole = torch.ones(3, width)
            return whole[:, :2], whole[:, 1:3]

        return make

    twins = Twins(lambda: program)
    for width in (6, 7, 9, 6):
        twins.call(inputs(width))


def test_static_sizes_have_static_strides():
    twins = Twins(lambda: adds, dynamic=False)
    for width in WIDTHS:
        twins.call(window(3, 4, width), hit=False)


def test_strides_are_named_as_generalised():
    fast = magpy.compile(adds, backend="eager")
    for width in WIDTHS:
        fast(*window(3, 4, width)())
    report = str(magpy.explain(fast, *window(3, 4, 8)()))
    assert "args[0].stride(0)" in report and "with strides (5.., 1)" in report
