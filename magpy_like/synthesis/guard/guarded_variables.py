"""Variables that guard and mock refer to: fixed or fetched, and access paths to each.

A variable is *fixed* if the record holds this one object: a class, a module, a submodule, a
function. Any other variable is *fetched*: each call follows an access path to it, from its
arguments or from a fixed object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.access_paths import class_value, dict_value
from magpy_like.monitor.objects.iterators import peek
from magpy_like.monitor.recording import Recording
from magpy_like.native import attribute, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import (
    ABSENT,
    EXTERNAL,
    REFERENT,
    ByIdentity,
    Fact,
    Relation,
    ShadowNode,
)
from magpy_like.refgraph.plain_values import proxied_mapping
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import literal

Edge = tuple[ShadowNode, Relation]

_MODULE_TENSOR_DICTS = ("_parameters", "_buffers")


class GuardedVariables:
    """The nodes reachable from the external node over the first version (MagPy, Algorithm 1)."""

    def __init__(self, rec: Recording) -> None:
        """
        Raises:
            Split: a dictionary key is a variable that no access path reaches.
        """
        self.rec = rec
        self.order: list[ShadowNode] = []
        """The nodes breadth first, fixed ones first, without the external node."""
        self.edges: dict[int, list[Edge]] = {}
        """By node id, the edges that lead to a node; the first is its access path."""
        self.fixed: set[int] = set()
        """Ids of the fixed nodes."""
        self._walk()

    def _walk(self) -> None:
        """Breadth first over the first version, fixed variables before fetched ones.

        An edge whose key is a variable is followed after that variable.
        """
        refs = self.rec.refs
        first: deque[ShadowNode] = deque([refs.external])
        later: deque[ShadowNode] = deque()
        seen, done = {EXTERNAL}, set[int]()
        waiting: dict[int, list[Edge]] = {}
        self.fixed.add(EXTERNAL)
        while first or later:
            node = (first or later).popleft()
            if node.node_id in done:
                continue
            done.add(node.node_id)
            if node.node_id != EXTERNAL:
                self.order.append(node)
            edges = [(node, relation) for relation in node.first.refs]
            for owner, relation in edges + waiting.pop(node.node_id, []):
                target = owner.first.refs[relation]
                key = self.key_node(relation)
                if key is not None and key.node_id not in done:
                    waiting.setdefault(key.node_id, []).append((owner, relation))
                    continue
                if target == ABSENT:
                    continue
                child = refs.get_node_by_id(target)
                self.edges.setdefault(target, []).append((owner, relation))
                waits = target in seen and target not in done and target not in self.fixed
                if target in seen and not (waits and is_instance(child.variable, FunctionType)):
                    continue
                seen.add(target)
                if self._is_fixed(owner, relation, child):
                    self.fixed.add(target)
                    first.append(child)
                else:
                    later.append(child)
        if waiting:
            raise Split(
                SplitReason.UNREACHABLE_VARIABLE, "looks up a key that a later call cannot find"
            )
        ids = {node.node_id: i for i, node in enumerate(self.order)}
        for edges in self.edges.values():
            if len(edges) > 1:
                edges.sort(key=lambda edge: ids.get(edge[0].node_id, -1))

    def is_fixed(self, node: ShadowNode) -> bool:
        """True if the record holds the object itself."""
        return node.node_id in self.fixed

    def key_node(self, relation: Relation) -> ShadowNode | None:
        """The external variable that is the key of a relation, or None."""
        key = relation.key
        if not is_instance(key, ByIdentity) or key.node_id is None:
            return None
        return self.rec.refs.get_node_by_id(key.node_id)

    def is_fixed_location(self, owner: ShadowNode, relation: Relation) -> bool:
        """True if the location is the same at every call: in a fixed object, at a fixed key."""
        key = self.key_node(relation)
        return self.is_fixed(owner) and (key is None or self.is_fixed(key))

    def _is_fixed(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> bool:
        if Fact.IDENTITY in node.facts:
            return True
        value = node.variable
        if is_instance(value, torch.nn.Module):
            return True
        if relation.kind is RelationKind.ITERATION:
            return False
        if node.plain:
            return False
        if parent.node_id == EXTERNAL or not self.is_fixed_location(parent, relation):
            return False
        if is_instance(value, torch.Tensor):
            return self._is_parameter(parent, relation, value)
        if relation in parent.written:
            return False
        return value is not None

    def _is_parameter(self, parent: ShadowNode, relation: Relation, tensor: torch.Tensor) -> bool:
        """True for a parameter or buffer that the program does not replace: it is bound once."""
        if relation in parent.written:
            return False
        return any(
            above.key in _MODULE_TENSOR_DICTS
            and is_instance(owner.variable, torch.nn.Module)
            and above.kind is RelationKind.ATTRIBUTE
            for owner, above in self.edges.get(parent.node_id, ())
        ) or is_instance(tensor, torch.nn.Parameter)


def _slot(name: str, slot: str, kind: type, constant: Callable[[Any], str]) -> str:
    """The source text that reads a slot without calling ``__getattribute__`` in Python."""
    methods = (lookup_in_type(kind, method) for method in ("__getattribute__", "__getattr__"))
    if any(is_instance(method, FunctionType) for method in methods):
        return f"{constant(object.__getattribute__)}({name}, {slot!r})"
    return f"{name}.{slot}"


def access_source(
    parent: str, relation: Relation, owner_type: type, constant: Callable[[Any], str]
) -> str:
    """The source text that follows ``relation`` from the variable called ``parent``.

    The expression calls no method in Python, and raises if the location has no value.
    ``owner_type`` is the type of the parent, ``constant`` names an object.

    Raises:
        Split: a later call cannot follow the relation.
    """
    kind, key = relation
    if kind is RelationKind.ATTRIBUTE:
        return f"{constant(attribute)}({parent}, {key!r})"
    if kind in (RelationKind.KEY, RelationKind.GLOBAL):
        subscript = literal(key) or constant(key)
        if owner_type is dict:
            return f"{parent}[{subscript}]"
        return f"{constant(dict_value)}({parent}, {subscript})"
    if kind is RelationKind.ITEM:
        if owner_type in (list, tuple):
            return f"{parent}[{key}]"
        base = next((b.__name__ for b in (list, tuple) if issubclass(owner_type, b)), None)
        return f"{base}.__getitem__({parent}, {key})" if base else f"{parent}[{key}]"
    if kind is RelationKind.CELL:
        return f"{parent}.cell_contents"
    if kind is RelationKind.ITERATION:
        return f"{constant(peek)}({parent}, {key})"
    if kind is RelationKind.CONTEXT:
        return f"{parent}.get()"
    if kind is RelationKind.CLOSURE:
        return f"{parent}.__closure__[{key}]"
    if kind is RelationKind.DEFAULT:
        store = "__defaults__" if is_instance(key, int) else "__kwdefaults__"
        return f"{parent}.{store}[{key!r}]"
    if kind is RelationKind.SLOT:
        return f"{parent}()" if key == REFERENT else _slot(parent, str(key), owner_type, constant)
    if kind is RelationKind.DICT:
        return f"{constant(instance_dict)}({parent})"
    if kind is RelationKind.MAPPING:
        return f"{constant(proxied_mapping)}({parent})"
    if kind is RelationKind.TYPE and is_instance(key, str):
        return f"{constant(class_value)}({parent}, {key!r})"
    raise Split(
        SplitReason.UNREACHABLE_VARIABLE,
        f"reads a variable by the relation {relation}, which a later call cannot follow",
    )
