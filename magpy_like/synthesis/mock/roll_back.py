"""Roll-back in mocks: a value was misspeculated, or the operator graph has raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from magpy_like.graph_operators.checkpoint_operator import is_checkpoint
from magpy_like.interruption import is_interruption
from magpy_like.monitor.random_draws import REWINDABLE
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.torch_state.torch_modes import SETTERS, Modes
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import tensor_version
from magpy_like.split_points import SourcePosition, SpeculationRefused, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source
from magpy_like.synthesis.mock import raising_operators
from magpy_like.torch_compat.autograd import set_grad_enabled, set_version
from magpy_like.torch_interop.error_texts import in_words


class Misspeculation(NamedTuple):
    """Result of a mock whose record speculated on another value; all effects are rolled back."""

    position: SourcePosition | None
    """The position at which the program reads the value; None if the operator graph has raised."""
    why: str = ""
    """The exception of the operator graph as text."""


class GraphFailure(NamedTuple):
    """Result of a mock whose operator graph has raised; all effects are rolled back."""

    why: str
    """The exception as text: the object would keep the frames of its traceback alive."""


class EarlyMisspeculation(Exception):
    """Raised inside an operator graph that finds a misspeculation before any in-place change."""

    def __init__(self, position: SourcePosition) -> None:
        super().__init__(position)
        self.misspeculation = Misspeculation(position)


def first_misspeculation(
    held: tuple[bool, ...], positions: Sequence[SourcePosition]
) -> Misspeculation:
    """The first of the conditions that does not hold, in the program's order."""
    return Misspeculation(positions[held.index(False)])


def graph_failure(error: Exception) -> GraphFailure:
    """The result of a mock for an exception of the operator graph.

    Raises:
        Exception: the exception itself, if a handler of a signal raised it.
    """
    if is_interruption(error):
        raise error
    return GraphFailure(in_words(error))


def misspeculation_of_error(error: Exception) -> Misspeculation:
    """The result of a mock that speculates, for an exception of the operator graph: a
    misspeculation may have caused it."""
    return Misspeculation(None, graph_failure(error).why)


class TensorSnapshot:
    """The state of a tensor before operators change it: data, form, version and gradients."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, tensor_version(tensor)
        self._grad_fn = None if tensor.is_leaf else tensor.grad_fn
        self._requires_grad = tensor.requires_grad
        self._form: Any = None
        if tensor.layout is torch.strided:
            self._form = tensor.size(), tensor.stride(), tensor.storage_offset()
        if self._grad_fn is None:
            self._values = tensor.detach().clone()
        else:
            with torch.enable_grad():
                self._values = tensor.clone()

    def restore(self) -> None:
        """Reset the tensor to the saved state."""
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
                tensor.copy_(self._values)  # gradients flow to the same node again
        elif tensor.requires_grad is not self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
        if self._version >= 0:
            set_version((tensor,), (self._version,))


class RollBack:
    """Lines that save the state which a mock is about to change, and lines that restore it.

    Before its effects a mock draws random numbers and runs the operator graph, which may switch
    torch's modes and change inputs in place. An operator of the graph may fail although the program
    does not reach it, or before the mock has repeated earlier effects of the program.
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
        """Emits the lines that save state.

        Args:
            existing: names an external variable.
            speculates: the mock checks speculated values after the graph.
            may_fail: the graph may raise although none of its operators does, or computations with
                its results may raise.
            draws: random numbers are drawn, or numbers computed, before the graph.
            floats: names of the graph's inputs that are numbers of type ``float``.

        Raises:
            SpeculationRefused: the mock speculates, and runs functions with unknown effects.
            Split: an operator may fail after changes that cannot be rolled back.
        """
        self._rec, self._source = rec, source
        self._undo: list[str] = []
        """Lines that restore all saved state."""
        nodes = list(rec.operators.nodes.graph.nodes)
        if speculates and any(map(is_checkpoint, nodes)):
            # Its writes are unknown: a batch norm under a checkpoint counts batches.
            raise SpeculationRefused(
                SplitReason.MISSPECULATION_NOT_UNDOABLE,
                "speculates on a value before a checkpointed function, whose effects are unknown",
            )
        self._save_modes(nodes, speculates)
        self._restore_modes = list(self._undo)
        written = rec.writes.changed_inputs()
        can_roll_back_draws = rec.lifted.speculated.can_roll_back_draws()
        if rec.lifted.arithmetic.may_raise and not can_roll_back_draws:
            raise Split(
                SplitReason.MISSPECULATION_NOT_UNDOABLE,
                "computes numbers that may raise, after effects that cannot be rolled back",
            )
        may_fail = may_fail or any(raising_operators.may_fail(node, floats) for node in nodes)
        self._restores_all = speculates or (can_roll_back_draws and (not written or may_fail))
        """Whether all changes are rolled back. Tensors that are changed by operators which never
        fail are not copied before every call."""
        self._range_checks: list[str] = []
        """A call that raises for numbers so large that operators may fail."""
        if floats and not may_fail:
            self._range_checks = [self._check_range(nodes, floats)]
        if self._restores_all or rec.lifted.speculated.values or (draws and can_roll_back_draws):
            self._save_draws()
        self._undo_before_writes = list(self._undo)
        """Lines that restore the state before a graph checks speculated values."""
        self._undo_before_graph = self._undo[len(self._restore_modes) :]
        self._checks_early = bool(rec.lifted.speculated.values) and not speculates
        if self._restores_all:
            self._save_tensors(written, existing)

    def _save_modes(self, nodes: Sequence[fx.Node], speculates: bool) -> None:
        source = self._source
        setters = {node.target for node in nodes if node.op == "call_function"} & SETTERS
        if setters - {set_grad_enabled}:
            source.emit(f"modes = {source.constant(Modes.now, 'modes_now')}()")
            self._undo.append("modes.switch()")
        elif speculates or setters:
            source.emit(f"mode = {source.constant(torch.is_grad_enabled)}()")
            self._undo.append(f"{source.constant(set_grad_enabled)}(mode)")

    def _check_range(self, nodes: Sequence[fx.Node], floats: Mapping[fx.Node, str]) -> str:
        rec, check = self._rec, self._source.constant(raising_operators.check_float_range)
        inputs = (
            rec.refs.get_node_by_id(i) for _, i in rec.operators.nodes.inputs if type(i) is int
        )
        largest = raising_operators.largest_safe_float(nodes, (node.variable for node in inputs))
        return f"{check}({largest!r}, {', '.join(floats.values())})"

    def _save_tensors(
        self, written: Sequence[ShadowNode], existing: Callable[[ShadowNode], str]
    ) -> None:
        source = self._source
        for i, node in enumerate(written):
            if _is_view_that_requires_grad_now(node):
                raise Split(
                    SplitReason.MISSPECULATION_NOT_UNDOABLE,
                    "makes a view require gradients, which cannot be rolled back",
                )
            source.emit(f"before_{i} = {source.constant(TensorSnapshot)}({existing(node)})")
            self._undo.append(f"before_{i}.restore()")

    def _save_draws(self) -> None:
        rec, source = self._rec, self._source
        drawn = [d.generator for d in rec.lifted.draws if d.generator is not None]
        generators = [*rec.operators.drawn_from, *drawn, *rec.operators.nodes.generators()]
        changed = {id(generator): generator for generator in generators}
        for i, generator in enumerate(changed.values()):
            save, restore = REWINDABLE[type(generator)]
            name = source.constant(generator, "generator")
            source.emit(f"drawn_{i} = {save.format(name)}")
            self._undo.append(restore.format(name, f"drawn_{i}"))

    def run_before_graph(self, run: Sequence[str]) -> list[str]:
        """The lines ``run``, which draw and compute numbers before the operator graph, and their
        roll-back if they raise."""
        run = [*run, *self._range_checks]
        return self._or_fail(run, self._undo_before_graph, []) if run else []

    def run_speculated(
        self,
        conditions: list[str],
        positions: Sequence[SourcePosition],
        run: Sequence[str],
        after: Sequence[str],
    ) -> list[str]:
        """Lines that run the operator graph, and roll back unless all conditions hold.

        ``positions`` are the source positions of the conditions. The lines ``after`` compute with
        results of the graph; they raise only if the program does.
        """
        names = self._source.names
        names["graph_raised"] = misspeculation_of_error
        names["first_misspeculation"] = first_misspeculation
        names["positions"], names["failed"] = tuple(positions), graph_failure
        return [
            "ended = held = None",
            "try:",
            *(f"    {line}" for line in run),
            f"    held = {' and '.join(conditions)}",
            "    if not held:",
            f"        ended = first_misspeculation(({', '.join(conditions)},), positions)",
            *(["    else:", *(f"        {line}" for line in after)] if after else []),
            "except Exception as error:  # the program itself runs then",
            "    ended = failed(error) if held else graph_raised(error)",
            "except BaseException:",
            *(f"    {line}" for line in self._undo),
            "    raise",
            "if ended is not None:",
            *(f"    {line}" for line in self._undo),
            "    return ended",
        ]

    def run_graph(self, run: Sequence[str]) -> list[str]:
        """Lines that run the operator graph, and return a ``GraphFailure`` if it raises.

        The program itself runs then: it may have effects before the operator that fails, or catch
        the exception. An interruption (KeyboardInterrupt) is raised instead.
        """
        handlers = []
        if self._checks_early:
            self._source.names["EarlyMisspeculation"] = EarlyMisspeculation
            lines = [*self._undo_before_writes, "return found.misspeculation"]
            handlers += _handler("EarlyMisspeculation as found", lines)
        if self._restores_all:
            return self._or_fail(run, self._undo, handlers)
        if self._restore_modes:
            handlers += _handler("BaseException", [*self._restore_modes, "raise"])
        return ["try:", *(f"    {line}" for line in run), *handlers] if handlers else list(run)

    def _or_fail(
        self, run: Sequence[str], undo: Sequence[str], handlers: Sequence[str]
    ) -> list[str]:
        """Lines that run others, and roll back and return a ``GraphFailure`` if these raise."""
        self._source.names["failed"] = graph_failure
        if undo:
            fail = ["if not isinstance(error, Exception):", "    raise", "return failed(error)"]
            last = _handler("BaseException as error", [*undo, *fail])
        else:
            last = _handler("Exception as error", ["return failed(error)"])
        return ["try:", *(f"    {line}" for line in run), *handlers, *last]


def _handler(caught: str, lines: Sequence[str]) -> list[str]:
    return [f"except {caught}:", *(f"    {line}" for line in lines)]


def _is_view_that_requires_grad_now(node: ShadowNode) -> bool:
    """True for a view that requires gradients since the region, but not before it.

    Torch does not detach views in place, so the program would find it changed after a roll-back.
    """
    check = node.first.value
    changed = check is not None and check.why(node.variable) == "requires_grad"
    return changed and bool(node.variable._is_view())
