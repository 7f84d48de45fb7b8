"""Lists of the operator graph: lists whose length depends on a loop's trip count.

Once a loop is an operator, a list that its iterations append to is one node of the graph, and the
trip count may vary between calls. An inspection of the list, or an unrecorded read of its length,
specializes the trip count.
"""

from __future__ import annotations

import functools
import opcode
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.bytecode.instruction_facts import CALLS, operand_count
from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.monitor.call_operands import call_operands
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step
    from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
    from magpy_like.monitor.recording import Recording

JOINS = frozenset({torch.stack, torch.cat, torch.concat, torch.concatenate})
"""Operators that accept such a list."""


@dataclass
class CarriedList:
    """A list in an isolated iteration.

    Distances from the end identify the elements of earlier iterations: they are loop-carried
    values, as every iteration reads other elements there.
    """

    value: list[Any]
    begin: Sequence[Any] = ()
    """The elements before the loop."""
    index: int = 0
    """The lifted index of the iteration."""
    carried: int = 0
    """Number of last elements that are loop-carried."""
    grows: bool = False
    """Whether iterations are known to append to it."""
    elements_read: int = 0
    """Number of last elements that an iteration has read."""
    grows_with_index: bool = False
    """Whether each iteration must append one element: an iteration reads it by its index."""
    length_is_read: bool = False
    """Whether an iteration has read its length."""
    is_inspected: bool = False
    allowed = frozenset({list.append, list.extend, len})
    """Functions that accept it as first argument without inspecting it."""

    def inspect(self, operators: OperatorGraph) -> None:
        self.is_inspected = True

    def read_element(self, key: int, follows_index: bool) -> bool:
        """Note that an iteration reads the element at ``key``.

        Args:
            key: The index of the element.
            follows_index: True if the key exceeds the loop's index by a constant; otherwise it is
                a constant.

        Returns:
            True if every iteration reads an element of ``begin``.
        """
        distance = len(self.begin) - (key if key >= 0 else len(self.value) + key)
        if key >= 0 and not follows_index:
            self.is_inspected |= distance <= 0
            return 0 < distance <= self.carried
        self.grows_with_index |= follows_index
        self.elements_read = max(self.elements_read, distance)
        return False

    @property
    def assumed_constant_length(self) -> bool:
        """True if an iteration has read the length as a constant."""
        return self.length_is_read and not self.grows

    def length(self, context: Context) -> int:
        """The length in any iteration; lifted if the list grows."""
        self.length_is_read = True
        if not self.grows:
            return len(self.value)
        self.grows_with_index = True
        more = len(self.value) - self.index
        length: int = context.lifted.arithmetic.compute(
            operator.add, (self.index, more), len(self.value)
        )
        return length

    @staticmethod
    def takes(rec: Recording, elements: Any) -> bool:
        """True if iterations may extend the list by ``elements``: a list or tuple created
        inside."""
        return type(elements) in (list, tuple) and rec.variables.node(elements) is None


@dataclass
class GraphList:
    """A list that is one node of the graph: a list after its loop, or the rows of a tensor."""

    value: list[Any]
    node: fx.Node
    count: Any
    """The number of elements, lifted or plain."""
    twin: torch.Tensor | None
    """The twin of every element, if they have the same form."""
    specialize_length: Callable[[], None]
    """Turns the number of elements into a constant."""
    elements_are_new: bool = True
    """Whether all elements were created inside. Otherwise the trip count decides which elements
    alias other variables."""
    has_data_dependent_length: bool = False
    """Whether the number of elements, and their aliasing, depend on data."""
    substitute: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Returns the program's object for an element whose aliasing depends on data."""
    is_never_empty: bool = True
    """Whether there is an element for every trip count."""
    outlives_recording: bool = False
    """Whether the recording ends here, and the continuation receives the list as a whole."""
    allowed = frozenset(
        {len, *JOINS, list, tuple, sum, functools.reduce, map, zip, enumerate, reversed}
    )
    """Functions that do not inspect it as first argument; the last six only if a loop of the graph
    iterates over it."""

    def __post_init__(self) -> None:
        self._items = [id(item) for item in self.value]

    def holds_only_tensors(self) -> bool:
        """True if all elements are tensors; those from before the loop may be anything."""
        return all(is_instance(item, torch.Tensor) for item in self.value)

    def is_unchanged(self) -> bool:
        """True if the list still has its elements."""
        return list(map(id, self.value)) == self._items

    def inspect(self, operators: OperatorGraph) -> None:
        """Turn it into an ordinary list: specialize its length, and make its elements nodes.

        Raises:
            Split: its length depends on data and cannot be speculated on, or the run is isolated.
        """
        if self.outlives_recording:
            return
        self._check(operators)
        self.specialize_length()
        operators.lists.pop(id(self.value), None)
        for i in range(len(self.value)):
            self.know(operators, i)

    @staticmethod
    def _check(operators: OperatorGraph) -> None:
        if operators.is_isolated:
            raise LoopNotMergeable("reads a list whose length is lifted")

    def know(self, operators: OperatorGraph, position: int) -> None:
        """Make the element at a position a node of the graph, if it is a tensor."""
        item = self.value[position]
        if is_instance(item, torch.Tensor) and operators.nodes.node_of(item) is None:
            self._check(operators)
            operators.nodes.set_node(item, self._element(operators, position))

    def element(self, rec: Recording, position: int) -> torch.Tensor:
        """The program's object for the element at a position, whose aliasing depends on data."""
        assert self.substitute is not None
        found = self.substitute(self.value[position])
        rec.operators.nodes.set_node(found, self._element(rec.operators, position))
        rec.inspections.note_possible_aliases((found,))
        return found

    def _element(self, operators: OperatorGraph, position: int) -> fx.Node:
        node = operators.nodes.graph.call_function(operator.getitem, (self.node, position))
        if self.twin is not None:
            node.meta[TWIN] = self.twin
        return node


@dataclass
class LiftedRange:
    """A ``range`` with lifted bounds, or its reverse iterator, that ``zip`` will consume."""

    value: Any
    bounds: tuple[int, int, int]
    specialize_length: Callable[[], None]
    """Turns the bounds into constants."""
    allowed = frozenset({zip, reversed})

    def inspect(self, operators: OperatorGraph) -> None:
        operators.lists.pop(id(self.value), None)
        self.specialize_length()


Lists = Mapping[int, CarriedList | GraphList | LiftedRange]


def inspected_lists(step: Step, lists: Lists, follows: Callable[[Any], bool]) -> Iterator[Any]:
    """The lists that an instruction may inspect: those among its operands."""
    name, stack = opcode.opname[step.opcode], step.stack
    depth = step.oparg if name in ("BUILD_LIST", "BUILD_TUPLE") else _DEPTHS.get(name, 3)
    operands, function = stack[max(len(stack) - depth, 0) :], None
    if name in CALLS:
        function = call_operands(name, step.oparg, stack).function
        if is_instance(function, types.FunctionType | types.MethodType) and follows(function):
            return
        operands = stack[-operand_count(name, step.oparg) :]
    elif name in ("LOAD_ATTR", "LOAD_METHOD"):
        function = getattr(list, step.name, None)
    elif name == "GET_ITER" and is_instance(lists.get(id(operands[0])), GraphList):
        return  # a loop may begin
    elif name == "STORE_DEREF" and is_instance(lists.get(id(operands[-1])), GraphList):
        return  # a comprehension may read it
    elif name in ("BINARY_SUBSCR", "BINARY_SLICE"):
        found = lists.get(id(operands[0]))
        is_number = name == "BINARY_SUBSCR" and type(operands[1]) is int
        if is_instance(found, GraphList) or (found is not None and is_number):
            return  # the rule inspects the key
    elif name in _TRUTHS and is_instance(lists.get(id(operands[-1])), CarriedList):
        return  # the rule decides if it is the same in every iteration
    elif name == "BINARY_OP" and step.oparg == _IN_PLACE_ADD:
        if is_instance(lists.get(id(operands[0])), CarriedList):
            operands = operands[1:]
    for value in operands:
        found = lists.get(id(value))
        if found is not None and not any(function is allowed for allowed in found.allowed):
            yield value


_IN_PLACE_ADD = [name for name, _ in opcode._nb_ops].index("NB_INPLACE_ADD")  # type: ignore[attr-defined]
_TRUTHS = frozenset(
    name for name in opcode.opmap if "_IF_" in name or name in ("TO_BOOL", "UNARY_NOT")
)
ENDS = (0, -1)
"""The elements that exist for every trip count."""
_DEPTHS = {
    **dict.fromkeys(
        ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST", "IMPORT_NAME",
         "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST", "LOAD_FROM_DICT_OR_DEREF",
         "LOAD_FROM_DICT_OR_GLOBALS"), 0
    ),
    **dict.fromkeys(
        ("LOAD_ATTR", "LOAD_METHOD", "GET_ITER", "FORMAT_VALUE", "FORMAT_SIMPLE", "CONVERT_VALUE",
         "UNPACK_SEQUENCE", "LIST_APPEND", "TO_BOOL", "MAKE_FUNCTION",
         *(n for n in opcode.opmap if n.startswith(("UNARY_", "POP_JUMP_")))), 1
    ),
    **dict.fromkeys(("BINARY_SUBSCR", "BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "IS_OP"), 2),
}  # fmt: skip
"""Numbers of operands of instructions; three for all others."""
