"""Mocks that undo what they have done: a value was misspeculated, or an operator has raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from magpy_like.graph_operators.checkpoint_operator import is_checkpoint
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.torch_state.random_draws import REWINDABLE
from magpy_like.monitor.torch_state.torch_modes import SETTERS, Modes
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import tensor_version
from magpy_like.split_points import SourcePosition, SpeculationRefused, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source
from magpy_like.synthesis.mock import raising_operators
from magpy_like.torch_compat.autograd import set_grad_enabled, set_version


class Misspeculation(NamedTuple):
    """What a mock gives that has recorded a value wrongly, and done nothing."""

    place: SourcePosition | None
    """Where the program looks at the value; None when the operator graph has raised."""
    why: str = ""
    """What it has raised."""


class GraphFailure(NamedTuple):
    """What a mock gives whose operator graph has raised, when nothing is left of it."""

    why: str
    """The exception in words; to keep itself would keep the frames that it came through."""


class EarlyMisspeculation(Exception):
    """An operator graph has found that a value was misspeculated, and changed nothing yet."""

    def __init__(self, place: SourcePosition) -> None:
        super().__init__(place)
        self.misspeculation = Misspeculation(place)


def first_misspeculation(
    held: tuple[bool, ...], places: Sequence[SourcePosition]
) -> Misspeculation:
    """What has gone another way than speculated, of the conditions in the program's order."""
    return Misspeculation(places[held.index(False)])


def graph_failure(error: Exception) -> GraphFailure:
    return GraphFailure(f"{type(error).__name__}: {error}")


def misspeculation_of_error(error: Exception) -> Misspeculation:
    return Misspeculation(None, graph_failure(error).why)


class TensorSnapshot:
    """A tensor that operators are about to change, and what it takes to make it what it was."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, tensor_version(tensor)
        self._grad_fn = None if tensor.is_leaf else tensor.grad_fn
        self._form: Any = None
        if tensor.layout is torch.strided:
            self._form = tensor.size(), tensor.stride(), tensor.storage_offset()
        if self._grad_fn is None:
            self._values = tensor.detach().clone()
        else:
            with torch.enable_grad():
                self._values = tensor.clone()

    def put_back(self) -> None:
        tensor = self._tensor
        with torch.no_grad():
            if self._form not in (None, (tensor.size(), tensor.stride(), tensor.storage_offset())):
                tensor.as_strided_(*self._form)
            if tensor.grad_fn is not self._grad_fn and not tensor._is_view():
                tensor.detach_()
            if tensor.grad_fn is self._grad_fn:
                tensor.detach().copy_(self._values.detach())
        if tensor.grad_fn is not self._grad_fn:
            with torch.enable_grad():
                tensor.copy_(self._values)  # gradients flow again to where they did
        if self._version >= 0:
            set_version((tensor,), (self._version,))


class RollBack:
    """Lines that note what a mock is about to change, and lines that put it back.

    Before its effects a mock draws random numbers and runs the operator graph, which may switch
    torch's modes and change inputs in place; in it, operators may fail that the program does not
    reach, or behind which it has other effects than before.
    """

    def __init__(
        self,
        rec: Recording,
        source: Source,
        existing: Callable[[ShadowNode], str],
        speculates: bool,
        may_fail: bool,
        draws: bool,
        floats: Mapping[fx.Node, str],
    ) -> None:
        """Emits the first lines. ``existing`` names a variable that was there before.

        ``may_fail`` says that the graph may raise where none of its operators does, or what is
        computed of its results; ``draws`` that something is drawn or computed before it. ``floats``
        are the numbers of that type among its inputs, and their names.

        Raises:
            SpeculationRefused: the mock speculates, and runs functions with unknown effects.
            Split: something may fail, and not all can be put back.
        """
        self._undo: list[str] = []
        self._source = source
        nodes = list(rec.operators.graph.nodes)
        if speculates and any(map(is_checkpoint, nodes)):
            # Of what it writes to nothing is known: a batch norm under a checkpoint counts.
            raise SpeculationRefused(
                SplitReason.MISSPECULATION_NOT_UNDOABLE,
                "speculates on a value before a checkpointed function, whose effects are unknown",
            )
        setters = {node.target for node in nodes if node.op == "call_function"} & SETTERS
        if setters - {set_grad_enabled}:
            source.emit(f"modes = {source.constant(Modes.now, 'modes_now')}()")
            self._undo.append("modes.switch()")
        elif speculates or setters:
            source.emit(f"mode = {source.constant(torch.is_grad_enabled)}()")
            self._undo.append(f"{source.constant(set_grad_enabled)}(mode)")
        self._switch_back = list(self._undo)
        written = rec.writes.changed_inputs()
        if rec.lifted.arithmetic.may_raise and not rec.lifted.speculated.can_roll_back_draws():
            raise Split(
                SplitReason.MISSPECULATION_NOT_UNDOABLE,
                "computes numbers that may raise, after effects that cannot be rolled back",
            )
        may_fail = may_fail or any(raising_operators.may_fail(node, floats) for node in nodes)
        self._leaves_nothing = speculates or (
            rec.lifted.speculated.can_roll_back_draws() and (not written or may_fail)
        )
        """Whether all is put back. Where tensors are changed and nothing ever fails, to copy them
        before every call would be for nothing."""
        self._looks_for_large: list[str] = []
        """The call that raises where it may fail after all, for numbers that are too large."""
        if floats and not may_fail:
            look = source.constant(raising_operators.check_float_range)
            inputs = (rec.refs.get_node_by_id(i) for _, i in rec.operators.inputs if type(i) is int)
            most = raising_operators.largest_safe_float(nodes, (node.variable for node in inputs))
            self._looks_for_large = [f"{look}({most!r}, {', '.join(floats.values())})"]
        modes = len(self._undo)
        if (
            self._leaves_nothing
            or rec.lifted.speculated.values
            or (draws and rec.lifted.speculated.can_roll_back_draws())
        ):
            self._save_draws(rec)
        self._before_writing = list(self._undo)
        """What puts back all that was done before a graph looks at what was speculated on."""
        self._before_graph = self._undo[modes:]
        self._looks = bool(rec.lifted.speculated.values) and not speculates
        if self._leaves_nothing:
            for i, node in enumerate(written):
                if _is_view_that_takes_part_now(node):
                    raise Split(
                        SplitReason.MISSPECULATION_NOT_UNDOABLE,
                        "makes a view require gradients, which cannot be rolled back",
                    )
                source.emit(f"before_{i} = {source.constant(TensorSnapshot)}({existing(node)})")
                self._undo.append(f"before_{i}.restore()")

    def _save_draws(self, rec: Recording) -> None:
        source, operators = self._source, rec.operators
        given = [d.generator for d in rec.lifted.draws if d.generator is not None]
        generators = [*operators.drawn_from, *given, *operators.generators()]
        changed = {id(generator): generator for generator in generators}
        for i, generator in enumerate(changed.values()):
            tell, put_back = REWINDABLE[type(generator)]
            name = source.constant(generator, "generator")
            source.emit(f"drawn_{i} = {tell.format(name)}")
            self._undo.append(put_back.format(name, f"drawn_{i}"))

    def run_before_graph(self, run: Sequence[str]) -> list[str]:
        """Lines that draw and compute what is known before the operator graph runs."""
        run = [*run, *self._looks_for_large]
        return [] if not run else self._attempted(run, self._before_graph, [])

    def run_speculated(
        self,
        conditions: list[str],
        places: Sequence[SourcePosition],
        run: Sequence[str],
        behind: Sequence[str],
    ) -> list[str]:
        """Lines that run the operator graph and end the mock unless all conditions hold.

        ``places`` are those where the program looks at what the conditions are about; what is
        computed ``behind`` them may raise where that is what the program does.
        """
        names = self._source.names
        names["graph_raised"], names["first_misspeculation"] = (
            misspeculation_of_error,
            first_misspeculation,
        )
        names["places"], names["failed"] = tuple(places), graph_failure
        return [
            "ended = held = None",
            "try:",
            *(f"    {line}" for line in run),
            f"    held = {' and '.join(conditions)}",
            "    if not held:",
            f"        ended = first_misspeculation(({', '.join(conditions)},), places)",
            *(["    else:", *(f"        {line}" for line in behind)] if behind else []),
            "except Exception as error:  # the program is seen when it runs as it is written",
            "    ended = failed(error) if held else graph_raised(error)",
            "except BaseException:",
            *(f"    {line}" for line in self._undo),
            "    raise",
            "if ended is not None:",
            *(f"    {line}" for line in self._undo),
            "    return ended",
        ]

    def run_graph(self, run: Sequence[str]) -> list[str]:
        """Lines that run the operator graph, and give ``GraphFailure`` if it raises.

        Then the program is to run as it is written: it may have effects before the operator that
        fails, or catch the exception. Not so an interruption, which nothing is to follow.
        """
        handlers = []
        if self._looks:
            self._source.names["EarlyMisspeculation"] = EarlyMisspeculation
            lines = [*self._before_writing, "return found.misspeculation"]
            handlers += _handler("EarlyMisspeculation as found", lines)
        if self._leaves_nothing:
            return self._attempted(run, self._undo, handlers)
        if self._switch_back:
            handlers += _handler("BaseException", [*self._switch_back, "raise"])
        return ["try:", *(f"    {line}" for line in run), *handlers] if handlers else list(run)

    def _attempted(
        self, run: Sequence[str], undo: Sequence[str], handlers: Sequence[str]
    ) -> list[str]:
        """Lines that give ``GraphFailure`` if others raise, when what these have done is undone."""
        self._source.names["failed"] = graph_failure
        if undo:
            again = ["if not isinstance(error, Exception):", "    raise", "return failed(error)"]
            last = _handler("BaseException as error", [*undo, *again])
        else:
            last = _handler("Exception as error", ["return failed(error)"])
        return ["try:", *(f"    {line}" for line in run), *handlers, *last]


def _handler(caught: str, lines: Sequence[str]) -> list[str]:
    return [f"except {caught}:", *(f"    {line}" for line in lines)]


def _is_view_that_takes_part_now(node: ShadowNode) -> bool:
    """Whether gradients flow to a view to which none did before: torch detaches no view in place.

    Were it left so, a program that is run as it is written after that would find it so.
    """
    check = node.first.value
    changed = check is not None and check.why(node.variable) == "requires_grad"
    return changed and bool(node.variable._is_view())
