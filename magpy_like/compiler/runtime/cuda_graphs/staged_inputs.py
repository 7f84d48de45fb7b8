"""Inputs whose addresses change from call to call: copied to memory of the CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from magpy_like.compiler.runtime.cuda_graphs.tensor_windows import with_bits


class StagedInput:
    """Memory of a CUDA graph for one argument, in the argument's layout.

    ``tensor`` stands for the argument in the capture.
    """

    def __init__(self, argument: Tensor) -> None:
        size, stride = argument.size(), argument.stride()
        extent = 0 if 0 in size else sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
        with torch.inference_mode(False):  # an inference tensor counts no writes
            flat = torch.empty(extent, dtype=argument.dtype, device=argument.device)
            self._flat = with_bits(flat, argument.is_conj(), argument.is_neg())
            self.tensor = self._flat.as_strided(size, stride)
        self._dense = extent == argument.numel()

    def fill(self, argument: Tensor) -> None:
        """Copy the argument of a call."""
        if self._dense:
            self.tensor.copy_(argument)
        else:  # elements between those of the argument, or several at one address
            self._flat.copy_(self._flatten(argument))

    def write_back(self, argument: Tensor) -> None:
        """Copy what the graph has written to the argument."""
        if self._dense:
            argument.copy_(self.tensor)
        else:
            self._flatten(argument).copy_(self._flat)

    def _flatten(self, argument: Tensor) -> Tensor:
        return argument.as_strided(self._flat.size(), (1,), argument.storage_offset())

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes
