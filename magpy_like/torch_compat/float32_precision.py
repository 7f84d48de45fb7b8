"""The precision in which torch's libraries multiply float32 numbers.

Torch has an older and a newer way to set it; the older way's readers raise an error once a program
has used the newer.
"""

from __future__ import annotations

import torch

__all__ = ["float32_precisions", "gpu_convolutions_use_tf32", "gpu_products_use_tf32"]

_precision = torch._C._get_fp32_precision_getter

_LIBRARIES = (
    ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)  # fmt: skip


def float32_precisions() -> tuple[str, ...]:
    """The precision of each library: "ieee", "tf32", "bf16" or "none" (its own default)."""
    return tuple([_precision(*library) for library in _LIBRARIES])


def gpu_products_use_tf32() -> bool:
    """True if cuBLAS multiplies float32 matrices by the matrix units."""
    return _precision("cuda", "matmul") == "tf32"


def gpu_convolutions_use_tf32() -> bool:
    """True if cuDNN convolves float32 images by the matrix units."""
    return _precision("cuda", "conv") == "tf32"
