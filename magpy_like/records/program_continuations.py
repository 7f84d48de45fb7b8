"""State shared by the dispatchers of one program: its continuations and its execution modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from magpy_like.compiler.runtime.cuda_graphs.capture_reports import ProgramLaunchers
from magpy_like.native.instance_checks import is_instance
from magpy_like.records.reports import Kind, Reports
from magpy_like.split_points import SourcePosition
from magpy_like.splitting.continuation import Continuation
from magpy_like.splitting.continuation_functions import run_chain
from magpy_like.splitting.dynamic_instruction import DynamicInstruction
from magpy_like.splitting.frame_layout import Layout
from magpy_like.splitting.native_instruction import Raised
from magpy_like.synthesis.shared_graphs import SharedGraphs

if TYPE_CHECKING:
    from magpy_like.records.dispatcher import Dispatcher


_INSPECTS_AUTOGRAD = (
    "it reads the autograd graph of an earlier segment, which must be that of eager mode",
    "read it outside the compiled function",
)
_OVERWRITES_SAVED = (
    "a segment writes to tensors that an earlier one may have saved for the backward pass, so "
    "operators run one by one while gradients are recorded",
    "remove the split between both, or the write",
)


class ProgramState:
    """Continuations of one compiled function by layout, and facts about the whole program."""

    def __init__(
        self, entry: Dispatcher, make_dispatcher: Callable[[Continuation], Dispatcher]
    ) -> None:
        self.entry = entry
        """The dispatcher of the compiled function itself."""
        self._make_dispatcher = make_dispatcher
        self.dispatchers: dict[Layout, Dispatcher] = {}
        """The dispatchers of the continuations."""
        self.reports = Reports(lambda: entry.name, entry.target)
        self.graphs = SharedGraphs()
        self.launchers = ProgramLaunchers(lambda: entry.name)
        self.misspeculations: set[SourcePosition] = set()
        """Source positions at which values were misspeculated."""
        self.reports_compiling = True
        """Whether ``is_compiling`` returns True to the program in monitor runs."""
        self.exposes_autograd_graph = False
        """Whether the program inspects the autograd graph of an earlier segment, so that each
        segment runs operator by operator."""
        self.eager_with_gradients = False
        """Whether a segment writes to tensors that an earlier one may have saved for backward, so
        that each runs operator by operator while gradients are recorded."""
        self._dynamic_instructions: dict[int, DynamicInstruction] = {}

    def all_dispatchers(self) -> Iterable[Dispatcher]:
        """The dispatchers of the entry and of all continuations."""
        return (self.entry, *self.dispatchers.values())

    def following(self, layout: Layout) -> Dispatcher:
        """The dispatcher of the continuation from active frames with this layout."""
        found = self.dispatchers.get(layout)
        if found is None:
            found = self.dispatchers[layout] = self._make_dispatcher(Continuation(layout))
        return found

    def expose_autograd_graph(self) -> None:
        """From now on run all segments operator by operator."""
        if not self.exposes_autograd_graph:
            self.reports.note(Kind.UNCOMPILED, *_INSPECTS_AUTOGRAD)
            self.exposes_autograd_graph = True
            self._clear_records()

    def run_eagerly_with_gradients(self) -> None:
        """From now on run all segments operator by operator while gradients are recorded."""
        if not self.eager_with_gradients:
            self.reports.note(Kind.UNCOMPILED, *_OVERWRITES_SAVED)
            self.eager_with_gradients = True
            self._clear_records()

    def _clear_records(self) -> None:
        for dispatcher in self.all_dispatchers():
            dispatcher.cache.clear()

    def run_natively(self, reason: str) -> None:
        """Record the program no more: its calls run it natively."""
        self.entry.note_native(reason)
        self.reports.note(Kind.NATIVE, reason, "keep that out of the compiled function")
        for dispatcher in self.all_dispatchers():
            dispatcher.cache.clear()
            dispatcher.eager.turn_on(reason)

    def run_dynamic_instruction(
        self, layout: Layout, values: Sequence[Any]
    ) -> tuple[Dispatcher | None, Any]:
        """Run the dynamic instruction at the end of a segment.

        Returns:
            The dispatcher of the continuation and its arguments; or None and the program's result,
            if the rest had to run natively.
        """
        # Every record has a layout object of its own, which lives as long as this object.
        instruction = self._dynamic_instructions.get(id(layout))
        if instruction is None:
            instruction = self._dynamic_instructions[id(layout)] = DynamicInstruction(layout)
        outcome = instruction.run(values)
        if not is_instance(outcome, Raised):
            peek, following = outcome
        elif instruction.raising is not None:
            peek, following = instruction.raising, (*values, outcome.exception)
        else:
            return None, run_chain(layout.build(values), outcome.exception)
        if peek.following is None:
            peek.following = self.following(peek.layout)
        return peek.following, following
