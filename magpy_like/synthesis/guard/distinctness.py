"""Variables that were different objects, and must be again, or share memory as they did.

Which variable it is matters where one is changed, or was compared with another: were they one
object this time, or had memory in common, what the program does to one would show in the other.
"""

from __future__ import annotations

import torch

from magpy_like.monitor.objects.iterators import FORESEEN, separate
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import is_identity, storage_of
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.guard.guard_checks import memory_of, share_no_memory
from magpy_like.synthesis.guard.guard_writer import GuardText

_FEW = 2
"""So many objects that are changed are told apart from all others pair by pair."""


class Distinctness(GuardText):
    """Conditions about two variables or more."""

    def _distinct(self) -> None:
        """Variables that are changed, or were told apart, must be different objects again."""
        pairs = set(self.rec.distinct)
        fetched = [
            n
            for n in self.places.order
            if n.node_id in self.variables and not is_identity(n.variable)
        ]
        fixed = [
            n
            for n in self.places.order
            if self.places.is_fixed(n) and not is_instance(n.variable, torch.Tensor)
        ]
        for node in fetched:
            self._not_fixed(node, [n for n in fixed if n.type is node.type])
        by_type: dict[type, list[ShadowNode]] = {}
        for node in fetched:
            by_type.setdefault(node.type, []).append(node)
        for nodes in by_type.values():
            changed = [node.node_id for node in nodes if node.changed]
            if len(changed) > _FEW:  # as those whose gradients an optimizer lets go of
                self.rec.compared.update(dict.fromkeys(node.node_id for node in nodes))
                continue
            for a in changed:
                pairs.update((min(a, n.node_id), max(a, n.node_id)) for n in nodes)
        pairs = {(a, b) for a, b in pairs if a != b}
        self._compared()
        for a, b in sorted(pairs):
            left, right = self.rec.refs.get_node_by_id(a), self.rec.refs.get_node_by_id(b)
            if a in self.variables and b in self.variables:
                self._check(
                    f"{self.variables[a]} is not {self.variables[b]}",
                    f"{self.label(left)} is not {self.label(right)}",
                )
            elif a in self.variables or b in self.variables:
                self._check(
                    f"{self.name(left)} is not {self.name(right)}",
                    f"{self.label(left)} is not {self.label(right)}",
                )

    def _not_fixed(self, node: ShadowNode, fixed: list[ShadowNode]) -> None:
        """A fetched variable must not be a fixed one under another name, if either is changed."""
        others = [n.variable for n in fixed if node.changed or n.changed]
        if others:
            known = self.source.constant({id(v): v for v in others}, "known_objects")
            name, label = self.name(node), self.label(node)
            self._check(
                f"id({name}) not in {known}", f"{label} is not what the program knows otherwise"
            )

    def _compared(self) -> None:
        """Objects of one type that native code has compared must be as many again."""
        by_type: dict[type, list[ShadowNode]] = {}
        for node in self.places.order:
            if node.node_id in self.rec.compared:
                by_type.setdefault(node.type, []).append(node)
        for nodes in by_type.values():
            if len(nodes) > 1 and any(node.node_id in self.variables for node in nodes):
                ids = ", ".join(f"id({self.name(node)})" for node in nodes)
                labels = ", ".join(self.label(node) for node in nodes)
                self._check(f"len({{{ids}}}) == {len(nodes)}", f"{labels} are different objects")

    def _iterators(self) -> None:
        """What the program takes out of one iterator must not be missing in another."""
        nodes = [n for n in self.places.order if n.type in FORESEEN]
        if self.rec.advanced and (len(nodes) > 1 or nodes[0].type in (enumerate, zip)):
            if not separate(*(node.variable for node in nodes)):
                raise Split(
                    SplitReason.ITERATOR_STATE,
                    "advances external iterators that take elements from each other",
                )
            apart = self.source.constant(separate, "separate")
            names = ", ".join(map(self.name, nodes))
            self._check(f"{apart}({names})", "the iterators take no elements from each other")

    def same_memory(self, inputs: list[ShadowNode], changed: list[ShadowNode]) -> None:
        """When inputs are changed in place, the others must share memory with them as before."""
        fetched = [n for n in inputs if n.node_id in self.variables]
        nodes = [n for n in inputs if n in fetched or n in changed]
        nodes = [n for n in nodes if n.variable.layout == torch.strided]
        others = [n for n in inputs if n not in nodes and n.variable.layout == torch.strided]
        written = [n for n in changed if n in fetched and n in nodes]
        if written and others:
            self._apart(written, nodes, others)
        if len(nodes) < 2 or not fetched:
            return
        places = memory_of(*(n.variable for n in nodes))
        memory = places[::2]  # which of them lie in one storage
        if any(memory.count(m) > 1 for m, n in zip(memory, nodes, strict=True) if n in changed):
            self.rec.runs_as_is = "changes tensors that share memory with others"
        check = self.source.constant(memory_of, "memory_of")
        expected = self.source.constant(places, "memory")
        names = ", ".join(self.name(n) for n in nodes)
        self._check(f"{check}({names}) == {expected}", "the tensors share memory as they did")

    def _apart(
        self, written: list[ShadowNode], nodes: list[ShadowNode], others: list[ShadowNode]
    ) -> None:
        """A tensor that a call brings and that is changed may share memory with a fixed one, such
        as a parameter. Those that it shares memory with now join ``nodes``."""
        memory = {storage_of(n.variable) for n in written}
        nodes += [n for n in others if storage_of(n.variable) in memory]
        fixed = tuple(n.variable for n in others if storage_of(n.variable) not in memory)
        if fixed:
            check = self.source.constant(share_no_memory)
            names = ", ".join(self.name(n) for n in written)
            given = f"({names},), {self.source.constant(fixed, 'fixed')}"
            self._check(f"{check}({given})", "what is changed shares no memory with parameters")
