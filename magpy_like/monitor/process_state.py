"""State of the process and of torch that the program reads: the guard checks most of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magpy_like.monitor.symbolic.numbers.cached_look_ups import LookUp
from magpy_like.monitor.symbolic.numbers.lifted_numbers import LiftedNumbers
from magpy_like.monitor.torch_state.default_device import default_device
from magpy_like.torch_interop.current_gpu import current_gpu
from magpy_like.torch_interop.random_states import generator_states

Query = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]
"""A call, and its result."""


class RepeatedLookUp(NamedTuple):
    """A call of a function with a cache by lifted arguments, with their expressions."""

    look_up: LookUp
    arguments: tuple[Any, ...]
    result: Any


class ProcessState:
    """State at entry, and later calls that read state."""

    def __init__(self, lifted: LiftedNumbers) -> None:
        self._lifted = lifted
        self.queries: list[Query] = []
        """Calls that read process-wide state."""
        self.cached_calls: list[Query | RepeatedLookUp] = []
        """Calls of functions with a cache."""
        self.denied: dict[tuple[type, type], None] = {}
        """Pairs of an abstract class and a class that it declared to be no subclass."""
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.default_device = default_device()
        """The default device under which the region was entered."""
        self.random_states = generator_states()
        """States of torch's generators when the region was entered."""

    def rely_on_current_gpu(self) -> None:
        """Note a call whose device is the current GPU."""
        self.queries.append((current_gpu, (), {}, current_gpu()))

    @property
    def relies_on_current_gpu(self) -> bool:
        return any(operation is current_gpu for operation, *_ in self.queries)

    def drawn_from(self) -> list[torch.Generator]:
        """Torch's own generators that were drawn from or seeded since the entry."""
        before = {id(generator): state for generator, state in self.random_states}
        seeded = {id(drawing.generator) for drawing in self._lifted.draws}
        return [
            generator
            for generator, state in generator_states()
            if id(generator) in seeded
            or id(generator) not in before
            or not torch.equal(state, before[id(generator)])
        ]

    def release(self) -> None:
        """Drop the objects of the program that are held here."""
        self.queries, self.cached_calls, self.denied = [], [], {}
