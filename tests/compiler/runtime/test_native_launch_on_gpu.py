"""Launches in C++ on a GPU: the results of launches through Triton, on any stream and thread."""

import subprocess
import sys
import threading

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.compiler.runtime import native_launch, triton_launch
from magpy_like.compiler.runtime.triton_launch import Loaded
from magpy_like.native import KernelLaunch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BUSY = 200_000_000  # cycles: about a tenth of a second
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _on_a_gpu():
    with torch.device("cuda"):
        yield
    magpy.reset()
    torch.cuda.synchronize()


@pytest.fixture
def through_triton(monkeypatch):
    """The launches through Triton so far: sources of kernels."""
    seen = []
    launch = Loaded.__call__

    def counted(kernel, *args):
        seen.append(kernel.source)
        return launch(kernel, *args)

    monkeypatch.setattr(Loaded, "__call__", counted)
    return seen


class Twins:
    """A program compiled twice; kernels are launched in C++ in one, through Triton in the other."""

    def __init__(self, function, through_triton):
        options = {"cuda_graphs": False, "strict": True}
        self.native = magpy.compile(function, options=options)
        self.python = magpy.compile(function, options=options)
        self.through_triton = through_triton

    def same(self, *args):
        """Call both; the kernels are equal, and so is every bit of the results.

        A first call may run natively, and make the record of the second.
        """
        before = len(self.through_triton)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_launch, "is_possible", lambda: False)
            patch.setattr(triton_launch, "_on_device", {})
            self.python(*args)
            expected = self.python(*args)
        between = len(self.through_triton)
        self.native(*args)
        actual = self.native(*args)
        assert between > before, "no kernel was launched through Triton"
        assert len(self.through_triton) == between, "a kernel was not launched in C++"
        assert actual.dtype == expected.dtype and actual.stride() == expected.stride()
        assert torch.equal(actual, expected)
        return actual


@pytest.fixture
def twins(through_triton):
    return lambda function: Twins(function, through_triton)


def test_launches_in_cpp_are_possible():
    assert native_launch.is_possible()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_dtypes(twins, dtype):
    program = twins(lambda x, y: torch.where(x > y, x, y) ^ x if dtype is torch.bool else x + y)
    x, y = (torch.randint(0, 2 if dtype is torch.bool else 50, (1000,)).to(dtype) for _ in range(2))
    actual = program.same(x, y)
    assert torch.equal(actual, torch.where(x > y, x, y) ^ x if dtype is torch.bool else x + y)


def test_varying_sizes(twins):
    program = twins(lambda x: (x * 2).softmax(-1))
    for rows, columns in ((2, 3), (3, 3), (5, 64), (64, 5), (1, 1000), (7, 4096), (5, 64)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(program.same(x), (x * 2).softmax(-1))


def test_empty_tensors():
    compiled = magpy.compile(lambda x: x + 1, options={"cuda_graphs": False})
    for size in (4, 6, 0, 8, 0):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))


def test_varying_numbers(twins):
    program = twins(lambda x, scale, steps: x * scale + steps)
    x = torch.randn(100, dtype=torch.float64)
    for scale, steps in ((1.5, 2), (0.1, 2), (0.1, 5), (-1e300, 2**40), (2.0, -7)):
        assert torch.equal(program.same(x, scale, steps), x * scale + steps)


@pytest.mark.parametrize("start", [0, 1, 2, 4])
def test_misaligned_tensors(twins, start):
    program = twins(lambda x, y: x * y + 1)
    memory = torch.randn(5000)
    for x, y in (
        (memory[:4096], memory[:4096]),
        (memory[start:][:4096], memory[:4096]),
        (memory[:4096], memory[start:][:4096]),
    ):
        assert torch.equal(program.same(x, y), x * y + 1)


def test_reductions_with_workspaces_and_several_stages(twins, through_triton):
    program = twins(lambda x: x.sum())
    x = torch.randint(-5, 5, (1 << 22,)).double()
    for _ in range(3):
        assert torch.equal(program.same(x), x.sum())
    assert any(source.workspace and len(source.stages) > 1 for source in through_triton)


def test_kernels_run_on_the_current_stream(twins):
    program = twins(lambda x: x + 1)
    x = torch.zeros(1 << 20)
    program.same(x)
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(priority=-1)):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY)
            x.fill_(7)
            result = program.native(x)
        stream.synchronize()
        assert (result == 8).all(), "the kernel did not wait for its stream"
        x.zero_()


def test_external_streams_are_used(twins):
    program = twins(lambda x: x + 1)
    x = torch.zeros(1 << 20)
    program.same(x)
    own = torch.cuda.Stream()
    external = torch.cuda.ExternalStream(own.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.stream(external):
        torch.cuda._sleep(BUSY)
        x.fill_(7)
        result = program.native(x)
    external.synchronize()
    assert (result == 8).all()


def test_threads_launch_kernels(twins):
    program = twins(lambda x: (x * 3 - 1).relu())
    inputs = [torch.randn(1000 + k) for k in range(2)]
    for x in inputs:
        program.same(x)
    torch.cuda.synchronize()
    found = {}

    def work(k):
        with torch.device("cuda"):
            found[k] = [program.native(inputs[k % 2]) for _ in range(50)]
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for k, results in found.items():
        assert all(torch.equal(r, (inputs[k % 2] * 3 - 1).relu()) for r in results)


def test_kernels_that_check_indices(twins):
    program = twins(lambda table, index: F.embedding(index, table) * 2)
    table = torch.randn(10, 64)
    index = torch.tensor([3, 0, 9, 9])
    assert torch.equal(program.same(table, index), table[index] * 2)


OUT_OF_RANGE = """
import torch, magpy_like as magpy
from magpy_like.compiler.runtime import native_launch, triton_launch
assert native_launch.is_possible()
take = magpy.compile(lambda w, i: torch.nn.functional.embedding(i, w) * 2)
w = torch.ones(6, 10, device="cuda")
take(w, torch.tensor([3, 5], device="cuda"))
torch.cuda.synchronize()
take(w, torch.tensor([3, 25], device="cuda"))
torch.cuda.synchronize()
"""


def test_an_index_out_of_range_fails_the_process():
    done = subprocess.run([sys.executable, "-c", OUT_OF_RANGE], capture_output=True, text=True)
    assert done.returncode != 0 and "device-side assert" in done.stderr


def test_launches_can_be_captured(twins):
    program = twins(lambda x: ((x + 1).sum(), x.softmax(-1))[1] * 2)
    x = torch.randn(64, 1000)
    program.same(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        program.native(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = program.native(x)
    for _ in range(3):
        x.copy_(torch.randn(64, 1000))
        graph.replay()
        assert torch.equal(result, program.native(x))


def test_training(twins):
    weight = torch.randn(64, 64, requires_grad=True)
    compiled = magpy.compile(
        lambda x: (x * weight).sin().sum(-1).square().mean(), options={"cuda_graphs": False}
    )
    for rows in (64, 64):
        x = torch.randn(rows, 64)
        (actual,) = torch.autograd.grad(compiled(x), weight)
        (expected,) = torch.autograd.grad((x * weight).sin().sum(-1).square().mean(), weight)
        torch.testing.assert_close(actual, expected)


def test_a_refused_launch_is_reported_with_the_drivers_text(monkeypatch):
    describe = native_launch.describe_variant

    def with_too_many_threads(kernels, parameters):
        context, stages = describe(kernels, parameters)
        return context, tuple((n, f, 4096, shared) for n, f, _, shared in stages)

    monkeypatch.setattr(native_launch, "describe_variant", with_too_many_threads)
    compiled = magpy.compile(lambda x: x * 5 + 3, options={"cuda_graphs": False})
    x = torch.ones(64)
    with pytest.warns(UserWarning, match=r"4096 threads.*CUDA_ERROR_INVALID_VALUE"):
        for _ in range(4):
            assert (compiled(x) == 8).all(), "such calls run eagerly, and the GPU is usable"


def test_other_devices_are_current(twins):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    compiled = magpy.compile(lambda x: x + 1, options={"cuda_graphs": False})
    first, second = (torch.ones(64, device=f"cuda:{k}") for k in range(2))
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            for x in (first, second, first):
                result = compiled(x)
                assert result.device == x.device and (result == 2).all()
            assert torch.cuda.current_device() == current


def test_loaded_kernels_are_launchers(monkeypatch):
    loaded = []
    load_many = triton_launch.load_many

    def kept(wanted):
        loaded.extend(load_many(wanted))
        return loaded[-len(wanted) :]

    monkeypatch.setattr(triton_launch, "load_many", kept)
    magpy.compile(lambda x: x - 11, options={"cuda_graphs": False})(torch.ones(8))
    assert loaded and all(isinstance(kernel, KernelLaunch) for kernel in loaded)
