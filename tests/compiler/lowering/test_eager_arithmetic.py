"""Lowered operators convert, round and overflow at the points where eager's kernels do."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from tests.compiler.programs import seeded

pytestmark = pytest.mark.cpu

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode prevents capture."""


# --- numbers and types that eager converts first --------------------------------------------------


def same_over_calls(function, *args):
    """Asserts that results equal eager's bit by bit in a recorded call and later ones."""
    fast = magpy.compile(function)
    for _ in range(3):
        expected, actual = function(*args), fast(*args)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, -(2**31), 2**31, -129, 256, 300])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_numbers_beyond_the_type_of_integers_wrap_around_in_comparisons(dtype, number):
    compare = [torch.gt, torch.ge, torch.lt, torch.le, torch.eq, torch.ne]
    x = torch.tensor([0, 1, 44, 100, 127]).to(dtype)
    same_over_calls(lambda x: [each(x, number) for each in compare], x)


def test_threshold_of_integers_is_exact():
    x = torch.tensor([2**63 - 1, 2**60 + 1, 1, 0, -5])
    same_over_calls(lambda x: (F.threshold(x, 0.5, 2.0), F.threshold(x, -0.5, 3)), x)
    same_over_calls(lambda x: F.threshold(x, 0.3, 0.7), x.to(torch.int8))
    same_over_calls(lambda x: F.threshold(x, 0.3, 0.7), seeded(50).bfloat16())
    same_over_calls(lambda x: F.threshold(x, 0.3, 0.7), torch.tensor([NAN, INF, -INF, 0.3]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8])
def test_least_common_multiples_overflow_as_in_eager(dtype):
    top = torch.iinfo(dtype).max
    x = torch.tensor([top, 100, top - 2, 12, 0]).to(dtype)
    y = torch.tensor([top - 1, 99, top - 1, 18, 5]).to(dtype)
    if dtype == torch.int32:  # a product of larger ones overflows C++'s integers
        x, y = x[1:2], y[1:2]
    same_over_calls(lambda x, y: (torch.lcm(x, y), torch.gcd(x, y)), x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("source", [torch.int64, torch.int32, torch.float32, torch.float64])
def test_reductions_to_low_precision_convert_the_elements_first(source, dtype):
    x = torch.tensor([[70000.0, -70000.0, 2049.0, 3.0], [5.0, 70000.0, 2.0, 7.0]]).to(source)
    for reduce in (torch.sum, torch.prod, torch.nansum, torch.mean, torch.cumsum, torch.cumprod):
        same_over_calls(lambda x, reduce=reduce: reduce(x, 0, dtype=dtype), x)
    same_over_calls(lambda x: x.sum(dtype=dtype), x)


# --- sums at computed positions -------------------------------------------------------------------


SCATTERS = {
    "scatter_add": lambda a, i, s: a.scatter_add(0, i, s),
    "scatter_add in place": lambda a, i, s: (a.clone()).scatter_add_(0, i, s),
    "scatter with add": lambda a, i, s: a.scatter(0, i, s, reduce="add"),
    "scatter with multiply": lambda a, i, s: a.scatter(0, i, s, reduce="multiply"),
    "scatter of a number": lambda a, i, s: a.scatter(0, i, 1.3, reduce="add"),
    "scatter_reduce sum": lambda a, i, s: a.scatter_reduce(0, i, s, "sum"),
    "scatter_reduce mean": lambda a, i, s: a.scatter_reduce(0, i, s, "mean", include_self=False),
    "scatter_reduce prod": lambda a, i, s: a.scatter_reduce(0, i, s, "prod"),
    "scatter_reduce amax": lambda a, i, s: a.scatter_reduce(0, i, s, "amax"),
    "index_add": lambda a, i, s: a.index_add(0, i[:, 0], s),
    "index_add scaled": lambda a, i, s: a.index_add(0, i[:, 0], s, alpha=1.3),
    "index_add of rows": lambda a, i, s: a[:, 0].index_add(0, i[:, 0], s[:, 0]),
    "index_reduce": lambda a, i, s: a.index_reduce(0, i[:, 0], s, "mean"),
    "index_put": lambda a, i, s: a.index_put((i[:, 0],), s, accumulate=True),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scatter", SCATTERS.values(), ids=list(SCATTERS))
def test_scatters_of_low_precision_round_as_often_as_eager(scatter, dtype):
    index = torch.randint(0, 3, (60, 5), generator=torch.Generator().manual_seed(0))
    same_over_calls(scatter, seeded(3, 5).to(dtype), index, (seeded(60, 5) + 1).to(dtype))


# --- several results ------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("moments", [torch.std_mean, torch.var_mean])
def test_results_of_one_operator_share_no_memory(moments, keepdim):
    fast = magpy.compile(lambda x: moments(x, 1, keepdim=keepdim))
    for _ in range(3):
        spread, mean = fast(torch.empty(2, 0))
        spread.fill_(7)
        assert mean.isnan().all()
        assert (spread == 7).all()


# --- orthogonal polynomials -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n in dir(torch.special) if n[0] != "_" and "polyn" in n])
def test_polynomials_of_special_values_equal_eager(name, dtype):
    values = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, 0.3, -0.7, 2.5, 1e30], dtype=dtype)
    degrees = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 7.9, 50.0, 200.0], dtype=dtype)
    x, n = (t.ravel() for t in torch.meshgrid(values, degrees, indexing="ij"))
    same_over_calls(lambda x, n: getattr(torch.special, name)(x, n), x, n)
