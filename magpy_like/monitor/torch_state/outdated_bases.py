"""Views that are in other memory than their base: the program has replaced the data of either.

``x.data = ...`` and ``x.set_(...)`` leave ``x._base`` as it is. A fake tensor mode makes the fake
tensor of a view from that of its base, and both share memory then.
"""

from __future__ import annotations

import torch

from magpy_like.refgraph.plain_values import storage_of
from magpy_like.torch_compat.autograd import make_nonleaf
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass


def has_outdated_base(tensor: torch.Tensor) -> bool:
    """True for a view in other memory than its base."""
    with DisableTorchFunctionSubclass():
        base = tensor._base
    return base is not None and storage_of(base) != storage_of(tensor)


def without_outdated_base(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; for a view in other memory than its base, a tensor in the same memory
    that is no view, and is a leaf if the view is one."""
    if not has_outdated_base(tensor):
        return tensor
    plain = tensor.detach().requires_grad_(tensor.requires_grad)
    return plain if tensor.is_leaf else make_nonleaf(plain)
