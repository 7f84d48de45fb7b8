"""Side effects of a mock: changes to external variables, from their last versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.access_paths import follow
from magpy_like.monitor.objects.containers import elements, items_of, length_of
from magpy_like.monitor.objects.external_reads import exception_origin
from magpy_like.monitor.objects.iterators import advance
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import EntryValue, leaves_of
from magpy_like.monitor.torch_state.default_device import switch
from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ABSENT, ByIdentity, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.tracebacks import set_context_from_caller
from magpy_like.synthesis import number_source
from magpy_like.synthesis.generated_source import literal
from magpy_like.synthesis.guard.guard_checks import same_keys
from magpy_like.synthesis.mock.location_writes import (
    class_write_statement,
    is_read_atomically,
    native_base,
    read_expression,
    write_statement,
)
from magpy_like.synthesis.mock.mock_interface import MockInterface
from magpy_like.synthesis.mock.reconstruction import Reconstruction
from magpy_like.torch_compat.autograd import set_grad_enabled

_ORDERED = (RelationKind.KEY, RelationKind.ATTRIBUTE, RelationKind.GLOBAL)
"""Locations in dictionaries, which keep the order of insertion."""


class SideEffects:
    """Emits the changes that the program leaves in external variables."""

    def __init__(
        self,
        values: Reconstruction,
        interface: MockInterface,
        nodes: Sequence[ShadowNode],
        label: Callable[[ShadowNode], str],
    ) -> None:
        """``nodes`` are the external variables; ``label`` returns the label of one."""
        self._rec: Recording = values.rec
        self._source, self._values, self._interface = values.source, values, interface
        self._nodes, self._label = nodes, label
        self.descriptions: list[str] = []
        """The side effects as text, for ``explain``."""

    def write(self) -> None:
        """Emit all side effects but those on torch's modes, after the objects that they refer to.

        Raises:
            Split: a mock cannot repeat one of them.
        """
        self._values.hooks()
        self.descriptions += [f"{hook.method}(…)" for hook in self._rec.effects.hooks]
        lines = self._advanced_iterators()
        # Warnings are shown before changes of warning filters: see `repeatable`.
        lines += self._repeated_calls()
        for node in self._nodes:
            if not node.changed:
                continue
            if node.rewritten:
                lines += self._contents(node)
            for relation in node.written:
                if not node.rewrites(relation):
                    lines += self._location(node, relation)
        lines += self._raised_exceptions()
        lines += self._replaced_data()
        lines += self._replayed_calls()
        self._values.functions.fill_cells()
        for line in (*lines, *self._values.final_lines):
            self._source.emit(line)

    def _advanced_iterators(self) -> list[str]:
        lines = []
        for node_id, count in self._rec.effects.advanced_iterators.items():
            node = self._rec.refs.get_node_by_id(node_id)
            step = self._source.constant(advance, "advance")
            lines.append(f"{step}({self._interface.existing(node)}, {count})")
            self.descriptions.append(f"{self._label(node)} advances by {count}")
        return lines

    def _repeated_calls(self) -> list[str]:
        lines = []
        for operation, args, kwargs in self._rec.effects.calls:
            lines.append(self._call(operation, self._arguments(args, kwargs)))
            self.descriptions.append(f"{operation.__name__}(…)")
        return lines

    def _replayed_calls(self) -> list[str]:
        """Changes of containers that do not depend on their contents, such as ``append``."""
        lines = []
        for node, operation, args in self._rec.effects.replays:
            if node.rewritten:
                continue
            texts = self._arguments(args, {})
            lines.append(self._call(operation, [self._interface.existing(node), *texts]))
            self.descriptions.append(f"{self._label(node)}.{operation.__name__}(…)")
        return lines

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        texts = [self._values.value(arg) for arg in args]
        return texts + [f"{name}={self._values.value(arg)}" for name, arg in kwargs.items()]

    def _call(self, operation: Any, arguments: list[str]) -> str:
        function = self._source.constant(operation, operation.__name__)
        return f"{function}({', '.join(arguments)})"

    def _replaced_data(self) -> list[str]:
        """Assignments to ``tensor.data``."""
        lines = []
        for node_id in self._rec.writes.data_replaced:
            node = self._rec.refs.get_node_by_id(node_id)
            value = self._rec.operators.nodes.node_of(node.variable)
            assert value is not None
            name = self._interface.existing(node)
            lines.append(f"{name}.data = {self._interface.graph_output(value)}")
            self.descriptions.append(f"{self._label(node)}.data = …")
        return lines

    def _raised_exceptions(self) -> list[str]:
        """Tracebacks that raising left in external exceptions.

        Raises:
            Split: raising changed the cause or context of one.
        """
        lines: list[str] = []
        for node_id, (error, (traceback, *before)) in self._rec.reads.exceptions.items():
            node = self._rec.refs.get_node_by_id(node_id)
            new_traceback, *now = exception_origin(error)
            if now[1] is self._rec.state.handled_outside:
                now[1] = before[1] = None
            if new_traceback is not traceback:
                name = self._interface.existing(node)
                lines += self._values.exceptions.traceback_lines(error, name, traceback)
                if now[1] is None:
                    lines.append(f"{self._source.constant(set_context_from_caller)}({name})")
            links = zip(now, before, strict=True)
            if not node.written and any(link is not earlier for link, earlier in links):
                raise Split(
                    SplitReason.EXCEPTION_STATE,
                    f"raises an external {node.type.__qualname__} and changes its cause or context",
                )
        return lines

    def _location(self, node: ShadowNode, relation: Relation) -> list[str]:
        """The statements that restore the final value of one location, if it has changed."""
        owner = self._interface.existing(node)
        before = node.first.refs.get(relation)
        try:
            value = follow(node.variable, relation)
        except (LookupError, AttributeError, ValueError):
            if before == ABSENT or (is_instance(relation.key, ByIdentity) and relation.key.is_new):
                return []
            self.descriptions.append(f"del {self._label(node)} → {relation}")
            return [self._statement(node, owner, relation, None)]
        moves_last = relation in node.reinserted and relation.kind in _ORDERED
        if before is not None and before != ABSENT and not moves_last:
            first = self._rec.refs.get_node_by_id(before)
            if first.variable is value and not is_plain(value):
                return []
            is_guarded = first.plain and Fact.VALUE in first.facts
            if is_guarded and first.type is type(value) and first.first.value is value:
                return []
        self.descriptions.append(f"{self._label(node)} → {relation} = {_short(value)}")
        text = self._values.value(value)
        text = self._from_current_value(node, owner, relation, value, text)
        store = self._statement(node, owner, relation, text)
        if moves_last and before != ABSENT:
            return [self._statement(node, owner, relation, None), store]
        return [store]

    def _from_current_value(
        self, node: ShadowNode, owner: str, relation: Relation, value: Any, text: str
    ) -> str:
        """``text``, or for an update such as ``self.n += 1`` an expression of the current value.

        Another thread may have stored another number since the guard read it. The interpreter
        does not switch threads between such a read and the write: it only does at the ends of
        calls and of loop iterations.
        """
        initial = node.first.refs.get(relation, ABSENT)
        number = self._rec.lifted.expression(value)
        if (
            not is_read_atomically(relation, node.type)
            or initial == ABSENT
            or not number_source.is_short(number)
        ):
            return text
        before = self._rec.refs.get_node_by_id(initial)
        parts = [part.node if is_instance(part, EntryValue) else None for part in leaves_of(number)]
        if before not in parts or None in parts:
            return text
        key = self._key(relation.key)
        current = read_expression(owner, relation, key, self._source, node.type)
        recorded = self._interface.existing(before)

        def name(part: ShadowNode) -> str:
            return current if part is before else self._interface.existing(part)

        updated = number_source.text(number, name, self._source.constant)
        return f"{text} if {current} is {recorded} else {updated}"

    def _statement(
        self, node: ShadowNode, owner: str, relation: Relation, value: str | None
    ) -> str:
        cls = self._rec.classes.by_dictionary.get(node.node_id)
        if cls is not None:
            return class_write_statement(cls, str(relation.key), value, self._source)
        key = self._key(relation.key)
        return write_statement(owner, relation, key, value, self._source, node.type)

    def _key(self, key: Any) -> str:
        """The text of a dictionary key, an attribute's name or a position."""
        if is_instance(key, ByIdentity):
            return self._values.value(key.variable)
        return literal(key) or self._source.constant(key)

    def _contents(self, node: ShadowNode) -> list[str]:
        """The contents of a container that was changed as a whole."""
        value, before, containers = node.variable, node.contents, self._values.containers
        if _same_contents(value, before):
            return []
        name = self._interface.existing(node)
        self.descriptions.append(f"contents of {self._label(node)}")
        base = self._source.constant(native_base(node.type), native_base(node.type).__name__)
        if is_instance(value, dict):
            entries, initial_count = items_of(value), len(before)
            if not same_keys([key for key, _ in entries[:initial_count]], list(before)):
                text = containers.dict_text(value)
                return [f"{base}.clear({name})", f"{base}.update({name}, {text})"]
            kept = zip(entries, before.values(), strict=False)
            changed = [item for item, initial in kept if item[1] is not initial]
            text = containers.dict_text(value, [*changed, *entries[initial_count:]])
            return [f"{base}.update({name}, {text})"]
        if is_instance(value, set):
            fill, text = "update", containers.members_text(value)
        else:
            fill, text = "extend", containers.list_text(elements(value))
        return [f"{base}.clear({name})", f"{base}.{fill}({name}, {text})"]

    # --- torch's modes ---------------------------------------------------------------------------

    def modes(self) -> list[str]:
        """Statements that switch torch's modes and default device as the program leaves them."""
        lines = []
        if self._rec.effects.devices_left is not None:
            exits, entered = self._rec.effects.devices_left
            function = self._source.constant(switch, "switch")
            devices = self._source.constant(entered, "entered")
            lines.append(f"{function}({exits}, {devices})")
            device = entered[-1] if entered else "as before"
            self.descriptions.append(f"default device = {device}")
        return [*self._switched_modes(), *lines]

    def _switched_modes(self) -> list[str]:
        if self._rec.effects.modes_left is None:
            return []
        initial, final = self._rec.effects.modes_left
        if initial.grad is not final.grad:
            self.descriptions.append(f"grad mode = {final.grad}")
        if final == replace(initial, grad=final.grad):
            setter = self._source.constant(set_grad_enabled, "set_grad_enabled")
            return [f"{setter}({final.grad})"]
        self.descriptions.append("autocast modes")
        self._source.lines.insert(0, f"begin = {self._source.constant(Modes.now, 'modes_now')}()")
        names = [self._source.constant(m, n) for m, n in ((final, "final"), (initial, "initial"))]
        return [f"{names[0]}.switch_from({names[1]}, begin)"]


def _same_contents(value: Any, before: Any) -> bool:
    if length_of(value) != len(before):
        return False
    if is_instance(value, dict):
        kept = all(v is w for (_, v), w in zip(items_of(value), before.values(), strict=True))
        return kept and same_keys([key for key, _ in items_of(value)], list(before))
    if is_instance(value, set):
        return same_keys(elements(value), list(before))
    return all(a is b for a, b in zip(elements(value), before, strict=True))


def _short(value: Any) -> str:
    return repr(value) if is_plain(value) else f"a {type(value).__qualname__}"
