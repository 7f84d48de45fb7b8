"""Reductions along rows in C++, strip by strip, with an accumulator for each lane."""

import platform

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler import build, dynamo_backend
from magpy_like.compiler.codegen.cpp import cpp_printer
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compiler.programs import compiled, kernels, same

LENGTHS = [31, 32, 33, 48, 79, 1000, 4096 + 33]
X = torch.randn(3, 4129, generator=torch.Generator().manual_seed(0))


def reduced(x):
    return x.sum(-1), x.amax(-1), x.amin(-1), x.softmax(-1), F.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_any_length_are_reduced_as_eager_does(length):
    same(reduced, X[:, :length].contiguous(), rtol=1e-5, atol=1e-5)


def test_rows_whose_length_varies_are_reduced_as_eager_does():
    for length in LENGTHS[::2]:
        same(reduced, X[:, :length].contiguous(), dynamic=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.int8]
)
def test_elements_of_every_width_are_reduced_as_eager_does(dtype):
    x = (X[:, :79] * 9).to(dtype)
    same(lambda x: (x.sum(-1), x.amax(-1), x.amin(-1)), x)


def test_a_row_has_no_accumulator_that_goes_through_memory():
    """OpenMP's reductions do, element by element, before and after each row."""
    (kernel,) = kernels(lambda x: x.softmax(-1), X)
    text = cpp_printer.print_function(kernel, int)
    assert "reduction(" not in text
    assert text.count("Sum<") == 1 and "Largest<" in text


def test_powers_that_are_only_added_up_are_computed_by_what_adds_them():
    (kernel,) = kernels(lambda x: x.log_softmax(-1), X)
    text = cpp_printer.print_function(kernel, int)
    assert "PowerSum" in text and "m_exp" not in text
    (kernel,) = kernels(lambda x: x.softmax(-1), X)
    text = cpp_printer.print_function(kernel, int)
    assert "PowerSum" not in text and "m_exp" in text


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_powers_in_rows_of_any_length_are_added_up_as_eager_does(dtype, length):
    x = (20 * X[:, :length]).to(dtype)
    x[0, length // 2] = -float("inf")
    for function in (
        lambda x: x.log_softmax(-1),
        lambda x: F.cross_entropy(x, torch.tensor([0, 7, 30]), reduction="none"),
        lambda x: (x.log_softmax(-1), x.softmax(-1)),
    ):
        exact = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
        same(function, x, **exact)
        same(function, x, dynamic=True, **exact)


def test_short_rows_take_no_strips():
    (kernel,) = kernels(lambda x: x.sum(-1), X[:, :20].contiguous())
    assert "Sum<" not in cpp_printer.print_function(kernel, int)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_special_value_is_found_in_every_lane(special):
    length = 79
    x = torch.eye(length) * 0 + X[0, :length]
    x.diagonal().fill_(special)
    same(lambda x: (x.amax(-1), x.amin(-1), x.sum(-1), x.softmax(-1)), x, rtol=1e-5, atol=1e-5)


def test_rows_of_nothing_but_infinities():
    for sign in (1, -1):
        x = torch.full((2, 79), sign * float("inf"))
        same(lambda x: (x.amax(-1), x.amin(-1), x.sum(-1), x.softmax(-1)), x)


def test_a_row_that_threads_share_is_reduced_in_parts():
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(1))
    same(lambda x: (x.amax(), x.amin(), x.sum(), torch.var_mean(x)), x, rtol=1e-4, atol=1e-3)
    x[69_999] = float("nan")
    same(lambda x: (x.amax(), x.amin(), x.sum()), x)


def test_a_sum_is_as_exact_as_eagers():
    x = 1 + X.abs()
    error, eagers = (
        (f(x).double() - x.double().sum(-1)).abs().max()
        for f in (compiled(lambda x: x.sum(-1)), lambda x: x.sum(-1))
    )
    assert error <= max(2 * eagers, 1e-3)


def test_elements_that_are_checked_are_reduced_as_eager_does():
    weight, index = torch.randn(50, 3), torch.randint(0, 50, (4, 60))
    look_up = compiled(lambda i, w: w[i, 0].sum(-1))
    torch.testing.assert_close(look_up(index, weight), weight[index, 0].sum(-1))
    with pytest.raises(IndexError):
        look_up(index + 30, weight)


# --- the next row's extrema, found while one row's powers are computed ---------------------------


def unlike_rows(*size):
    """Rows of which each has its largest element elsewhere, some with what is no number."""
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
def test_every_row_has_its_own_largest_element(size):
    x = unlike_rows(*size)
    (kernel, *_) = kernels(lambda x: x.softmax(-1), x)
    looks_ahead = size[0] > 1  # there is a next one
    assert ("ready" in cpp_printer.print_function(kernel, int)) == looks_ahead
    for function in (
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: (x.amax(-1, True) - x).exp().sum(-1),
        lambda x: (x - x.amin(-1, True)).tanh().sum(-1),
        lambda x: torch.exp(x - x[..., :1] - (x - x[..., :1]).amax(-1, True)).sum(-1),
    ):
        same(function, x, rtol=1e-5, atol=1e-5)
        same(function, x, dynamic=True, rtol=1e-5, atol=1e-5)


def test_rows_of_two_dimensions_have_their_own_largest_element():
    x = unlike_rows(6, 9, 70)
    same(lambda x: (x - x.amax((1, 2), True)).exp().sum((1, 2)), x, rtol=1e-5, atol=1e-5)


def test_rows_that_several_threads_take_have_their_own_largest_element():
    x = unlike_rows(41, 512)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        same(lambda x: (x.softmax(-1), x.log_softmax(-1)), x, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [(66, 4000), (523, 515), (8195, 33)], ids=str)
def test_rows_that_a_thread_takes_from_two_places_in_turn_have_their_own_largest_element(size):
    x = unlike_rows(*size)
    (kernel, *_) = kernels(lambda x: x.softmax(-1), x)
    assert "Halves" in cpp_printer.print_function(kernel, int)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 70):
            torch.set_num_threads(count)
            same(lambda x: (x.softmax(-1), x.log_softmax(-1)), x, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


def test_turns_are_taken_among_as_many_rows_as_there_are_at_a_call(tmp_path):
    x = unlike_rows(523, 515)
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
def test_what_a_row_writes_is_not_read_for_the_next(size):
    """The program writes the tensor whose largest elements it then asks for."""

    def program(x):
        x.mul_(2)
        y = x.softmax(-1)
        x.sub_(x.amax(-1, True)).exp_()
        return y, x.sum(-1)

    same(program, unlike_rows(*size), rtol=1e-5, atol=1e-5)


# --- processors with narrower vectors -------------------------------------------------------------

NARROW = ["x86-64"] if platform.machine() == "x86_64" else []
if torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX"):
    NARROW += ["haswell"] * bool(NARROW)


@pytest.mark.parametrize("machine", NARROW)
def test_narrower_vectors_give_the_same(machine, monkeypatch):
    flags = [f"-march={machine}" if f.startswith("-march") else f for f in cpp_printer.FLAGS]
    monkeypatch.setattr(cpp_printer, "FLAGS", tuple(flags))
    # Graphs kept by others were compiled for this machine, and the other way round.
    monkeypatch.setattr(build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)
    x = X[:, :1200].contiguous()
    x[1, 40] = float("nan")
    y = X.flatten()[: 33 * 70]
    same(reduced, x, rtol=1e-5, atol=1e-5)
    same(lambda x: torch.var_mean(x, -1), x, rtol=1e-5, atol=1e-5)
    same(lambda x: (x.log_softmax(-1), (x * 20)[:, :79].log_softmax(-1)), x)
    for dtype in (torch.float32, torch.float64, torch.int16, torch.int8):
        z = (y * 9).to(dtype).view(33, 70).repeat(2, 4)
        same(lambda z, t: z + t.t(), z, z.t().contiguous())


def places(x):
    return x.argmax(-1), x.argmin(-1), x.max(-1), x.min(-1), x.argmax(0), x.argmin(0), x.argmax()


def special(kind, length):
    """Rows in which it matters which of equal elements, or of NaN, is taken."""
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
def test_the_place_of_an_extremum_is_the_first_that_holds_it(length, kind):
    same(places, special(kind, length), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_elements_of_every_width_have_their_places(dtype):
    same(places, (X[:, :79] * 9).to(dtype), rtol=0, atol=0)


def test_places_are_found_in_long_rows_in_parts_and_in_rows_of_varying_length():
    x = X.flatten().repeat(20)
    x[5] = x[200_000] = 99
    same(lambda x: (x.argmax(), x.argmin()), x, rtol=0, atol=0)
    x = X[:, :4096].reshape(3, 64, 64)
    same(lambda x: (x.argmax(1), x.transpose(1, 2).flatten(1).argmax(1)), x, rtol=0, atol=0)
    for length in (5, 79, 1000):
        same(places, X[:, :length].contiguous(), dynamic=True, rtol=0, atol=0)


def test_places_are_found_strip_by_strip():
    (kernel,) = kernels(lambda x: x.argmax(-1), X)
    assert "Place<f32, true>" in cpp_printer.print_function(kernel, int)
