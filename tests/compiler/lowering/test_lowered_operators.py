"""Rare operators that are lowered or decomposed, compared with eager."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import aten_fallbacks, compiled, same, same_gradients, seeded

pytestmark = pytest.mark.cpu  # lowerings and results for special values depend on the device

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor(
    [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5, 0.7, 1e-40, -1e-45, 3e38, 0.5, 1024.0, 2.0**-126]
)


# --- distances ------------------------------------------------------------------------------------


NORMS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF]


def test_cdist_equals_eager():
    a, b = seeded(2, 6, 32), seeded(2, 9, 32) + 0.5
    b[0, 3] = a[0, 1]

    def both(a, b):
        return torch.cat([torch.cdist(a, b, p).ravel() for p in NORMS])

    def own(x):
        return torch.cat([torch.pdist(x, p) for p in NORMS])

    same_gradients(both, a.double(), b.double())
    same_gradients(own, a[1].double())
    assert not aten_fallbacks(both, a, b)
    # Falls back to ATen where that is faster.
    assert aten_fallbacks(both, a[..., :5], b[..., :5]) == ["aten._cdist_forward.default"]
    same_gradients(both, a[..., :5], b[..., :5])
    assert aten_fallbacks(own, a[1]) == ["aten._pdist_forward.default"]
    assert not aten_fallbacks(lambda x: torch.pdist(x, 3.0) + torch.pdist(x, 0.5), a[1])


def test_cdist_of_special_values_equals_eager():
    aten = torch.ops.aten
    x = seeded(7, 32)
    x[3] = x[2]
    x[0, 0], x[1, 2], x[4, 2] = NAN, INF, INF
    far = [torch.cdist(x, x[:3], p) for p in NORMS]
    near = [torch.pdist(x, p) for p in NORMS]

    def forward(x):
        return [(torch.cdist(x, x[:3], p), torch.pdist(x, p)) for p in NORMS]

    def backward(x, grad, rows, *distances):
        half = len(NORMS)
        return [
            (aten._cdist_backward(grad, x, x[:3], p, d), aten._pdist_backward(rows, x, p, e))
            for p, d, e in zip(NORMS, distances[:half], distances[half:], strict=True)
        ]

    same(forward, x)
    same(backward, x, seeded(7, 3), seeded(21), *far, *near)


# --- complex numbers as pairs ---------------------------------------------------------------------


def test_complex_numbers_are_stored_as_pairs():
    x, y = seeded(3, 4), seeded(3, 4) - 1
    z = torch.complex(x, y)
    same(lambda x: torch.view_as_real(torch.polar(x, x * 2)), x)
    same(lambda x, y: (torch.complex(x * 2, y), torch.complex(x + 1, y[0])), x, y)
    same(lambda x, y: (torch.complex(x + 1, y).real, torch.complex(x, y + 1)), x.t(), seeded(4, 3))
    same(
        lambda z: (
            torch.view_as_real(z) * 2,
            z.real + z.imag,
            z.cdouble(),
            z.t().cdouble(),
            z.conj().cdouble(),
        ),
        z,
    )
    same(lambda z: (torch.view_as_complex(torch.view_as_real(z)[1:] + 1) * 2, z.conj().imag * 2), z)
    same(lambda x: torch.complex(x + 1, x), seeded(0, 3))
    same_gradients(lambda x: torch.view_as_real(torch.view_as_complex(x * 2)).sin(), seeded(3, 2))
    assert not aten_fallbacks(lambda x: torch.view_as_real(torch.polar(x, x * 2)), x)
    assert not aten_fallbacks(lambda z: torch.view_as_real(z).exp(), z)


def test_parts_of_complex_tensors_are_mutated_in_place():
    def change(z):
        torch.view_as_real(z).mul_(2)
        z.real.add_(1)
        return z * 1, z.imag + 1

    same(change, torch.complex(seeded(3, 4), seeded(3, 4)))


# --- bits, bins and masks -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_frexp_equals_eager(dtype):
    x = torch.cat([SPECIAL.to(torch.get_default_device()), seeded(40) * 1000]).to(dtype)
    if dtype == torch.float64:
        x = torch.cat([x, torch.tensor([5e-324, 1e-310, 1e308], dtype=dtype)])
    same(lambda x: (*torch.frexp(x), torch.frexp(x * 3)[1] + 1), x)
    assert not aten_fallbacks(torch.frexp, x)


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ldexp_with_exponents_out_of_range_equals_eager(dtype):
    x = torch.cat([SPECIAL, torch.tensor([1e-30, 6e-5])]).to(dtype)[:, None]
    whole = torch.tensor([200, 150, -150, -200, 1000, 3, 0])
    same(torch.ldexp, x, whole, rtol=0, atol=0)
    same(torch.ldexp, x, whole.to(torch.int32), rtol=0, atol=0)
    same(torch.ldexp, x, whole.to(torch.int8), rtol=0, atol=0)
    same(torch.ldexp, x, whole.to(dtype))
    same_gradients(lambda a: torch.ldexp(a, torch.tensor([3, -2])), torch.randn(4, 1, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_exponents_of_one_half_equal_eager(exponent, dtype):
    x = SPECIAL.to(dtype).repeat(3)
    same(lambda x: x**exponent, x)
    same(lambda x: x ** torch.full_like(x, exponent), x)
    same(lambda x: x ** torch.tensor(exponent, dtype=dtype), x)
    same(lambda x, y: x**y, x, torch.full_like(x, exponent))


def test_histc_equals_eager():
    x = torch.cat([SPECIAL.to(torch.get_default_device()), seeded(500), torch.linspace(-3, 3, 61)])
    limits = ((3, 0, 10), (10, -1, 1), (1, 0, 1), (7, -2.5, 2))
    same(lambda x: [torch.histc(x, *options) for options in limits], x)
    same(lambda x: torch.histc(x * 2, 5, -1, 1), seeded(20, 31).double())
    same(lambda x: torch.histc(x, 4, 0, 1), torch.empty(0))
    same(lambda x: torch.histc(x * 1e38, 5, -3e38, 3e38), x)  # the width overflows float32
    assert not aten_fallbacks(lambda x: torch.histc(x, 5, -1, 1), x)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_with_masks_equals_eager(accumulate):
    x, mask = seeded(4, 5, 6), seeded(5, 6) > 0
    rows = mask[:4, 0]
    first = (seeded(5, 6), seeded(1, 5, 1), seeded(6), seeded())
    second = (seeded(4, 1), seeded(1))

    def put(x, change):
        for index, values in (([rows], first), ([None, mask], second)):
            for value in values:
                yield torch.ops.aten.index_put(x, index, change(value), accumulate)

    def function(x):
        return (
            *put(x, lambda v: v), *put(x > 0, lambda v: v > 0), *put(x.half(), lambda v: v.half()),
        )  # fmt: skip

    same(function, x)
    assert not aten_fallbacks(function, x)
    values_of_rows = seeded(int(rows.sum()), 1, 6)  # one for each selected row
    same(lambda x, v: torch.index_put(x, (rows,), v, accumulate), x, values_of_rows)
    same_gradients(lambda x, v: torch.index_put(x, (rows,), v, accumulate), x, seeded(5, 6))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_index_fill_in_any_layout_equals_eager():
    """torch 2.11's decomposition fails to trace with strides that are not contiguous."""
    at, x = torch.tensor([2, -1, 2]), seeded(4, 6)
    for tensor_ in (x, x.t(), x[:, 1:5], x.chunk(2, 1)[1].t()):
        same(lambda x, i: x.index_fill(1, i, 3) * 2, tensor_, at)
        same(lambda x, i: x.index_fill(-2, i, x.sum()), tensor_, at)
        same_gradients(lambda x: x.index_fill(1, at, 3) * x, tensor_)
    same(lambda x, i: x.index_fill(0, i, 7), torch.tensor(5.0), torch.tensor([0]))
    assert not aten_fallbacks(lambda x, i: x.index_fill(0, i, 3), x.t(), at)


def test_empty_tensors_equal_eager():
    empty = torch.empty(0, 5)
    same(
        lambda x: (
            x.sum(0), *torch.var_mean(x, 0, keepdim=True), *torch.std_mean(x), x.var(),
            x.std(0, keepdim=True),
        ),
        empty,
    )  # fmt: skip
    shapes = [torch.ones(shape) for shape in ((), (0,), (2, 0), (2, 3))]
    same(lambda *all_: [torch.nonzero_static(x, size=n) for x in all_ for n in (0, 3)], *shapes)
    same_gradients(lambda x: F.pad(x, (1, 2), mode="replicate") * 2, torch.empty(0, 2, 3))


def test_rrelu_equals_eager():
    x = torch.cat([SPECIAL.to(torch.get_default_device()), seeded(40)])
    same(lambda x: F.rrelu(x, 0.1, 0.4), x)
    same(lambda x: F.rrelu(x.t()), seeded(3, 4))
    same_gradients(lambda x: F.rrelu(x, 0.1, 0.4), seeded(40))
    same_gradients(lambda x: F.rrelu(x, 0.1, 0.4, training=True), seeded(40))
    assert not aten_fallbacks(lambda x: F.rrelu(x), x)


def test_resize_equals_eager():
    same(lambda x: torch.ops.aten.resize(x * 2, [5, 4]), seeded(4, 5))
    same(
        lambda x: (torch.ops.aten.resize(x, [5, 4]), torch.ops.aten.resize(x, [4, 5])),
        seeded(5, 4).t(),
    )


def test_varying_sizes_equal_eager():
    a, b, x = seeded(5, 4), seeded(7, 4), seeded(2, 3, 11, 12)
    same(lambda a, b: (torch.cdist(a, b, 1.0), torch.cdist(a, b)), a, b, dynamic=True)
    same(lambda x, v: x.index_put((x[:, 0] > 0,), v), a, b[0], dynamic=True)
    same(lambda x: (torch.complex(x * 2, x), torch.histc(x, 5, -1, 1)), a, dynamic=True)
    same(lambda x: (F.adaptive_max_pool2d(x, 1), F.max_pool2d(x, 9, 9, 1)), x, dynamic=True)
    samples = seeded(2, 3, 2).sigmoid()
    pool = torch.ops.aten.fractional_max_pool2d
    same(lambda x, at: pool(x, [2, 2], [4, 5], at), x, samples, dynamic=True)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_huber_loss_has_the_dtype_of_its_first_argument(reduction):
    def program(x, y):
        return F.huber_loss(x, y, reduction=reduction), F.huber_loss(y, x, reduction=reduction)

    same(program, seeded(5, 7).half(), seeded(5, 7, seed=1))


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_cross_products_round_every_step(dtype):
    x, y = seeded(3, 50).to(dtype), seeded(3, 1, seed=1).to(dtype)
    same(lambda x, y: torch.linalg.cross(x, y, dim=0), x, y, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("steps", [torch.linspace, torch.logspace])
@pytest.mark.parametrize(("first", "last", "count"), [(-3.3, 9.1, 7), (0.0, 1.1, 101)])
def test_linspace_and_logspace_equal_eager_exactly(first, last, count, steps, dtype):
    same(lambda: steps(first, last, count, dtype=dtype), rtol=0, atol=0)
    same(
        lambda a, b: steps(a, b, count, dtype=dtype),
        torch.tensor(first),
        torch.tensor(last),
        rtol=0,
        atol=0,
    )


def test_linspace_counts_the_middle_step_from_the_end():
    same(lambda: torch.linspace(0, torch.inf, 3))


# --- strides --------------------------------------------------------------------------------------


def test_strides_that_a_decomposition_does_not_give_are_those_of_the_kernel():
    def function(a, b):
        return b.lerp(a, 0.3), torch.addcdiv(b, a, a)

    a, b = seeded(4, 6) + 3, seeded(6, 4).t()
    assert not aten_fallbacks(function, a, b)
    same(function, a, b)
    assert function(a, b)[0].stride() == compiled(function)(a, b)[0].stride() == (1, 4)


# --- sums with a factor ---------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0, 2, -1.5])
def test_signs_of_zero_of_scaled_differences_equal_eager(alpha):
    x = torch.tensor([-0.0, -0.0, 0.0, 0.0, 1.0] * 8)
    y = torch.tensor([-1.0, 1.0, -0.0, 0.0, 2.0] * 8)
    for function in (torch.sub, torch.add):

        def signs(x, y, function=function):
            return torch.copysign(torch.ones_like(x), function(x, y, alpha=alpha))

        same(signs, x, y)
