"""Forward passes of whole programs: values, strides, aliasing and mutations equal eager."""

import platform
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import magpy_like as magpy
from tests.compare import assert_same
from tests.compiler.programs import compile_fx, compiled, same, same_gradients, seeded

# The attribute of that name of the package is the function.
module = sys.modules["magpy_like.compiler.compile_fx"]
X = seeded(6, 10)
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -2.5, 0.7])


def test_elementwise_chain_equals_eager():
    same(lambda x: (x * 2 + 1).relu() - x.exp() / 3, X)


def test_views_equal_eager():
    same(lambda x: x[1:5, ::3].t().reshape(-1).flip(0) + 1, X)
    same(lambda x: x.relu().view(3, 4, 5).permute(2, 0, 1).reshape(10, 6) * 2, X)
    same(lambda x: x.unsqueeze(1).expand(6, 3, 10).unbind(1)[2] + x.narrow(1, 0, 1), X)


def test_inputs_of_any_layout_equal_eager():
    same(lambda x, y: (x + y, y * 2), X.t(), torch.randn(10, 1).expand(10, 6))
    same(lambda x, y: x * y, X[:, 3:5], torch.randn(12).as_strided((6, 2), (1, 2)))


def test_negative_and_conjugate_views_equal_eager():
    """``conj`` and ``imag`` set a bit of the view and do not change memory."""
    z = torch.randn(4, dtype=torch.complex64)
    negative = z.conj().imag
    assert negative.is_neg()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in (lambda y: y + 1, lambda y: (y * 2, y.sum())):
            actual = compile_fx(fx.symbolic_trace(function), [negative])(negative)
            torch.testing.assert_close(actual, function(negative))
        conjugate = z.conj()
        actual = compile_fx(torch.fx.symbolic_trace(lambda z: z + 1), [conjugate])(conjugate)
        torch.testing.assert_close(actual, conjugate + 1)
    assert any("negative view" in str(warning.message) for warning in caught)
    same(lambda z: z.conj().imag + z.real, z)
    same(lambda z: (z.conj() * 2, z.conj().imag.exp(), z.conj().real - 1), z)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1)])
def test_degenerate_shapes_equal_eager(shape):
    same(lambda x: (x + 1, x.sum(), x * x.new_ones(shape)), torch.randn(shape))


def test_reshapes_of_empty_tensors_equal_eager():
    empty = torch.randn(2, 9, 0, 2)
    same(lambda x: (F.pixel_shuffle(x, 3), x.view(3, 0, 6) + 1, x.reshape(0).exp()), empty)
    same(lambda x: x.transpose(0, 1).reshape(6, 0, 3) * 2, empty)


def test_special_values_propagate_as_in_eager():
    a, b = SPECIAL.repeat(8), SPECIAL.repeat_interleave(8)
    same(
        lambda x, y: (
            torch.maximum(x, y), torch.fmin(x, y), x.max(), x.argmax(), x.relu(), x.clamp(-1, 1),
            x.sign(), x.sgn(), x.round(), x % y, torch.fmod(x, y), torch.floor_divide(x, y), x**y,
            torch.signbit(x), torch.copysign(x, y), x.isnan(), x / y, x.sigmoid(), x.amin(),
        ),
        a, b,
    )  # fmt: skip


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="conversions out of range depend on the machine"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_out_of_range_floats_convert_to_integers_as_in_eager(dtype):
    x = torch.cat([SPECIAL, torch.tensor([3e9, -3e9, 1e20, -7e4, 300.7])]).to(dtype).repeat(3)
    for target in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        same(lambda x, target=target: x.to(target), x)
        same(lambda x, target=target: (x * 1).to(target), x)  # the product is rounded first
        for number in (float("nan"), -float("inf"), 3e38):
            same(lambda x, t=target, n=number: torch.where(x > 2, x, n).to(t), x)


def test_gradients_of_special_values_equal_eager():
    for function in (torch.abs, torch.relu, torch.sgn, F.softplus, torch.tanh, torch.sqrt):
        same_gradients(lambda x, f=function: f(x * 1), SPECIAL)


@pytest.mark.parametrize("function", [torch.relu, F.relu6, lambda x: x.clamp(0, 1)])
def test_clamped_zero_keeps_its_sign(function):
    x = torch.tensor([0.0, -0.0, -1.0])
    assert compiled(function)(x).signbit().tolist() == function(x).signbit().tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_reductions_with_readers_equal_eager(dtype):
    x = torch.randn(3, 17).to(dtype)
    for function in (torch.amax, torch.var, torch.std, torch.mean):
        same(lambda x, f=function: (f(x, 1), (x == f(x, 1, keepdim=True)).sum(1)), x)
        same_gradients(lambda x, f=function: f(x), x[0])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_around(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 7, 100], dtype=dtype)
    same(lambda x: (x + x, x * 3, -x, x // 3, x % 3, x << 2, x >> 1, ~x, x.sum(), x / 3), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integer_division_by_tensors_equals_eager(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min + 1, info.max, 0, 1, 7, 100], dtype=dtype)
    y = torch.tensor([3, info.max, 5, info.max - 7, 2, 1], dtype=dtype)
    if info.min < 0:
        y[3] = -1
        y[4] = -2
    same(lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")),
         x, y)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integer_powers_wrap_around(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 2, 3], dtype=dtype)
    same(lambda x: (x**5, x**31, x**0, 3 ** x.clamp(0, 40)), x)
    y = torch.tensor([2, 3, 0, 63, 7, 5], dtype=dtype)
    same(lambda x, y: (x**y, y**y), x, y)
    if info.min < 0:
        same(lambda x, y: x ** (-y), torch.tensor([-1, 1, -1, 0, 5, 2], dtype=dtype), y - 1)


def test_rounding_to_decimals_equals_eager():
    x = torch.tensor([0.25, -1.005, 12345.678, float("nan"), -float("inf"), 2.5])
    same(lambda x: [torch.round(x, decimals=d) for d in (0, 2, -2)], x)
    half = torch.tensor([0.25, -1.0, 123.5, 2.5]).half()
    same(lambda x: [torch.round(x, decimals=d) for d in (0, 1, -2)], half, rtol=0, atol=0)


@pytest.mark.parametrize("right", [False, True])
def test_binary_search_equals_eager(right):
    edges = torch.tensor([-1.0, 0.0, 0.0, 2.0, 2.0, 7.0])
    x = torch.tensor([[-2.0, -1.0, 0.0], [2.0, 9.0, float("nan")]])
    same(lambda e, x: (torch.bucketize(x, e, right=right), torch.searchsorted(e, x)), edges, x)
    rows, order = torch.randn(4, 9).sort(1).values, torch.randn(4, 9)
    same(lambda r, o: torch.searchsorted(r, o, right=right, out_int32=True), rows, order)
    same(lambda o: torch.searchsorted(o, o * 2, sorter=o.argsort(1), right=right), order)
    x = torch.arange(60).reshape(6, 10)
    same(lambda x: torch.isin(x, torch.arange(40, device=x.device) * 3), x)


def test_as_strided_scatter_equals_eager():
    x = torch.randn(4, 6)
    same(lambda x: torch.as_strided_scatter(x, torch.ones(2, 3), (2, 3), (12, 2), 1) * 2, x)
    same(lambda x: torch.as_strided_scatter(x.t(), x[:3, :2] * 3, (3, 2), (1, 9), 2), x)


def test_pooling_with_large_windows_equals_eager():
    x = torch.randn(2, 3, 20, 21)
    same(lambda x: F.avg_pool2d(x, 11, stride=4, padding=5, count_include_pad=False), x)
    same(lambda x: F.adaptive_avg_pool2d(x, (2, 1)) + 1, x)
    same(lambda x: F.adaptive_avg_pool2d(x, (2, 2)).relu(), torch.randn(1, 2, 25, 33))


def test_antialiased_resampling_equals_eager():
    x = torch.randn(2, 3, 13, 17)
    for mode in ("bilinear", "bicubic"):
        same(lambda x: F.interpolate(x, (5, 30), mode=mode, antialias=True), x)
        same(lambda x: F.interpolate(x, scale_factor=0.37, mode=mode, antialias=True), x)
        same(lambda x: F.interpolate(
            x, (7, 40), mode=mode, antialias=True, align_corners=True), x)  # fmt: skip
        # An infinity affects its neighbours only, and the memory format is preserved.
        shrunk = lambda x: F.interpolate(x, (5, 6), mode=mode, antialias=True)  # noqa: E731
        same(shrunk, x.clone().index_fill(3, torch.tensor([4]), float("inf")))
        same(shrunk, x.to(memory_format=torch.channels_last))


def test_put_and_masked_scatter_equal_eager():
    x = torch.randn(4, 6)
    at = torch.tensor([5, -1, 5, 0])
    same(lambda x: (x.t().put(at, x[0, :4], accumulate=True), x.put(at[1:], x[0, :3])), x)
    same(lambda x: x.masked_scatter(x > 0, x.flatten() * 10) + 1, x)
    same(lambda x: torch.nonzero_static(x > 0, size=40, fill_value=-3), x)
    same(lambda x: torch.nonzero_static(x > 0, size=3), x)
    where = {"device": x.device}
    same(lambda x: (torch.tril_indices(4, 6, 1, **where), x * 2), x)
    same(lambda x: (torch.triu_indices(6, 4, -2, **where), x * 2), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_signbit_equals_eager(dtype):
    x = torch.tensor([0.0, -0.0, 1.5, -1.5, torch.inf, -torch.inf, torch.nan, -torch.nan] * 6)
    same(torch.signbit, x.to(dtype))


def test_bool_arithmetic_equals_eager():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    same(lambda x, y: (x + y, x * y, x & y, x ^ y, ~x, x < y, x.any(), x.all(), x.sum()), a, b)


def test_dtypes_promote_as_in_eager():
    i, h = torch.arange(10), torch.randn(10).half()
    same(lambda x, i, h: (x + i, i / 2, h * 2.5, h + x[0], i + 1.5, i == h), X, i, h)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_equals_eager(dtype):
    x = X.to(dtype)
    same(lambda x: (x.exp(), x.sum(1), x.softmax(-1), x.amax(0), x.float() * 2), x)
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    same(lambda x: (x.float(), x.float().to(dtype), (x * 1), x + 0, x.neg().relu()), every)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_low_precision_operators_round_each_result(dtype):
    """Compares exactly: where values cancel, only rounding errors remain."""
    x, y = (X + 3).to(dtype), (X.flip(0) * 7).to(dtype)
    same(lambda x, y: (x * y + x) - x * y, x, y, rtol=0, atol=0)
    same(lambda x, y: ((x + y) * (x + y) - x * x).abs().clamp(0.1, 3), x, y, rtol=0, atol=0)
    same(lambda x, y: torch.where(x > y, x / y, x - y) * 3 - x / y * 3, x, y, rtol=0, atol=0)
    counts = torch.arange(60).reshape(6, 10).to(dtype)
    same(lambda x: x.sum(1, keepdim=True) * 1.01 - x.sum(1, keepdim=True), counts, rtol=0, atol=0)
    same(lambda x: torch.cat([x + 0.1, x * x]).square(), x, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scalars_are_rounded_to_low_precision_as_in_eager(dtype):
    x = (torch.arange(1, 200) / 64).to(dtype)
    tenth = torch.tensor(0.1)
    same(lambda x: (x + 0.1, x - 0.1, 0.1 - x), x, rtol=0, atol=0)
    # In the remainder of a vector, eager rounds the product as well.
    whole = x[:192]
    same(lambda x: (torch.add(x, x, alpha=0.1), x.sub(x, alpha=3.3)), whole, rtol=0, atol=0)
    same(lambda x: (x % 0.1, torch.fmod(x, 0.1), torch.remainder(0.1, x)), x, rtol=0, atol=0)
    same(lambda x: (x > 0.1, x == 0.1, x * 0.1, x / 0.1), x - 1.5 + 0.1, rtol=0, atol=0)
    same(lambda x: torch.div(x, 0.1, rounding_mode="trunc"), x, rtol=0, atol=0)
    same(lambda x: torch.div(x, x.flip(0), rounding_mode="trunc"), x, rtol=0, atol=0)
    same(lambda x, t: (x + t, x * t, x / t, x >= t, x % t), x, tenth, rtol=0, atol=0)
    same(lambda x, n: (x + n, x * n, x < n), x, torch.arange(199) * 17 + 250, rtol=0, atol=0)


@pytest.mark.parametrize("dim", [0, 1, (0, 2), None])
def test_reductions_equal_eager(dim):
    x = torch.randn(5, 7, 33)
    dims = (0, 1, 2) if dim is None else dim
    same(lambda x: (x.sum(dims), x.mean(dims), x.amax(dims), x.var(dims), x.std(dims)), x)
    one = dim if isinstance(dim, int) else 2
    same(lambda x: (x.argmax(one), x.min(one), x.prod(one), (x > 2).any(one)), x)


def test_large_parallel_sum_is_accurate():
    x = torch.rand(3, 300_000)
    same(lambda x: (x.sum(), x.sum(1), x.t().sum(0), (x * 2).mean()), x)


def rounding_loss(function, x):
    """The largest relative error of a sum, in units of float32's epsilon."""
    exact = function(x.double())
    share = ((compiled(function)(x) - exact) / exact).abs().max()
    return float(share) / torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("size", "dims"),
    [((4, 8, 4761), (0, 2)), ((4, 1200, 64), (0, 1)), ((4, 1200, 64), (0, 1, 2))],
)
def test_long_sums_are_accurate(size, dims):
    """With few distinct summands, many additions have equal rounding errors, which accumulate."""
    x = torch.where(seeded(*size) > 0, 1.0, 0.01)
    assert rounding_loss(lambda x: (x * 3).sum(dims), x) < 3.5


def test_sums_of_equal_numbers_are_accurate():
    rows = seeded(256).abs()[:, None].repeat(1, 4096)
    assert rounding_loss(lambda x: (x * 3).sum(1), rows) < 3
    assert rounding_loss(lambda x: (x * 3).sum(0), rows.t().contiguous()) < 5


def test_normalisations_equal_eager():
    x = torch.randn(4, 6, 8, 8)
    w, b = torch.randn(6), torch.randn(6)
    same(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), x, w, b)
    same(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b)
    same(lambda x: F.layer_norm(x, (8, 8)).softmax(1).log_softmax(-1), x)
    last = x.to(memory_format=torch.channels_last)
    same(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True).relu(), last, w, b)


def test_concatenation_and_padding_equal_eager():
    same(lambda x: torch.cat([x, x * 2, x[:, :1]], 1), X)
    same(lambda x: torch.stack([x.exp(), x.t().t()]) + torch.cat([x, x]).view(2, 6, 10), X)
    same(lambda x: F.pad(x, (1, 2, -1, 3), value=7.0) * 2, X)
    same(lambda x: F.pad(x, (1, -1, -2, 2)), X)


def test_computed_indices_equal_eager():
    i, j = torch.randint(-6, 6, (3, 4)), torch.randint(0, 6, (3, 4))
    same(lambda x, i, j: (x[i], x[:, i], x[i, i], F.embedding(j, x)), X, i, j)
    same(lambda x, i: torch.gather(x, 1, i), X, j)
    same(lambda x, i: x.index_put((i[0],), x[:4], accumulate=True), X, i)
    same(lambda x, i: torch.zeros(6, 10).scatter_add(1, i, x[:3, :4]), X, j)
    same(lambda x, i: x.masked_fill(x > 0, -1.0) + torch.where(x > 0, x, 2), X, i)


@pytest.mark.cpu
def test_value_errors_equal_eager():
    """The kernel detects them; type and message equal eager's."""
    n = torch.tensor([3, 0, 2])
    for function, args in (
        (lambda n: 7 // n + 1, (n,)),
        (lambda n: (n + 1) % n, (n,)),
        (lambda n: torch.fmod(n + 1, n), (n,)),
        (lambda x, s: x.masked_scatter(x > -100, s), (X.cpu(), X[0].cpu())),
    ):
        with pytest.raises(Exception) as expected:
            function(*args)
        with pytest.raises(type(expected.value)) as found:
            compiled(function)(*args)
        assert str(expected.value).splitlines()[0] == str(found.value).splitlines()[0]


@pytest.mark.cpu
def test_embedding_index_out_of_range_raises():
    f = compiled(lambda w, i: F.embedding(i, w))
    with pytest.raises(IndexError, match="out of range"):
        f(X.cpu(), torch.tensor([3, 25]))


#: Operators with indices that may be invalid: the type of eager's error depends on the operator, as
#: does the meaning of negative indices.
INDEXING = {
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take_along_dim": lambda x, i: x.take_along_dim(i[:, None], 0),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 2.0),
    "scatter of computed rows": lambda x, i: (x[:1] + 1).t().scatter_add(0, i[:1, None], x[:1, :1]),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x, "amax"),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_add along an inner dimension": lambda x, i: x[None].index_add(1, i, x[None]),
    "index_add of a scalar": lambda x, i: x[0, 0].index_add(0, i[1] + 0, x[0, 1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_copy of a scalar": lambda x, i: x[:, 0].index_copy(0, i[1] + 0, x[0, 1]),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:2], "prod"),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i, x[0, :2]),
    "nll_loss": lambda x, i: F.nll_loss(x[:, :2], i, ignore_index=-5),
    "nll_loss of pixels": lambda x, i: F.nll_loss(x.t()[None], i[None]),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
}


@pytest.mark.cpu  # a failed check leaves a GPU unusable
@pytest.mark.parametrize("name", INDEXING)
def test_invalid_indices_raise_eagers_errors(name):
    x = seeded(2, 4)
    call = compiled(INDEXING[name])
    for last in (1, 0, -1, -5, 2, 99, -99):
        index = torch.tensor([0, last])
        try:
            expected = INDEXING[name](x, index)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)) as found:
                call(x, index)
            assert type(found.value) is type(error)
        else:
            torch.testing.assert_close(call(x, index), expected, equal_nan=True)


def test_shifts_of_booleans_equal_eager():
    def shifted(x, m, n):
        return m << 2, m >> 1, (m << 3) + x, m >> n, n << m

    mask, n = torch.tensor([True, False]), torch.tensor([1, 2], dtype=torch.uint8)
    call = compile_fx(fx.symbolic_trace(shifted), [n, mask, n], options={"strict": True})
    for actual, expected in zip(call(n, mask, n), shifted(n, mask, n), strict=True):
        torch.testing.assert_close(actual, expected)


def test_identity_of_aliasing_results_equals_eager():
    def results_with_aliases(x):
        y = x.exp()
        return y, y.view_as(y), y[:], y, y.t().t(), y.detach(), y.view(-1), y.view(-1), x * 1

    with torch.no_grad():
        actual, expected = (
            f(X.clone()) for f in (compiled(results_with_aliases), results_with_aliases)
        )
    torch.testing.assert_close(actual, expected)
    for k, tensor in enumerate(expected):
        same_object = [a is tensor for a in expected]
        assert [a is actual[k] for a in actual] == same_object
        same_memory = [a.data_ptr() == tensor.data_ptr() for a in expected]
        assert [a.data_ptr() == actual[k].data_ptr() for a in actual] == same_memory


def results_of_methods(x):
    y = x * 2
    v = y[1:]
    return v.add_(1), y, v, torch.neg(v, out=v), v.view(-1), y


def results_made_of_arguments(x):
    v = x.view(-1)[1:]
    return v, x.add_(1), v, x


@pytest.mark.parametrize("function", [results_of_methods, results_made_of_arguments])
def test_repeated_results_are_the_same_object(function):
    x = seeded(3)
    actual = compile_fx(fx.symbolic_trace(function), [x.clone()])(x.clone())
    expected = function(x.clone())
    torch.testing.assert_close(actual, expected)
    for a, b in zip(actual, expected):
        assert [a is other for other in actual] == [b is other for other in expected]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.flip(-1),
        lambda x: x.roll(1, 0),
        lambda x: x.t().reshape(-1),
        lambda x: x.repeat(2, 1),
        lambda x: torch.cat([x, x.flip(0)]),
        lambda x: x.unfold(1, 2, 1).flip(1),
        lambda x: F.pad(x, (1, 1)),
    ],
)
def test_values_read_before_a_mutation_are_preserved(view):
    def before_and_after(x, y):
        before = view(x)
        x.add_(1)
        x[0] *= 2
        return before, before.exp(), view(x), before + y

    same(before_and_after, X.clone(), X[:1, :1])


def test_inputs_are_mutated_in_place():
    def update(x, y):
        z = x.exp()
        x.add_(1)
        w = x * y
        x.mul_(z)
        y[1:3].zero_()
        return z + 1, w, x.sum()

    same(update, X, torch.randn(6, 10))
    same(lambda x: x.copy_(x.flip(0)), X)
    same(lambda x: x.copy_(x.t() + x), torch.randn(5, 5))
    same(lambda x: x.sub_(x.mean(1, keepdim=True)).softmax(0), X)


def test_mutation_of_an_argument_bumps_its_version():
    def function(x):
        x.add_(1)
        return x * 2

    graph = compiled(function)
    for _ in range(2):
        w = seeded(4)
        y = (w * seeded(4).requires_grad_()).sum()  # saves w for its backward pass
        graph(w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_aliasing_of_results_equals_eager():
    def f(x):
        y = x * 2
        return y, y, y.view(-1), x, x.t()

    x = X.clone()
    y, repeated, flat, same_x, turned = compiled(f)(x)
    assert y is repeated or y.data_ptr() == repeated.data_ptr()
    assert flat.data_ptr() == y.data_ptr()
    assert same_x is x
    assert turned.data_ptr() == x.data_ptr() and turned.stride() == x.t().stride()


def test_returned_constant_may_be_mutated():
    def f(x):
        return torch.tensor([1.0, 2.0], device=x.device), x + 1

    g, x = compiled(f), torch.ones(3)
    g(x)[0].zero_()
    torch.testing.assert_close(g(x)[0], torch.tensor([1.0, 2.0]))


def test_pooling_with_small_windows_equals_eager():
    x = torch.randn(2, 3, 9, 11)
    x[0, 0, 2, 3] = float("nan")
    same(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    same(lambda x: F.max_pool2d(x, 2, ceil_mode=True), x)
    same(lambda x: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False), x)


def test_graph_may_return_any_structure():
    for f in (lambda x: x * 2, lambda x: {"a": [x + 1, None], "b": (x.sum(),)}):
        gm = torch.fx.symbolic_trace(f)
        torch.testing.assert_close(module.compile_fx(gm, [X], options={"strict": True})(X), f(X))


def test_operators_without_lowering_run_through_aten():
    same(lambda x: torch.linalg.qr((x @ x.t()).exp() + 1)[1].abs() + x.cumsum(0)[:, :6].sin(), X)
    same(lambda x: torch.fft.rfft(x * 2).abs() + 1, X)


def test_random_numbers_equal_eager():
    def f(x):
        drawn = torch.rand_like(x) * torch.randn(6, 1, device=x.device)
        return F.dropout(x, 0.4) + drawn, torch.randint(9, (3,), device=x.device)

    x = torch.randn(6, 10)
    torch.manual_seed(3)
    actual = compiled(f)(x)
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.testing.assert_close(actual, f(x))
    assert torch.equal(after, torch.rand(1))


def test_one_compilation_serves_every_size(monkeypatch):
    graphs = []
    compile_aten = module.compile_aten
    monkeypatch.setattr(
        module, "compile_aten", lambda gm, **kw: graphs.append(gm) or compile_aten(gm, **kw)
    )

    def f(x, y):
        return (x.softmax(-1) @ y).transpose(0, 1).reshape(-1) + x.sum(), torch.cat([x, x + 1], 1)

    g = compiled(f, dynamic=True)
    for n, m in ((5, 7), (9, 3), (40, 21)):
        x, y = torch.randn(n, m), torch.randn(m, 4)
        torch.testing.assert_close(g(x, y), f(x, y))
    assert len(graphs) == 1


def test_view_of_an_input_aliases_it():
    x = torch.randn(4, 6)
    with torch.no_grad():
        alias, fresh = compiled(lambda x: (x.view(24), x + 1))(x)
    assert alias.data_ptr() == x.data_ptr()
    assert fresh.data_ptr() != x.data_ptr()


def test_compiled_graph_keeps_the_grad_mode():
    weight = torch.randn(4, 4, requires_grad=True)
    call = compiled(lambda w, x: (w.detach() @ x).relu())
    assert not call(weight, torch.ones(4, 4)).requires_grad
    assert torch.is_grad_enabled()


def test_autocast_is_traced_once():
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        same(lambda x, w: (x @ w).float() @ w, x, w)


def test_operators_with_disabled_autocast_do_not_cast():
    def program(x, w):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            return y, x @ w

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    fast = magpy.compile(program)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert_same(fast(x, w), program(x, w), rtol=1e-6, atol=1e-6)


def test_transposed_access_with_partial_tiles_equals_eager():
    for rows, columns in ((300, 170), (16, 2000), (1025, 33)):
        same(
            lambda x, y: (x + y.t(), x * 2), torch.randn(rows, columns), torch.randn(columns, rows)
        )
    same(lambda x: x.permute(0, 2, 3, 1).contiguous(), torch.randn(3, 40, 21, 35))


def test_sums_of_one_element_start_with_positive_zero():
    def function(x):
        return x.sum(1), x.mean(1), x.cumsum(1), x.logcumsumexp(1), x.cumprod(1), x.amax(1)

    x = torch.full((2, 1), -0.0)
    for actual, expected in zip(compiled(function)(x), function(x), strict=True):
        assert actual.signbit().tolist() == expected.signbit().tolist()


def test_scans_of_every_layout_equal_eager():
    x = torch.randn(5, 70, 33)
    x[2, 7, 3] = float("nan")
    for dim in range(3):
        scans = lambda x, d=dim: ((x * 0.1).cumsum(d).exp(), x.cummax(d), x.logcumsumexp(d))
        same(scans, x, rtol=1e-5, atol=1e-5)
    same(lambda x: (x.softmax(-1).cumsum(-1), x.sum(-1)), x[:2])


def test_extrema_with_nan_and_infinity_equal_eager():
    x = torch.randn(6, 100)
    x[1, 50], x[2, :], x[3, 0] = float("nan"), -float("inf"), float("inf")
    same(lambda x: (x.amax(1), x.amin(1), x.max(), x.softmax(1)), x)
