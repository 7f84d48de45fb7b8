"""External lists whose contents vary between calls.

A list that grows from call to call differs at every call, and so does a list of counters at varying
indices. The mock reads its length at entry and, if it holds numbers only, the numbers. A change
results in a new expression for the contents; the mock repeats it on the list itself in the
program's order. Any other inspection adds a guard on all contents.
"""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import ValueRead
from magpy_like.monitor.symbolic.expressions import Computed, EntryValue, Expression, is_number
from magpy_like.monitor.symbolic.numbers.pure_number_calls import LIFTED, LiftedCall
from magpy_like.refgraph import ShadowNode

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any]

KINDS = (list, deque)
NUMBERS = frozenset({int, float})


@dataclass
class ListValue:
    """The current value of an external list or deque, as expressions."""

    at_entry: Expression
    length: Expression
    contents: Expression | None
    """None if the program has stored other values than numbers that the mock can compute."""
    has_guarded_types: bool = False
    added: int = 0
    """Number of elements that the program has appended since the last other change."""


@dataclass(frozen=True, eq=False)
class MutatedCopy:
    """A mutation as a function: returns a changed copy of the list."""

    operation: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return f"after_{self.operation.__name__}"

    def __call__(self, items: Any, *args: Any) -> Any:
        items = copy.copy(items)
        self.operation(items, *args)
        return items


def types_in(items: Any) -> str:
    """The types of a list's numbers as text; "others" if it holds other values too."""
    kinds = set(map(type, items))
    return ", ".join(sorted(kind.__name__ for kind in kinds)) if kinds <= NUMBERS else "others"


def length_after(length: int, maximum: int) -> int:
    """The length of a deque whose maximal length is ``maximum``."""
    return min(length, maximum)


def list_value(rec: Recording, container: Any, begin: bool = False) -> ListValue | None:
    """The tracked value of a list, or None. ``begin``: track it even if its length is constant."""
    if type(container) not in KINDS or rec.running.depth or rec.operators.is_isolated:
        return None
    node = rec.variables.node(container)
    if node is None or node.rewritten:
        return None
    found = rec.reads.list_values.get(node.node_id)
    if found is not None or node.changed or not (begin or rec.inspections.counts_vary(node)):
        return found
    entry = EntryValue(node)
    length = _length_expression(rec, len, (entry,), len(container))
    found = rec.reads.list_values[node.node_id] = ListValue(entry, length, entry)
    return found


def _length_expression(
    rec: Recording, operation: Any, parts: tuple[Any, ...], length: int
) -> Expression:
    """The expression of a length, which may become an input of the operator graph."""
    number = Computed(operation, parts)
    rec.lifted.identities.values[number] = length
    return number


def number_list_value(rec: Recording, container: Any, begin: bool = False) -> ListValue | None:
    """The tracked value of a list of numbers only, whose types the guard checks; or None."""
    value = list_value(rec, container, begin)
    if value is None or value.contents is None or not container:
        return None
    if not set(map(type, container)) <= NUMBERS:
        return None
    node = rec.variables.node(container)
    assert node is not None
    if not value.has_guarded_types:
        before = container if node.contents is None else node.contents
        kinds = types_in(before)
        if kinds == "others":
            return None
        rec.lifted.guards.conditions.append((Computed(types_in, (value.at_entry,)), kinds))
        value.has_guarded_types = True
    return value


def list_contents(rec: Recording, value: Any) -> Expression | None:
    """The expression of a list of numbers that varies; None for any other value."""
    found = number_list_value(rec, value) if type(value) in KINDS else None
    return None if found is None else found.contents


def has_varying_lists(context: Context) -> bool:
    """True if there may be lists that vary."""
    rec = context.recording
    candidates = rec.reads.list_values or context.varying.counts or context.varying.numbers
    return bool(candidates) and not rec.running.depth and context.isolation.branch_run is None


def record_mutation(
    rec: Recording, node: ShadowNode, operation: Any, args: tuple[Any, ...]
) -> None:
    """Record a mutation before it happens; the mock repeats it on the list itself."""
    container = node.variable
    value = list_value(rec, container)
    if value is None:
        return
    more = len(args[0]) if operation is list.extend else 1
    length = len(container) + more
    value.length = _length_expression(rec, operator.add, (value.length, more), length)
    most = container.maxlen if type(container) is deque else None
    if most is not None:
        value.length = _length_expression(
            rec, length_after, (value.length, most), min(length, most)
        )
    value.added = value.added + more if operation in (list.append, list.extend) else 0
    items = args[0] if operation is list.extend else args
    if value.contents is None or not all(type(item) in NUMBERS for item in items):
        value.contents = None
    elif operation is list.extend:
        for item in items:
            value.contents = _mutated(rec, list.append, value.contents, item)
    else:
        value.contents = _mutated(rec, operation, value.contents, *args)


def _mutated(rec: Recording, operation: Any, contents: Expression, *args: Any) -> Computed:
    parts = (contents, *rec.lifted.identities.expressions(args))
    return Computed(MutatedCopy(operation), parts)  # which never raises


def read_item(context: Context, container: Any, key: Any) -> Token | None:
    """The token of ``container[key]`` if a list of numbers, or the key, varies; else None."""
    rec = context.recording
    if (
        type(container) not in KINDS
        or type(key) is not int
        or context.isolation.branch_run is not None
    ):
        return None
    varies = context.lifted.is_lifted(key)
    if not (varies or has_varying_lists(context)):
        return None
    # At a key from a tensor, the graph can compute an element of a list that does not vary.
    begins = varies and type(container) is list
    begins = begins and (
        context.lifted.is_computable_before_graph(key) or rec.inspections.items_vary(container)
    )
    value = number_list_value(rec, container, begin=begins)
    if value is None or not -len(container) <= key < len(container):
        return None
    rec.inspections.visit(container, ValueRead.TYPE)
    return _finish_element, (value.contents, container, key)


def _finish_element(context: Context, payload: tuple[Expression, Any, int], result: Any) -> Any:
    contents, container, key = payload
    item = LiftedCall(operator.getitem, (LIFTED, LIFTED), {}, type(result))
    return context.lifted.lift(
        result, context.lifted.arithmetic.expression(item, (container, key), (contents, key))
    )


def write_item(context: Context, target: Any, key: Any, number: Any) -> Token | None:
    """The token of ``target[key] = number`` in a list of numbers, at a varying key; else None."""
    rec = context.recording
    if type(target) is not list or type(key) is not int or context.isolation.branch_run is not None:
        return None
    if not is_number(number) or not -len(target) <= key < len(target):
        return None
    varies = context.lifted.is_lifted(key)
    if not (varies or rec.reads.list_values):
        return None
    value, node = number_list_value(rec, target, begin=varies), rec.variables.node(target)
    if value is None or node is None or not (varies or node.replays):
        return None
    assert value.contents is not None
    operands = target, key, number
    value.contents = context.lifted.arithmetic.expression(
        MutatedCopy(list.__setitem__), operands, (value.contents, key, number)
    )
    rec.inspections.visit(target, ValueRead.TYPE)
    _repeat_mutation(rec, node, list.__setitem__, (key, number))
    return _finish_nothing, None


POPS = {list.pop: -1, deque.pop: -1, deque.popleft: 0}
"""Methods that remove and return an element, and its default index."""


def pop(context: Context, operation: Any, container: Any, *keys: Any) -> Token | None:
    """The token of ``container.pop(…)`` for a varying list of numbers; else None."""
    rec = context.recording
    value, node = number_list_value(rec, container), rec.variables.node(container)
    key = keys[0] if keys else POPS[operation]
    if value is None or node is None or type(key) is not int:
        return None
    if not -len(container) <= key < len(container):
        return None
    before, operands = value.contents, (container, *keys)
    value.contents = context.lifted.arithmetic.expression(
        MutatedCopy(operation), operands, (before, *keys)
    )
    value.length = _length_expression(rec, operator.sub, (value.length, 1), len(container) - 1)
    value.added = 0
    rec.inspections.visit(container, ValueRead.TYPE)
    _repeat_mutation(rec, node, operation, keys)
    return _finish_element, (before, copy.copy(container), key)


def _repeat_mutation(
    rec: Recording, node: ShadowNode, operation: Any, args: tuple[Any, ...]
) -> None:
    rec.mutations.snapshot(node)
    rec.refs.in_place(node)
    rec.effects.replays.append((node, operation, args))
    node.replays.append(operation)


def _finish_nothing(context: Context, _: None, top: Any) -> None:
    return None


def read_length(context: Context, container: Any) -> Token | None:
    """The token of ``len(container)`` if the length varies; else None."""
    if context.isolation.branch_run is not None:
        return None
    value = list_value(context.recording, container)
    if value is None:
        return None
    context.recording.inspections.visit(container, ValueRead.TYPE)
    return _finish_count, value


def _finish_count(context: Context, value: ListValue, result: int) -> Any:
    return context.lifted.lift(result, value.length)
