"""Version counters that tensors share: a view has that of its base, ``tensor.data`` its own."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from magpy_like.torch_compat.autograd import increment_version, set_version
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass


def shares_counter(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """True if a write to ``tensor`` counts as one to another of these tensors, too.

    Torch does not tell, so a write is counted, and taken back. Inference tensors have no counter.
    """
    with DisableTorchFunctionSubclass():
        counted = [other for other in others if not other.is_inference()]
        if tensor.is_inference() or not counted:
            return False
        version, before = tensor._version, [other._version for other in counted]
        increment_version((tensor,))
        try:
            return [other._version for other in counted] != before
        finally:
            set_version((tensor,), (version,))
