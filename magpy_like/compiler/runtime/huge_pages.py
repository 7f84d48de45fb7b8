"""Reuse of freed memory, and huge pages for large CPU tensors.

The first touch of memory fresh from the system takes longer than computing the values written
there. *Measured*: 1.8 µs for each 4 KiB.

glibc returns free memory on top of its heap to the system beyond twice the largest block freed so
far. A call that needs more pays for all of it again, every time; whether it does depends on where
the heap happens to end (*measured*: ResNet-18, 28 MiB at each call in one process of three, 0.77 of
eager's speed instead of 1.16). :func:`keep_freed_memory` prevents that.

From 32 MiB on (``DEFAULT_MMAP_THRESHOLD_MAX`` of glibc) each allocation is fresh memory from the
kernel. *Measured*: copying 64 MiB into a new tensor took 29 ms, and 7 ms with pages of 2 MiB.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch

from magpy_like.torch_compat.tensor_memory import empty_strided_cpu

MIN_HUGE_PAGE_BYTES = 32 << 20  # a tensor of fewer bytes comes from glibc's heap
PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE = 14


def empty_large(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor; a large one is advised to use huge pages.

    ``size`` and ``stride`` in elements. The advice covers only the pages wholly inside the tensor,
    so it takes no more memory than an ordinary one. A system without huge pages returns an ordinary
    one.
    """
    tensor = empty_strided_cpu(size, stride, dtype)
    count = tensor.untyped_storage().nbytes()
    if count >= MIN_HUGE_PAGE_BYTES:
        start = tensor.data_ptr()
        first, last = (
            -(-start // PAGE_BYTES) * PAGE_BYTES,
            (start + count) // PAGE_BYTES * PAGE_BYTES,
        )
        _advise()(first, last - first, _MADV_HUGEPAGE)
    return tensor


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB free on top of its heap, once per process.

    Freeing one untouched block of almost 32 MiB tells glibc that blocks of this size come and go,
    as in any program that has freed such a tensor. No setting changes, and another allocator
    ignores it.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    libc.free(libc.malloc(MIN_HUGE_PAGE_BYTES - PAGE_BYTES))


@functools.cache
def _advise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
