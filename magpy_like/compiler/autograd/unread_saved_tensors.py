"""Saved tensors that the program writes to and that the gradients which are present do not need.

Eager mode has a node in autograd's graph for each operator. A backward pass unpacks the saved
tensors of those that it reaches, and is refused if one was written to. A compiled graph has one
node for all operators: autograd would refuse a gradient of one result as a tensor was written to
that only the gradient of another needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from magpy_like.compiler.autograd.absent_gradients import AbsentGradients


class SavedTensors:
    """The tensors that a forward pass saves for a backward pass with version counters to check."""

    def __init__(self, backward: fx.GraphModule, absent: AbsentGradients, numbers: int) -> None:
        """``backward`` takes ``numbers`` saved numbers, the tensors, others, and the gradients."""
        self._backward, self._absent, self._numbers = backward, absent, numbers
        self._read: dict[frozenset[int], set[int]] = {}

    def save(self, ctx: Any, tensors: Sequence[Tensor | None]) -> None:
        """Save the tensors in the context of a call."""
        ctx.save_for_backward(*tensors)
        if self._absent.several:
            ctx.versions = [None if t is None else t._version for t in tensors]

    def unpack(self, ctx: Any, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The saved tensors, of which the backward pass may read those that it needs for the
        ``gradients``.

        Raises:
            RuntimeError: it needs one that was written to, or all are freed.
        """
        try:
            return ctx.saved_tensors
        except RuntimeError:
            missing = frozenset(k for k, gradient in enumerate(gradients) if gradient is None)
            if not missing:
                raise
            saved = ctx._raw_saved_tensors
            if any(each.unpack_hook is not None for each in saved):
                raise
            tensors: list[Tensor | None] = [each.data for each in saved]
            read = self._read_without(missing)
            for k, (tensor, version) in enumerate(zip(tensors, ctx.versions, strict=True)):
                if self._numbers + k in read and tensor is not None and tensor._version != version:
                    raise
            return tensors

    def _read_without(self, missing: frozenset[int]) -> set[int]:
        """The indices of the inputs that the pass reads without the gradients ``missing``."""
        if missing not in self._read:
            self._read[missing] = self._absent.read_inputs(self._backward, missing)
        return self._read[missing]
