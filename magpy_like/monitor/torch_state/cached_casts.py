"""Casts of weights that autocast keeps until the program leaves its outermost context.

A later operator uses the kept cast, even if the program has changed the weight meanwhile, or if a
context inside casts to another dtype. Compiled graphs cast anew and keep nothing, so a program that
uses such a cast runs natively.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from magpy_like.refgraph.plain_values import MonitorWeakRef, storage_of
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat.dispatch import is_any_autocast_enabled
from magpy_like.torch_interop.autocast_cache import without_autocast_cache

USES_OLD_CAST = SplitCause(
    SplitReason.TENSOR_INTERNALS,
    "uses a cast of a weight that autocast has kept: of old values, or to another context's dtype",
)
_DEVICES = ("cpu", "cuda")


class CachedCasts:
    """The weights that operators have cast in the autocast contexts around the program's position.

    It lives as long as a monitor run: the segments of a program share the casts.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[MonitorWeakRef, int, torch.dtype]] = {}
        """By id, the weights with a cast, their memory at that time, and the cast's dtype."""
        self._changed: set[int] = set()
        """Those that the program has changed since."""
        self.uses_old_one = False
        """Whether an operator has used the cast of a weight that had changed, or one of a dtype
        that is not autocast's any more."""
        self._keeps_in_program = False
        """Whether the program has autocast keep casts, while a path on fake tensors keeps none."""

    def __bool__(self) -> bool:
        """True if autocast keeps a cast."""
        return bool(self._kept)

    def note_operator(
        self, tensors: Iterable[torch.Tensor], results: Iterable[torch.Tensor]
    ) -> None:
        """Note an operator: its results have autocast's dtype if it has cast its arguments."""
        if not (is_any_autocast_enabled() and self._keeps()):
            return
        made = {tensor.dtype for tensor in results}
        for tensor in tensors:
            if not _is_kept(tensor):
                continue
            dtype, kept = torch.get_autocast_dtype(tensor.device.type), self._kept.get(id(tensor))
            if kept is not None and kept[0]() is not tensor:
                kept = None
            if kept is not None and kept[2] is not dtype and not made.isdisjoint((kept[2], dtype)):
                self.uses_old_one = True
            elif dtype in made:
                if kept is not None and id(tensor) in self._changed:
                    self.uses_old_one = True
                else:
                    kept = MonitorWeakRef(tensor), storage_of(tensor), dtype
                    self._kept[id(tensor)] = kept
                    self._changed.discard(id(tensor))

    def note_write(self, tensor: torch.Tensor) -> None:
        """Note that the program writes to a tensor, or sets its data."""
        if self._kept:
            memory = storage_of(tensor)
            self._changed.update(
                key for key, (_, found, _) in self._kept.items() if found == memory
            )

    @contextlib.contextmanager
    def of_fake_path(self) -> Iterator[None]:
        """Have autocast keep no casts while a path runs on fake tensors: the program would use
        them. Its operators are noted as if casts were kept."""
        before, self._keeps_in_program = self._keeps_in_program, self._keeps()
        try:
            with without_autocast_cache():
                yield
        finally:
            self._keeps_in_program = before

    def _keeps(self) -> bool:
        return self._keeps_in_program or torch.is_autocast_cache_enabled()

    def forget(self) -> None:
        """Note that autocast forgets all casts."""
        self._kept, self._changed = {}, set()


def _is_kept(tensor: torch.Tensor) -> bool:
    """True if autocast keeps the cast of a tensor."""
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        and not tensor._is_view()
        and tensor.device.type in _DEVICES
        and torch.is_autocast_enabled(tensor.device.type)
    )
