"""Kernels that Triton compiled, launched in C++ with a stub of the CUDA driver."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from triton.backends.compiler import GPUTarget

from magpy_like.compiler.runtime import native_launch, triton_launch
from magpy_like.compiler.runtime.triton_launch import Loaded
from magpy_like.native import KernelLaunch, helper_status
from tests.compiler.codegen.triton.fake_gpu import sources
from tests.native.cuda_driver_stub import CONTEXT, DriverStub

HOPPER = GPUTarget("cuda", 90, 32)
STREAM = 0x70
_LETTERS = {"*": "Q", "i32": "i", "i64": "q", "fp32": "f", "fp64": "d"}


def letters_of(kernel):
    """The types of a compiled kernel's parameters, with those that Triton adds."""
    kinds = kernel.src.signature.values()
    return "".join(_LETTERS.get(kind, "Q") for kind in kinds) + "QQ"


@pytest.fixture
def gpu(monkeypatch):
    """A stub of the driver for kernels that Triton compiles for a GPU. Triton launches none."""
    stub = DriverStub()
    stub.launched_by_triton = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(triton_launch, "_target", lambda index: HOPPER)
    monkeypatch.setattr(triton_launch, "current_device", lambda: 0)
    monkeypatch.setattr(triton_launch, "current_raw_stream", lambda index: STREAM)
    monkeypatch.setattr(native_launch, "current_raw_stream", lambda index: STREAM)
    monkeypatch.setattr(native_launch, "is_possible", lambda: True)
    monkeypatch.setattr(Loaded, "workspace", workspace)
    compile_kernel = triton_launch.compile_kernel

    def compiled(*args, **options):
        kernels = compile_kernel(*args, **options)
        for kernel in kernels:  # as its loading does
            kernel._run = lambda *args: stub.launched_by_triton.append(args)
            kernel.module, kernel.function = object(), stub.function(letters_of(kernel))
        return kernels

    monkeypatch.setattr(triton_launch, "compile_kernel", compiled)
    monkeypatch.setattr(triton_launch, "_on_device", {})
    yield stub
    stub.close()


def workspace(self, elements):
    return [torch.empty(n, dtype=d) for n, (d, _) in zip(elements, self.source.workspace)]


def load(*sources, sizes=()):
    device = torch.device("cuda", 0)
    return triton_launch.load_many([(source, device, sizes) for source in sources])


def with_arguments(source, *names, **facts):
    """The kernel of ``x + 1`` with further arguments, which its result depends on."""
    text = source.text.replace("(p0, p1)", f"(p0, p1, {', '.join(names)})")
    return replace(source, text=text.replace("1.0", " + ".join(names)), **facts)


def test_kernels_are_launched_with_the_geometry_of_their_metadata(gpu):
    (source,) = sources(lambda x: x + 1, (4096,))
    (kernel,) = load(source)
    assert isinstance(kernel, KernelLaunch)
    x, y = torch.ones(4096), torch.ones(4096)
    kernel(x, y)
    (launch,) = gpu.launches
    (compiled,) = triton_launch.compile_kernel(source, HOPPER, wide=False, aligned=True)
    assert launch.values("QQQQ") == [x.data_ptr(), y.data_ptr(), 0, 0]
    assert launch.grid == (Loaded(source, torch.device("cuda")).plan()[0][0], 1, 1)
    assert launch.block == (32 * compiled.metadata.num_warps, 1, 1)
    assert launch.stream == STREAM and not gpu.launched_by_triton


def test_sizes_and_numbers_have_the_types_of_the_compiled_kernel(gpu):
    source = with_arguments(
        sources(lambda x: x + 1, (4096,))[0], "s0", "n0", "n1",
        sizes=("s0",), numbers=("i64", "fp64"), wide="s0 > 2**31",
    )  # fmt: skip
    (kernel,) = load(source, sizes=[7])
    kernel(16, 32, 7, -(2**40), 0.1)
    kernel(16, 32, 2**40, 3, 2)
    assert gpu.launches[0].values("QQiqdQQ") == [16, 32, 7, -(2**40), 0.1, 0, 0]
    assert gpu.launches[1].values("QQqqdQQ") == [16, 32, 2**40, 3, 2.0, 0, 0]


def test_a_split_reduction_launches_its_stages_with_one_workspace(gpu):
    (source,) = sources(lambda x: x.sum(), (1 << 22,))
    assert len(source.stages) == 2 and source.workspace
    (kernel,) = load(source)
    kernel(16, 32)
    first, second = gpu.launches
    assert first.function != second.function and first.shared_bytes > 0
    assert first.parameters == second.parameters
    assert first.values("QQQQQ")[:2] == [16, 32] and first.values("QQQQQ")[2] % 16 == 0
    assert first.grid[0] > second.grid[0] == 1


def test_misaligned_tensors_take_the_variant_without_alignment(gpu):
    (source,) = sources(lambda x: x + 1, (4096,))
    (kernel,) = load(source)
    memory = torch.ones(5000)
    for x in (memory, memory[1:], memory[4:], memory[1:]):
        kernel(x[:4096], memory)
    aligned, other, *rest = [launch.function for launch in gpu.launches]
    assert aligned != other and rest == [aligned, other]


def test_both_paths_pass_the_same_values(gpu):
    source = with_arguments(
        sources(lambda x: x + 1, (4096,))[0], "s0", "n0",
        sizes=("s0",), numbers=("fp64",), stages=(("NAME", "-(-(s0) // 128)"),),
    )  # fmt: skip
    (kernel,) = load(source, sizes=[4096])
    python = Loaded(source, torch.device("cuda", 0))
    x = torch.ones(9000)
    for size, number in ((300, 2.5), (1, -1), (0, 0), (8192, 3)):
        arguments = (x[size % 3 :], x, size, number)
        kernel(*arguments)
        python(*arguments)
    assert len(gpu.launches) == len(gpu.launched_by_triton) == 3
    for native, by_triton in zip(gpu.launches, gpu.launched_by_triton, strict=True):
        grid, _, _, stream, _, (warps, _, shared), _, _, _, *parameters = by_triton
        assert native.values("QQidQQ") == [*parameters, 0, 0]
        assert (native.grid[0], native.stream) == (grid, stream)
        assert (native.block[0], native.shared_bytes) == (32 * warps, shared)


def test_triton_launches_kernels_from_other_devices(gpu):
    (source,) = sources(lambda x: x + 1, (4096,))
    (kernel,) = load(source)
    gpu.set_context(CONTEXT + 8)
    kernel(16, 32)
    assert not gpu.launches and len(gpu.launched_by_triton) == 1


def test_without_a_driver_or_helper_triton_launches(gpu, monkeypatch):
    (source,) = sources(lambda x: x + 1, (4096,))
    monkeypatch.setattr(native_launch, "is_possible", lambda: False)
    (kernel,) = load(source)
    assert isinstance(kernel, Loaded)
    kernel(torch.ones(1), torch.ones(1))
    assert not gpu.launches and len(gpu.launched_by_triton) == 1


@pytest.mark.parametrize("missing", [None, "stream", "helper", "driver"])
def test_launches_in_cpp_need_streams_the_helper_and_the_driver(missing, monkeypatch, gpu):
    monkeypatch.undo()
    monkeypatch.setattr(native_launch, "current_raw_stream", lambda index: 0)
    monkeypatch.setattr(native_launch, "DRIVER", gpu.path)
    if missing == "stream":
        monkeypatch.setattr(native_launch, "current_raw_stream", None)
    if missing == "helper":
        monkeypatch.setattr(helper_status, "obstacle", lambda: "there is no compiler")
    if missing == "driver":
        monkeypatch.setattr(native_launch, "DRIVER", "libc.so.6")
    assert native_launch.is_possible.__wrapped__() is (missing is None)


def test_kernels_with_more_parameters_than_cpp_packs_stay_in_python(gpu):
    (source,) = sources(lambda x: x + 1, (4096,))
    many = replace(source, pointers=(torch.float32,) * 600)
    assert native_launch.launcher_of(Loaded(many, torch.device("cuda"))) is None
    other = replace(source, numbers=("fp16",))
    assert native_launch.launcher_of(Loaded(other, torch.device("cuda"))) is None


# --- descriptions ---------------------------------------------------------------------------------


def compiled(gpu):
    (source,) = sources(lambda x: x + 1, (4096,))
    kernels = triton_launch.compile_kernel(source, HOPPER, wide=False, aligned=True)
    return kernels, source.parameters(wide=False)


def test_the_description_names_the_function_and_its_context(gpu):
    (kernel,), parameters = compiled(gpu)
    metadata = kernel.metadata
    stage = (metadata.name, kernel.function, 32 * metadata.num_warps, metadata.shared)
    assert native_launch.describe_variant([kernel], parameters) == (CONTEXT, (stage,))


@pytest.mark.parametrize("arch", [75, 80, 90, 100])
@pytest.mark.parametrize("wide", [False, True])
def test_the_compilers_kernels_need_no_special_launch(gpu, arch, wide):
    programs = [
        (lambda table, x: F.embedding((x * 0).long(), table) * 2, (10, 64), (5,)),
        (lambda x: x.softmax(-1), (8, 3000)),
        (lambda x: x.cumsum(-1), (4, 3000)),
        (lambda x: x.sum(), (1 << 22,)),
    ]
    found = [source for function, *shapes in programs for source in sources(function, *shapes)]
    assert any(source.asserts for source in found) and any(source.workspace for source in found)
    for source in found:
        target = GPUTarget("cuda", arch, 32)
        kernels = triton_launch.compile_kernel(source, target, wide=wide, aligned=True)
        assert native_launch.describe_variant(kernels, source.parameters(wide)) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"num_ctas": 2},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"warp_size": 64},
        {"global_scratch_size": 128},
        {"profile_scratch_size": 1},
        {"target": GPUTarget("hip", "gfx942", 64)},
    ],
)
def test_special_launches_are_left_to_triton(gpu, change):
    kernels, parameters = compiled(gpu)
    kernels[0].metadata = kernels[0].metadata._replace(**change)
    assert native_launch.describe_variant(kernels, parameters) is None


def test_unknown_layouts_of_parameters_are_left_to_triton(gpu):
    kernels, parameters = compiled(gpu)
    for other in (parameters[:-1], [*parameters, "i32"], ["i32", *parameters[1:]]):
        assert native_launch.describe_variant(kernels, other) is None
    ptx = kernels[0].asm["ptx"]
    for old, new in (
        (".param .u64 .ptr .global .align 1 NAME_param_3", ".param .u32 NAME_param_3"),
        (".param .u64 .ptr .global .align 1 NAME_param_3", ".param .align 8 .b8 NAME_param_3[64]"),
        (".entry NAME(", ".entry OTHER("),
    ):
        assert old in ptx
        kernels[0].asm["ptx"] = ptx.replace(old, new)
        assert native_launch.describe_variant(kernels, parameters) is None
    del kernels[0].asm["ptx"]
    assert native_launch.describe_variant(kernels, parameters) is None


def test_metadata_of_older_versions_is_understood(gpu):
    """Triton 3.6 tells the clusters of a kernel."""
    kernels, parameters = compiled(gpu)
    (kernel,) = kernels

    class Older:
        _fields = (*kernel.metadata._fields, "cluster_dims")
        cluster_dims = [1, 1, 1]

        def __getattr__(self, name):
            return getattr(metadata, name)

    metadata = kernel.metadata
    kernel.metadata = Older()
    assert native_launch.describe_variant(kernels, parameters) is not None
    kernel.metadata.cluster_dims = [2, 1, 1]
    assert native_launch.describe_variant(kernels, parameters) is None
