"""From Triton source to functions of addresses and sizes.

A kernel is compiled once per device kind, for the two facts that Triton's optimiser needs and that
may differ from call to call: whether all pointers are aligned to 16 bytes, and whether positions
fit 32 bits. Compiled code is kept in Triton's own cache on disk.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch

from magpy_like.compiler.errors import Unsupported

ALIGNMENT = 16  # bytes: the widest load
MAX_WORKERS = 16

_POINTER = {
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16",
    torch.int32: "*i32", torch.int64: "*i64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.float32: "*fp32", torch.float64: "*fp64",
}  # fmt: skip
_counter = itertools.count()


@dataclass(frozen=True)
class TritonSource:
    """One kernel: ``text`` defines ``name(pointers..., sizes...)`` with ``INDEX`` left open.

    ``grid`` (number of programs) and ``wide`` (do positions need 64 bits?) are Python expressions
    over ``sizes``. ``asserts``: the kernel checks computed indices.
    """

    name: str
    text: str
    pointers: tuple[torch.dtype, ...]
    sizes: tuple[str, ...]
    grid: str
    wide: str
    num_warps: int
    asserts: bool

    def renamed(self, text: str) -> TritonSource:
        """The same kernel under the name ``NAME``."""
        return replace(self, name="NAME", text=text)

    def function_of_sizes(self, expression: str) -> Callable[..., Any]:
        arguments = ", ".join(self.sizes)
        return eval(f"lambda {arguments}: {expression}", {"max": max, "min": min})


def define(source: TritonSource, wide: bool, namespace: dict[str, Any]) -> Any:
    """Execute the kernel's text in ``namespace``; the function, decorated as that has it."""
    text = source.text.replace("INDEX", "tl.int64" if wide else "tl.int32")
    filename = f"<magpy triton kernel {next(_counter)}>"
    # Triton reads the source of a function through linecache.
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    code: CodeType = compile(text, filename, "exec")
    exec(code, namespace)
    return namespace[source.name]


def compile_kernel(source: TritonSource, target: Any, *, wide: bool, aligned: bool) -> Any:
    """Compile for a Triton target (``GPUTarget``); the compiled kernel, nothing loaded yet."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    from magpy_like.compiler.codegen import triton_prelude

    namespace = {"triton": triton, "tl": tl, "libdevice": libdevice, "prelude": triton_prelude}
    function = define(source, wide, namespace)
    kinds = [*(_POINTER[p] for p in source.pointers)]
    kinds += ["i64" if wide else "i32"] * len(source.sizes)
    signature = dict(zip(function.arg_names, kinds, strict=True))
    attributes = {}
    if aligned:
        known = [["tt.divisibility", ALIGNMENT]]
        attributes = {(k,): known for k in range(len(source.pointers))}
    options: dict[str, Any] = {
        "num_warps": source.num_warps,
        "num_stages": 1,
        "enable_fp_fusion": False,  # eager rounds every product
        "debug": source.asserts,
        "sanitize_overflow": False,  # integers wrap around
    }
    backend = triton.compiler.compiler.make_backend(target)
    if hasattr(backend.parse_options({}), "enable_reflect_ftz"):
        options["enable_reflect_ftz"] = False  # keep subnormal numbers, as eager does
    ast = triton.compiler.ASTSource(fn=function, signature=signature, attrs=attributes)
    return triton.compile(ast, target=target, options=options)


class Loaded:
    """A kernel on one CUDA device: call it with addresses and sizes."""

    def __init__(self, source: TritonSource, device: torch.device) -> None:
        self.source = source
        self.index = device.index or 0
        self._grid = source.function_of_sizes(source.grid)
        self._wide = source.function_of_sizes(source.wide)
        self._count = len(source.pointers)
        self._variants: dict[tuple[bool, bool], Callable[..., None]] = {}
        self._fixed = None if source.sizes else (self._grid(), bool(self._wide()))

    def variant(self, sizes: Sequence[int]) -> tuple[bool, bool]:
        """(positions in 64 bits, aligned pointers), as calls with these sizes mostly need."""
        return (self._fixed[1] if self._fixed else bool(self._wide(*sizes))), True

    def __call__(self, *args: int) -> None:
        if torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.index):
                return self(*args)
        if self._fixed is not None:
            grid, wide = self._fixed
        else:
            sizes = args[self._count :]
            grid, wide = self._grid(*sizes), bool(self._wide(*sizes))
        if grid == 0:
            return None
        aligned = not functools.reduce(operator.or_, args[: self._count]) & (ALIGNMENT - 1)
        launch = self._variants.get((wide, aligned))
        if launch is None:
            launch = self.load((wide, aligned), self.compile(wide, aligned))
        launch(grid, torch._C._cuda_getCurrentRawStream(self.index), args)
        return None

    def compile(self, wide: bool, aligned: bool) -> Any:
        """One variant as machine code; touches no device."""
        return compile_kernel(self.source, _target(self.index), wide=wide, aligned=aligned)

    def load(self, variant: tuple[bool, bool], kernel: Any) -> Callable[..., None]:
        """Put a compiled variant on the device. What may fail fails here, not at a launch."""
        with torch.cuda.device(self.index):
            run = kernel.run
            function, metadata = kernel.function, kernel.packed_metadata

        def launch_on(grid: int, stream: int, args: tuple[int, ...]) -> None:
            run(grid, 1, 1, stream, function, metadata, None, None, None, *args)

        self._variants[variant] = launch_on
        return launch_on


@functools.cache
def _target(index: int) -> Any:
    from triton.runtime import driver

    with torch.cuda.device(index):
        return driver.active.get_current_target()


def load_many(
    wanted: Sequence[tuple[TritonSource, torch.device, Sequence[int]]],
) -> list[Loaded]:
    """Kernels of (source, device, sizes of the example inputs), compiled at the same time."""
    try:
        import triton  # noqa: F401
    except ImportError:
        raise Unsupported("every graph with CUDA tensors", "Triton is not installed") from None
    loaded = [Loaded(source, device) for source, device, _ in wanted]
    variants = [k.variant(sizes) for k, (_, _, sizes) in zip(loaded, wanted, strict=True)]
    if not loaded:
        return []

    for kernel in loaded:
        _target(kernel.index)
    # Triton's passes and ptxas run outside Python's lock.
    workers = min(len(loaded), len(os.sched_getaffinity(0)), MAX_WORKERS)
    with ThreadPoolExecutor(workers, thread_name_prefix="magpy-triton") as pool:
        compiled = list(pool.map(lambda k, variant: k.compile(*variant), loaded, variants))
    for kernel, variant, code in zip(loaded, variants, compiled, strict=True):
        kernel.load(variant, code)
    return loaded
