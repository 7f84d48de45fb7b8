"""Lists of as many tensors as a loop has rounds.

Once a loop is an operator, a list that its rounds have appended to is one node of the graph. A
program that looks into it, or asks how long it is in a way that is not recorded, relies on the
number of rounds of this run. Until then another call may have another number.
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

from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import VersionCheck
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step
    from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
    from magpy_like.monitor.recording import Recording

JOINS = frozenset({torch.stack, torch.cat, torch.concat, torch.concatenate})
"""Operators that take such a list as it is."""


@dataclass
class CarriedList:
    """A list in a round that runs beside the program.

    Of what earlier rounds have put there, a round knows the elements by how far they are from the
    end: any round finds others at the same distance, which rounds hand on to each other.
    """

    value: list[Any]
    begin: Sequence[Any] = ()
    """What the program has in it before the loop."""
    index: int = 0
    """The lifted number that the round is given."""
    carried: int = 0
    """How many of the last elements stand for those of any round."""
    grows: bool = False
    """Whether it is known to grow."""
    elements_read: int = 0
    """How many of them a round has asked for."""
    grows_with_index: bool = False
    """Whether it must grow as the index does, for a round looks up what is there by that."""
    length_is_read: bool = False
    """Whether a round has asked how long it is."""
    is_inspected: bool = False
    allowed = frozenset({list.append, list.extend, len})
    """What takes it as its first argument without looking into it."""

    def inspect(self, operators: OperatorGraph) -> None:
        self.is_inspected = True

    def read_element(self, key: int, follows_index: bool) -> bool:
        """A round reads the element at ``key``, which is as much more than the index in any round,
        or the same number in all of them. Whether it is what ``begin`` has there, in any round."""
        distance = len(self.begin) - (key if key >= 0 else len(self.value) + key)
        if key >= 0 and not follows_index:
            self.is_inspected |= distance <= 0
            return 0 < distance <= self.carried
        self.grows_with_index |= follows_index
        self.elements_read = max(self.elements_read, distance)
        return False

    @property
    def assumed_constant_length(self) -> bool:
        """Whether a round was told that it is as long as at first."""
        return self.length_is_read and not self.grows

    def length(self, context: Context) -> int:
        """How long it is in any round: lifted, if it grows."""
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
        """Whether it may be extended by these: by a list or tuple that the round has made."""
        return type(elements) in (list, tuple) and rec.variables.node(elements) is None


@dataclass
class GraphList:
    """A list behind its loop."""

    value: list[Any]
    node: fx.Node
    count: Any
    """How many elements there are: a lifted number, or a plain one."""
    twin: torch.Tensor | None
    """That of any element, if they are alike."""
    specialize_length: Callable[[], None]
    """The number of rounds must not vary."""
    elements_are_new: bool = True
    """Whether the rounds have made all elements. Otherwise it depends on the number of rounds which
    of them are other variables, too."""
    has_data_dependent_length: bool = False
    """Whether data decides how many there are, and so which of them are other variables, too."""
    substitute: Callable[[torch.Tensor], torch.Tensor] | None = None
    """What the program has instead of an element, where data decides which other variable it is."""
    is_never_empty: bool = True
    """Whether there is an element, however many rounds there are."""
    outlives_recording: bool = False
    """Whether the recording ends here, and leaves it as a whole."""
    allowed = frozenset(
        {len, *JOINS, list, tuple, sum, functools.reduce, map, zip, enumerate, reversed}
    )
    """A loop of the graph may go through it for the last six; otherwise they look into it."""

    def __post_init__(self) -> None:
        self._items = [id(item) for item in self.value]

    def is_unchanged(self) -> bool:
        """Whether nobody has changed the list since."""
        return list(map(id, self.value)) == self._items

    def inspect(self, operators: OperatorGraph) -> None:
        """From here on it is a list like any other.

        Raises:
            Split: data decides how long it is, which cannot be speculated on; or that is beside the
                program, which has not come there yet.
        """
        if self.outlives_recording:
            return
        self._check(operators)
        self.specialize_length()
        operators.lists.pop(id(self.value), None)
        for i, item in enumerate(self.value):
            if operators.node_of(item) is None:
                self.know(operators, i)

    @staticmethod
    def _check(operators: OperatorGraph) -> None:
        if operators.is_isolated:
            raise LoopNotMergeable("reads a list whose length is lifted")

    def know(self, operators: OperatorGraph, position: int) -> None:
        """The element at a position is a value of the graph from here on."""
        item = self.value[position]
        if operators.node_of(item) is None:
            self._check(operators)
            operators.set_node(item, self._element(operators, position))

    def element(self, rec: Recording, position: int) -> torch.Tensor:
        """What the program is to have for the element at a position, where data decides which."""
        assert self.substitute is not None
        found = self.substitute(self.value[position])
        rec.operators.set_node(found, self._element(rec.operators, position))
        rec.inspections.unchanged.append(VersionCheck(found))
        return found

    def _element(self, operators: OperatorGraph, position: int) -> fx.Node:
        node = operators.graph.call_function(operator.getitem, (self.node, position))
        if self.twin is not None:
            node.meta[TWIN] = self.twin
        return node


@dataclass
class LiftedRange:
    """A range of as many numbers, or what goes through it from its end, on the way to a loop over
    several things at once."""

    value: Any
    bounds: tuple[int, int, int]
    specialize_length: Callable[[], None]
    """The numbers must not vary."""
    allowed = frozenset({zip, reversed})

    def inspect(self, operators: OperatorGraph) -> None:
        operators.lists.pop(id(self.value), None)
        self.specialize_length()


Lists = Mapping[int, CarriedList | GraphList | LiftedRange]


def inspected_lists(step: Step, lists: Lists, follows: Callable[[Any], bool]) -> Iterator[Any]:
    """The lists that an instruction may look into: those that it takes off the stack."""
    name, stack = opcode.opname[step.opcode], step.stack
    depth = step.oparg if name in ("BUILD_LIST", "BUILD_TUPLE") else _DEPTHS.get(name, 3)
    taken, function = stack[max(len(stack) - depth, 0) :], None
    if name == "CALL":
        first = len(stack) - step.oparg - 2
        function = stack[first + 1] if stack[first] is NULL else stack[first]
        if is_instance(function, types.FunctionType | types.MethodType) and follows(function):
            return
        taken = stack[first:]
    elif name in ("LOAD_ATTR", "LOAD_METHOD"):
        function = getattr(list, step.name, None)
    elif name == "GET_ITER" and is_instance(lists.get(id(taken[0])), GraphList):
        return  # a loop may begin
    elif name == "STORE_DEREF" and is_instance(lists.get(id(taken[-1])), GraphList):
        return  # a comprehension may have it
    elif name in ("BINARY_SUBSCR", "BINARY_SLICE"):
        found = lists.get(id(taken[0]))
        is_number = name == "BINARY_SUBSCR" and type(taken[1]) is int
        if is_instance(found, GraphList) or (found is not None and is_number):
            return  # it depends on the key
    elif name in _TRUTHS and is_instance(lists.get(id(taken[-1])), CarriedList):
        return  # the rule knows whether any round finds the same
    elif name == "BINARY_OP" and step.oparg == _IN_PLACE_ADD:
        if is_instance(lists.get(id(taken[0])), CarriedList):
            taken = taken[1:]
    for value in taken:
        found = lists.get(id(value))
        if found is not None and not any(function is known for known in found.allowed):
            yield value


_IN_PLACE_ADD = [name for name, _ in opcode._nb_ops].index("NB_INPLACE_ADD")  # type: ignore[attr-defined]
_TRUTHS = frozenset(name for name in opcode.opmap if "_IF_" in name or name == "UNARY_NOT")
ENDS = (0, -1)
"""The elements that there are whatever the number of rounds is."""
_DEPTHS = {
    **dict.fromkeys(
        ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST", "IMPORT_NAME",
         "LOAD_FAST_CHECK", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"), 0
    ),
    **dict.fromkeys(
        ("LOAD_ATTR", "LOAD_METHOD", "GET_ITER", "FORMAT_VALUE", "UNPACK_SEQUENCE", "LIST_APPEND",
         "MAKE_FUNCTION", *(n for n in opcode.opmap if n.startswith(("UNARY_", "POP_JUMP_")))), 1
    ),
    **dict.fromkeys(("BINARY_SUBSCR", "BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "IS_OP"), 2),
}  # fmt: skip
"""How many operands instructions take, where that is not three."""
