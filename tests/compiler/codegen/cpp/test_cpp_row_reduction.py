"""Reductions along rows in C++, strip by strip, with an accumulator per vector lane."""

import platform

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler import dynamo_backend, kernel_build
from magpy_like.compiler.codegen.cpp import cpp_printer
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compiler.programs import compiled, kernels, same

LENGTHS = [31, 32, 33, 48, 79, 1000, 4096 + 33]
X = torch.randn(3, 4129, generator=torch.Generator().manual_seed(0))


def row_reductions(x):
    return x.sum(-1), x.amax(-1), x.amin(-1), x.softmax(-1), F.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize("length", LENGTHS)
def test_row_reductions_of_any_length_equal_eager(length):
    same(row_reductions, X[:, :length].contiguous(), rtol=1e-5, atol=1e-5)


def test_row_reductions_of_varying_length_equal_eager():
    for length in LENGTHS[::2]:
        same(row_reductions, X[:, :length].contiguous(), dynamic=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.int8]
)
def test_row_reductions_of_every_width_equal_eager(dtype):
    x = (X[:, :79] * 9).to(dtype)
    same(lambda x: (x.sum(-1), x.amax(-1), x.amin(-1)), x)


def test_row_accumulators_stay_in_registers():
    """OpenMP's reductions store accumulators to memory, element by element, around each row."""
    (kernel,) = kernels(lambda x: x.softmax(-1), X)
    text = cpp_printer.print_function(kernel, int)
    assert "reduction(" not in text
    assert text.count("Sum<") == 1 and "Largest<" in text


def test_exponentials_used_only_in_a_sum_are_computed_by_its_accumulator():
    (kernel,) = kernels(lambda x: x.log_softmax(-1), X)
    text = cpp_printer.print_function(kernel, int)
    assert "PowerSum" in text and "m_exp" not in text
    (kernel,) = kernels(lambda x: x.softmax(-1), X)
    text = cpp_printer.print_function(kernel, int)
    assert "PowerSum" not in text and "m_exp" in text


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_exponentials_of_any_length_equal_eager(dtype, length):
    x = (20 * X[:, :length]).to(dtype)
    x[0, length // 2] = -float("inf")
    for function in (
        lambda x: x.log_softmax(-1),
        lambda x: F.cross_entropy(x, torch.tensor([0, 7, 30]), reduction="none"),
        lambda x: (x.log_softmax(-1), x.softmax(-1)),
    ):
        tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
        same(function, x, **tolerance)
        same(function, x, dynamic=True, **tolerance)


def test_short_rows_use_no_strips():
    (kernel,) = kernels(lambda x: x.sum(-1), X[:, :20].contiguous())
    assert "Sum<" not in cpp_printer.print_function(kernel, int)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_special_values_are_found_in_every_lane(special):
    length = 79
    x = torch.eye(length) * 0 + X[0, :length]
    x.diagonal().fill_(special)
    same(lambda x: (x.amax(-1), x.amin(-1), x.sum(-1), x.softmax(-1)), x, rtol=1e-5, atol=1e-5)


def test_rows_of_infinities_equal_eager():
    for sign in (1, -1):
        x = torch.full((2, 79), sign * float("inf"))
        same(lambda x: (x.amax(-1), x.amin(-1), x.sum(-1), x.softmax(-1)), x)


def test_row_shared_by_threads_equals_eager():
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(1))
    same(lambda x: (x.amax(), x.amin(), x.sum(), torch.var_mean(x)), x, rtol=1e-4, atol=1e-3)
    x[69_999] = float("nan")
    same(lambda x: (x.amax(), x.amin(), x.sum()), x)


def test_sums_are_as_accurate_as_eager():
    x = 1 + X.abs()
    error, eager_error = (
        (f(x).double() - x.double().sum(-1)).abs().max()
        for f in (compiled(lambda x: x.sum(-1)), lambda x: x.sum(-1))
    )
    assert error <= max(2 * eager_error, 1e-3)


def test_reductions_of_checked_elements_equal_eager():
    weight, index = torch.randn(50, 3), torch.randint(0, 50, (4, 60))
    look_up = compiled(lambda i, w: w[i, 0].sum(-1))
    torch.testing.assert_close(look_up(index, weight), weight[index, 0].sum(-1))
    with pytest.raises(IndexError):
        look_up(index + 30, weight)


# --- row pipeline: the next row's extrema during the exponentials of this row ---------------------


def rows_with_distinct_extrema(*size):
    """Rows whose extrema are at different positions, some with NaN or infinities."""
    x = torch.randn(*size, generator=torch.Generator().manual_seed(1))
    rows = x.view(-1, size[-1])
    for k, row in enumerate(rows):
        row += 40 * k * (-1) ** k
        row[7 * k % len(row)] += 20
    for k, special in enumerate([float("nan"), float("inf"), -float("inf")]):
        rows[3 * k :: 11, -k:] = special
    rows[8::11] = -float("inf")
    return x


@pytest.mark.parametrize("size", [(1, 64), (2, 90), (23, 79), (3, 5, 1100), (2, 3, 4, 64)], ids=str)
def test_row_pipeline_uses_the_maximum_of_each_row(size):
    x = rows_with_distinct_extrema(*size)
    (kernel, *_) = kernels(lambda x: x.softmax(-1), x)
    is_pipelined = size[0] > 1  # there is a next row
    assert ("ready" in cpp_printer.print_function(kernel, int)) == is_pipelined
    for function in (
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: (x.amax(-1, True) - x).exp().sum(-1),
        lambda x: (x - x.amin(-1, True)).tanh().sum(-1),
        lambda x: torch.exp(x - x[..., :1] - (x - x[..., :1]).amax(-1, True)).sum(-1),
    ):
        same(function, x, rtol=1e-5, atol=1e-5)
        same(function, x, dynamic=True, rtol=1e-5, atol=1e-5)


def test_row_pipeline_handles_rows_of_two_dimensions():
    x = rows_with_distinct_extrema(6, 9, 70)
    same(lambda x: (x - x.amax((1, 2), True)).exp().sum((1, 2)), x, rtol=1e-5, atol=1e-5)


def test_row_pipeline_handles_several_threads():
    x = rows_with_distinct_extrema(41, 512)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        same(lambda x: (x.softmax(-1), x.log_softmax(-1)), x, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [(66, 4000), (523, 515), (8195, 33)], ids=str)
def test_row_pipeline_handles_alternating_halves(size):
    x = rows_with_distinct_extrema(*size)
    (kernel, *_) = kernels(lambda x: x.softmax(-1), x)
    assert "Halves" in cpp_printer.print_function(kernel, int)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 70):
            torch.set_num_threads(count)
            same(lambda x: (x.softmax(-1), x.log_softmax(-1)), x, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


def test_alternating_halves_handle_varying_row_counts(tmp_path):
    x = rows_with_distinct_extrema(523, 515)
    fast = torch.compile(
        lambda x: x.softmax(-1),
        backend=dynamo_backend,
        dynamic=True,
        options={"trace": str(tmp_path)},
    )
    fast(x)
    (source,) = tmp_path.rglob("*.cpp")
    assert "Halves halves(s" in source.read_text()
    for rows in (523, 1, 2, 3, 4, 5, 522):
        torch.testing.assert_close(fast(x[:rows]), x[:rows].softmax(-1), equal_nan=True)


@pytest.mark.parametrize("size", [(9, 96), (523, 515)], ids=str)
def test_row_pipeline_does_not_read_rows_ahead_of_writes(size):
    """The program writes to the tensor and reduces it to maxima afterwards."""

    def program(x):
        x.mul_(2)
        y = x.softmax(-1)
        x.sub_(x.amax(-1, True)).exp_()
        return y, x.sum(-1)

    same(program, rows_with_distinct_extrema(*size), rtol=1e-5, atol=1e-5)


# --- processors with narrower vectors -------------------------------------------------------------

NARROW = ["x86-64"] if platform.machine() == "x86_64" else []
if torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX"):
    NARROW += ["haswell"] * bool(NARROW)


@pytest.mark.parametrize("machine", NARROW)
def test_narrower_vectors_equal_eager(machine, monkeypatch):
    flags = [f"-march={machine}" if f.startswith("-march") else f for f in cpp_printer.FLAGS]
    monkeypatch.setattr(cpp_printer, "FLAGS", tuple(flags))
    # The disk cache has graphs that were compiled for this machine.
    monkeypatch.setattr(kernel_build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)
    x = X[:, :1200].contiguous()
    x[1, 40] = float("nan")
    y = X.flatten()[: 33 * 70]
    same(row_reductions, x, rtol=1e-5, atol=1e-5)
    same(lambda x: torch.var_mean(x, -1), x, rtol=1e-5, atol=1e-5)
    same(lambda x: (x.log_softmax(-1), (x * 20)[:, :79].log_softmax(-1)), x)
    for dtype in (torch.float32, torch.float64, torch.int16, torch.int8):
        z = (y * 9).to(dtype).view(33, 70).repeat(2, 4)
        same(lambda z, t: z + t.t(), z, z.t().contiguous())


def extremum_indices(x):
    return x.argmax(-1), x.argmin(-1), x.max(-1), x.min(-1), x.argmax(0), x.argmin(0), x.argmax()


def rows_with_ties(kind, length):
    """Rows in which the choice between equal elements, or between NaN, matters."""
    x = X[:, :length].clone()
    if kind == "ties":
        return x.round()
    if kind == "zeros":
        return torch.where(x > 0, 0.0, -0.0)
    x[0].fill_(float("-inf"))
    x[1].fill_(float("inf"))
    if kind == "nan":
        x[:, length // 2 :: 7] = float("nan")
    return x


@pytest.mark.parametrize("length", [1, 5, 32, 65, 1000])
@pytest.mark.parametrize("kind", ["ties", "zeros", "infinite", "nan"])
def test_index_of_an_extremum_is_the_first(length, kind):
    same(extremum_indices, rows_with_ties(kind, length), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_extremum_indices_of_every_width_equal_eager(dtype):
    same(extremum_indices, (X[:, :79] * 9).to(dtype), rtol=0, atol=0)


def test_extremum_indices_of_long_and_varying_rows_equal_eager():
    x = X.flatten().repeat(20)
    x[5] = x[200_000] = 99
    same(lambda x: (x.argmax(), x.argmin()), x, rtol=0, atol=0)
    x = X[:, :4096].reshape(3, 64, 64)
    same(lambda x: (x.argmax(1), x.transpose(1, 2).flatten(1).argmax(1)), x, rtol=0, atol=0)
    for length in (5, 79, 1000):
        same(extremum_indices, X[:, :length].contiguous(), dynamic=True, rtol=0, atol=0)


def test_extremum_indices_use_strips():
    (kernel,) = kernels(lambda x: x.argmax(-1), X)
    assert "Place<f32, true>" in cpp_printer.print_function(kernel, int)
