"""What one monitor run has learnt: the RefGraph, the operator graph, and how it ended.

The rules for instructions and calls are written in the vocabulary of its bases, each of which
builds on the ones before: which variable is it (`variables`), what is it on the operator graph
(`graph_values`), meet it (`meetings`), look into it (`looks`), change it (`changes`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from magpy_like.monitor.objects.mutations import Mutations
from magpy_like.monitor.torch_state.default_device import default_device
from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.refgraph.plain_values import generator_states
from magpy_like.split_points import SplitPoint
from magpy_like.torch_interop.current_gpu import current_gpu


class Hook(NamedTuple):
    """Something that is done in a backward pass, as the mock has it done again."""

    owner: Any
    """A tensor, or a node of the autograd graph."""
    method: str
    """The name of the owner's method that registers it."""
    args: tuple[Any, ...]
    version: int | None
    """The owner's version at that time, if it is a tensor."""
    handle: Any = None
    """What the method has given."""


class Recording(Mutations):
    """The record in the making."""

    def __init__(self) -> None:
        super().__init__()
        self.split: SplitPoint | None = None
        self.advanced: dict[int, int] = {}
        """How many elements the program has taken out of iterators from outside, by node."""
        self.classes: dict[int, type] = {}
        """The classes whose own attributes the program has looked at one by one, by the nodes of
        the dictionaries that these are in."""
        self.set_on_classes: set[str] = set()
        """The names that the program has set on classes."""
        self.specials: dict[type, dict[types.FunctionType, list[str]]] = {}
        """The special names of the functions of classes: see `monitor.specials`."""
        self.read_from: set[type] = set()
        """The classes of which it is known how attributes of their instances are read."""
        self.looked_through: set[type] = set()
        """The classes of which all special methods that native code may look for are known."""
        self.quiet_locks: list[Any] = []
        """Locks that the program has taken and nobody else can wait for: see `monitor.locks`."""
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        """Calls that the mock repeats, such as those of a logger."""
        self.hooks: list[Hook] = []
        """What is to be done in a backward pass."""
        self.autograd_nodes: dict[int, tuple[Any, fx.Node]] = {}
        """By id, those that the program has got at, with the nodes of the graph that give them."""
        self.looks_behind = False
        """Whether the program looks at the place in the autograd graph of what was there before."""
        self.state_reads: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        """Calls that look at process-wide state, with what they gave."""
        self.denied: dict[tuple[type, type], None] = {}
        """Abstract classes, with classes that they have said to be none of their own."""
        self.cached_calls: list[
            tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]
        ] = []
        """Calls of functions with a cache, with what they gave."""
        self.goes_on = False
        """Whether the program goes on behind the end of the record."""
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.default_device = default_device()
        """The one under which the region was entered."""
        self.devices_left: tuple[int, list[torch.device]] | None = None
        """How many default devices the program has left, and which ones it has entered then."""
        self.modes_left: tuple[Modes, Modes] | None = None
        """Torch's modes that the program found, and those that it left, if they are others."""
        self.random_states = generator_states()
        """Of torch's generators, when the region was entered."""

    def rely_on_current_gpu(self) -> None:
        """A call has left its device to the current GPU."""
        self.state_reads.append((current_gpu, (), {}, current_gpu()))

    @property
    def relies_on_current_gpu(self) -> bool:
        return any(operation is current_gpu for operation, *_ in self.state_reads)

    def release(self) -> None:
        """Let go of the program once a record is made; the parts refer to each other."""
        self.__init__()  # type: ignore[misc]

    def let_go(self) -> None:
        """Hold nothing but tensors and numbers that may vary: the record is made, and the program
        stands at the instruction behind it."""
        self.refs.let_go()
        self._born, self._roots, self.exceptions = {}, {}, {}
        self.calls, self.replays, self.state_reads, self.cached_calls = [], [], [], []
        self.hooks, self.autograd_nodes, self.denied = [], {}, {}

    def has_effects(self) -> bool:
        """Whether the program has changed anything that was there before, but for the states of
        torch's generators, which are in ``random_states``."""
        changes = (self.calls, self.hooks, self.replays, self.data_replaced, self.advanced)
        return (
            any(changes)
            or any(node.existed and node.changed for node in self.refs)
            or bool(self.changed_inputs())
            or bool(self.lifted.draws)
        )

    def changed_objects(self) -> list[Any]:
        """What was there before and the program has changed, but for tensors."""
        return [node.variable for node in self.refs if node.existed and node.changed]

    def drawn_from(self) -> list[torch.Generator]:
        """Those of torch's own generators that were drawn from since, or given a seed."""
        before = {id(generator): state for generator, state in self.random_states}
        seeded = {id(drawing.generator) for drawing in self.lifted.draws}
        return [
            generator
            for generator, state in generator_states()
            if id(generator) in seeded
            or id(generator) not in before
            or not torch.equal(state, before[id(generator)])
        ]
