"""Tensors over given memory, and checks of tensors' metadata, by C++ functions.

The first three belong to the C++ half of Dynamo's guards. They are part of ``torch._C``, hence
importing this module does not import Dynamo.
"""

from __future__ import annotations

import torch

__all__ = [
    "TensorGuards",
    "copy_all",
    "empty_strided_cpu",
    "reinterpret_tensor",
    "set_conj",
    "set_neg",
    "storage_use_count",
]

empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
"""``(size, stride, dtype)``: as ``torch.empty_strided``, without the dispatcher."""
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
"""``(tensor, size, stride, offset)``: as ``torch.as_strided``, without the dispatcher and autograd;
the offset is relative to the tensor's own."""
TensorGuards = torch._C._dynamo.guards.TensorGuards
"""``TensorGuards(*tensors, dynamic_dims_sizes, dynamic_dims_strides).check(*tensors)``: True if the
tensors have the same class, dtype, device, sizes, strides and ``requires_grad``."""
copy_all = torch._foreach_copy_
"""``(targets, sources)``: copy each source to its target, with few kernels."""
set_conj, set_neg = torch._C._set_conj, torch._C._set_neg
"""``(tensor, bit)``: whether elements are the conjugates, or the negatives, of those in memory."""
storage_use_count = torch._C._storage_Use_Count
"""``(storage._cdata)``: number of C++ references to a storage."""
