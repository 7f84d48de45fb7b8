"""Effects of the program beyond the RefGraph, which the mock reproduces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import tensor_version


class Hook(NamedTuple):
    """A hook on the backward pass, which the mock registers again."""

    owner: Any
    """A tensor, or a node of the autograd graph."""
    method: str
    """The name of the owner's method that registers the hook."""
    args: tuple[Any, ...]
    state: tuple[Any, ...]
    """The owner's place in the autograd graph at that time: see :func:`autograd_state`."""
    handle: Any = None
    """The result of the method."""


def autograd_state(owner: Any) -> tuple[Any, ...]:
    """The owner's version and autograd node, if it is a tensor: they change when the program writes
    to it or detaches it."""
    if not is_instance(owner, torch.Tensor):
        return ()
    return tensor_version(owner), owner.requires_grad, owner.grad_fn


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
