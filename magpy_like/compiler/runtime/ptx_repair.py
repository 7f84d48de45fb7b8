"""Workaround for a PTX assembler bug: one 16-bit addition per instruction.

LLVM computes two small integers in one register where it can (``add.s16x2``). If only the low half
of a sum with a constant is read, the assembler of CUDA 12.8 drops the constant: ``VIADD.16x2 R0,
R0, 0x0`` for an addition of 4 (*seen* by disassembling the gradient of adaptive pooling, which was
wrong on an H200).
"""

from __future__ import annotations

import contextlib
import re

from magpy_like.torch_patches import rewriting_ptx

_PAIR = re.compile(r"add\.[su]16x2\s+(%\w+), *(%\w+), *(%?\w+);")
_TWO_ADDITIONS = (
    r"{ .reg .b16 a0, a1, b0, b1; mov.b32 {a0, a1}, \2; mov.b32 {b0, b1}, \3;"
    r" add.s16 a0, a0, b0; add.s16 a1, a1, b1; mov.b32 \1, {a0, a1}; }"
)


def split_paired_additions(ptx: str) -> str:
    """The same PTX program with paired additions split."""
    return _PAIR.sub(_TWO_ADDITIONS, ptx)


def splitting_paired_additions() -> contextlib.AbstractContextManager[None]:
    """Split paired additions in everything Triton compiles within the block; reentrant across
    threads."""
    return rewriting_ptx(split_paired_additions, "magpy adds one by one")
