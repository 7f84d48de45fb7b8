"""Results of single Triton kernels, in every kind of layout: blocks, loops, splits and scans."""

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.codegen.triton.triton_tiling import tile, updated_in_place
from magpy_like.compiler.scheduling.memory_planning import plan_memory
from magpy_like.compiler.scheduling.scheduler import Scheduler
from tests.compiler.codegen.triton.fake_gpu import lowered, run, sources
from tests.compiler.programs import compiled, kernels, same

pytestmark = pytest.mark.usefixtures("printed")


def test_rows_longer_than_a_block_equal_eager():
    x = torch.randn(300, 9_000)
    same(lambda x: (x.softmax(-1), x.argmax(1), x.amin(1), (x > 4).any(1)), x[:3])
    same(lambda x: x.log_softmax(-1), x[:5].to(torch.bfloat16))


SCANS = {
    "cumsum": torch.cumsum, "cumprod": torch.cumprod, "cummax": torch.cummax,
    "cummin": torch.cummin, "logcumsumexp": torch.logcumsumexp,
}  # fmt: skip


def same_in_blocks(function, *args, **kw):
    """Compares with eager a kernel that is compiled for the first seven elements of each row, and
    so processes longer rows eight elements at a time."""
    fast = compiled(function, dynamic=True)
    fast(*(arg[..., :7].contiguous() for arg in args))
    args = [arg.to(torch.get_default_device()) for arg in args]
    close = {"rtol": 1e-5, "atol": 1e-5} | kw
    torch.testing.assert_close(fast(*args), function(*args), equal_nan=True, **close)


@pytest.mark.parametrize("name", SCANS)
def test_scans_of_long_rows_equal_eager(name):
    scan, x = SCANS[name], torch.rand(2, 41) + 0.5
    same_in_blocks(lambda x: scan(x * 1.2, 1), x)
    x[0, 21], x[1, 3] = float("nan"), float("-inf")
    same_in_blocks(lambda x: scan(x, 1), x)
    same(lambda x: scan(x, 0), x.t().contiguous(), rtol=1e-5, atol=1e-5)  # along columns
    if name != "logcumsumexp":
        few = torch.arange(41).mul_(7).remainder_(5).sub_(1)  # with ties
        for dtype in (torch.int64, torch.int8, torch.uint8):
            same_in_blocks(lambda x: scan(x, 0), few.to(dtype))


@pytest.mark.parametrize("name", SCANS)
def test_scans_in_every_layout_equal_eager(name):
    x = torch.rand(3, 9, 5) + 0.5
    for dim in range(3):
        same(lambda x, d=dim: SCANS[name](x.log(), d), x, rtol=1e-5, atol=1e-5)
        same(lambda x, d=dim: SCANS[name](x.permute(2, 0, 1), d), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compare", [same, same_in_blocks])
def test_scan_results_are_available_in_later_phases(compare):
    """For rows within one block, and for longer rows, where scans are not recomputed."""

    def scaled(x):
        y = (x * 2).cumsum(1)
        return y.cos() / y.amax(1, keepdim=True), (y * 3 - y.mean(1, keepdim=True)).argmin(1)

    x = torch.rand(3, 41)
    compare(scaled, x)
    compare(lambda x: (x - x.mean(1, keepdim=True)).cumsum(1), x)
    compare(lambda x: (x.softmax(1).cumsum(1) > 0.9).sum(1), x)


def test_scan_of_any_length_is_one_kernel():
    (source,) = sources(lambda x: (x * 2).cumsum(1).sin(), (2, 100_000))
    assert source.text.count("tl.associative_scan") == 1
    assert len(source.stages) == 1


def test_single_long_row_falls_back_to_aten():
    for shape in ((100_000,), (1, 100_000, 1)):
        found = lowered(lambda x: (x.cumsum(-2 if len(shape) > 1 else 0), x + 1), shape)
        assert set(found.fallbacks) == {"aten.cumsum.default"}
    assert not lowered(lambda x: x.cumsum(0), (8_000,)).fallbacks
    assert not lowered(lambda x: x.cummax(0), (100_000,)).fallbacks


def test_low_precision_scans_fall_back_to_aten():
    """Eager rounds at every step; a cumulative maximum needs no rounding."""
    for dtype in (torch.bfloat16, torch.float16):
        for name in ("cumsum", "cumprod", "logcumsumexp"):
            found = lowered(lambda x, n=name: SCANS[n](x, 0), (9,), dtype=dtype).fallbacks
            assert set(found) == {f"aten.{name}.default"}
        assert not lowered(lambda x: x.cummax(0), (9,), dtype=dtype).fallbacks


def test_cumulative_sum_starts_with_positive_zero():
    x = torch.full((2, 5), -0.0)
    assert not compiled(lambda x: x.cumsum(1))(x).signbit().any()


def test_scans_without_deterministic_eager_kernel_fall_back_to_aten():
    torch.use_deterministic_algorithms(True)
    try:
        assert set(lowered(lambda x: x.cumsum(0), (9,)).fallbacks) == {"aten.cumsum.default"}
        assert not lowered(lambda x: x.cumsum(0), (9,), dtype=torch.int64).fallbacks
        assert not lowered(lambda x: x.cummax(0), (9,)).fallbacks
    finally:
        torch.use_deterministic_algorithms(False)


def test_split_reductions_equal_eager():
    x = torch.rand(70_001)
    x[5] = 2
    same(lambda x: (x.sum(), x.prod(), x.amax(), x.argmax(), (x > 1).any(), x.min(0)), x)
    x[[9, 60_000]] = float("nan")
    same(lambda x: (x.amax(), x.argmax(), x.argmin()), x)
    same(lambda x: (x.to(torch.int32).sum(), x.to(torch.uint8).amax()), (x.nan_to_num() * 99))


def test_phases_of_a_split_row_equal_eager():
    x, w, b = torch.randn(19, 3, 60, 30), torch.randn(3), torch.randn(3)
    same(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True).relu(), x, w, b)

    def normalised(x, mean, variance):
        return F.batch_norm(x, mean, variance, training=True) + x.mean((0, 2, 3), keepdim=True)

    same(normalised, x, torch.zeros(3), torch.ones(3))  # running statistics are updated


def test_split_rows_are_updated_in_place():
    same(lambda x: x.sub_(x.mean(1, keepdim=True)).exp(), torch.randn(2, 33_000))
    same(lambda x: (x.sub_(x.amax(1, keepdim=True)).exp_(), x.sum(1)), torch.randn(2, 33_001))

    def centred(x):
        y = x * 2
        total = y.sum(1, keepdim=True)
        x.copy_(y / total)
        return (y - x.sum(1, keepdim=True)).amax(1), y

    same(centred, torch.rand(3, 33_000))


def test_long_row_read_in_a_later_phase_is_not_overwritten():
    def function(x, w):
        product = x @ w
        twice = product * 2  # not stored: recomputed from the product in each phase
        centred = twice - twice.sum(1, keepdim=True)
        return centred, twice * centred.amax(1, keepdim=True)

    same(function, torch.randn(2, 3), torch.randn(3, 9_000), rtol=1e-3, atol=1e-3)


def test_overwritten_row_is_split_among_programs():
    """As in the gradient of a batch norm: with one program per row, most of a GPU is idle."""

    def function(x, w):
        product = x @ w
        return product - product.mean(1, keepdim=True) * product.amax(1, keepdim=True)

    graph = lowered(function, (4, 3), (3, 100_000))
    steps = plan_memory(graph, Scheduler(graph).run())
    (kernel,) = (step.work for step in steps if isinstance(step.work, Kernel))
    assert updated_in_place(kernel)
    assert tile(kernel, graph.hint).split > 1
    same(function, torch.randn(4, 3), torch.randn(3, 70_000), rtol=1e-3, atol=1e-3)


def test_many_overwritten_rows_are_not_split_and_columns_are_blocked():
    def rows(x, w):
        product = x @ w
        return product - product.mean(1, keepdim=True) * product.amax(1, keepdim=True)

    def columns(x):
        return (x * 2).sum(0)

    for function, shapes, shared, block in (
        (rows, ((64, 3), (3, 100_000)), False, 1),
        (columns, ((100_000, 64),), True, 32),
    ):
        graph = lowered(function, *shapes)
        steps = plan_memory(graph, Scheduler(graph).run())
        (kernel,) = (step.work for step in steps if isinstance(step.work, Kernel))
        tiling = tile(kernel, graph.hint)
        assert (tiling.split > 1) == shared
        assert tiling.outer[0].block == block


def test_rows_with_one_overwritten_number_each_are_split():
    """As in a batch norm in training, which updates its running mean."""

    def function(x, a, b):
        running, mean = (a @ b).reshape(-1), x.mean((0, 2), keepdim=True)
        return x - mean, running * 0.9 + mean.reshape(-1) * 0.1

    graph = lowered(function, (50, 64, 2_000), (8, 3), (3, 8))
    steps = plan_memory(graph, Scheduler(graph).run())
    (kernel,) = (step.work for step in steps if isinstance(step.work, Kernel))
    assert updated_in_place(kernel)
    assert tile(kernel, graph.hint).split > 1
    x = torch.randn(17, 4, 2_000)
    same(function, x, torch.randn(2, 3), torch.randn(3, 2), rtol=1e-3, atol=1e-3)


def test_reductions_across_rows_equal_eager():
    for shape in ((5, 40), (1100, 70), (33, 300), (2, 90, 13)):
        same(lambda x: (x.amax(-2), x.argmin(-2), x - x.mean(-2, keepdim=True)), torch.randn(shape))


def test_transposed_reads_equal_eager():
    same(lambda x, y: x + y.t(), torch.randn(70, 33), torch.randn(33, 70))
    same(lambda x: x.permute(2, 0, 1).contiguous() * 2, torch.randn(5, 40, 30))
    x, y, z = torch.randn(9, 18, 36), torch.randn(36, 9, 18), torch.randn(18, 36, 9)
    same(lambda x, y, z: x + y.permute(1, 2, 0) + z.permute(2, 0, 1), x, y, z)
    same(lambda x: x.to(memory_format=torch.channels_last) + 1, torch.randn(2, 17, 9, 10))


def test_unaligned_memory_equals_eager():
    x = torch.randn(5_001)
    same(lambda x, y: (x * 2 + y, x.sum()), x[1:], x[:-1])


@pytest.mark.parametrize("n", [1, 2, 700, 9_000])
def test_kernel_for_varying_sizes_equals_eager(n):
    def f(x, y):
        return x.softmax(-1), (x * 2).sum(), x.t() + y, x.amax(0)

    for rows in (2, 3):
        same(f, torch.randn(rows, n), torch.randn(n, rows), dynamic=True, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 33), (2, 9_000), (1, 60_000)])
def test_variance_is_computed_in_one_pass(shape):
    """By Welford's recurrence, for values far from zero as well."""
    x = torch.randn(shape, device="cpu") + 1000
    (source,) = sources(lambda x: torch.var_mean(x, 1), shape)
    assert source.text.count("for start") <= 1
    variance, mean = torch.empty(2, shape[0], device="cpu")
    run(source, x, variance, mean)
    torch.testing.assert_close((variance, mean), torch.var_mean(x.double(), 1), check_dtype=False,
                               rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("shape", [(4, 5), (2, 2000)])
def test_variance_of_varying_length_equals_eager(shape):
    same(lambda x: (x.var(1), x.std(1, correction=0)), torch.randn(shape), dynamic=True)


def test_variance_with_infinity_is_nan_and_mean_of_one_element_is_exact():
    infinite, missing = float("inf"), float("nan")
    for rows in ([[infinite, -3, 0], [-infinite, 5, 5], [missing, 1, 2]], [[infinite], [missing]]):
        x = torch.tensor(rows, device="cpu")
        (source,) = sources(lambda x: torch.var_mean(x, 1, correction=0), x.shape)
        variance, mean = torch.empty(2, len(x), device="cpu")
        run(source, x, variance, mean)
        assert variance.isnan().all()
        if x.shape[1] == 1:
            torch.testing.assert_close(mean, x[:, 0], equal_nan=True)


def test_softmax_gradient_rounds_products_as_the_gpu_does():
    backward = torch.ops.aten._softmax_backward_data

    def rounded_first(grad, output):
        product = (grad * output).float()
        return (product - output.float() * product.sum(-1, keepdim=True)).to(grad.dtype)

    output, grad = torch.rand(2, 8, 40, device="cpu").to(torch.bfloat16)
    shape, result = output.shape, torch.empty_like(output)
    (source,) = sources(
        lambda grad, output: backward(grad, output, 1, grad.dtype), shape, shape, dtype=grad.dtype
    )
    run(source, grad, output, result)
    expected = rounded_first(grad, output)
    assert not torch.equal(expected, backward(grad, output, 1, grad.dtype))
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_rounded_steps_fall_back_to_aten(dtype):
    def steps(like):
        factory_options = {"dtype": dtype, "device": like.device}
        return torch.linspace(4.3, -3, 50, **factory_options), torch.logspace(
            0, 2, 50, **factory_options
        )

    assert set(lowered(steps, (1,)).fallbacks) == {"aten.linspace.default", "aten.logspace.default"}
    same(steps, torch.ones(1, device="cpu"))


def test_softmax_of_any_layout_is_one_kernel():
    assert len(kernels(lambda x: x.softmax(1), torch.randn(3, 20, 30))) == 1
    same(lambda x: x.softmax(1), torch.randn(3, 20, 30))


def test_special_values_reach_every_reduction():
    x = torch.randn(4, 37)
    x[1, 3] = x[1, 30] = float("nan")
    x[2, 5], x[3, 6] = float("inf"), -float("inf")
    same(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), x.sum(1), x.prod(1)), x)
    same(lambda x: x.softmax(1), x)
    same(lambda x: (-x, x * -1, x.sign(), x.abs()), torch.tensor([0.0, -0.0, 5.0]))


def test_repeated_indices_accumulate():
    at = torch.randint(0, 4, (50,))
    same(lambda x, at: torch.zeros(4).index_add(0, at, x), torch.randn(50), at)
    same(lambda x, at: torch.zeros(4, dtype=torch.int64).scatter_add(0, at, x), at * 3, at)
    same(lambda x, at: x.index_put((at,), torch.ones(()), accumulate=True), torch.randn(4, 3), at)


@pytest.mark.parametrize("lengths", [(3, 5), (4, 1, 2), (1, 2, 3, 4)])
@pytest.mark.parametrize("dim", [0, 1])
def test_reader_of_a_concatenation_selects_its_parts_in_one_kernel(lengths, dim):
    def function(*parts):
        return torch.cat([parts[0] * -2, *parts[1:]], dim).exp()

    shapes = [(n, 6) if dim == 0 else (6, n) for n in lengths]
    parts = [torch.randn(s, device="cpu") for s in shapes]
    (source,) = sources(function, *shapes)
    expected = function(*parts)
    result = torch.empty_like(expected)
    run(source, *parts, result)
    torch.testing.assert_close(result, expected)


def test_parts_of_a_concatenation_may_be_one_tensor():
    x = torch.randn(3, 4, device="cpu")
    (source,) = sources(lambda x: torch.cat([x, x, x], 1).exp(), (3, 4))
    result = torch.empty(3, 12, device="cpu")
    run(source, x, result)
    torch.testing.assert_close(result, x.repeat(1, 3).exp())


def test_rotary_embedding_is_one_kernel():
    def rotate(q, cos, sin):
        q = q.view(1, 1, 32, 64).transpose(1, 2)
        turned = torch.cat((-q.narrow(-1, 32, 32), q.narrow(-1, 0, 32)), -1)
        return q * cos + turned * sin

    assert len(sources(rotate, (1, 2048), (1, 1, 1, 64), (1, 1, 1, 64), dtype=torch.bfloat16)) == 1


STORED = {
    "many parts": (lambda *p: torch.cat(p).exp(), 5),
    "several readers": (lambda *p: ((c := torch.cat(p)).exp(), c.sum(1)), 2),
    "returned": (lambda *p: torch.cat(p), 2),
    "the library reads it": (lambda *p: torch.cat(p) @ torch.cat(p).t(), 2),
    "dear to compute": (lambda *p: torch.cat([x.erfinv().tan() for x in p]).exp(), 2),
}


@pytest.mark.parametrize("name", STORED)
def test_other_concatenations_are_stored_part_by_part(name):
    function, count = STORED[name]
    assert lowered(function, *[(3, 6)] * count).concatenated
