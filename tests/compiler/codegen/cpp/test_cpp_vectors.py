"""Vectorization of the loops that kernels mark ``omp simd``, and partial strips and row gathers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.cpp import cpp_printer
from tests.compiler.programs import kernels, same

X = torch.randn(300, 64)


def scalar_loops(function, *inputs):
    """The loops of the kernels of ``function`` that are marked ``simd`` but not vectorized."""
    texts = [cpp_printer.print_function(kernel, int) for kernel in kernels(function, *inputs)]
    source = cpp_printer.print_unit([(f"k{n}", text, []) for n, text in enumerate(texts)])
    flags = [
        *cpp_printer.FLAGS,
        "-fopt-info-vec-optimized",
        "-S",
        "-o",
        "/dev/null",
        "-x",
        "c++",
        "-",
    ]
    folder = Path(cpp_printer.__file__).parent
    done = subprocess.run(["g++", f"-I{folder}", *flags], input=source, text=True,
                          capture_output=True, check=True)  # fmt: skip
    found = {int(line) for line in re.findall(r"<stdin>:(\d+):\d+: .*vectorized", done.stderr)}
    lines, loops = source.split("\n"), []
    for k, line in enumerate(lines):
        if re.search("#pragma omp .*simd", line):
            end = next(n for n in range(k + 2, len(lines)) if lines[n] == line.split("#")[0] + "}")
            if not found & set(range(k + 1, end + 2)):
                loops.append(lines[k + 1])
    return loops


def interpolated(x, y):
    return torch.lerp(x, y, 0.1)


def chosen(x, y, first):
    return torch.where(first, x, y) * 2


FLAG = torch.tensor(True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs GCC's vectorization report")
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (interpolated, (X, X + 1)),
        (chosen, (X, X + 1, FLAG)),
        (lambda x: x.sin() + x.cos(), (X,)),
        (lambda x: x.amax(0), (X,)),
        (lambda x: x.view(100, 3, 64).sum(0), (X,)),
        (lambda x: x.view(6, 50, 64)[:, :, :56].sum(1), (X,)),
        (lambda x: (x[1:] - x[:-1]).abs().mean() + (x[:, 1:] - x[:, :-1]).abs().mean(), (X,)),
    ],
    ids=["average", "choice", "sine and cosine", "maxima", "sums", "narrow sums", "variation"],
)  # fmt: skip
def test_every_simd_loop_is_vectorized(function, inputs):
    assert scalar_loops(function, *inputs) == []


@pytest.mark.parametrize("weight", [0.1, -0.7, float("nan")])
def test_form_of_lerp_is_chosen_at_compile_time(weight):
    def function(x, y):
        return torch.lerp(x, y, weight)

    (kernel,) = kernels(function, X, X + 1)
    assert " ? " not in cpp_printer.print_function(kernel, int)
    x = X.clone()
    x[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    same(function, x, X + 1)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_where_with_a_scalar_condition_equals_eager(dtype):
    x = (torch.randn(5, 37) * 3).to(dtype)
    y = (torch.randn(5, 37) * 3).to(dtype)
    if dtype.is_floating_point:
        x[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, -float("inf")])
    rows = torch.tensor([True, False, False, True, True])[:, None]

    def function(x, y, one, rows):
        both = torch.where(rows, x, y)
        return torch.where(one, x, y), both, both.amax(-1), both.amax(0)

    same(function, x, y, torch.tensor(True), rows)
    same(function, x, y, torch.tensor(False), ~rows)


# --- partial strips of rows, and the last rows of columns -----------------------------------------


@pytest.mark.parametrize("columns", [33, 56, 530])
def test_partial_strips_are_reduced_once(columns):
    x = torch.randn(7, columns)

    def reduced(x):
        return x.sum(-1), x.amax(-1), x.amin(-1), (x / 8).exp().prod(-1), x.mean(-1)

    same(reduced, x)
    same(lambda x: (x.softmax(-1), x.log_softmax(-1)), x)
    x[2, -1] = float("nan")
    x[3, -1] = float("-inf")
    x[4, 0] = float("inf")
    same(lambda x: (x.sum(-1), x.amax(-1), x.amin(-1)), x)


def test_argument_with_reused_memory_is_read_once():
    def function(x):
        y = (x @ x.t()).add_(1)
        total = y.mul_(2).sum(-1, keepdim=True)
        return y / total

    same(function, torch.rand(40, 8))


@pytest.mark.parametrize(("rows", "columns"), [(3, 300), (5, 56), (40, 24), (1000, 1100)])
def test_column_reductions_of_any_shape_equal_eager(rows, columns):
    x = torch.randn(2, rows, columns)
    x[0, -1, 0] = float("nan")
    x[1, 0, -1] = float("inf")
    same(lambda x: (x.sum(1), x.amax(1), x.amin(1)), x, rtol=1e-5, atol=1e-4)
    y = torch.randn(rows, columns)
    same(lambda x: (x.var(0), x.std(0), x.argmax(0), x.softmax(0)), y, rtol=1e-4, atol=1e-5)


def test_sums_over_different_rows_are_not_fused():
    def variation(x):
        return (x[1:] - x[:-1]).abs().sum() + (x[:, 1:] - x[:, :-1]).abs().sum()

    for kernel in kernels(variation, X):
        assert " % " not in cpp_printer.print_function(kernel, int)
    same(variation, X, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_combined_sine_and_cosine_equal_eager(dtype):
    x = torch.tensor([0.0, -0.0, 1e-40, 1.0, -3.0, 1e4, 1e8, 3e38, float("inf"), float("nan")])
    same(lambda x: (x.sin(), x.cos(), x.sin() + x.cos()), x.to(dtype).repeat(7))


# --- row gathers: the same positions in each row --------------------------------------------------


ROW_GATHERS = {
    "reflected": lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect"),
    "replicated": lambda x: F.pad(x, (7, 2, 1, 4), mode="replicate"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "exact": lambda x: F.interpolate(x, size=(37, 83), mode="nearest-exact"),
    "thinned": lambda x: F.interpolate(x, scale_factor=0.5),
    "bilinear": lambda x: F.interpolate(x, size=(50, 61), mode="bilinear"),
    "corners": lambda x: F.interpolate(x, scale_factor=3, mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
}


@pytest.mark.parametrize("name", ROW_GATHERS)
def test_row_gathers_of_images_equal_eager(name):
    for columns in (9, 33, 70):
        x = torch.randn(2, 5, 11, columns)
        x[0, 0, 3, 4] = float("nan")
        same(ROW_GATHERS[name], x, dynamic=False, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["reflected", "bilinear"])
def test_row_gathers_of_other_dtypes_equal_eager(name, dtype):
    same(ROW_GATHERS[name], torch.randn(2, 5, 11, 40).to(dtype))


@pytest.mark.parametrize("name", ["reflected", "bilinear"])
def test_row_gathers_of_image_slices_equal_eager(name):
    x = torch.randn(2, 5, 24, 80)
    same(ROW_GATHERS[name], x[:, 1:, ::2, 3:60], rtol=1e-4, atol=1e-5)
    same(ROW_GATHERS[name], x[..., ::2].transpose(2, 3), rtol=1e-4, atol=1e-5)


def test_constant_positions_are_analysed_once_and_not_checked():
    (kernel,) = kernels(ROW_GATHERS["nearest"], torch.randn(2, 5, 11, 40))
    text = cpp_printer.print_function(kernel, int)
    assert not kernel.messages
    assert text.count("find_takings") == 1
    assert text.index("find_takings") < text.index("for (")


def test_positions_passed_as_arguments_are_checked():
    x, at = torch.randn(64, 40), torch.arange(40).flip(0)
    same(lambda x, at: x[:, at], x, at)
    with pytest.raises(IndexError):
        same(lambda x, at: x[:, at], x, at + 1)
