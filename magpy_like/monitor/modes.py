"""Torch's modes that a region may leave switched: gradients and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

SETTERS = {
    torch._C._set_grad_enabled,
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting,
    torch.clear_autocast_cache,
}
"""What switches them; operators on a graph."""
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """What they are at one moment."""

    grad: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    """For each kind of device: whether it is on, and to what operands are cast."""
    caches: bool
    nesting: int
    """How many ``autocast`` contexts are open: at the last one's end its cache is cleared."""

    @staticmethod
    def now() -> Modes:
        nesting = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        return Modes(
            torch.is_grad_enabled(),
            tuple([(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]),
            torch.is_autocast_cache_enabled(),
            nesting,
        )

    def switch(self) -> None:
        """Switch torch to these modes."""
        torch._C._set_grad_enabled(self.grad)
        for device, (enabled, dtype) in zip(_DEVICES, self.autocast, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.caches)
        now = Modes.now().nesting
        for _ in range(self.nesting - now):
            torch.autocast_increment_nesting()
        for _ in range(now - self.nesting):
            torch.autocast_decrement_nesting()
        if now > self.nesting == 0:
            torch.clear_autocast_cache()

    def switch_from(self, begin: Modes, earlier: Modes) -> None:
        """Switch as a region did that began in the modes ``begin``, when it began in ``earlier``
        ones, of which only the nesting may be another."""
        replace(self, nesting=self.nesting - begin.nesting + earlier.nesting).switch()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """These modes for a while."""
        before = Modes.now()
        self.switch()
        try:
            yield
        finally:
            before.switch()
