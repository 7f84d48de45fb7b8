"""Modes of torch that a region may change: gradient mode and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from magpy_like.torch_compat.autograd import set_grad_enabled

SETTERS = {
    set_grad_enabled,
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting,
    torch.clear_autocast_cache,
}
"""Functions that switch them: operators on the graph."""
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """The modes at one moment."""

    grad: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    """For each device type: whether autocast is on, and the dtype of its operands."""
    caches: bool
    nesting: int
    """The number of active ``autocast`` contexts: the exit of the last one clears the cache."""

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

    def calls_to(self, after: Modes) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The calls that switch torch from these modes to others."""
        if self.grad is not after.grad:
            yield set_grad_enabled, (after.grad,)
        for device, now, then in zip(_DEVICES, self.autocast, after.autocast, strict=True):
            if now[0] is not then[0]:
                yield torch.set_autocast_enabled, (device, then[0])
            if now[1] is not then[1]:
                yield torch.set_autocast_dtype, (device, then[1])
        if self.caches is not after.caches:
            yield torch.set_autocast_cache_enabled, (after.caches,)
        for _ in range(after.nesting - self.nesting):
            yield torch.autocast_increment_nesting, ()
        for _ in range(self.nesting - after.nesting):
            yield torch.autocast_decrement_nesting, ()
        if self.nesting > after.nesting == 0:
            yield torch.clear_autocast_cache, ()

    def switch(self) -> None:
        """Switch torch to these modes."""
        for function, arguments in Modes.now().calls_to(self):
            function(*arguments)

    def switch_from(self, begin: Modes, earlier: Modes) -> None:
        """Switch from the modes ``earlier`` as a region did that was entered in ``begin``; only the
        nesting may differ."""
        replace(self, nesting=self.nesting - begin.nesting + earlier.nesting).switch()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A context with these modes, but the nesting of the present ones: the casts that autocast
        has kept in them stay."""
        before = Modes.now()
        replace(self, nesting=before.nesting).switch()
        try:
            yield
        finally:
            before.switch()
