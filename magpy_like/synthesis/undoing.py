"""Mocks that undo what they have done: a value was foretold wrongly, or an operator has raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from magpy_like.monitor.constants import VARIES
from magpy_like.monitor.draws import REWINDABLE
from magpy_like.monitor.modes import SETTERS, Modes
from magpy_like.monitor.operator_graph import NUMBER
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.split import NotForetold, Place
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.values import storage_of
from magpy_like.synthesis.source import Source


class Mistaken(NamedTuple):
    """What a mock gives that has foretold a value wrongly, and done nothing."""

    place: Place | None
    """Where the program looks at the value; None when the operator graph has raised."""
    why: str = ""
    """What it has raised."""


class Failed(NamedTuple):
    """What a mock gives whose operator graph has raised, when nothing is left of it."""

    why: str
    """The exception in words; to keep itself would keep the frames that it came through."""


class Wrong(Exception):
    """An operator graph has found that a value was foretold wrongly, and changed nothing yet."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.mistaken = Mistaken(place)


def first_mistake(held: tuple[bool, ...], places: Sequence[Place]) -> Mistaken:
    """What has gone another way than foretold, of the conditions in the program's order."""
    return Mistaken(places[held.index(False)])


def failed(error: Exception) -> Failed:
    return Failed(f"{type(error).__name__}: {error}")


def graph_raised(error: Exception) -> Mistaken:
    return Mistaken(None, failed(error).why)


def put_back(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Give a tensor that operators have changed in place its earlier values."""
    with torch.no_grad():
        tensor.detach().copy_(before)


class Undoing:
    """Lines that note what a mock is about to change, and lines that put it back.

    Before its effects a mock draws random numbers and runs the operator graph, which may switch the
    grad mode and change inputs in place; in it, operators may fail that the program does not reach,
    or behind which it has other effects than before.
    """

    def __init__(
        self, rec: Recording, source: Source, existing: Callable[[ShadowNode], str], foretells: bool
    ) -> None:
        """Emits the first lines. ``existing`` names a variable that was there before.

        Raises:
            NotForetold: the mock foretells values, and something could not be put back.
        """
        if foretells and _draws_on_a_device(rec):
            raise NotForetold("foretells a value and draws random numbers on a device")
        self._undo: list[str] = []
        self._source = source
        self._possible = True
        nodes = list(rec.operators.graph.nodes)
        setters = {node.target for node in nodes if node.op == "call_function"} & SETTERS
        if setters - {torch._C._set_grad_enabled}:
            source.emit(f"modes = {source.constant(Modes.now, 'modes_now')}()")
            self._undo.append("modes.switch()")
        elif foretells or setters:
            source.emit(f"mode = {source.constant(torch.is_grad_enabled)}()")
            self._undo.append(f"{source.constant(torch._C._set_grad_enabled)}(mode)")
        self._before_writing: list[str] | None = None
        """What puts back all that was done before a graph looks at what was foretold."""
        if foretells or not rec.changes_anything():
            self._save_draws(rec)
        else:
            last = max((i for i, node in enumerate(nodes) if _may_raise(node)), default=-1)
            self._possible = last >= 0 and rec.lifted.can_rewind()
            if self._possible or rec.lifted.foretold:
                self._save_draws(rec)
            if rec.lifted.foretold:
                self._before_writing = list(self._undo)
            if self._possible:
                self._save_inputs(rec, existing, nodes[last:])

    def _save_draws(self, rec: Recording) -> None:
        source = self._source
        if rec.operators.effects:
            source.emit(f"drawn = {source.constant(torch.get_rng_state)}()")
            self._undo.append(f"{source.constant(torch.set_rng_state)}(drawn)")
        if _draws_on_a_device(rec):
            get, put = torch.cuda.get_rng_state, torch.cuda.set_rng_state
            source.emit(f"drawn_on_device = {source.constant(get, 'get_cuda_state')}()")
            self._undo.append(f"{source.constant(put, 'set_cuda_state')}(drawn_on_device)")
        generators = [*(d.generator for d in rec.lifted.draws), *rec.operators.generators()]
        changed = {id(generator): generator for generator in generators if generator is not None}
        for i, generator in enumerate(changed.values()):
            tell, put_back = REWINDABLE[type(generator)]
            name = source.constant(generator, "generator")
            source.emit(f"drawn_{i} = {tell.format(name)}")
            self._undo.append(put_back.format(name, f"drawn_{i}"))

    def _save_inputs(
        self, rec: Recording, existing: Callable[[ShadowNode], str], behind: Sequence[fx.Node]
    ) -> None:
        """The tensors from outside that are changed before the last operator that may raise."""
        source, late = self._source, set(behind)
        for i, node in enumerate(rec.changed_inputs()):
            if rec.written_memory.get(storage_of(node.variable)) in late:
                continue
            source.emit(f"before_{i} = {existing(node)}.detach().clone()")
            self._undo.append(f"{source.constant(put_back)}({existing(node)}, before_{i})")

    def unless(self, conditions: list[str], places: Sequence[Place], run: str) -> list[str]:
        """Lines that run the operator graph and end the mock unless all conditions hold.

        ``places`` are those where the program looks at what the conditions are about.
        """
        names = self._source.names
        names["graph_raised"], names["first_mistake"] = graph_raised, first_mistake
        names["places"] = tuple(places)
        return [
            "try:",
            f"    {run}",
            f"    if {' and '.join(conditions)}:",
            "        mistaken = None",
            "    else:",
            f"        mistaken = first_mistake(({', '.join(conditions)},), places)",
            "except Exception as error:  # the program is seen when it runs as it is written",
            "    mistaken = graph_raised(error)",
            "if mistaken is not None:",
            *(f"    {line}" for line in self._undo),
            "    return mistaken",
        ]

    def guarded(self, run: str) -> list[str]:
        """Lines that run the operator graph, and give ``Failed`` if it raises.

        Then the program is to run as it is written: it may have effects before the operator that
        fails, or catch the exception.
        """
        handlers = []
        if self._before_writing is not None:
            self._source.names["Wrong"] = Wrong
            undo = [f"    {line}" for line in self._before_writing]
            handlers += ["except Wrong as wrong:", *undo, "    return wrong.mistaken"]
        if self._possible:
            self._source.names["failed"] = failed
            undo = [f"    {line}" for line in self._undo]
            handlers += ["except Exception as error:", *undo, "    return failed(error)"]
        return ["try:", f"    {run}", *handlers] if handlers else [run]


_RAISES_ON_DATA = {
    "index", "embedding", "bag", "gather", "scatter", "take", "put", "nll", "cross", "one",
    "bincount", "multinomial", "bernoulli", "normal", "poisson", "binomial", "cholesky", "inv",
    "inverse", "solve", "lu", "slogdet", "svd", "eig", "eigh", "qr", "lstsq", "linalg", "assert",
    "async", "interleave", "histc", "histogram", "histogramdd", "ctc", "apply", "checkpoint",
    "item", "floordiv", "ifloordiv", "floor", "remainder", "fmod", "mod", "imod", "packed", "pack",
    "pad", "run", "cond", "while", "bucketize", "searchsorted", "tensor", "narrow",
}  # fmt: skip
"""Words in the names of operators that fail for some values of tensors of the same sizes."""


def _may_raise(node: fx.Node) -> bool:
    """Whether an operator may fail although the guard has found its inputs to be like before."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    if name.strip("_") in ("getitem", "setitem"):
        return any(isinstance(index, fx.Node) for index in node.all_input_nodes[1:])
    if name.startswith("div") and (len(node.args) > 2 or node.kwargs):
        return True
    takes_numbers = any(source.meta.get(NUMBER) for source in node.all_input_nodes)
    return takes_numbers or not _RAISES_ON_DATA.isdisjoint(name.split("_"))


def _draws_on_a_device(rec: Recording) -> bool:
    inputs = (source for _, source in rec.operators.inputs if isinstance(source, int))
    tensors: list[Any] = [rec.refs.get_node_by_id(shadow).variable for shadow in inputs]
    on_device = any(isinstance(t, torch.Tensor) and t.device.type != "cpu" for t in tensors)
    names = (str(getattr(n.target, "__name__", n.target)) for n in rec.operators.graph.nodes)
    return on_device and any(map(VARIES.search, names))
