"""Workaround for a PTX assembler bug: one 16-bit addition per instruction.

LLVM computes two small integers in one register where it can (``add.s16x2``). If only the low half
of a sum with a constant is read, the assembler of CUDA 12.8 drops the constant: ``VIADD.16x2 R0,
R0, 0x0`` for an addition of 4 (*seen* by disassembling the gradient of adaptive pooling, which was
wrong on an H200).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

_PAIR = re.compile(r"add\.[su]16x2\s+(%\w+), *(%\w+), *(%?\w+);")
_TWO_ADDITIONS = (
    r"{ .reg .b16 a0, a1, b0, b1; mov.b32 {a0, a1}, \2; mov.b32 {b0, b1}, \3;"
    r" add.s16 a0, a0, b0; add.s16 a1, a1, b1; mov.b32 \1, {a0, a1}; }"
)


def without_pairs(ptx: str) -> str:
    """The same PTX program with paired additions split."""
    return _PAIR.sub(_TWO_ADDITIONS, ptx)


_lock = threading.Lock()
_active = 0
_theirs: Callable[..., Any] | None = None


@contextlib.contextmanager
def no_pairs() -> Iterator[None]:
    """Split paired additions in everything Triton compiles within the block; reentrant across
    threads."""
    from triton import knobs

    global _active, _theirs
    with _lock:
        if _active == 0:
            _theirs = knobs.runtime.add_stages_inspection_hook
            knobs.runtime.add_stages_inspection_hook = _hook
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                knobs.runtime.add_stages_inspection_hook = _theirs
                _theirs = None


def _hook(backend: Any = None, stages: Any = None, *rest: Any) -> Any:
    """Triton (3.6 and later) passes its stages to be modified; 3.7 first asks for a (key, hash)
    that identifies the hook in its cache."""
    if stages is None:
        key, digest = _theirs() if _theirs is not None else ("", "")
        return f"{key}magpy adds one by one", f"{digest}magpy adds one by one"
    if _theirs is not None:
        _theirs(backend, stages, *rest)
    make = stages.get("ptx")
    if make is not None:
        stages["ptx"] = lambda source, metadata: without_pairs(make(source, metadata))
    return None
