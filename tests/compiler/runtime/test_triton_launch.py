"""Kernel launches with a stub of the CUDA driver: streams, devices, alignment and caching."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from magpy_like.compiler.compile_fx import compile_aten
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime import compiled_graph_cache, native_launch, triton_launch
from magpy_like.compiler.runtime.triton_launch import Loaded
from magpy_like.compiler.stage_trace import open_trace
from tests.compiler.codegen.triton.fake_gpu import sources, traced


class Driver:
    """A stub that records launches as (device, stream, grid, aligned, wide, arguments)."""

    def __init__(self, monkeypatch):
        self.current, self.launches, self.compiled = 0, [], []
        monkeypatch.setattr(triton_launch, "current_device", lambda: self.current)
        monkeypatch.setattr(triton_launch, "current_raw_stream", lambda k: 100 + k)
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(triton_launch, "_target", lambda index: None)
        monkeypatch.setattr(triton_launch, "compile_kernel", self.compile)
        monkeypatch.setattr(triton_launch, "_on_device", {})
        monkeypatch.setattr(native_launch, "is_possible", lambda: False)

    @contextlib.contextmanager
    def device(self, device):
        old, self.current = (
            self.current,
            torch.device("cuda", device).index if isinstance(device, int) else device.index,
        )
        yield
        self.current = old

    def compile(self, source, target, *, wide, aligned):
        self.compiled.append((wide, aligned))

        def run(x, y, z, stream, function, metadata, info, enter, leave, *args):
            self.launches.append((self.current, stream, x, aligned, wide, args))

        return [
            SimpleNamespace(run=run, function=None, packed_metadata=None) for _ in source.stages
        ]


@pytest.fixture
def driver(monkeypatch):
    return Driver(monkeypatch)


def loaded(device=0, **dynamic):
    (source,) = sources(lambda x: x + 1, (4096,))
    return Loaded(source, torch.device("cuda", device))


def test_kernel_runs_on_the_current_stream_of_its_device(driver):
    loaded(device=1)(64, 128)
    assert [launch[:2] for launch in driver.launches] == [(1, 101)]
    assert driver.current == 0


def test_unaligned_memory_uses_the_unaligned_variant(driver):
    kernel = loaded()
    for address in (64, 68, 80, 68):
        kernel(address, 128)
    assert [launch[3] for launch in driver.launches] == [True, False, True, False]
    assert driver.compiled == [(False, True), (False, False)]


def test_tensors_are_passed_as_addresses(driver):
    memory = torch.ones(8)
    loaded()(memory, memory[4:])
    assert driver.launches[0][-1] == (memory.data_ptr(), memory.data_ptr() + 16)


def test_empty_grids_are_not_launched(driver):
    source = sources(lambda x: x + 1, (4096,))[0]
    grid = source.stages[0][1].replace("4096", "s0")
    empty = triton_launch.replace(
        source, stages=(("NAME", grid),), sizes=("s0",), wide="s0 > 2**31"
    )
    kernel = Loaded(empty, torch.device("cuda"))
    kernel(64, 128, 0)
    assert not driver.launches
    kernel(64, 128, 2**32)
    assert driver.launches[0][4], "positions need 64 bits"


def test_kernels_are_compiled_before_the_first_call(driver):
    source = sources(lambda x: x + 1, (4096,))[0]
    (kernel,) = triton_launch.load_many([(source, torch.device("cuda", 0), [])])
    assert driver.compiled == [(False, True)]
    kernel(64, 128)
    assert driver.compiled == [(False, True)]


def test_equal_kernels_are_compiled_once_in_a_process(driver):
    """Also for programs that are compiled again: nothing unloads a kernel."""
    source = sources(lambda x: x + 1, (4096,))[0]
    wanted = [(source, torch.device("cuda", gpu), []) for gpu in (0, 0, 1)]
    triton_launch.load_many(wanted)
    assert len(driver.compiled) == 2
    for kernel in triton_launch.load_many(wanted):
        kernel(64, 128)
    assert len(driver.compiled) == 2 and len(driver.launches) == 3


def test_missing_triton_is_unsupported(driver, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    with pytest.raises(Unsupported, match="Triton is not installed"):
        triton_launch.load_many([])


def test_cached_graph_is_found_with_its_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    loaded, lowered = [], []
    monkeypatch.setattr(
        triton_launch, "load_many", lambda kernels: loaded.append(kernels) or [print] * len(kernels)
    )
    run = Graph.run
    monkeypatch.setattr(Graph, "run", lambda self: lowered.append(self) or run(self))

    def function(x, w):
        return (x @ w).softmax(-1), (x.sum(0) * 2).to(torch.bfloat16), x * 3.5

    for _ in range(2):
        gm = traced(function, (32, 64), (64, 16))
        compile_aten(gm, kind="inference", strict=True, trace=open_trace({}))
    assert len(lowered) == 1
    first, second = loaded
    assert len(first) > 1
    assert [tuple(map(str, kernel)) for kernel in first] == [tuple(map(str, k)) for k in second]
    assert [kernel[0] for kernel in first] == [kernel[0] for kernel in second]


def test_folded_constants_keep_their_device():
    for device in ("cpu", "meta"):
        table = torch.arange(6, device="cpu").reshape(2, 3).t()
        text = compiled_graph_cache.serialize_tensor(table).replace('"cpu"', f'"{device}"')
        found = compiled_graph_cache._deserialize_tensor(text)
        assert (found.device.type, found.stride()) == (device, table.stride())
        if device == "cpu":
            assert torch.equal(found, table)
