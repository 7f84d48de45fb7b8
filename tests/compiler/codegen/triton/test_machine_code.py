"""Machine code of Triton kernels for a GPU, compiled on a machine without one."""

import re

import pytest
import torch
import torch.nn.functional as F
import triton
from triton.backends.compiler import GPUTarget

from magpy_like.compiler.runtime.triton_launch import compile_kernel
from tests.compiler.codegen.triton.fake_gpu import sources

HOPPER = GPUTarget("cuda", 90, 32)


def ptx(source, **facts):
    facts = {"wide": False, "aligned": True} | facts
    stages = compile_kernel(source, HOPPER, **facts)
    assert all(stage.asm["cubin"][:4] == b"\x7fELF" for stage in stages)
    return "".join(stage.asm["ptx"] for stage in stages)


X = (512, 1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_memory_accesses_are_16_bytes_wide(dtype):
    (source,) = sources(lambda x: F.gelu(x) * 2, X, dtype=dtype)
    text = ptx(source)
    wide = r"global\.(v4\.b32|v2\.b64)"
    assert re.search("ld." + wide, text) and re.search("st." + wide, text)
    assert not re.search("ld." + wide, ptx(source, aligned=False))


def test_transposed_reads_use_shared_memory():
    (source,) = sources(lambda x, y: x + y.t(), X, (1024, 512))
    text = ptx(source)
    assert "ld.shared" in text and not re.search(r"ld\.global\.b32", text)


def test_row_of_softmax_is_loaded_once():
    (source,) = sources(lambda x: x.softmax(-1), X)
    assert source.text.count("tl.load") == 1


def test_many_short_rows_of_one_input_use_one_warp():
    """A single warp needs no barrier; its registers would not hold rows of several inputs."""
    many = (8192, 1024)
    (alone,) = sources(lambda x: x.softmax(-1), many)
    (two,) = sources(lambda x, y: (x + y).softmax(-1), many, many)
    (few,) = sources(lambda x: x.softmax(-1), X)
    assert [source.num_warps for source in (alone, two, few)] == [1, 4, 4]
    assert "bar.sync" not in ptx(alone)
    assert "bar.sync" in ptx(two)


def test_long_rows_use_a_looped_reduction():
    (source,) = sources(lambda x: x.softmax(-1), (4, 100_000))
    assert source.text.count("for start in range") == 3
    ptx(source)


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [((16, 64, 56, 56), (0, 1, 2, 3)), ((16, 56, 56, 64), (0, 3, 1, 2))],
)
def test_split_rows_are_normalised_without_shared_memory(shape, channels_first):
    """Results of reductions would be passed between threads by it, a copy for each element."""

    def normalised(x):
        return F.batch_norm(x.permute(channels_first), None, None, training=True).relu()

    (source,) = sources(normalised, shape)
    walk, combination, last = compile_kernel(source, HOPPER, wide=False, aligned=True)
    assert "bar.sync" in walk.asm["ptx"]
    assert "st.shared" not in last.asm["ptx"]
    assert combination.asm["ptx"].count("st.shared") < 16


def test_numbers_of_a_row_are_loaded_before_the_walk():
    (source,) = sources(lambda x, w: (x * w.unsqueeze(1)).softmax(1), (4, 100_000), (4,))
    walks = re.findall(r"for start in range.*?return", source.text, re.DOTALL)
    assert len(walks) == 3 and not any("tl.load(p1" in walk for walk in walks)
    assert source.text.count("tl.load(p1") == 3


@pytest.mark.parametrize("shape", [(64, 300), (4, 100_000)])
def test_scans_of_rows_of_any_length_compile(shape):
    all_of_it = (torch.cumsum, torch.cumprod, torch.cummax, torch.cummin)
    for dtype, scans in {
        torch.float32: (*all_of_it, torch.logcumsumexp), torch.float64: all_of_it,
        torch.int64: all_of_it, torch.int8: all_of_it, torch.bfloat16: (torch.cummax, torch.cummin),
    }.items():  # fmt: skip
        for scan in scans:
            (source,) = sources(lambda x, scan=scan: scan(x, 1), shape, dtype=dtype)
            assert "tl.associative_scan" in source.text
            ptx(source)


def test_products_and_sums_are_not_contracted():
    (source,) = sources(lambda x: x * 3 + 1, X)
    assert "fma.rn.f32" not in ptx(source)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16])
def test_float_to_integer_conversions_truncate_as_in_eager(source):
    """Narrow integers are converted through 32 bits, uint8 through 64; the selection of a value out
    of range is not optimised away."""
    kind = "f64" if source == torch.float64 else "f32"
    for target in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        bits = 64 if target in (torch.uint8, torch.int64) else 32
        (kernel,) = sources(
            lambda x, target=target: torch.where(x > 2, x, float("nan")).to(target), X, dtype=source
        )
        text = ptx(kernel)
        assert set(re.findall(r"cvt\.rzi\.\w+\.\w+", text)) == {f"cvt.rzi.s{bits}.{kind}"}
        assert "selp" in text, "a selection between two numbers, one of them out of range"


def test_large_positions_use_64_bits():
    (source,) = sources(lambda x: x + 1, (2**31,), dtype=torch.int8)
    assert source.function_of_sizes(source.wide)()
    ptx(source, wide=True)


PROGRAMS = {
    "every reduction": lambda x: (
        x.sum(1), x.amax(0), x.argmin(1), x.prod(1), (x > 0).any(0), x.var(0), x.std()
    ),
    "computed indices": lambda x: (
        torch.ops.aten.index(x, [x.select(1, 0).long() % 4]), x.gather(1, x.long().clamp(0, 9))
    ),
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, x.long().clamp(0, 9), x),
    "small integers": lambda x: (x.to(torch.int8).amax(1), x.to(torch.uint8) >> 1, x.bool().any()),
    "mathematics": lambda x: (
        torch.erfc(x) + torch.lgamma(x) + torch.atan2(x, x + 1) + x.pow(2.5) + x.fmod(3) + x % 2
    ),
    "integer arithmetic": lambda x: (
        (x.to(torch.int16) << 3) >> 1, x.long() // 7, x.int() % -3,
        torch.bitwise_not(x.to(torch.uint8)), torch.neg(x.to(torch.uint8)),
        x.to(torch.int8).sign(), x.bool() ^ True
    ),
    "low precision": lambda x: x.bfloat16().softmax(1).half() + x.bfloat16().sum(0),
    "special values": lambda x: (
        x.sign(), x.isinf(), x.signbit(), x.round(), x.sigmoid(), x.rsqrt(), 1 / x,
        torch.fmax(x, x + 1), torch.copysign(x, x - 1), torch.floor_divide(x, 0.5)
    ),
    "three permutations": lambda x: (
        x.view(8, 64, 1024).permute(2, 0, 1) + x.view(1024, 64, 8).permute(0, 2, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_compiles(name):
    found = sources(PROGRAMS[name], X)
    assert found
    for source in found:
        ptx(source)


def test_small_integers_are_not_added_in_packed_pairs():
    """ptxas (CUDA 12.8) drops a number that is added to two packed numbers in one register."""

    def gradient(output, image):
        return torch.ops.aten._adaptive_avg_pool2d_backward(output, image)

    (source,) = sources(gradient, (2, 3, 1, 3), (2, 3, 1, 4))
    text = ptx(source)
    assert "16x2" not in text and text.count("add.s16 a") == 4
    assert triton.knobs.runtime.add_stages_inspection_hook is None


def test_stages_inspection_hook_of_the_program_is_preserved(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compiled, not found
    seen = []

    def hook(*stages):
        seen.append(stages)
        return None if stages else ("theirs", "theirs")

    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", hook)
    (source,) = sources(lambda x: x * 5 - 1, (8, 24))
    ptx(source)
    assert any(stages for stages in seen)
    assert triton.knobs.runtime.add_stages_inspection_hook is hook


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sign_of_negative_numbers_is_minus_one(dtype):
    """LLVM turns -1 into 1 in a conversion from int32 to bfloat16."""
    (source,) = sources(torch.sign, X, dtype=dtype)
    minus_one = {
        torch.bfloat16: ("0xBF80",),
        torch.float16: ("0xBC00",),
        torch.float32: ("0fBF800000", str(0xBF800000 - 2**32)),  # as a float, or as its bits
    }
    assert any(text in ptx(source) for text in minus_one[dtype])
