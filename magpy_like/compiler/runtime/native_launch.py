"""Launches of Triton kernels in C++: whether they are possible, and the facts they need.

The parameters of a kernel are those of its source, then pointers to memory that Triton may want,
whose number depends on Triton's version. A kernel is launched in C++ only if its machine code
declares just these parameters, and its metadata asks for nothing else. Triton launches the others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from magpy_like import native
from magpy_like.native import helper_status
from magpy_like.torch_compat.cuda import current_raw_stream

if TYPE_CHECKING:
    from magpy_like.compiler.runtime.triton_launch import Loaded

DRIVER = "libcuda.so.1"

#: CUDA context, and of each stage: name, address of the function, threads, bytes of shared memory.
NativeVariant = tuple[int, tuple[tuple[str, int, int, int], ...]]

_BITS = {"i32": 32, "i64": 64, "fp32": 32, "fp64": 64}
_LETTERS = {"i32": "i", "i64": "q", "fp32": "f", "fp64": "d"}  # of Python's ``struct``
_POINTER_BITS = 64
_MOST_SCRATCH = 2  # null pointers that C++ passes after the arguments

#: Metadata of a kernel -> the value that a plain launch admits. Some exist in some versions only.
_PLAIN = {
    "num_ctas": 1, "cluster_dims": (1, 1, 1), "launch_cooperative_grid": False,
    "launch_pdl": False, "warp_size": 32,
}  # fmt: skip
_REQUIRED = ("num_warps", "num_ctas", "shared")

_DECLARED = re.compile(r"\.param\s+\.[usbf](32|64)\s[^\[]*")


@functools.cache
def is_possible() -> bool:
    """True if the native helper is loaded and the CUDA driver is open."""
    if current_raw_stream is None or helper_status.obstacle() is not None:
        return False
    return bool(native.open_driver(DRIVER))


def launcher_of(kernel: Loaded) -> Any | None:
    """The C++ counterpart of a loaded kernel; None where launches in C++ are not possible."""
    source = kernel.source
    if not is_possible() or not _LETTERS.keys() >= set(source.numbers):
        return None
    try:
        return native.KernelLaunch(
            kernel, kernel.plan, kernel.native_variant, kernel.workspace, current_raw_stream,
            kernel.device.index, len(source.pointers), len(source.workspace), len(source.sizes),
            "".join(_LETTERS[number] for number in source.numbers),
        )  # fmt: skip
    except ValueError:  # more parameters than C++ packs
        return None


def describe_variant(kernels: Sequence[Any], parameters: Sequence[str]) -> NativeVariant | None:
    """The loaded stages of a variant, on the current device; None if a launch needs Triton.

    ``parameters``: Triton's type of each.
    """
    if not is_possible() or not all(_is_plain(kernel, parameters) for kernel in kernels):
        return None
    stages = [
        (
            kernel.metadata.name,
            kernel.function,
            kernel.metadata.num_warps * _PLAIN["warp_size"],
            kernel.metadata.shared,
        )
        for kernel in kernels
    ]
    return native.driver_context(), tuple(stages)


def _is_plain(kernel: Any, parameters: Sequence[str]) -> bool:
    """Does a launch need nothing but a grid, these parameters and null pointers?"""
    metadata = kernel.metadata
    known = metadata._fields
    if metadata.target.backend != "cuda" or any(name not in known for name in _REQUIRED):
        return False
    for name, value in _PLAIN.items():
        found = getattr(metadata, name, value)
        if (tuple(found) if isinstance(found, list) else found) != value:
            return False
    scratch = [name for name in known if name.endswith("_scratch_size")]
    if any(getattr(metadata, name) for name in scratch) or len(scratch) > _MOST_SCRATCH:
        return False
    expected = [_BITS.get(kind, _POINTER_BITS) for kind in parameters]
    return declared_bits(kernel) == expected + [_POINTER_BITS] * len(scratch)


def declared_bits(kernel: Any) -> list[int] | None:
    """Bits of each parameter that a kernel's PTX declares; None if some is not a plain number or
    address."""
    entry = rf"\.entry\s+{re.escape(kernel.metadata.name)}\s*\(([^)]*)\)"
    match = re.search(entry, kernel.asm.get("ptx", ""))
    if match is None:
        return None
    declared = [_DECLARED.fullmatch(text.strip()) for text in match[1].split(",")]
    return [int(found[1]) if found is not None else 0 for found in declared]
