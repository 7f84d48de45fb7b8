"""Mocks that undo what they have done when a value was foretold wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from magpy_like.monitor.constants import VARIES
from magpy_like.monitor.lifted import REWINDABLE
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.split import NotForetold, Place
from magpy_like.synthesis.source import Source


class Mistaken(NamedTuple):
    """What a mock gives that has foretold a value wrongly, and done nothing."""

    place: Place | None
    """Where the program looks at the value; None when the operator graph has raised."""


_GRAPH_RAISED = Mistaken(None)


def first_mistake(held: tuple[bool, ...], places: Sequence[Place]) -> Mistaken:
    """What has gone another way than foretold, of the conditions in the program's order."""
    return Mistaken(places[held.index(False)])


FAILED = object()
"""What a mock gives whose operator graph has raised before anything was changed."""


class Undoing:
    """Lines that note what a mock is about to change, and lines that put it back.

    Before its effects a mock draws random numbers and runs the operator graph, which may switch the
    grad mode; in it, operators may fail that the program does not reach.
    """

    def __init__(self, rec: Recording, source: Source) -> None:
        """Emits the first lines. Raises NotForetold: something could not be put back."""
        if _draws_on_a_device(rec):
            raise NotForetold("foretells a value and draws random numbers on a device")
        self._undo: list[str] = []
        self._source = source
        source.names["GRAPH_RAISED"] = _GRAPH_RAISED
        source.names["first_mistake"] = first_mistake
        source.emit(f"mode = {source.constant(torch.is_grad_enabled)}()")
        self._undo.append(f"{source.constant(torch._C._set_grad_enabled)}(mode)")
        if rec.operators.effects:
            source.emit(f"drawn = {source.constant(torch.get_rng_state)}()")
            self._undo.append(f"{source.constant(torch.set_rng_state)}(drawn)")
        owners = {id(args[0]): args[0] for _, args, _ in rec.lifted.draws}
        for i, owner in enumerate(owners.values()):
            save, restore = REWINDABLE[type(owner)]
            name = source.constant(owner, "generator")
            source.emit(f"drawn_{i} = {name}.{save}()")
            self._undo.append(f"{name}.{restore}(drawn_{i})")

    def unless(self, conditions: list[str], places: Sequence[Place], run: str) -> list[str]:
        """Lines that run the operator graph and end the mock unless all conditions hold.

        ``places`` are those where the program looks at what the conditions are about.
        """
        self._source.names["places"] = tuple(places)
        return [
            "mistaken = GRAPH_RAISED",
            "try:",
            f"    {run}",
            f"    if {' and '.join(conditions)}:",
            "        mistaken = None",
            "    else:",
            f"        mistaken = first_mistake(({', '.join(conditions)},), places)",
            "except Exception:",
            "    pass  # what the program does is seen when it runs as it is written",
            "if mistaken is not None:",
            *(f"    {line}" for line in self._undo),
            "    return mistaken",
        ]


def guarded(rec: Recording, source: Source, run: str) -> list[str]:
    """Lines that run the operator graph, and give ``FAILED`` if it raises and has changed nothing.

    Then the program is to run as it is written: it may have effects before the operator that fails,
    or catch the exception.
    """
    if rec.operators.effects or rec.lifted.draws or not rec.lifted.can_undo():
        return [run]
    source.names["FAILED"] = FAILED
    before, after = [], []
    if any(node.target is torch._C._set_grad_enabled for node in rec.operators.graph.nodes):
        before = [f"mode = {source.constant(torch.is_grad_enabled)}()"]
        after = [f"    {source.constant(torch._C._set_grad_enabled)}(mode)"]
    return [*before, "try:", f"    {run}", "except Exception:", *after, "    return FAILED"]


def _draws_on_a_device(rec: Recording) -> bool:
    inputs = (source for _, source in rec.operators.inputs if isinstance(source, int))
    tensors = [rec.refs.get_node_by_id(shadow).variable for shadow in inputs]
    on_device = any(isinstance(t, torch.Tensor) and t.device.type != "cpu" for t in tensors)
    names = (str(getattr(n.target, "__name__", n.target)) for n in rec.operators.graph.nodes)
    return on_device and any(map(VARIES.search, names))
