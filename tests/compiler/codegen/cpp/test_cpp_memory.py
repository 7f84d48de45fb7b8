"""What C++ kernels do where data do not fit in caches: one reading, stores past the caches, and
fetching ahead. Their bounds are set to nothing here, so that small tensors show it."""

import re

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler import build
from magpy_like.compiler.codegen.cpp import cpp_prefetch, cpp_printer, cpp_streaming
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compiler.programs import compiled, kernels, same


@pytest.fixture
def no_caches(monkeypatch):
    monkeypatch.setattr(cpp_streaming, "MIN_STREAMING_BYTES", 0)
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 0)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 0)
    # Graphs kept by others were printed with the usual bounds, and the other way round.
    monkeypatch.setattr(build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)


def source(function, *inputs):
    return "".join(cpp_printer.print_function(k, int) for k in kernels(function, *inputs))


def crossed(x, y):
    return x + y.t() * 2


def normed(x):
    return F.layer_norm(x, x.shape[-1:])


def joined(x):
    return torch.cat([x, x * 2, x.neg()], 1)


@pytest.mark.parametrize("size", [(7, 1), (40, 64), (33, 515)], ids=str)
@pytest.mark.parametrize(
    "function", [torch.exp, normed, lambda x: x.softmax(-1), joined, lambda x: x[:, 1:] * 2]
)
def test_results_stored_past_the_caches_are_eagers(no_caches, function, size):
    same(function, torch.randn(size))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int16, torch.bool], ids=str
)
def test_elements_of_every_width_are_stored_past_the_caches(no_caches, dtype):
    x = (torch.randn(37, 130) * 9).to(dtype)
    same(lambda x: (x.flip(1) | (x > 0), joined(x.float()).to(dtype)) if dtype == torch.bool
         else (x.flip(1) * 3, joined(x)), x)  # fmt: skip


def test_every_thread_waits_for_what_it_has_stored_past_the_caches(no_caches):
    """A row that the threads share: each of them stores a part."""
    x = torch.randn(70000)
    text = source(lambda x: x.softmax(-1), x)
    *_, last = text.split("#pragma omp parallel for")
    inside = last.partition("\n        }\n")[0]
    assert inside.index("stream(") < inside.index("streamed();")
    same(lambda x: x.softmax(-1), x)


def test_the_tiles_of_a_block_ask_for_all_rows_of_the_next_one(no_caches):
    """Each for some of them, as wide as the block, in both inputs."""
    text = source(crossed, torch.randn(200, 300), torch.randn(300, 200))
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


def test_a_row_of_tiles_is_transposed_before_it_is_used(no_caches):
    """Memory is written in pieces as wide as a block."""
    text = source(crossed, torch.randn(200, 300), torch.randn(300, 200))
    loops = re.findall(r"for \(i64 (\w+) = \w+; \w+ < [^;]+; (?:\w+ \+= 16|\+\+\w+)\)", text)
    assert loops[:4] == ["x0_tile", "x1_tile", "x0", "x1_tile"]
    assert text.index("transpose(") < text.index("for (i64 x0 =") < text.index("stream(")


@pytest.mark.parametrize("size", [(128, 256), (127, 300)], ids=str)
def test_tiles_are_stored_past_the_caches(no_caches, size):
    x, y = torch.randn(size), torch.randn(size[::-1])
    assert "stream(" in source(crossed, x, y)
    same(crossed, x, y)
    same(crossed, x.double(), y.double())


def test_what_a_kernel_reads_again_stays_in_the_caches(no_caches):
    """The exponentials are a result and are read after their sum is known."""

    def function(x):
        powers = x.exp()
        return powers, powers / powers.sum(-1, keepdim=True)

    x = torch.randn(33, 160)
    assert source(function, x).count("    stream(") == 1
    same(function, x)


def test_an_update_in_place_stays_in_the_caches(no_caches):
    def function(x):
        return x.mul_(2).add_(1)

    same(function, torch.randn(40, 50))


def test_small_results_stay_in_the_caches():
    assert "stream(" not in source(torch.exp, torch.randn(64, 64))


def test_pieces_of_memory_are_fetched_ahead(no_caches):
    """Channels of one image after another: what comes next is a jump away."""
    images = torch.randn(4, 3, 16, 16)
    assert "fetch(&p0[(6144 + r1" in source(lambda x: x.sum((0, 2, 3)), images)
    same(lambda x: x.sum((0, 2, 3)), images)


def test_what_was_just_read_is_not_fetched_again(no_caches, monkeypatch):
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 4096)
    text = source(lambda x, w: x.softmax(-1) * w, torch.randn(40, 256), torch.randn(256))
    assert text.count("fetch(&p0[") == text.count("fetch(") == 2  # a row of each half


def test_pieces_that_may_be_gone_are_fetched_again_as_they_are_used(no_caches, monkeypatch):
    """A channel is read twice, and other lines may have taken the place of the first."""

    def function(x):
        return x - x.sum((0, 2, 3), keepdim=True)

    images = torch.randn(4, 3, 16, 64)
    *_, again = source(function, images).split(".result()")
    assert again.index("fetch(&p0[(6144 + r1_strip") < again.index("stream(")
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", images[:, 0].nbytes)
    *_, again = source(function, images).split(".result()")
    assert "fetch(" not in again and "stream(" in again
    same(function, images, rtol=1e-5, atol=1e-4)


def test_the_next_rows_are_fetched_where_most_is_computed(no_caches, monkeypatch):
    """Not while their maximum is sought: that waits for memory already."""
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 4096)
    for function in (lambda x: x.softmax(-1), lambda x: x.log_softmax(-1)):
        text = source(function, torch.randn(40, 1024))
        places = re.findall(r"fetch\(&p0\[\((.*?)\)\]", text)
        assert places == [
            "part + (1024 * later)", "part + (1024 * halves.half) + (1024 * later)"
        ]  # fmt: skip
        assert "later = halves.first + turn / 2 + 3;" in text  # others have been read already
        total = re.search(r"Sum(?:<f32>)? (\w+)", text)[1]
        assert text.index(total) < text.index("fetch(") < text.index(f"{total}.add(")


def test_rows_of_a_reduction_are_fetched_before_they_are_read(no_caches, monkeypatch):
    """What another iteration reads may be asked for at any time, but not what this one has read."""
    monkeypatch.setattr(cpp_prefetch, "MIN_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(cpp_prefetch, "MAX_CACHED_ROW_BYTES", 4096)
    rows = torch.randn(4, 6000)  # long ones: further on in the row
    text = source(lambda x: (x - x.mean(-1, keepdim=True)).exp().sum(-1), rows)
    assert text.index("fetch(") < text.index("exp")
    text = source(lambda x: x.softmax(-1), rows)  # the next row is read, too: further on in that
    scope, _, _ = text.partition("fetch(")
    assert scope.rstrip().endswith("const i64 x0 = next;")
    text = source(lambda x: (x - x.mean((0, 2), keepdim=True)).exp().sum((0, 2)),
                  torch.randn(8, 3, 256))  # fmt: skip
    assert text.index("fetch(") < text.index("exp")


# --- variance in one reading ----------------------------------------------------------------------

RANDOM = torch.randn(65600, generator=torch.Generator().manual_seed(0))
IMAGES = RANDOM.view(8, 5, 40, 41)
LAYOUTS = {
    "rows": (RANDOM[:36000].view(4, 9000), 1),
    "columns": (RANDOM[:25900].view(700, 37), 0),
    "one row": (RANDOM[:9000], 0),
    "images": (IMAGES, (0, 2, 3)),
    "channels last": (IMAGES.contiguous(memory_format=torch.channels_last), (0, 2, 3)),
}


def exact(function, results, x):
    """Within what rounding leaves of the result in double precision."""
    for actual, expected in zip(results, function(x.double()), strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=3e-5, atol=0)


@pytest.mark.parametrize("scale, shift", [(1, 3), (1, 1000), (0.01, 1e4), (1e-18, 3e-18)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_variance_is_exact_far_from_zero(layout, scale, shift):
    x, dims = LAYOUTS[layout]
    x = x * scale + shift

    def function(x):
        return torch.var_mean(x, dims)

    exact(function, compiled(function)(x), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_outlier_in_front_costs_no_accuracy(layout):
    x, dims = LAYOUTS[layout]
    x = x.clone() + 100
    x[(0,) * x.dim()] = 1e5

    def function(x):
        return torch.var_mean(x, dims)

    exact(function, compiled(function)(x), x)


@pytest.mark.parametrize("jump", [1.0, 1e4, -1e8], ids=str)
def test_variance_is_exact_where_the_mean_moves(jump):
    """Each block of a row takes its differences from the mean of those before."""
    row = torch.arange(9) % 4 // 2 * jump  # what is added to each thousand elements
    x = RANDOM[:36000].view(4, 9, 1000) + row[:, None]
    exact(lambda x: torch.var_mean(x, (1, 2)), compiled(lambda x: torch.var_mean(x, (1, 2)))(x), x)


def normalized(x, mean, variance):
    return F.batch_norm(x, mean, variance, training=True), mean.clone(), variance.clone()


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0, 3e38])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_special_values_are_normalized_as_eager_does(special, format):
    x = torch.randn(8, 5, 40, 41)
    x[3, 2, 7, 9] = special
    x[:, 3] = -0.0
    x = x.contiguous(memory_format=format)
    # A mean of next to nothing but 3e38 depends on how many elements a vector has.
    same(normalized, x, torch.zeros(5), torch.ones(5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_differences_from_a_number_in_front_may_overflow(format):
    x = torch.randn(8, 5, 40, 41)
    x[0, 2, 0, 0] = 3e38
    x = x.contiguous(memory_format=format)
    same(normalized, x, torch.zeros(5), torch.ones(5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions_are_normalized_as_eager_does(dtype):
    x = torch.randn(8, 5, 40, 41, dtype=dtype)
    # Next to the mean, bfloat16 is off by as much as the mean itself is.
    same(
        normalized,
        x,
        torch.zeros(5, dtype=dtype),
        torch.ones(5, dtype=dtype),
        rtol=0.016,
        atol=1e-4,
    )


def test_variance_over_a_size_that_varies():
    for rows in (3000, 3001):
        same(lambda x: torch.var_mean(x, (0, 2)), torch.randn(rows, 3, 5), dynamic=True)
