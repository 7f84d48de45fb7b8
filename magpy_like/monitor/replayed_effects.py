"""Effects of the program beyond the RefGraph, which the mock reproduces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.refgraph import ShadowNode


class Hook(NamedTuple):
    """A hook on the backward pass, which the mock registers again."""

    owner: Any
    """A tensor, or a node of the autograd graph."""
    method: str
    """The name of the owner's method that registers the hook."""
    args: tuple[Any, ...]
    version: int | None
    """The owner's version at that time, if it is a tensor."""
    handle: Any = None
    """The result of the method."""


class Effects:
    """Effects to reproduce, each kind in program order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        """Calls that the mock repeats, such as calls of a logger."""
        self.hooks: list[Hook] = []
        """Hooks to register for a backward pass."""
        self.replays: list[tuple[ShadowNode, Callable[..., Any], tuple[Any, ...]]] = []
        """Changes of external containers that depend on none of their contents."""
        self.advanced_iterators: dict[int, int] = {}
        """Number of elements taken out of external iterators, by node."""
        self.uncontended_locks: list[Any] = []
        """Locks that the program acquired and no other thread can wait for: see `objects.locks`."""
        self.devices_left: tuple[int, list[torch.device]] | None = None
        """Number of default devices that the program left, and the devices that it then entered."""
        self.modes_left: tuple[Modes, Modes] | None = None
        """Torch's modes at entry and at the end, if they differ."""

    def release(self) -> None:
        """Drop the objects of the program that are held here."""
        self.calls, self.replays, self.hooks = [], [], []
