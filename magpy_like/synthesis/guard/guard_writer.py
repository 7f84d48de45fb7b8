"""GuardWriter: conditions of one guard in order, their source text, and names of variables.

All parts of guard generation write through it. A variable has one name: that of its fetch, or of a
constant of the record. Its label is the access path as a person would write it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.recording import Recording
from magpy_like.native import Watch
from magpy_like.native.instance_checks import answers_in_python, is_instance
from magpy_like.refgraph import EXTERNAL, ByIdentity, Relation, ShadowNode
from magpy_like.refgraph.plain_values import has_values, is_identity, is_plain, is_same_value
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source, describe_key, literal
from magpy_like.synthesis.guard.conditions import (
    ArgumentKey,
    Aspect,
    Condition,
    Kind,
    Part,
    Test,
)
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables, access_source
from magpy_like.synthesis.guard.size_conditions import MAX_SIZE, Bounds

_IDENTITY_TEST = re.compile(r"\bis (\w+)")
"""Names compared by identity in a condition."""


@functools.cache
def _native_condition(kinds: tuple[Kind, ...]) -> Condition:
    """The condition of all checks of one kind in the native watch, which are equal.

    A large model has thousands. *Measured*: creating each takes 2 to 3 % of a first call (ResNet).
    """
    return Condition(kinds, "")


class GuardWriter:
    """The guard in the making."""

    def __init__(self, rec: Recording, guarded: GuardedVariables) -> None:
        self.rec, self.guarded = rec, guarded
        self.source = Source()
        self.watch = Watch()
        self.conditions: list[Condition] = []
        """All conditions, in the order in which they were written."""
        self.numbered: list[Condition] = []
        """The conditions by the number that the guard returns when one fails."""
        self.objects: set[tuple[str, int]] = set()
        """Objects compared by identity: description of the condition, and ``id``."""
        self.variables: dict[int, str] = {}
        """Names of the fetched variables, by node id."""
        self._labels: dict[int, str] = {}

    # --- conditions ------------------------------------------------------------------------------

    def check(
        self,
        kind: Kind,
        test: Test,
        description: str,
        *sentences: str,
        is_about_lifted: bool = False,
    ) -> Condition:
        """A condition in Python. ``sentences`` replace the description in ``explain``."""
        parts = () if is_instance(test, str) else tuple(test)
        source = test if is_instance(test, str) else " and ".join(part.source for part in parts)
        condition = Condition(
            (kind,), description, source, sentences or (description,), is_about_lifted
        )
        self.add(condition, parts)
        return condition

    def call(
        self, kind: Kind, check: Callable[[], bool], description: str, *sentences: str
    ) -> None:
        """A condition on a fixed object that a Python function checks, called by the watch."""
        sentences = sentences or (description,)
        condition = Condition((kind,), description, sentences=sentences)
        self.add_watched(condition, "location", check, description, True, False)

    def result(self, kind: Kind, call: Callable[[], Any], expected: Any, description: str) -> None:
        """A condition on the result of a call without arguments, which the watch repeats."""
        condition = Condition((kind,), description, sentences=(description,))
        self.add_watched(condition, "result", call, description, expected)

    def watched(self, kinds: tuple[Kind, ...], method: str, *args: Any) -> None:
        """A condition on a fixed object, added to the native watch by one of its methods."""
        self.add_watched(_native_condition(kinds), method, *args)

    def note(self, sentence: str) -> None:
        """A sentence for ``explain`` about conditions that the native watch describes."""
        self.conditions.append(Condition((), "", sentences=(sentence,)))

    def add(self, condition: Condition, parts: tuple[Part, ...] = ()) -> None:
        """Write a condition in Python. Every such condition passes through here."""
        self.source.emit(f"if not ({condition.source}): return {len(self.numbered)}")
        self.numbered.append(condition)
        self.conditions.append(condition)
        names = self.source.names
        found = _IDENTITY_TEST.findall(condition.source)
        objects = (names[name] for name in found if name in names)
        self.objects |= {(condition.description, id(v)) for v in objects if not is_plain(v)}

    def set_key(
        self,
        condition: Condition,
        parent: ShadowNode,
        relation: Relation,
        aspect: Aspect,
        expected: Hashable,
    ) -> None:
        """Note what an argument must be for a condition to hold, if it is one on an argument."""
        kind, argument = relation
        is_argument = parent.node_id == EXTERNAL and kind is RelationKind.LOCAL
        if is_argument and is_instance(argument, int | str):
            condition.key = ArgumentKey(argument, aspect, expected)

    def add_watched(self, condition: Condition, method: str, *args: Any) -> None:
        """Add a condition to the native watch. Every such condition passes through here."""
        if getattr(self.watch, method)(*args) is not False:
            self.conditions.append(condition)

    def insert_watch(self, line: int) -> int:
        """Call the watch before a line of the guard; returns the number of that condition."""
        number = len(self.numbered)
        self.source.lines.insert(line, f"if not watch(): return {number}")
        self.source.names["watch"] = self.watch
        self.numbered.append(Condition((), ""))
        return number

    def equality(self, path: str, value: Any) -> Test:
        """The test that the expression ``path`` results in exactly this plain value."""
        if value is None or value is ... or is_instance(value, bool) or value is NotImplemented:
            return f"{path} is {value!r}"
        if is_instance(value, torch.dtype | torch.layout | torch.memory_format):
            return f"{path} is {self.source.constant(value, str(value))}"
        if is_instance(value, np.generic | np.dtype):
            same = self.source.constant(is_same_value)
            return f"{same}({path}, {self.source.constant(value, 'value')})"
        name = self.source.fresh("x")
        cls = self.source.constant(type(value), type(value).__name__)
        text = literal(value) or self.source.constant(value, "value")
        has_type = Part(Kind.VALUE_TYPE, f"type({name} := {path}) is {cls}")
        has_text = Part(Kind.VALUE_TEXT, f"repr({name}) == {repr(value)!r}")
        is_equal = Part(Kind.VALUE_EQUALITY, f"{name} == {text}")
        if is_instance(value, float):
            if value != value or value == 0:
                return has_type, has_text
        elif not is_instance(value, int | str | bytes | torch.device):
            # 0j and -0j, or two empty ranges, are equal but not the same.
            return has_type, has_text, is_equal
        return has_type, is_equal

    # --- labels, names and access paths ----------------------------------------------------------

    def label(self, node: ShadowNode) -> str:
        """The access path to a variable, as a person would write it."""
        found = self._labels.get(node.node_id)
        if found is None:
            parent, relation = self.guarded.edges[node.node_id][0]
            found = self._labels[node.node_id] = self.label_of(parent, relation, node)
        return found

    def label_of(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> str:
        """The label of a variable by one of the edges that lead to it."""
        kind, key = relation
        if kind is RelationKind.CONSTANT:
            return self._label_of_constant(node)
        if kind is RelationKind.LOCAL:
            return f"args[{key}]" if is_instance(key, int) else str(key)
        above = self.label(parent)
        if kind in (RelationKind.ATTRIBUTE, RelationKind.SLOT):
            return f"{above}.{key}"
        if kind is RelationKind.GLOBAL:
            return f"{key} ({above})"
        if kind is RelationKind.TYPE:
            return f"{above}.{key[0] if is_instance(key, tuple) else key}"
        if kind is RelationKind.KEY and parent.node_id in self.rec.classes.by_dictionary:
            return f"{above}.{key}"
        if kind in (RelationKind.KEY, RelationKind.ITEM):
            variable = self.guarded.key_node(relation)
            return f"{above}[{describe_key(key) if variable is None else self.label(variable)}]"
        if kind is RelationKind.CLOSURE:
            names = parent.variable.__code__.co_freevars
            return f"{names[key] if is_instance(key, int) else key} (closure of {above})"
        if kind is RelationKind.CELL:
            return above
        return f"{above} → {relation}"

    def _label_of_constant(self, node: ShadowNode) -> str:
        value = self.rec.classes.by_dictionary.get(node.node_id, node.variable)
        if is_instance(value, dict):
            return f"{value.get('__name__', 'module')} globals"
        if answers_in_python(value):
            return f"<{type(value).__qualname__}>"
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        return name or f"<{type(value).__qualname__}>"

    def name(self, node: ShadowNode) -> str:
        """The guard's name for a variable: fetched before, or a constant of the record."""
        if node.node_id in self.variables:
            return self.variables[node.node_id]
        assert self.guarded.is_fixed(node), "the guard has not fetched this variable yet"
        return self.source.constant(node.variable)

    def access(self, parent: ShadowNode, relation: Relation) -> str:
        """The source text that follows ``relation`` from a variable.

        Raises:
            Split: a later call cannot follow the relation.
        """
        if parent.node_id == EXTERNAL:
            if relation.kind is not RelationKind.LOCAL:
                raise Split(
                    SplitReason.UNREACHABLE_VARIABLE,
                    f"reads a root by the relation {relation}, which a later call cannot follow",
                )
            key = relation.key
            return f"args[{key}]" if is_instance(key, int) else f"kwargs[{key!r}]"
        return access_source(self.name(parent), relation, parent.type, self._constant)

    def key(self, key: Any) -> str:
        """The source text of a dictionary key."""
        return literal(key) or self._constant(key)

    def _constant(self, value: Any) -> str:
        """The text for an object that is the same at every call, or for a key that is a variable.

        Raises:
            Split: a key contains a variable that may be another one.
        """
        if is_instance(value, ByIdentity):
            if value.node_id is not None:
                return self.name(self.rec.refs.get_node_by_id(value.node_id))
            value = value.variable
        elif type(value) in (tuple, frozenset):
            self._check_parts(value)
        return self.source.constant(value)

    def _check_parts(self, key: Any) -> None:
        for part in key:
            if type(part) in (tuple, frozenset):
                self._check_parts(part)
            elif not self.is_constant(part) and (
                self.rec.variables.node(part) or self.rec.variables.is_new(part)
            ):
                raise Split(
                    SplitReason.UNGUARDABLE_KEY,
                    f"looks up a key that holds a {type(part).__qualname__}",
                )

    def is_constant(self, value: Any) -> bool:
        """True if every call has this very object, or a plain value equal to it."""
        if is_plain(value) or is_identity(value):
            return True
        node = self.rec.variables.node(value)
        return node is not None and self.guarded.is_fixed(node)


REPLACED_TENSOR = "a tensor as recorded"
"""Description of a tensor that the program has replaced, so that nothing refers to it any more."""


def describe_tensor(
    tensor: torch.Tensor,
    dims: dict[int, Bounds] | None = None,
    steps: dict[int, Bounds] | None = None,
) -> str:
    """``float32[2.., 3] on cpu, requires grad``, for example: the first size is 2 or more."""
    if not has_values(tensor):
        return "a tensor without values"
    dtype = str(tensor.dtype).removeprefix("torch.")
    grad = ", requires grad" if tensor.requires_grad else ""
    sizes = ", ".join(_with_ranges(tensor.shape, dims or {}))
    strides = ""
    if steps or not (dims or _is_contiguous(tensor)):
        strides = f" with strides ({', '.join(_with_ranges(tensor.stride(), steps or {}))})"
    return f"{dtype}[{sizes}]{strides} on {tensor.device}{grad}"


def _with_ranges(numbers: Sequence[int], ranges: dict[int, Bounds]) -> list[str]:
    found = [str(n) for n in numbers]
    for dim, (_, least, most, _) in ranges.items():
        found[dim] = str(least) if least == most else f"{least}..{most if most < MAX_SIZE else ''}"
    return found


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """True also for layouts without strides."""
    return tensor.layout is not torch.strided or tensor.is_contiguous()
