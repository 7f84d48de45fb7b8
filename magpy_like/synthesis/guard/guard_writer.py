"""The text of a guard: its conditions with what each says when it fails, and names for variables.

Every condition is told in words too, by the way on which a person would get to what it is about. A
variable has one name: that of the place where the guard has fetched it, or of a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.recording import Recording
from magpy_like.native import Watch
from magpy_like.native.instance_checks import answers_in_python, is_instance
from magpy_like.refgraph import EXTERNAL, ByIdentity, Relation, ShadowNode
from magpy_like.refgraph.plain_values import has_values, is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.guard.access_places import Places, expression
from magpy_like.synthesis.guard.size_conditions import LARGEST, Bounds

_IS = re.compile(r"\bis (\w+)")
"""The names of what conditions ask for by identity."""


class GuardText:
    """A guard in the making."""

    def __init__(self, rec: Recording, places: Places) -> None:
        self.rec, self.places = rec, places
        self.source = Source()
        self.watch = Watch()
        self.reasons: list[str] = []
        self.readable: list[str] = []
        self.modes: tuple[int, ...] = ()
        """Torch's modes in which the record serves calls."""
        self.objects: set[tuple[str, int]] = set()
        """The objects that checks ask for, by what these say in words, and the objects' ids."""
        self.variables: dict[int, str] = {}
        """Names of the fetched variables, by node id."""
        self._labels: dict[int, str] = {}

    def _check(self, condition: str, reason: str) -> None:
        """``condition`` must hold, or this record is not for the call."""
        self.source.emit(f"if not ({condition}): return {len(self.reasons)}")
        self.reasons.append(reason)
        self.readable.append(reason)
        names = self.source.names
        objects = (names[name] for name in _IS.findall(condition) if name in names)
        self.objects |= {(reason, id(value)) for value in objects if not is_plain(value)}

    def _call(self, check: Callable[[], bool], reason: str) -> None:
        self.watch.place(check, reason, True, False)
        self.readable.append(reason)

    def label(self, node: ShadowNode) -> str:
        """How a person would write the way to a variable."""
        found = self._labels.get(node.node_id)
        if found is None:
            parent, relation = self.places.edges[node.node_id][0]
            found = self._labels[node.node_id] = self._label(parent, relation, node)
        return found

    def _label(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> str:
        kind, key = relation
        if kind is RelationKind.CONSTANT:
            value = self.rec.classes.get(node.node_id, node.variable)
            if is_instance(value, dict):
                return f"{value.get('__name__', 'module')} globals"
            if answers_in_python(value):
                return f"<{type(value).__qualname__}>"
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
            return name or f"<{type(value).__qualname__}>"
        if kind is RelationKind.LOCAL:
            return f"args[{key}]" if is_instance(key, int) else str(key)
        above = self.label(parent)
        if kind in (RelationKind.ATTRIBUTE, RelationKind.SLOT):
            return f"{above}.{key}"
        if kind is RelationKind.GLOBAL:
            return f"{key} ({above})"
        if kind is RelationKind.TYPE:
            return f"{above}.{key[0] if is_instance(key, tuple) else key}"
        if kind is RelationKind.KEY and parent.node_id in self.rec.classes:
            return f"{above}.{key}"
        if kind in (RelationKind.KEY, RelationKind.ITEM):
            variable = self.places.key_node(relation)
            return f"{above}[{repr(key) if variable is None else self.label(variable)}]"
        if kind is RelationKind.CLOSURE:
            names = parent.variable.__code__.co_freevars
            return f"{names[key] if is_instance(key, int) else key} (closure of {above})"
        if kind is RelationKind.CELL:
            return above
        return f"{above} → {relation}"

    def name(self, node: ShadowNode) -> str:
        """The guard's name for a variable: fetched before, or a constant of the record."""
        if node.node_id in self.variables:
            return self.variables[node.node_id]
        assert self.places.is_fixed(node), "the guard has not fetched this variable yet"
        return self.source.constant(node.variable)

    def _way(self, parent: ShadowNode, relation: Relation) -> str:
        if parent.node_id == EXTERNAL:
            if relation.kind is not RelationKind.LOCAL:
                raise Split(
                    SplitReason.UNREACHABLE_VARIABLE,
                    f"reads a root by the relation {relation}, which a later call cannot follow",
                )
            key = relation.key
            return f"args[{key}]" if is_instance(key, int) else f"kwargs[{key!r}]"
        return expression(self.name(parent), relation, parent.type, self._constant)

    def _constant(self, value: Any) -> str:
        """The text for an object that is the same at every call, or for a key that is a variable.

        Raises:
            Split: a key holds a variable that may be another one.
        """
        if is_instance(value, ByIdentity):
            if value.node_id is not None:
                return self.name(self.rec.refs.get_node_by_id(value.node_id))
            value = value.variable
        elif type(value) in (tuple, frozenset):
            self._look_at_parts(value)
        return self.source.constant(value)

    def _look_at_parts(self, key: Any) -> None:
        for part in key:
            if type(part) in (tuple, frozenset):
                self._look_at_parts(part)
            elif not self._is_known(part) and (self.rec.node(part) or self.rec.is_new(part)):
                raise Split(
                    SplitReason.UNGUARDABLE_KEY,
                    f"looks up a key that holds a {type(part).__qualname__}",
                )

    def _key(self, key: Any) -> str:
        return literal(key) or self._constant(key)

    def _is_known(self, value: Any) -> bool:
        """Whether it is this very object at every call."""
        if is_plain(value) or is_identity(value):
            return True
        node = self.rec.node(value)
        return node is not None and self.places.is_fixed(node)


GONE = "a tensor as it was"
"""Of one that the program has replaced, so that nobody holds it any more."""


def describe_tensor(tensor: torch.Tensor, dims: dict[int, Bounds] | None = None) -> str:
    """Such as ``float32[2.., 3] on cpu, requires grad``: the first size is 2 or more."""
    if not has_values(tensor):
        return "a tensor without values"
    dtype = str(tensor.dtype).removeprefix("torch.")
    grad = ", requires grad" if tensor.requires_grad else ""
    sizes = [str(n) for n in tensor.shape]
    for dim, (_, least, most, _) in (dims or {}).items():
        sizes[dim] = str(least) if least == most else f"{least}..{most if most < LARGEST else ''}"
    return f"{dtype}[{', '.join(sizes)}] on {tensor.device}{grad}"
