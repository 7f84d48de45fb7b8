"""Mock generation (MagPy, section 4.2): run the operator graph, then repeat the program's effects.

A mock is a generated function of the variables that the guard fetched. It draws random numbers,
runs the operator graph, creates the program's new objects, changes external variables, and returns
the result.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import (
    DrawnValue,
    Expression,
    is_computable_before_graph,
    leaves_of,
)
from magpy_like.monitor.torch_state.default_device import without_default_device
from magpy_like.native import ABSENT, PartialCall
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import SpeculationRefused
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis import number_source
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.guard.guard_builder import GuardBuilder
from magpy_like.synthesis.guard.guard_checks import same_list, same_scalar
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables
from magpy_like.synthesis.mock.mock_interface import MockInterface
from magpy_like.synthesis.mock.reconstruction import Reconstruction
from magpy_like.synthesis.mock.roll_back import RollBack
from magpy_like.synthesis.mock.side_effects import SideEffects
from magpy_like.synthesis.mock.speculation_checks import check_before_writing
from magpy_like.synthesis.shared_graphs import CompiledGraph

MIN_KNOWN_INPUTS = 4
"""Fixed objects among the inputs of an operator graph from which on they are bound to it."""


class MockBuilder:
    """Builds the mock of one record: first its effects and result, then the code before them."""

    def __init__(self, rec: Recording, guarded: GuardedVariables, guard: GuardBuilder) -> None:
        self.rec, self._writer = rec, guard.writer
        self.source = Source()
        self.interface = MockInterface(rec, guarded, guard, self.source)
        self.numbers = number_source.Numbers(
            rec.lifted.arithmetic.in_python,
            self.interface.existing,
            self.source.constant,
            self.interface.graph_output,
            lambda node: not rec.reads.has_layout_of_entry(node),
        )
        self.values = Reconstruction(
            rec,
            self.source,
            self.interface.existing,
            self.interface.output,
            self.interface.graph_output,
            self.numbers.text,
        )
        self.effects = SideEffects(self.values, self.interface, guarded.order, guard.writer.label)

    def forget(self) -> None:
        """Release the recorded run's objects, some of which refer to each other."""
        self.values.forget()
        del self.numbers

    def write(self, result: Any) -> None:
        """Write effects and result, and with them determine the outputs of the operator graph.

        Raises:
            Split: a mock cannot repeat an effect, or create an object.
        """
        self._result = self.values.value(result)
        self.values.functions.fill_cells()
        self.effects.write()
        self._speculated = self.speculated()
        self._after_graph, self._may_raise = self._compute_after_graph()

    def finish(self, compiled: CompiledGraph | None, names: Sequence[str]) -> None:
        """Write the code before the effects. ``names`` are the inputs of the operator graph.

        Raises:
            Split: the mock may fail after effects that cannot be rolled back.
        """
        rec, source = self.rec, self.source
        effects = source.take_lines()
        self._draw()
        drawn = source.take_lines()
        may_fail = self._may_raise or (compiled is not None and compiled.may_fail)
        inputs = zip(rec.operators.nodes.inputs, names, strict=compiled is not None)
        floats = {
            node: name
            for (node, expression), name in inputs
            if is_instance(expression, Expression)
            and type(rec.lifted.identities.values.get(expression)) is float
        }
        speculates = bool(self._speculated)
        roll_back = RollBack(
            rec, source, self.interface.existing, speculates, may_fail, bool(drawn), floats
        )
        before = source.take_lines()
        run = [] if compiled is None else [self._call_graph(compiled, names)]
        if speculates:
            locations = [location for *_, location in rec.lifted.speculated.values]
            run = roll_back.run_speculated(self._speculated, locations, run, self._after_graph)
        elif compiled is not None:
            run = roll_back.run_graph([*run, *self._after_graph])
        source.lines = [*before, *roll_back.run_before_graph(drawn), *run]
        source.lines += [*effects, *self.effects.modes(), f"return {self._result}"]

    def _call_graph(self, compiled: CompiledGraph, names: Sequence[str]) -> str:
        has_device = self.rec.state.default_device is not None and not self.rec.graph.runs_as_is
        run = without_default_device(compiled.run) if has_device else compiled.run
        known = [self.source.names.get(name, ABSENT) for name in names]
        if len(names) - sum(value is ABSENT for value in known) >= MIN_KNOWN_INPUTS:
            # Parameters of a model: to load each costs 5 to 10 ns a call.
            names = [name for name, value in zip(names, known, strict=True) if value is ABSENT]
            run = PartialCall(run, tuple(known))
        self.source.names["run_graph"] = run
        outputs = [f"out{i}" for i in range(len(self.interface.outputs))]
        call = f"run_graph({', '.join(names)})"
        comma = "," if len(outputs) == 1 else ""
        return f"{', '.join(outputs)}{comma} = {call}" if outputs else call

    def _draw(self) -> None:
        """Repeat draws of Python's random numbers, in order, and compute with the results.

        Computations with external numbers are included.
        """
        for i, drawing in enumerate(self.rec.lifted.draws):
            function = self.source.constant(drawing.operation, drawing.operation.__name__)
            start = len(self.source.lines)
            texts = [self.values.value(arg) for arg in drawing.args]
            texts += [f"{name}={self.values.value(arg)}" for name, arg in drawing.kwargs.items()]
            # Containers among the arguments consist of numbers that only now have names.
            self.source.lines[start:start] = self.numbers.lines(
                functools.partial(_is_computable_after_draws, i)
            )
            self.source.emit(f"draw{i} = {function}({', '.join(texts)})")
        for line in self.numbers.lines(is_computable_before_graph):
            self.source.emit(line)

    def _compute_after_graph(self) -> tuple[list[str], bool]:
        """Statements that compute with results of the operator graph, and whether they may raise.

        Includes numbers that are computed only because their computation may raise.
        """
        raising = self.rec.lifted.arithmetic.may_raise
        for number in raising:
            self.numbers.text(number)
        lines = self.numbers.lines(lambda number: not is_computable_before_graph(number))
        return lines, not all(map(is_computable_before_graph, raising))

    def speculated(self) -> list[str]:
        """Conditions on results of the operator graph that hold unless a value was misspeculated.

        There are none if the graph itself checks the values, before it changes external tensors.

        Raises:
            SpeculationRefused: the mock cannot roll back earlier effects.
        """
        rec, conditions = self.rec, []
        if rec.lifted.speculated.values and rec.writes.changed_inputs():
            if not (rec.lifted.speculated.can_roll_back_draws() and check_before_writing(rec)):
                raise SpeculationRefused(
                    SplitReason.MISSPECULATION_NOT_UNDOABLE,
                    "speculates on a tensor's value before effects that cannot be rolled back",
                )
            return []
        for expression, value, _ in rec.lifted.speculated.values:
            text = number_source.text(
                expression,
                self.interface.existing,
                self.source.constant,
                self.interface.graph_output,
            )
            check = same_scalar if is_plain(value) else same_list
            same = self.source.constant(check, check.__name__)
            expected = literal(value) or self.source.constant(value, "value")
            conditions.append(f"{same}({text}, {expected})")
            self._writer.note(f"a value that decides control flow is {value!r}")
        if conditions and not rec.lifted.speculated.can_roll_back_draws():
            raise SpeculationRefused(
                SplitReason.MISSPECULATION_NOT_UNDOABLE,
                "speculates on a tensor's value before effects that cannot be rolled back",
            )
        return conditions


def _is_computable_after_draws(count: int, number: Any) -> bool:
    """True if a number depends on the first draws, ``count`` of them, and on entry values only."""
    leaves = leaves_of(number)
    are_drawn = all(leaf.index < count for leaf in leaves if is_instance(leaf, DrawnValue))
    return are_drawn and is_computable_before_graph(number)
