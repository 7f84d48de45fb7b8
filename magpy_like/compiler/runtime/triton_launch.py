"""Compilation, loading and launch of Triton kernels.

A kernel is compiled once per kind of device, in variants for two facts that Triton's optimiser
needs and that may differ from call to call: whether all pointers are aligned to 16 bytes, and
whether positions fit 32 bits. Compiled code is in Triton's own cache on disk
(``docs/security.md``).
"""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.runtime import native_launch
from magpy_like.compiler.runtime.native_launch import NativeVariant
from magpy_like.compiler.runtime.ptx_repair import splitting_paired_additions
from magpy_like.torch_compat.cuda import current_device, current_raw_stream
from magpy_like.torch_patches import compile_source

ALIGNMENT = 16  # bytes: the widest load
MAX_WORKERS = 16

_POINTER = {
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16",
    torch.int32: "*i32", torch.int64: "*i64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.float32: "*fp32", torch.float64: "*fp64",
}  # fmt: skip


#: Launch function, handle and metadata of each stage of a loaded kernel.
Variant = tuple[bool, bool]
"""Positions in 64 bits? aligned pointers?"""
Launches = list[tuple[Callable[..., None], Any, Any]]


@dataclass(frozen=True)
class TritonSource:
    """One kernel: ``text`` with ``INDEX``, the type of positions, left open.

    ``stages``: (function, number of programs) of each launch, in order; all take (pointers...,
    workspace pointers..., sizes..., numbers...). ``workspace``: (dtype, number of elements) of each
    workspace pointer. ``numbers``: Triton's type of each. Counts, and ``wide`` (do positions need
    64 bits?), are Python expressions over ``sizes``. ``asserts``: the kernel checks computed
    indices.
    """

    stages: tuple[tuple[str, str], ...]
    text: str
    pointers: tuple[torch.dtype, ...]
    workspace: tuple[tuple[torch.dtype, str], ...]
    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    wide: str
    num_warps: int
    asserts: bool

    def renamed(self, old: str, text: str, new: str = "NAME") -> TritonSource:
        """The same kernel under another name, and with another ``text``."""
        text = re.sub(rf"\b{old}(?=_\d|\b)", new, text)
        stages = tuple((re.sub(rf"^{old}", new, name), grid) for name, grid in self.stages)
        return replace(self, text=text, stages=stages)

    def parameters(self, wide: bool) -> list[str]:
        """Triton's type of each argument; positions, and so sizes, are of 64 bits if ``wide``."""
        memory = [*self.pointers, *(dtype for dtype, _ in self.workspace)]
        sizes = ["i64" if wide else "i32"] * len(self.sizes)
        return [*(_POINTER[dtype] for dtype in memory), *sizes, *self.numbers]

    def function_of_sizes(self, expression: str) -> Callable[..., Any]:
        arguments = "".join(f"{size}, " for size in self.sizes)
        return eval(f"lambda {arguments}*numbers: {expression}", {"math": math, "torch": torch})


#: A kernel to compile: its source, the device, the sizes of the example inputs.
CompileRequest = tuple[TritonSource, torch.device, Sequence[int]]


def serialize(wanted: CompileRequest) -> str:
    """A request as text, for a file."""
    source, device, sizes = wanted
    return json.dumps([asdict(source), str(device), list(sizes)], default=str)


def deserialize(text: str) -> CompileRequest:
    """Inverse of :func:`serialize`."""
    fields, device, sizes = json.loads(text)
    fields["stages"] = tuple((name, grid) for name, grid in fields["stages"])
    fields["pointers"] = tuple(map(_dtype, fields["pointers"]))
    fields["workspace"] = tuple((_dtype(dtype), count) for dtype, count in fields["workspace"])
    fields["sizes"], fields["numbers"] = tuple(fields["sizes"]), tuple(fields["numbers"])
    return TritonSource(**fields), torch.device(device), sizes


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def define(source: TritonSource, wide: bool, namespace: dict[str, Any]) -> list[Any]:
    """Execute the kernel's text in ``namespace``; returns its stages as decorated there."""
    text = source.text.replace("INDEX", "tl.int64" if wide else "tl.int32")
    exec(compile_source("magpy_like triton kernel", text), namespace)
    return [namespace[name] for name, _ in source.stages]


def compile_kernel(source: TritonSource, target: Any, *, wide: bool, aligned: bool) -> list[Any]:
    """Compile for a Triton target (``GPUTarget``); returns the compiled stages, not loaded."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    from magpy_like.compiler.codegen.triton import triton_prelude

    namespace = {"triton": triton, "tl": tl, "libdevice": libdevice, "prelude": triton_prelude}
    # Triton 3.6 caches machine code under a key that does not cover changes to the PTX.
    annotated = re.sub(r"^(def .*)$", r"\1\n    # one addition at a time", source.text, flags=re.M)
    functions = define(replace(source, text=annotated), wide, namespace)
    kinds = source.parameters(wide)
    signature = dict(zip(functions[0].arg_names, kinds, strict=True))
    attributes = {}
    if aligned:
        known = [["tt.divisibility", ALIGNMENT]]
        attributes = {(k,): known for k, kind in enumerate(kinds) if kind.startswith("*")}
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
    asts = [
        triton.compiler.ASTSource(fn=function, signature=signature, attrs=attributes)
        for function in functions
    ]
    with splitting_paired_additions():
        return [triton.compile(ast, target=target, options=options) for ast in asts]


class Loaded:
    """A kernel on one CUDA device, called with tensors or addresses, sizes and numbers.

    It launches through Triton. :func:`native_launch.launcher_of` does the same in C++.
    """

    def __init__(self, source: TritonSource, device: torch.device) -> None:
        self.source = source
        self.device = torch.device("cuda", device.index or 0)
        grids = "".join(f"{grid}, " for _, grid in source.stages)
        elements = "".join(f"{count}, " for _, count in source.workspace)
        self.plan = source.function_of_sizes(f"(({grids}), ({elements}), {source.wide})")
        """Sizes -> numbers of programs, numbers of elements of workspaces, 64-bit positions?"""
        self._fixed = None if source.sizes else self.plan()
        self._count = len(source.pointers)
        self._variants: dict[Variant, Launches] = {}
        self._native: dict[Variant, NativeVariant | None] = {}

    def variant(self, sizes: Sequence[int]) -> Variant:
        """(positions in 64 bits, aligned pointers), as most calls with these sizes need."""
        return (self._fixed or self.plan(*sizes))[2], True

    def __call__(self, *args: Any) -> None:
        index = self.device.index
        if current_device() != index:
            with torch.cuda.device(index):
                return self(*args)
        pointers = [a if isinstance(a, int) else a.data_ptr() for a in args[: self._count]]
        rest = args[self._count :]
        grids, elements, wide = self._fixed or self.plan(*rest)
        if grids[0] == 0:
            return None
        aligned = not functools.reduce(operator.or_, pointers) & (ALIGNMENT - 1)
        launches = self._variants.get((wide, aligned))
        if launches is None:
            launches = self.load((wide, aligned))
        # The allocator reuses it only for work that comes later on this stream.
        room = self.workspace(elements)
        pointers += [r.data_ptr() for r in room]
        stream = current_raw_stream(index)
        for grid, (run, function, metadata) in zip(grids, launches, strict=True):
            run(grid, 1, 1, stream, function, metadata, None, None, None, *pointers, *rest)
        return None

    def workspace(self, elements: Sequence[int]) -> list[torch.Tensor]:
        """New workspaces of these numbers of elements."""
        return [
            torch.empty(count, dtype=dtype, device=self.device)
            for count, (dtype, _) in zip(elements, self.source.workspace, strict=True)
        ]

    def native_variant(self, wide: bool, aligned: bool) -> NativeVariant | None:
        """A variant for launches in C++, compiled and loaded if it is not yet; None if only Triton
        knows how to launch it."""
        if (wide, aligned) not in self._variants:
            self.load((wide, aligned))
        return self._native[wide, aligned]

    def compile(self, wide: bool, aligned: bool) -> list[Any]:
        """One variant as machine code; needs no device."""
        return compile_kernel(self.source, _target(self.device.index), wide=wide, aligned=aligned)

    def load(self, variant: Variant, kernels: Sequence[Any] | None = None) -> Launches:
        """Load a variant onto the device, where errors surface before a launch.

        ``kernels``: its stages as machine code, if they are compiled.
        """
        key = (self.source, self.device.index, variant)
        found = _on_device.get(key)
        if found is None:
            with torch.cuda.device(self.device):
                kernels = self.compile(*variant) if kernels is None else kernels
                launches = [(k.run, k.function, k.packed_metadata) for k in kernels]
                native = native_launch.describe_variant(kernels, self.source.parameters(variant[0]))
            found = launches, native
            if len(_on_device) < MAX_ON_DEVICE:
                _on_device[key] = found
        self._variants[variant], self._native[variant] = found
        return found[0]

    def is_loaded(self, variant: Variant) -> bool:
        """True if the same kernel has been loaded in this process."""
        return (self.source, self.device.index, variant) in _on_device


MAX_ON_DEVICE = 8192
_on_device: dict[tuple[TritonSource, int, Variant], tuple[Launches, NativeVariant | None]] = {}
"""Kernels that are on a GPU: nothing unloads them, so a program that is compiled again uses those
that it has. *Measured* on an H100: a kernel loaded anew takes 50 KiB of the process's memory."""


@functools.cache
def _target(index: int) -> Any:
    from triton.runtime import driver

    with torch.cuda.device(index):
        return driver.active.get_current_target()


def load_many(wanted: Sequence[CompileRequest]) -> list[Callable[..., None]]:
    """Compile kernels in parallel, and load them: functions of tensors, sizes and numbers.

    Raises:
        Unsupported: Triton is missing.
    """
    try:
        import triton  # noqa: F401
    except ImportError:
        raise Unsupported("every graph with CUDA tensors", "Triton is not installed") from None
    loaded = [Loaded(source, device) for source, device, _ in wanted]
    variants = [k.variant(sizes) for k, (_, _, sizes) in zip(loaded, wanted, strict=True)]
    if not loaded:
        return []

    for kernel in loaded:
        _target(kernel.device.index)
    # Triton's passes and ptxas run outside Python's lock.
    wanted_once = {
        (kernel.source, kernel.device.index, variant): (kernel, variant)
        for kernel, variant in zip(loaded, variants, strict=True)
        if not kernel.is_loaded(variant)
    }
    workers = max(min(len(wanted_once), len(os.sched_getaffinity(0)), MAX_WORKERS), 1)
    with ThreadPoolExecutor(workers, thread_name_prefix="magpy-triton") as pool:
        code = list(pool.map(lambda pair: pair[0].compile(*pair[1]), wanted_once.values()))
    for (kernel, variant), kernels in zip(wanted_once.values(), code, strict=True):
        kernel.load(variant, kernels)
    for kernel, variant in zip(loaded, variants, strict=True):
        kernel.load(variant)
    return [native_launch.launcher_of(kernel) or kernel for kernel in loaded]
