"""The recording of one monitor run: the RefGraph, the operator graph, and how the run ended.

Each part has one subject and receives the parts it builds on. The rules of instructions and calls
use them: they look up a variable (`variables`), record an external read (`reads`), an inspection
(`inspections`) or a change (`mutations`), and add operators (`graph`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.objects.external_reads import ExternalReads
from magpy_like.monitor.objects.inspections import Inspections
from magpy_like.monitor.objects.mutations import Mutations
from magpy_like.monitor.objects.object_replacement import OriginalNumbers
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.constant_tensors import ConstantTensors
from magpy_like.monitor.operator_graph.graph_values import GraphValues
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.operator_graph.running_operator import RunningOperator
from magpy_like.monitor.operator_graph.tensor_sizes import TensorSizes
from magpy_like.monitor.operator_graph.tensor_writes import TensorWrites
from magpy_like.monitor.process_state import ProcessState
from magpy_like.monitor.replayed_effects import Effects
from magpy_like.monitor.symbolic.numbers.lifted_numbers import LiftedNumbers
from magpy_like.monitor.symbolic.variation import NOTHING_VARIES, Variation
from magpy_like.refgraph import RefGraph
from magpy_like.split_points import SourcePosition, SplitPoint

if TYPE_CHECKING:
    from magpy_like.monitor.calls.checkpoints.checkpoint_runs import CheckpointRun


def _nowhere() -> SourcePosition | None:
    return None


class ClassReads:
    """Look-ups in classes, and attributes set on them."""

    def __init__(self) -> None:
        self.by_dictionary: dict[int, type] = {}
        """Classes whose own attributes the program read one by one, by the nodes of their
        dictionaries."""
        self.names_set: set[str] = set()
        """Names of attributes that the program set on classes."""
        self.special_names: dict[type, dict[types.FunctionType, list[str]]] = {}
        """The special names of the functions of classes: see `calls.special_methods`."""
        self.read_from: set[type] = set()
        """Classes for which the record holds how attributes of their instances are read."""
        self.inspected: set[type] = set()
        """Classes for which the record holds all special methods that native code may look up."""


class AutogradReads:
    """Reads of the autograd graph."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[Any, fx.Node]] = {}
        """Nodes of the autograd graph that the program reached, by id, with the nodes of the
        operator graph that return them."""
        self.reads_external = False
        """Whether the program reads the autograd node of an external tensor."""


class Recording:
    """The facts of one monitor run, from which a record is synthesised."""

    def __init__(
        self,
        varying: Variation = NOTHING_VARIES,
        originals: OriginalNumbers | None = None,
        speculation_position: Callable[[], SourcePosition | None] = _nowhere,
    ) -> None:
        """
        Args:
            varying: The numbers and sizes to lift.
            originals: Receives the external objects that lifted numbers replace.
            speculation_position: Returns the program's position; None where it must not speculate.
        """
        self.lifted = LiftedNumbers(self, speculation_position, originals or OriginalNumbers())
        self.refs = RefGraph()
        self.operators = OperatorGraph()
        self.operators.numbers.expression = self.lifted.expression
        self.operators.numbers.value_of = self.lifted.identities.values.get
        self.operators.numbers.twin_of = self.lifted.identities.twin
        self.constants = ConstantTensors()
        self.variables = Variables(self.refs, self.operators)
        self.running = RunningOperator()
        self.writes = TensorWrites(self.refs, self.variables, self.operators, self.constants)
        self.sizes = TensorSizes(self.variables, self.operators)
        self.graph = GraphValues(self.variables, self.operators, self.running, self.writes)
        self.effects = Effects()
        self.reads = ExternalReads(
            self.refs, self.variables, self.running, self.writes, self.sizes, self.effects,
            self.lifted,
        )  # fmt: skip
        self.inspections = Inspections(self.refs, self.variables, self.reads, varying)
        self.mutations = Mutations(self.refs, self.running, self.reads)
        self.classes = ClassReads()
        self.autograd = AutogradReads()
        self.state = ProcessState(self.lifted)
        self.keyword_order: tuple[str, ...] = ()
        """The keywords in the ``**`` parameter of the compiled function, as the call orders
        them."""
        self.checkpointed: CheckpointRun | None = None
        """The innermost checkpointed call that is running."""
        self.split: SplitPoint | None = None
        """The split at which the recording ended, if it ended before the program."""
        self.continues = False
        """Whether the program continues after the end of the record."""

    def note_write(self, tensor: torch.Tensor, *, to_elements: bool) -> None:
        """Note that an operator, not on the graph yet, has written to a tensor: to its elements, or
        only to its sizes and strides."""
        has_memory = self.writes.note_write(tensor, to_elements=to_elements)
        if has_memory and self.checkpointed is not None:
            self.checkpointed.note_write(self, tensor)

    def has_effects(self) -> bool:
        """True if the program has an external effect. The states of torch's generators do not
        count: they are in `state.random_states`."""
        effects = self.effects
        return (
            any((effects.calls, effects.hooks, effects.replays, effects.advanced_iterators))
            or bool(self.writes.data_replaced)
            or any(node.existed and node.changed for node in self.refs)
            or bool(self.writes.changed_inputs())
            or bool(self.lifted.draws)
        )

    def changed_objects(self) -> list[Any]:
        """The external objects, other than tensors, that the program has changed."""
        return [node.variable for node in self.refs if node.existed and node.changed]

    def keep_results(self) -> None:
        """Release all objects except tensors and lifted values: the record has been synthesised,
        and the program continues."""
        self.refs.let_go()
        self.variables.release()
        self.reads.exceptions = {}
        self.effects.release()
        self.state.release()
        self.autograd.nodes = {}

    def release(self) -> None:
        """Drop the program's objects at once. The parts refer to each other, so that without this
        the objects would live until the next garbage collection."""
        sizes = vars(self).get("sizes")  # None if it is released already
        if sizes is not None and sizes.twin is not None:
            sizes.twin.forget_graph()
        vars(self).clear()
