"""Numbers of the operator graph: elements of tensors, sizes, and arithmetic on both.

A number is a node if it is only known when the graph runs, or if it varies. Sizes that follow from
a number without a symbolic twin are unknown before the graph runs.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import AS_IS, NUMBER, TWIN
from magpy_like.monitor.operator_graph.function_nodes import (
    graph_function,
    is_of_negative_base,
)
from magpy_like.monitor.operator_graph.graph_nodes import GraphNodes
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    Expression,
    GraphNumber,
    PythonScalar,
    Untranslatable,
    depends_on_tensor,
    is_computable_before_graph,
    needs_python_list,
    sum_of,
)
from magpy_like.monitor.symbolic.symbolic_twin import hint
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import tensor_version
from magpy_like.split_points import UnguardableRead
from magpy_like.split_reasons import SplitReason

REAL_NUMBERS = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
     torch.float32, torch.float64}
)  # fmt: skip
"""The dtypes for which ``item()`` returns an ``int`` or a ``float``."""


class GraphNumbers:
    """The numbers among the nodes."""

    def __init__(self, nodes: GraphNodes) -> None:
        self._nodes = nodes
        self.expression: Callable[[Any], Any] = lambda value: None
        """Returns the expression of a lifted number, None for any other value."""
        self.value_of: Callable[[Any], Any] = lambda expression: None
        """Returns the value of an expression in this run."""
        self.twin_of: Callable[[Any], Any] = lambda value: None
        """Returns the symbolic number of a lifted one, None if it has none."""
        self._numbers: dict[int, tuple[Any, fx.Node]] = {}
        self._values: dict[fx.Node, tuple[Any, int]] = {}
        """Symbolic numbers of integers in tensors, and the tensor's version for which they hold."""
        self.unknown: set[fx.Node] = set()
        """Numbers without a twin: sizes that follow from them are unknown."""
        self.reads_data = False
        """Whether sizes or numbers in the graph depend on the data of tensors."""

    def add_item(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        value: Any,
        resolve: Callable[[torch.Tensor], fx.Node],
    ) -> fx.Node:
        """A number read from a tensor, such as ``t.item()``."""
        self._nodes.operator_count += 1
        self.reads_data = True
        tensor = resolve(args[0])
        if args[0].dtype not in REAL_NUMBERS:
            function = operation if is_instance(operation, type) else type(value)
            return self._know_number(self._nodes.graph.call_function(function, (tensor,)), value)
        read = args[0].dtype.is_floating_point
        node = self._know_number(
            self._nodes.graph.call_method("item", (tensor,)), float(value) if read else int(value)
        )
        if read is (type(value) is float):
            return node
        return self._arithmetic(type(value), (node,), value)

    def add_elements(self, node: fx.Node, count: int) -> Iterator[fx.Node]:
        """One-element tensors: the elements of a tensor of the graph."""
        flat = self._nodes.graph.call_method("reshape", (node, (-1,)))
        for i in range(count):
            yield self._nodes.graph.call_method("select", (flat, 0, i))

    def add_arithmetic(
        self, operation: Callable[..., Any], operands: Sequence[Any], value: Any
    ) -> fx.Node:
        """Arithmetic on numbers of the graph."""
        parts = tuple(self.number_node(operand) or operand for operand in operands)
        return self._arithmetic(operation, parts, value)

    def _arithmetic(self, operation: Callable[..., Any], parts: Any, value: Any) -> fx.Node:
        operation = IN_PLACE.get(operation.__name__, operation)
        if operation in (max, min) and len(parts) > 2:  # symbolic ones are of two
            parts = (self._arithmetic(operation, parts[:-1], None), parts[-1])
        is_compensated = _SUMS_ARE_COMPENSATED and operation is sum_of and type(value) is float
        if operation is sum_of and not is_compensated:
            before = self._arithmetic(operation, parts[:-1], None) if len(parts) > 1 else 0
            operation, parts = operator.add, (before, parts[-1])
        operation = _ON_SYMBOLS.get(operation, operation)
        node = self._nodes.graph.call_function(graph_function(operation, parts), parts)
        on_numbers = operation in _ON_NUMBERS and not is_compensated
        if not on_numbers or is_of_negative_base(operation, parts):
            node.meta[AS_IS] = "is a function of numbers that backends do not support"
        return self._know_number(node, value)

    def _know_number(self, node: fx.Node, value: Any) -> fx.Node:
        """Mark a node as a number; without a twin, sizes that follow from it are unknown."""
        node.meta[NUMBER] = True
        known = self._nodes.twin is not None and self._nodes.twin.run_node(
            node, self._nodes.constants, value
        )
        if not known or self.takes_unknown(node):
            self.unknown.add(node)
        return node

    def add_size(self, source: fx.Node, dim: int) -> fx.Node:
        """A number: one size of an operator's result."""
        with self._nodes.graph.inserting_after(source):
            node = self._nodes.graph.call_method("size", (source, dim))
        node.meta[NUMBER] = True
        if self._nodes.twin is not None and TWIN in source.meta:
            node.meta[TWIN] = source.meta[TWIN].shape[dim]
        else:
            self.unknown.add(node)
        return node

    def number_node(self, value: Any) -> fx.Node | None:
        """The node of a lifted number, or None for a constant."""
        expression = self.expression(value)
        return None if expression is None else self._node_for(expression, value)

    def array_number_node(self, value: np.generic) -> fx.Node | None:
        """The node of a lifted NumPy scalar, or None for a constant.

        Raises:
            UnguardableRead: it is only known when the graph has run.
        """
        expression = self.expression(value)
        if expression is None:
            return None
        found = self._numbers.get(id(expression))
        if found is not None:
            return found[1]
        if not is_computable_before_graph(expression):
            raise UnguardableRead(
                SplitReason.TENSOR_VALUE_READ,
                "passes a NumPy scalar computed from a tensor's value to an operator",
            )
        number = PythonScalar(expression)
        self._nodes.example_values[number] = value.item()
        node: fx.Node = self._node_for(number, None)
        self._numbers[id(expression)] = (expression, node)
        return node

    def _node_for(self, expression: Any, value: Any) -> Any:
        """The node of an expression, or the constant itself; ``value`` is its value, if known."""
        if is_instance(expression, GraphNumber):
            return expression.node
        found = self._numbers.get(id(expression))
        if found is not None:
            return found[1]
        if needs_python_list(expression):
            raise UnguardableRead(
                SplitReason.TENSOR_VALUE_READ,
                "passes an element of a list computed from a tensor's value to an operator",
            )
        if is_instance(expression, Computed) and not self._is_for_python(expression):
            parts = tuple(self._node_for(part, None) for part in expression.operands)
            node = self._arithmetic(expression.operation, parts, value)
        elif is_instance(expression, Expression):
            node = self._nodes.add_placeholder(expression)
            node.meta[NUMBER] = True
            known = (
                self._nodes.twin.numbers.get(expression) if self._nodes.twin is not None else None
            )
            if known is None:  # sizes that follow from it are unknown
                self.unknown.add(node)
                known = self._nodes.example_values.get(expression, self.value_of(expression))
            node.meta[TWIN] = known
        else:
            return expression
        self._numbers[id(expression)] = (expression, node)
        return node

    def _is_for_python(self, expression: Computed) -> bool:
        """True if the mock computes a number and passes it to the graph."""
        in_python = expression.operation not in _ON_NUMBERS or depends_on_tensor(expression)
        of_text = any(type(self.value_of(part)) is str for part in expression.operands)
        return (in_python or of_text or self._rounds(expression)) and is_computable_before_graph(
            expression
        )

    def _rounds(self, expression: Computed) -> bool:
        """True for arithmetic on floats, unless torch's symbolic numbers do the same steps: SymPy
        would simplify it as if numbers were exact and finite."""
        value, operands = self.value_of(expression), map(self.value_of, expression.operands)
        if float not in map(type, (value, *operands, *expression.operands)):
            return False
        twin = self._nodes.twin
        return self.twin_of(value) is None or (twin is not None and expression in twin.numbers)

    def forget_numbers(self, nodes: Collection[fx.Node]) -> None:
        """Forget the lifted numbers of these nodes, which are removed from the graph."""
        self._numbers = {k: known for k, known in self._numbers.items() if known[1] not in nodes}

    def takes_unknown(self, node: fx.Node) -> bool:
        """True if an input of a node is a number without a twin."""
        return any(source in self.unknown for source in node.all_input_nodes)

    def value_node(self, value: Any, resolve: Callable[[torch.Tensor], fx.Node]) -> Any:
        """The node of a tensor or lifted number; any other number itself."""
        return (
            resolve(value) if is_instance(value, torch.Tensor) else self.number_node(value) or value
        )

    def symbolic_value(self, value: Any) -> Any:
        """The symbolic number of a tensor's element or a lifted number; a plain number; or None."""
        if is_instance(value, torch.Tensor):
            node = self._nodes.node_of(value)
            known = self._values.get(node) if node is not None else None
            return known[0] if known is not None and known[1] == tensor_version(value) else None
        if type(value) is not int:
            return None
        node = self.number_node(value)
        return value if node is None else node.meta.get(TWIN)

    def note_value(
        self, node: fx.Node, operation: Callable[..., Any], args: Sequence[Any], result: Any
    ) -> None:
        """Note the symbolic number of an integer in a tensor: it may become a bound or size."""
        if self._nodes.twin is None or operation not in _KEEP_VALUE:
            return
        if not is_instance(result, torch.Tensor) or result.dim() or result.dtype is not torch.int64:
            return
        values = [self.symbolic_value(arg) for arg in args]
        if not any(is_instance(value, torch.SymInt) for value in values):
            return
        if all(is_instance(value, int | torch.SymInt) for value in values):
            value = _KEEP_VALUE[operation](*values)
            if hint(value) == int(result):
                self._values[node] = (value, tensor_version(result))

    def bound(self, part: Any) -> Any:
        """A bound, as of a slice: a number, if it is a tensor whose value is known at entry."""
        if not is_instance(part, torch.Tensor) or self._nodes.twin is None:
            return part
        value = self.symbolic_value(part)
        if not is_instance(value, torch.SymInt):
            return part
        try:
            return self._node_for(self._nodes.twin.expression(value), int(part))
        except Untranslatable:
            return part


IN_PLACE = {
    f"i{name}": getattr(operator, word)
    for name, word in (
        ("add", "add"), ("and", "and_"), ("floordiv", "floordiv"), ("lshift", "lshift"),
        ("matmul", "matmul"), ("mul", "mul"), ("mod", "mod"), ("or", "or_"), ("pow", "pow"),
        ("rshift", "rshift"), ("sub", "sub"), ("truediv", "truediv"), ("xor", "xor"),
    )
}  # fmt: skip


_ON_SYMBOLS: dict[Any, Callable[..., Any]] = {
    max: torch.sym_max,
    min: torch.sym_min,
    int: torch.sym_int,
    float: torch.sym_float,
    math.sqrt: torch.sym_sqrt,
}
"""Functions that would query a symbolic number's value, and their symbolic forms."""


_SUMS_ARE_COMPENSATED = sys.version_info >= (3, 12)
"""Whether ``sum`` of floats corrects rounding errors, which no sequence of additions does."""


_ON_NUMBERS: set[Any] = {
    *(set(filter(callable, vars(operator).values())) - {operator.getitem}),
    *(*_ON_SYMBOLS, *_ON_SYMBOLS.values(), sum_of, abs, round, pow, math.floor, math.ceil),
}
"""Functions of numbers that a graph computes: they have symbolic forms."""


_KEEP_VALUE: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    torch.scalar_tensor: lambda number: number,
}
"""Operators on integers in tensors, and the same on symbolic numbers."""
