"""A record: guard, mock and operator graph (MagPy, section 2.2), made from one recording."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from magpy_like.annotation import RelationKind
from magpy_like.compiler.graph_parts import interpreted
from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.monitor.objects.access_paths import lookup
from magpy_like.monitor.objects.containers import elements, items_of, length_of
from magpy_like.monitor.objects.iterators import advance
from magpy_like.monitor.objects.outside_reads import came
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import (
    DrawnValue,
    EntryValue,
    Expression,
    is_computable_before_graph,
    leaves_of,
)
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.monitor.torch_state.default_device import switch, without_default_device
from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.native import instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ABSENT, ByIdentity, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import (
    BranchRefused,
    SourcePosition,
    SpeculationRefused,
    Split,
    SplitPoint,
)
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.tracebacks import set_context_from_caller
from magpy_like.synthesis import number_source
from magpy_like.synthesis.example_inputs import example_inputs
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.guard.conditions import Condition
from magpy_like.synthesis.guard.expected_values import ExpectedValues
from magpy_like.synthesis.guard.guard_builder import GuardBuilder
from magpy_like.synthesis.guard.guard_checks import same_keys, same_list, same_scalar
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables
from magpy_like.synthesis.mock.early_checks import check_before_writing
from magpy_like.synthesis.mock.reconstruction import Reconstruction
from magpy_like.synthesis.mock.roll_back import RollBack
from magpy_like.synthesis.shared_graphs import CompiledGraph
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_interop.current_gpu import traced_afresh

_numbers_of_records = itertools.count()

Backend = Callable[[fx.GraphModule, Sequence[Any]], CompiledGraph]


@dataclass
class Record:
    """Guard, mock and operator graph: what a matching call runs instead of the program."""

    guard: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    """``guard(args, kwargs)`` returns the mock's arguments, or the number of a failed condition."""
    mock: Callable[..., Any]
    compiled: CompiledGraph | None
    """None if the program runs no operators that anybody could notice."""
    conditions: list[Condition]
    """All conditions of the guard, in order."""
    numbered: list[Condition]
    """The conditions by the number that the guard returns."""
    side_effects: list[str]
    """In words, for ``explain``."""
    guard_source: str
    mock_source: str
    expected: ExpectedValues
    """Sizes and numbers of the recorded run, and their ranges."""
    rewritten: frozenset[Path]
    """Access paths of numbers that the program itself replaces by others."""
    bound: frozenset[int]
    """Ids of the fixed objects that a call must bring, such as the module of a loop's iteration."""
    lifted: list[str]
    """Labels of the lifted sizes and numbers."""
    modes: tuple[int, ...]
    """Torch's modes in which the record serves calls."""
    objects: frozenset[tuple[str, int]]
    """Objects compared by identity: description of the condition, and ``id``."""
    number: int
    """Counts the records of the process in the order of their creation."""
    layout: Any = None
    """Layout of the active frames if the record ends at a split: the mock returns their values."""
    ends_at: SplitPoint | None = None
    """The split that the record ends at."""
    watch: Any = None
    """The native watch of fixed objects."""
    watch_number: int = -1
    """The number of the condition that calls the watch; -1 if there is none."""
    speculates: frozenset[SourcePosition] = frozenset()
    """Code locations where the mock may return a ``Misspeculation``."""

    @property
    def graph(self) -> fx.GraphModule | None:
        return None if self.compiled is None else self.compiled.graph

    @property
    def guards(self) -> list[str]:
        """The conditions in words."""
        return [sentence for condition in self.conditions for sentence in condition.sentences]

    def covers(self, other: Record) -> bool:
        """True if the guards show that this record serves all calls that another one serves."""
        lifted = {s for c in self.conditions if c.is_about_lifted for s in c.sentences}
        sentences = set(self.guards) - lifted
        return (
            bool(self.lifted)
            and self.layout == other.layout
            and self.bound == other.bound
            and self.modes == other.modes
            and {found for found in self.objects if found[0] in sentences} <= other.objects
            and sentences <= set(other.guards)
            and self.expected.admits(other.expected)
        )

    def why_not(self, number: int) -> str:
        """The condition that failed for a call, in words."""
        if number == self.watch_number:
            return self.watch.why() or "something that the program read has changed meanwhile"
        return f"not {self.numbered[number].description}"


class MockBuilder:
    """Builds the mock: run the operator graph, then make what the program made (section 4.2)."""

    def __init__(self, rec: Recording, guarded: GuardedVariables, guard: GuardBuilder) -> None:
        self.rec, self.guarded, self.guard = rec, guarded, guard
        self.source = Source()
        self.parameters: dict[int, str] = {}
        self.outputs: list[fx.Node] = []
        self._output_names: dict[fx.Node, str] = {}
        self.side_effects: list[str] = []
        self.numbers = number_source.Numbers(
            rec.lifted.arithmetic.in_python, self.existing, self.source.constant, self.graph_output
        )
        self.values = Reconstruction(
            rec, self.source, self.existing, self.output, self.graph_output, self.numbers.text
        )

    def forget(self) -> None:
        """Let go of the recorded run's objects, some of which belong to each other."""
        self.values.forget()
        del self.numbers

    def existing(self, node: ShadowNode) -> str:
        """The name of a variable that was there before the call."""
        if node.plain and node.node_id not in self.guard.writer.variables:
            return self.guard.lifted.name_of_number(node)
        if self.guarded.is_fixed(node):
            return self.source.constant(node.variable, node.type.__name__.lower())
        name = self.guard.writer.variables.get(node.node_id)
        if name is None:
            raise Split(
                SplitReason.UNREACHABLE_VARIABLE,
                f"leaves an external {node.type.__qualname__} that a later call cannot find",
            )
        self.parameters[node.node_id] = name
        return name

    def output(self, tensor: torch.Tensor) -> str | None:
        """The name of an output of the operator graph; None for a tensor that was there before."""
        if self.rec.node(tensor) is not None:
            return None
        node = self.rec.operators.node_of(tensor)
        return None if node is None else self.graph_output(node)

    def graph_output(self, node: fx.Node) -> str:
        name = self._output_names.get(node)
        if name is None:
            name = self._output_names[node] = f"out{len(self.outputs)}"
            self.outputs.append(node)
        return name

    def result(self, value: Any) -> str:
        text = self.values.value(value)
        self.values.fill_cells()
        return text

    def draw(self) -> None:
        """Draw Python's random numbers again, in the program's order, and compute with them and
        with numbers from outside."""
        for i, drawing in enumerate(self.rec.lifted.draws):
            function = self.source.constant(drawing.operation, drawing.operation.__name__)
            start = len(self.source.lines)
            texts = [self.values.value(arg) for arg in drawing.args]
            texts += [f"{name}={self.values.value(arg)}" for name, arg in drawing.kwargs.items()]
            # Containers among the arguments are made of numbers that only now have names.
            self.source.lines[start:start] = self.numbers.lines(functools.partial(_drawn_before, i))
            self.source.emit(f"draw{i} = {function}({', '.join(texts)})")
        for line in self.numbers.lines(is_computable_before_graph):
            self.source.emit(line)

    def compute_after_graph(self) -> tuple[list[str], bool]:
        """Statements that compute with what the operator graph gives, and whether they may raise;
        here it is learnt, too, what is to be computed only because it may raise."""
        raising = self.rec.lifted.arithmetic.may_raise
        for number in raising:
            self.numbers.text(number)
        lines = self.numbers.lines(lambda number: not is_computable_before_graph(number))
        return lines, not all(map(is_computable_before_graph, raising))

    def speculated(self) -> list[str]:
        """Conditions on what the operator graph gives that hold if all was speculated rightly.

        None are left where the graph itself looks at them, before it changes what is outside.

        Raises:
            SpeculationRefused: the mock could not undo what comes before them.
        """
        rec, conditions = self.rec, []
        if rec.lifted.speculated.values and rec.changed_inputs():
            if not (rec.lifted.speculated.can_roll_back_draws() and check_before_writing(rec)):
                raise SpeculationRefused(
                    SplitReason.MISSPECULATION_NOT_UNDOABLE,
                    "speculates on a tensor's value before effects that cannot be rolled back",
                )
            return []
        for expression, value, _ in rec.lifted.speculated.values:
            way = number_source.text(
                expression, self.existing, self.source.constant, self.graph_output
            )
            check = same_scalar if is_plain(value) else same_list
            same = self.source.constant(check, check.__name__)
            given = literal(value) or self.source.constant(value, "value")
            conditions.append(f"{same}({way}, {given})")
            self.guard.writer.note(f"a value that steers the program gives {value!r}")
        if conditions and not rec.lifted.speculated.can_roll_back_draws():
            raise SpeculationRefused(
                SplitReason.MISSPECULATION_NOT_UNDOABLE,
                "speculates on a tensor's value before effects that cannot be rolled back",
            )
        return conditions

    # --- side effects ----------------------------------------------------------------------------

    def effects(self) -> None:
        """Changes to what is outside: the last version of the nodes that were there before."""
        self.values.hooks()
        self.side_effects += [f"{hook.method}(…)" for hook in self.rec.hooks]
        later: list[str] = []
        for shadow, count in self.rec.advanced.items():
            node = self.rec.refs.get_node_by_id(shadow)
            step = self.source.constant(advance, "advance")
            later.append(f"{step}({self.existing(node)}, {count})")
            self.side_effects.append(f"{self.guard.writer.label(node)} advances by {count}")
        # Warnings are shown before the program changes which are: see `repeatable`.
        for operation, arguments, keywords in self.rec.calls:
            maker = self.source.constant(operation, operation.__name__)
            texts = [self.values.value(arg) for arg in arguments]
            texts += [f"{name}={self.values.value(arg)}" for name, arg in keywords.items()]
            later.append(f"{maker}({', '.join(texts)})")
            self.side_effects.append(f"{operation.__name__}(…)")
        for node in self.guarded.order:
            if not node.changed:
                continue
            if node.rewritten:
                later.extend(self._rewrite(node))
                continue
            for relation in node.written:
                later.extend(self._write(node, relation))
        later.extend(self._raised())
        for shadow in self.rec.data_replaced:
            node = self.rec.refs.get_node_by_id(shadow)
            value = self.rec.operators.node_of(node.variable)
            assert value is not None
            later.append(f"{self.existing(node)}.data = {self.graph_output(value)}")
            self.side_effects.append(f"{self.guard.writer.label(node)}.data = …")
        for node, operation, args in self.rec.replays:
            if node.rewritten:
                continue
            texts = [self.values.value(arg) for arg in args]
            maker = self.source.constant(operation, operation.__name__)
            later.append(f"{maker}({self.existing(node)}, {', '.join(texts)})")
            self.side_effects.append(f"{self.guard.writer.label(node)}.{operation.__name__}(…)")
        self.values.fill_cells()
        for line in (*later, *self.values.last):
            self.source.emit(line)

    def _raised(self) -> list[str]:
        """What being raised has left in exceptions from outside.

        Raises:
            Split: more than the frames that they came through.
        """
        lines: list[str] = []
        for shadow, (error, (traceback, *before)) in self.rec.exceptions.items():
            node = self.rec.refs.get_node_by_id(shadow)
            through, *now = came(error)
            if now[1] is self.rec.handled_outside:
                now[1] = before[1] = None
            if through is not traceback:
                lines += self.values.passing(error, self.existing(node), traceback)
                if now[1] is None:
                    raised = self.source.constant(set_context_from_caller)
                    lines.append(f"{raised}({self.existing(node)})")
            links = zip(now, before, strict=True)
            if not node.written and any(link is not earlier for link, earlier in links):
                raise Split(
                    SplitReason.EXCEPTION_STATE,
                    f"raises an external {node.type.__qualname__} and changes its cause or context",
                )
        return lines

    def _write(self, node: ShadowNode, relation: Relation) -> list[str]:
        owner = self.existing(node)
        before = node.first.refs.get(relation)
        try:
            value = lookup(node.variable, relation)
        except (LookupError, AttributeError, ValueError):
            if before == ABSENT or (is_instance(relation.key, ByIdentity) and relation.key.is_new):
                return []
            self.side_effects.append(f"del {self.guard.writer.label(node)} → {relation}")
            return [self._statement(node, owner, relation, None)]
        again = relation in node.reinserted and relation.kind in _ORDERED
        if before is not None and before != ABSENT and not again:
            first = self.rec.refs.get_node_by_id(before)
            if first.variable is value and not is_plain(value):
                return []
            guarded = first.plain and Fact.VALUE in first.facts
            if guarded and first.type is type(value) and first.first.value is value:
                return []
        self.side_effects.append(f"{self.guard.writer.label(node)} → {relation} = {_short(value)}")
        text = self.values.value(value)
        text = self._of_what_is_there(node, owner, relation, value, text)
        put = self._statement(node, owner, relation, text)
        if again and before != ABSENT:
            return [self._statement(node, owner, relation, None), put]
        return [put]

    def _of_what_is_there(
        self, node: ShadowNode, owner: str, relation: Relation, value: Any, text: str
    ) -> str:
        """``text``, or where ``value`` is made of the number at its place, as in ``self.n += 1``,
        one that counts what another thread has put there since the guard looked.

        The interpreter does not change threads between such a read and the write: it only does at
        the ends of calls and of rounds of loops.
        """
        at = _READS.get((relation.kind, node.type)) or _READS.get((relation.kind, None))
        found = node.first.refs.get(relation, ABSENT)
        number = self.rec.lifted.expression(value)
        if at is None or found == ABSENT or not number_source.is_short(number):
            return text
        before = self.rec.refs.get_node_by_id(found)
        parts = [part.node if is_instance(part, EntryValue) else None for part in leaves_of(number)]
        if before not in parts or None in parts:
            return text
        read = self.source.constant(instance_dict) if at.startswith("{instance_dict}") else ""
        now = at.format(instance_dict=read, owner=owner, key=self._key(relation.key))
        seen = self.existing(before)

        def name(part: ShadowNode) -> str:
            return now if part is before else self.existing(part)

        again = number_source.text(number, name, self.source.constant)
        return f"{text} if {now} is {seen} else {again}"

    def _statement(
        self, node: ShadowNode, owner: str, relation: Relation, value: str | None
    ) -> str:
        cls = self.rec.classes.get(node.node_id)
        if cls is None:
            key = self._key(relation.key)
            return _statement(owner, relation, key, value, self.source, node.type)
        name = self.source.constant(cls, cls.__name__)
        if value is None:
            return f"{self.source.constant(_clear_class)}({name}, {relation.key!r})"
        put = self.source.constant(type.__setattr__, "set_on_class")
        return f"{put}({name}, {relation.key!r}, {value})"

    def _key(self, key: Any) -> str:
        """The text of a dictionary key, an attribute's name or a position."""
        if is_instance(key, ByIdentity):
            return self.values.value(key.variable)
        return literal(key) or self.source.constant(key)

    def _rewrite(self, node: ShadowNode) -> list[str]:
        value, before = node.variable, node.contents
        if _same_contents(value, before):
            return []
        name = self.existing(node)
        self.side_effects.append(f"contents of {self.guard.writer.label(node)}")
        base = self.source.constant(native_base(node.type), native_base(node.type).__name__)
        if is_instance(value, dict):
            entries, known = items_of(value), len(before)
            if not same_keys([key for key, _ in entries[:known]], list(before)):
                text = self.values.dict_text(value)
                return [f"{base}.clear({name})", f"{base}.update({name}, {text})"]
            kept = zip(entries, before.values(), strict=False)
            changed = [item for item, found in kept if item[1] is not found]
            text = self.values.dict_text(value, [*changed, *entries[known:]])
            return [f"{base}.update({name}, {text})"]
        if is_instance(value, set):
            fill, text = "update", self.values.members_text(value)
        else:
            fill, text = "extend", self.values.list_text(elements(value))
        return [f"{base}.clear({name})", f"{base}.{fill}({name}, {text})"]


def native_base(cls: type) -> type:
    """The native container whose own methods change the instances of ``cls``."""
    bases = (collections.OrderedDict, dict, list, set, collections.deque)
    return next(base for base in bases if issubclass(cls, base))


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


_ORDERED = (RelationKind.KEY, RelationKind.ATTRIBUTE, RelationKind.GLOBAL)
"""Places in dictionaries, which keep the order in which they were filled."""
_WRITES: dict[RelationKind, tuple[str, str | None]] = {
    RelationKind.ATTRIBUTE: (
        "dict.__setitem__({attributes}, {key}, {value})",
        "dict.pop({attributes}, {key}, None)",
    ),
    RelationKind.GLOBAL: ("{owner}[{key}] = {value}", "{owner}.pop({key}, None)"),
    RelationKind.KEY: (
        "{base}.__setitem__({owner}, {key}, {value})",
        "{base}.pop({owner}, {key}, None)",
    ),
    RelationKind.ITEM: ("list.__setitem__({owner}, {key}, {value})", None),
    RelationKind.CELL: ("{owner}.cell_contents = {value}", "del {owner}.cell_contents"),
    RelationKind.CONTEXT: ("{owner}.set({value})", None),
    RelationKind.SLOT: (
        "object.__setattr__({owner}, {key}, {value})",
        "{clear}({owner}, {key})",
    ),
}
"""How a mock puts something at a place, and how it takes away what is there."""
_READS: dict[tuple[RelationKind, type | None], str] = {
    (RelationKind.ATTRIBUTE, None): "{instance_dict}({owner})[{key}]",
    (RelationKind.GLOBAL, None): "{owner}[{key}]",
    (RelationKind.KEY, dict): "{owner}[{key}]",
    (RelationKind.ITEM, list): "{owner}[{key}]",
    (RelationKind.CELL, None): "{owner}.cell_contents",
}
"""How it looks what is there, by the types of what holds the place."""


def _clear_slot(owner: Any, name: str) -> None:
    """A program that has filled a slot before it cleared it does not ask what was there."""
    with contextlib.suppress(AttributeError):
        object.__delattr__(owner, name)


def _clear_class(cls: type, name: str) -> None:
    """The same of a class."""
    with contextlib.suppress(AttributeError):
        type.__delattr__(cls, name)


def _statement(
    owner: str, relation: Relation, key: str, value: str | None, source: Source, owned_by: type
) -> str:
    """The statement that leaves ``value``, or nothing at all, where ``relation`` leads to."""
    kind = relation.kind
    assign, delete = _WRITES.get(kind, (None, None))
    text = delete if value is None else assign
    if text is None:
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"{'removes' if value is None else 'changes'} the variable at the relation {relation}",
        )
    base = clear = attributes = ""
    if kind is RelationKind.ATTRIBUTE:
        attributes = f"{source.constant(instance_dict)}({owner})"
    elif kind is RelationKind.KEY:
        native = native_base(owned_by)
        base = source.constant(native, native.__name__)
    elif kind is RelationKind.SLOT and value is None:
        clear = source.constant(_clear_slot, "clear_slot")
    names = {"owner": owner, "attributes": attributes, "base": base, "clear": clear}
    return text.format(**names, key=key, value=value)


def synthesise(
    rec: Recording,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    backend: Backend,
    entry: Callable[[], Any],
    known: frozenset[int] | None = None,
) -> Record:
    """Guard, mock and compiled graph from a recording that reached its end.

    ``known`` is what the guard of a continuation need not ask for: see :class:`GuardBuilder`.
    ``entry`` is a context manager factory that puts torch's global state back to what it was when
    the region was entered, which is the state that the backend must see.

    Raises:
        Split: something that the program read or made cannot be checked or made again.
    """
    if any(map(_is_relied_on, rec.drawn)):
        raise Split(SplitReason.RANDOM_VALUE_DECIDES, "depends on the value of a random object")
    guarded = GuardedVariables(rec)
    guard = GuardBuilder(rec, guarded, args, kwargs, known)
    with entry():
        guard.build()
    mock = MockBuilder(rec, guarded, guard)
    try:
        return _assemble(rec, guarded, guard, mock, result, backend, entry)
    finally:
        mock.forget()


def _assemble(
    rec: Recording,
    guarded: GuardedVariables,
    guard: GuardBuilder,
    mock: MockBuilder,
    result: Any,
    backend: Backend,
    entry: Callable[[], Any],
) -> Record:
    returned = mock.result(result)
    mock.effects()
    speculated = mock.speculated()
    behind, may_raise = mock.compute_after_graph()
    compiled, names = _compile(rec, guard, mock, backend, entry)
    guard.finish()
    body = mock.source.lines
    mock.source.lines = []
    mock.draw()
    drawn, mock.source.lines = mock.source.lines, []
    may_fail = may_raise or (compiled is not None and compiled.may_fail)
    floats = {
        node: name
        for (node, source), name in zip(rec.operators.inputs, names, strict=compiled is not None)
        if is_instance(source, Expression)
        and type(rec.lifted.identities.values.get(source)) is float
    }
    undoing = RollBack(
        rec, mock.source, mock.existing, bool(speculated), may_fail, bool(drawn), floats
    )
    before, mock.source.lines = mock.source.lines, []
    if compiled is not None:
        call = f"run_graph({', '.join(names)})"
        targets = ", ".join(f"out{i}" for i in range(len(mock.outputs)))
        named = rec.default_device is not None and not rec.runs_as_is
        graph = without_default_device(compiled.run) if named else compiled.run
        mock.source.names["run_graph"] = graph
        comma = "," if len(mock.outputs) == 1 else ""
        mock.source.emit(f"{targets}{comma} = {call}" if targets else call)
    speculation_places = [place for *_, place in rec.lifted.speculated.values]
    run = mock.source.lines
    if speculated:
        run = undoing.unless(speculated, speculation_places, run, behind)
    elif compiled is not None:
        run = undoing.guarded([*run, *behind])
    mock.source.lines = [*before, *undoing.unless_raising(drawn), *run]
    mock.source.lines += [*body, *_modes(rec, mock), f"return {returned}"]
    rewritten = _rewritten(rec, guarded, guard.lifted.expected.numbers)
    parameters = ", ".join(mock.parameters.values())
    writer = guard.writer
    writer.source.emit(f"return ({parameters}{',' if parameters else ''})")
    return Record(
        guard=writer.source.build("guard", "args, kwargs"),
        mock=mock.source.build("mock", parameters),
        compiled=compiled,
        conditions=writer.conditions,
        numbered=writer.numbered,
        side_effects=mock.side_effects,
        guard_source=writer.source.text("guard", "args, kwargs"),
        mock_source=mock.source.text("mock", parameters),
        expected=guard.lifted.expected,
        rewritten=rewritten,
        bound=frozenset(guard.fixed.bound),
        modes=guard.state.modes,
        objects=frozenset(writer.objects),
        number=next(_numbers_of_records),
        lifted=guard.lifted.lifted,
        watch=writer.watch,
        watch_number=guard.watch_number,
        speculates=frozenset(speculation_places),
    )


def _drawn_before(count: int, number: Any) -> bool:
    """Whether a number is made of no more than the first draws, and of what is from outside."""
    parts = leaves_of(number)
    drawn = all(part.index < count for part in parts if is_instance(part, DrawnValue))
    return drawn and is_computable_before_graph(number)


def _is_relied_on(node: ShadowNode) -> bool:
    """Whether a program has gone on by more than the type and length of a variable."""
    found = any(target != ABSENT for target in node.first.refs.values())
    return found or node.changed or bool(node.facts - {Fact.TYPE, Fact.LENGTH})


def _rewritten(
    rec: Recording, guarded: GuardedVariables, numbers: dict[Path, Any]
) -> frozenset[Path]:
    """The places of numbers at which the program has left others."""
    found = set()
    for node in guarded.order:
        parent, relation = guarded.edges[node.node_id][0]
        place = rec.place(parent, relation)
        if relation not in parent.written or place not in numbers:
            continue
        try:
            now = lookup(parent.variable, relation)
        except (LookupError, AttributeError, ValueError):
            continue
        if type(now) is type(numbers[place]) and now != numbers[place]:
            found.add(place)
    return frozenset(found)


def _modes(rec: Recording, mock: MockBuilder) -> list[str]:
    """Torch's modes that the program leaves switched."""
    devices = []
    if rec.devices_left is not None:
        exits, entered = rec.devices_left
        names = mock.source.constant(switch, "switch"), mock.source.constant(entered, "entered")
        devices.append(f"{names[0]}({exits}, {names[1]})")
        mock.side_effects.append(f"default device = {entered[-1] if entered else 'as before'}")
    return [*_switches(rec, mock), *devices]


def _switches(rec: Recording, mock: MockBuilder) -> list[str]:
    if rec.modes_left is None:
        return []
    found, left = rec.modes_left
    if found.grad is not left.grad:
        mock.side_effects.append(f"grad mode = {left.grad}")
    if left == replace(found, grad=left.grad):
        setter = mock.source.constant(set_grad_enabled, "set_grad_enabled")
        return [f"{setter}({left.grad})"]
    mock.side_effects.append("autocast modes")
    mock.source.lines.insert(0, f"begin = {mock.source.constant(Modes.now, 'modes_now')}()")
    names = [mock.source.constant(m, n) for m, n in ((left, "left"), (found, "found"))]
    return [f"{names[0]}.switch_from({names[1]}, begin)"]


def _leave_autocast(graph: fx.GraphModule, found: Modes, left: Modes) -> None:
    """Let a graph leave autocast as it finds it, as backends demand: the mock switches it.

    What was cast stays cached: the program is still in that context, or has cleared the cache.
    """
    with graph.graph.inserting_before(graph.graph.output_node()):
        for function, arguments in left.calls_to(replace(found, grad=left.grad)):
            if function is not torch.clear_autocast_cache:
                graph.graph.call_function(function, arguments)
    graph.recompile()


def _compile(
    rec: Recording,
    guard: GuardBuilder,
    mock: MockBuilder,
    backend: Backend,
    entry: Callable[[], Any],
) -> tuple[CompiledGraph | None, list[str]]:
    """Hand the operator graph to the backend, unless it has nothing that anybody could notice.

    Returns what the backend made of it, and the names of its inputs in the mock.
    """
    operators = rec.operators
    changed = rec.changed_inputs()
    noticed = changed or operators.drawn_from
    if rec.changed_arrays():
        raise Split(
            SplitReason.NUMPY_MEMORY,
            "changes an external NumPy array, or one that shares memory with a tensor",
        )
    if not mock.outputs and not (operators.operator_count and noticed):
        return None, []
    if rec.has_changed():
        raise BranchRefused(
            SplitReason.BRANCH_NOT_MERGEABLE, "changes a tensor in place that a branch may return"
        )
    if not rec.constants.numpy_shares_are_unchanged():
        raise Split(
            SplitReason.NUMPY_MEMORY, "changes memory that a tensor and a NumPy array share"
        )
    operators.erase_unused(rec.lifted.arithmetic.in_python, mock.outputs)
    graph = operators.finish(mock.outputs)
    if rec.modes_left is not None:
        _leave_autocast(graph, *rec.modes_left)
    nodes, names = [], []
    for _, source in operators.inputs:
        if is_instance(source, Expression):
            names.append(mock.values.number(source))
            continue
        node = rec.refs.get_node_by_id(source)
        if node.variable is None:
            raise Split(
                SplitReason.FINALIZER, "destroys a variable that is an input of the operator graph"
            )
        if is_instance(node.variable, torch.Tensor):
            nodes.append(node)
        names.append(mock.existing(node))
    if changed:
        guard.distinctness.write_shared_memory(nodes, changed)
    if rec.runs_as_is or (rec.stays_whole and has_parts(graph)):
        compiled = CompiledGraph(graph, interpreted(graph))
    else:
        make = without_default_device(lambda: backend(graph, example_inputs(rec, bool(changed))))
        afresh = traced_afresh() if rec.relies_on_current_gpu else contextlib.nullcontext()
        with entry(), afresh:
            compiled = make()
    return compiled, names
