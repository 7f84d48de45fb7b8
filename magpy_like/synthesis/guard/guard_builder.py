"""Guard generation (MagPy, section 4.2): may this record be used for this call?

A guard is a generated function ``guard(args, kwargs)``. It returns the variables that the mock
needs, as a tuple, or the number of the check that failed; ``reasons[number]`` says it in words.
What fixed objects hold is left to the native :class:`Watch`.
"""

from __future__ import annotations

from typing import Any

from magpy_like.annotation import RelationKind
from magpy_like.monitor.recording import Recording
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import lacks
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ABSENT, ByIdentity, Relation, ShadowNode
from magpy_like.synthesis.guard.access_places import Places
from magpy_like.synthesis.guard.distinctness import Distinctness
from magpy_like.synthesis.guard.guard_checks import is_missing
from magpy_like.synthesis.guard.lifted_conditions import LiftedConditions
from magpy_like.synthesis.guard.process_state import ProcessState


class GuardBuilder(LiftedConditions, Distinctness, ProcessState):
    """Builds the guard of one record, and names the variables that it fetches on the way."""

    def __init__(
        self,
        rec: Recording,
        places: Places,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: frozenset[int] | None = None,
    ):
        """``known`` are the positions of functions whose code a call cannot but bring, as the
        values of open frames do: there are as many of those at every call, too."""
        super().__init__(rec, places)
        self._known = known
        self._positional, self._keywords = len(args), list(kwargs)
        self._later: list[tuple[ShadowNode, Relation, ShadowNode]] = []
        """Edges from variables that are fetched after the one that they lead to."""
        self._missing: list[tuple[ShadowNode, Relation]] = []
        """Places where nothing is, at keys that may be fetched later."""

    def build(self) -> None:
        self._modes()
        keywords = ", ".join(map(repr, self._keywords))
        if self._known is not None:
            pass
        elif self._keywords:
            self._check(
                f"len(args) == {self._positional} and kwargs.keys() == {{{keywords}}}",
                f"{self._positional} positional arguments, and {keywords}",
            )
        else:
            self._check(
                f"len(args) == {self._positional} and not kwargs",
                f"{self._positional} positional arguments, no keywords",
            )
        at = len(self.source.lines)
        for node in self.places.order:
            self._node(node)
        for edge in self._later:
            self._further_edge(*edge)
        for place in self._missing:
            self._lacks_key(*place)
        self._distinct()
        self._iterators()
        self._state_reads()
        self._denied()
        if self.watch.counts()[0] or self.watch.counts()[2]:
            # Fetched variables hang on fixed ones, so these are looked at first.
            self.source.lines.insert(at, f"if not watch(): return {len(self.reasons)}")
            self.source.names["watch"] = self.watch
            self.watch_reason = len(self.reasons)
            self.reasons.append("")
        else:
            self.watch_reason = -1

    def conditions(self) -> None:
        """What is asked for last, once the backend has been at work."""
        super().conditions()
        self._cached_calls()

    def _node(self, node: ShadowNode) -> None:
        edges, refs = self.places.edges[node.node_id], node.first.refs
        fixed = self.places.is_fixed(node)
        for i, (parent, relation) in enumerate(edges):
            if i and not self.places.is_fixed(parent) and parent.node_id not in self.variables:
                self._later.append((parent, relation, node))
            elif i or fixed:
                self._further_edge(parent, relation, node)
            else:
                self._fetch(parent, relation, node)
        if fixed:
            self._fixed_node(node)
        self._absent(node, [relation for relation, target in refs.items() if target == ABSENT])

    def _further_edge(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        if self.places.is_fixed(node):
            self._fixed_edge(parent, relation, node)
        else:
            self._alias(parent, relation, node)

    def _absent(self, node: ShadowNode, relations: list[Relation]) -> None:
        self._missing += [(node, r) for r in relations if is_instance(r.key, ByIdentity)]
        relations = [r for r in relations if not is_instance(r.key, ByIdentity)]
        if self.places.is_fixed(node):
            for relation in relations:
                self._watch(node, relation, NOTHING, equal=False)
            return
        attributes = [r for r in relations if r.kind is RelationKind.ATTRIBUTE]
        if attributes:
            names = ", ".join(repr(relation.key) for relation in attributes)
            check = self.source.constant(lacks)
            self._check(
                f"{check}({self.name(node)}, {names})", f"{self.label(node)} has no {names}"
            )
            self.readable[-1:] = [f"{self.label(node)} has no {r}" for r in attributes]
        for relation in relations:
            reason = f"{self.label(node)} has no {relation}"
            if relation.kind in (RelationKind.KEY, RelationKind.MEMBERSHIP):
                where = self._key(relation.key)
                self._check(f"not dict.__contains__({self.name(node)}, {where})", reason)
            elif relation not in attributes:
                check = self.source.constant(is_missing)
                text = f"{check}({self.name(node)}, {self.source.constant(relation)})"
                self._check(text, reason)

    def _lacks_key(self, node: ShadowNode, relation: Relation) -> None:
        """A dictionary has nothing at a key that is one object and no other."""
        key = relation.key
        assert is_instance(key, ByIdentity)
        if key.is_new:
            return  # no dictionary has had it before
        if self.places.is_watched(node, relation):
            self._watch(node, relation, NOTHING, equal=False)
            return
        self._check(
            f"not dict.__contains__({self.name(node)}, {self._key(key)})",
            f"{self.label(node)} has no {relation}",
        )
