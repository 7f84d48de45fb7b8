"""C++ kernels on data larger than the caches: single passes, streaming stores and prefetching.

The size limits are set to zero here, so that small tensors take the same code paths."""

import re

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler import kernel_build
from magpy_like.compiler.codegen.cpp import cpp_prefetch, cpp_printer, cpp_streaming
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compiler.programs import compiled, kernels, same


@pytest.fixture
def zero_cache_bounds(monkeypatch):
    monkeypatch.setattr(cpp_streaming, "MIN_STREAMING_BYTES", 0)
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 0)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 0)
    # The disk cache has graphs that were printed with the default limits.
    monkeypatch.setattr(kernel_build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)


def source(function, *inputs):
    return "".join(cpp_printer.print_function(k, int) for k in kernels(function, *inputs))


def add_transposed(x, y):
    return x + y.t() * 2


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def concatenate(x):
    return torch.cat([x, x * 2, x.neg()], 1)


@pytest.mark.parametrize("size", [(7, 1), (40, 64), (33, 515)], ids=str)
@pytest.mark.parametrize(
    "function",
    [torch.exp, layer_norm, lambda x: x.softmax(-1), concatenate, lambda x: x[:, 1:] * 2],
)
def test_streaming_stores_equal_eager(zero_cache_bounds, function, size):
    same(function, torch.randn(size))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int16, torch.bool], ids=str
)
def test_streaming_stores_of_every_width_equal_eager(zero_cache_bounds, dtype):
    x = (torch.randn(37, 130) * 9).to(dtype)
    same(lambda x: (x.flip(1) | (x > 0), concatenate(x.float()).to(dtype)) if dtype == torch.bool
         else (x.flip(1) * 3, concatenate(x)), x)  # fmt: skip


def test_every_thread_fences_its_streaming_stores(zero_cache_bounds):
    """Each thread stores a part of a shared row."""
    x = torch.randn(70000)
    text = source(lambda x: x.softmax(-1), x)
    *_, last = text.split("#pragma omp parallel for")
    inside = last.partition("\n        }\n")[0]
    assert inside.index("stream(") < inside.index("streamed();")
    same(lambda x: x.softmax(-1), x)


def test_tiles_of_a_block_prefetch_all_rows_of_the_next(zero_cache_bounds):
    """Each tile prefetches some rows, as wide as the block, in both inputs."""
    text = source(add_transposed, torch.randn(200, 300), torch.randn(300, 200))
    fetches = re.findall(r"fetch_rows<(\d+), (\d+)>\(&(p\d)\[(.*?)\], (\d+)\);", text)
    count, width = map(int, fetches[0][:2])
    assert [fetch[2:] for fetch in fetches] == [
        ("p0", "(64 + x1_block + (300 * row) + (300 * x0_block))", "300"),
        ("p1", "(12800 + x0_block + (200 * row) + (200 * x1_block))", "200"),
    ]
    (row,) = re.findall(r"const i64 row = (.*);", text)
    at = {"x0_block": 0, "x1_block": 64}
    rows = []
    for x0_tile in range(0, 64, 16):
        for x1_tile in range(64, 128, 16):
            first = eval(row.replace("/", "//"), at | {"x0_tile": x0_tile, "x1_tile": x1_tile})
            rows += range(first, first + count)
    assert rows == list(range(64)) and width == 64


def test_row_of_tiles_is_transposed_before_its_use(zero_cache_bounds):
    """Memory is written in segments as wide as a block."""
    text = source(add_transposed, torch.randn(200, 300), torch.randn(300, 200))
    loops = re.findall(r"for \(i64 (\w+) = \w+; \w+ < [^;]+; (?:\w+ \+= 16|\+\+\w+)\)", text)
    assert loops[:4] == ["x0_tile", "x1_tile", "x0", "x1_tile"]
    assert text.index("transpose(") < text.index("for (i64 x0 =") < text.index("stream(")


@pytest.mark.parametrize("size", [(128, 256), (127, 300)], ids=str)
def test_tiles_use_streaming_stores(zero_cache_bounds, size):
    x, y = torch.randn(size), torch.randn(size[::-1])
    assert "stream(" in source(add_transposed, x, y)
    same(add_transposed, x, y)
    same(add_transposed, x.double(), y.double())


def test_values_read_again_are_not_streamed(zero_cache_bounds):
    """The exponentials are a result, and are read again after their summation."""

    def function(x):
        powers = x.exp()
        return powers, powers / powers.sum(-1, keepdim=True)

    x = torch.randn(33, 160)
    assert source(function, x).count("    stream(") == 1
    same(function, x)


def test_in_place_updates_equal_eager(zero_cache_bounds):
    def function(x):
        return x.mul_(2).add_(1)

    same(function, torch.randn(40, 50))


def test_small_results_are_not_streamed():
    assert "stream(" not in source(torch.exp, torch.randn(64, 64))


def test_next_memory_segment_is_prefetched(zero_cache_bounds):
    """The channels of several images: the next segment is not adjacent."""
    images = torch.randn(4, 3, 16, 16)
    assert "fetch(&p0[(6144 + r1" in source(lambda x: x.sum((0, 2, 3)), images)
    same(lambda x: x.sum((0, 2, 3)), images)


def test_rows_just_read_are_not_prefetched(zero_cache_bounds, monkeypatch):
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 4096)
    text = source(lambda x, w: x.softmax(-1) * w, torch.randn(40, 256), torch.randn(256))
    assert text.count("fetch(&p0[") == text.count("fetch(") == 2  # one row of each half


def test_evicted_segments_are_prefetched_again(zero_cache_bounds, monkeypatch):
    """A channel is read twice, and its first lines may be evicted in between."""

    def function(x):
        return x - x.sum((0, 2, 3), keepdim=True)

    images = torch.randn(4, 3, 16, 64)
    *_, second_phase = source(function, images).split(".result()")
    assert second_phase.index("fetch(&p0[(6144 + r1_strip") < second_phase.index("stream(")
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", images[:, 0].nbytes)
    *_, second_phase = source(function, images).split(".result()")
    assert "fetch(" not in second_phase and "stream(" in second_phase
    same(function, images, rtol=1e-5, atol=1e-4)


def test_next_row_is_prefetched_in_the_most_compute_bound_phase(zero_cache_bounds, monkeypatch):
    """Not in the phase of the maximum, which is memory-bound already."""
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 4096)
    for function in (lambda x: x.softmax(-1), lambda x: x.log_softmax(-1)):
        text = source(function, torch.randn(40, 1024))
        prefetched = re.findall(r"fetch\(&p0\[\((.*?)\)\]", text)
        assert prefetched == [
            "part + (1024 * later)", "part + (1024 * halves.half) + (1024 * later)"
        ]  # fmt: skip
        assert (
            "later = halves.first + turn / 2 + 3;" in text
        )  # earlier rows are in the cache already
        total = re.search(r"Sum(?:<f32>)? (\w+)", text)[1]
        assert text.index(total) < text.index("fetch(") < text.index(f"{total}.add(")


def test_rows_of_a_reduction_are_prefetched_before_their_loads(zero_cache_bounds, monkeypatch):
    """A prefetch of another iteration's rows may come anywhere; of this one's, before the load."""
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 4096)
    rows = torch.randn(4, 6000)  # long rows: prefetch further on in the same row
    text = source(lambda x: (x - x.mean(-1, keepdim=True)).exp().sum(-1), rows)
    assert text.index("fetch(") < text.index("exp")
    text = source(
        lambda x: x.softmax(-1), rows
    )  # the pipeline reads the next row: prefetch in that
    scope, _, _ = text.partition("fetch(")
    assert scope.rstrip().endswith("const i64 x0 = next;")
    text = source(lambda x: (x - x.mean((0, 2), keepdim=True)).exp().sum((0, 2)),
                  torch.randn(8, 3, 256))  # fmt: skip
    assert text.index("fetch(") < text.index("exp")


# --- variance in one pass -------------------------------------------------------------------------

RANDOM = torch.randn(65600, generator=torch.Generator().manual_seed(0))
IMAGES = RANDOM.view(8, 5, 40, 41)
LAYOUTS = {
    "rows": (RANDOM[:36000].view(4, 9000), 1),
    "columns": (RANDOM[:25900].view(700, 37), 0),
    "one row": (RANDOM[:9000], 0),
    "images": (IMAGES, (0, 2, 3)),
    "channels last": (IMAGES.contiguous(memory_format=torch.channels_last), (0, 2, 3)),
}


def assert_accurate(function, results, x):
    """Compares with the result in double precision, within the tolerance of rounding."""
    for actual, expected in zip(results, function(x.double()), strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=3e-5, atol=0)


@pytest.mark.parametrize("scale, shift", [(1, 3), (1, 1000), (0.01, 1e4), (1e-18, 3e-18)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_variance_far_from_zero_is_accurate(layout, scale, shift):
    x, dims = LAYOUTS[layout]
    x = x * scale + shift

    def function(x):
        return torch.var_mean(x, dims)

    assert_accurate(function, compiled(function)(x), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_variance_with_a_leading_outlier_is_accurate(layout):
    x, dims = LAYOUTS[layout]
    x = x.clone() + 100
    x[(0,) * x.dim()] = 1e5

    def function(x):
        return torch.var_mean(x, dims)

    assert_accurate(function, compiled(function)(x), x)


@pytest.mark.parametrize("jump", [1.0, 1e4, -1e8], ids=str)
def test_variance_with_a_moving_mean_is_accurate(jump):
    """Each block of a row subtracts the mean of the preceding blocks."""
    row = torch.arange(9) % 4 // 2 * jump  # the offset of each thousand elements
    x = RANDOM[:36000].view(4, 9, 1000) + row[:, None]
    assert_accurate(
        lambda x: torch.var_mean(x, (1, 2)), compiled(lambda x: torch.var_mean(x, (1, 2)))(x), x
    )


def batch_norm(x, mean, variance):
    return F.batch_norm(x, mean, variance, training=True), mean.clone(), variance.clone()


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0, 3e38])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_norm_of_special_values_equals_eager(special, format):
    x = torch.randn(8, 5, 40, 41)
    x[3, 2, 7, 9] = special
    x[:, 3] = -0.0
    x = x.contiguous(memory_format=format)
    # The mean of small numbers and 3e38 depends on the number of vector lanes.
    same(batch_norm, x, torch.zeros(5), torch.ones(5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_overflowing_differences_from_the_first_element_equal_eager(format):
    x = torch.randn(8, 5, 40, 41)
    x[0, 2, 0, 0] = 3e38
    x = x.contiguous(memory_format=format)
    same(batch_norm, x, torch.zeros(5), torch.ones(5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_batch_norm_of_other_dtypes_equals_eager(dtype):
    x = torch.randn(8, 5, 40, 41, dtype=dtype)
    # Close to the mean, the rounding error of bfloat16 is as large as the mean itself.
    same(
        batch_norm,
        x,
        torch.zeros(5, dtype=dtype),
        torch.ones(5, dtype=dtype),
        rtol=0.016,
        atol=1e-4,
    )


def test_variance_over_a_varying_size_equals_eager():
    for rows in (3000, 3001):
        same(lambda x: torch.var_mean(x, (0, 2)), torch.randn(rows, 3, 5), dynamic=True)
