"""Conditions on several variables: distinct objects, separate iterators, memory shared as before.

Identity matters where a variable is changed, or was compared with another: if two were one object
at a later call, or shared memory, a change to one would show in the other.
"""

from __future__ import annotations

import torch

from magpy_like.config import config
from magpy_like.monitor.objects.iterators import PEEKABLE, are_independent
from magpy_like.monitor.torch_state.outdated_bases import has_outdated_base
from magpy_like.native import memory_of
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import is_identity, is_leaf_or_view_of_one
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.guard.conditions import Kind
from magpy_like.synthesis.guard.guard_checks import (
    are_no_leaves,
    share_no_memory,
)
from magpy_like.synthesis.guard.guard_writer import GuardWriter


class Distinctness:
    """Writes the conditions on two variables or more."""

    def __init__(self, writer: GuardWriter) -> None:
        self._writer, self._guarded = writer, writer.guarded
        self._rec, self._source = writer.rec, writer.source

    def write_distinct(self) -> None:
        """Variables that the program changed, or found distinct, are distinct objects."""
        writer, pairs = self._writer, set(self._rec.inspections.distinct)
        fetched = [
            n
            for n in self._guarded.order
            if n.node_id in writer.variables and not is_identity(n.variable)
        ]
        fixed = [
            n
            for n in self._guarded.order
            if self._guarded.is_fixed(n) and not is_instance(n.variable, torch.Tensor)
        ]
        for node in fetched:
            self._is_not_fixed(node, [n for n in fixed if n.type is node.type])
        by_type: dict[type, list[ShadowNode]] = {}
        for node in fetched:
            by_type.setdefault(node.type, []).append(node)
        for nodes in by_type.values():
            changed = [node.node_id for node in nodes if node.changed]
            if len(changed) > config.max_pairwise_distinct:
                # For example parameters whose gradients an optimizer resets.
                self._rec.inspections.compared.update(dict.fromkeys(node.node_id for node in nodes))
                continue
            for a in changed:
                pairs.update((min(a, n.node_id), max(a, n.node_id)) for n in nodes)
        self._compared()
        for a, b in sorted((a, b) for a, b in pairs if a != b):
            left, right = self._rec.refs.get_node_by_id(a), self._rec.refs.get_node_by_id(b)
            count = (a in writer.variables) + (b in writer.variables)
            if count:
                writer.check(
                    Kind.DISTINCT if count == 2 else Kind.DISTINCT_FROM_FIXED,
                    f"{writer.name(left)} is not {writer.name(right)}",
                    f"{writer.label(left)} is not {writer.label(right)}",
                )

    def _is_not_fixed(self, node: ShadowNode, fixed: list[ShadowNode]) -> None:
        """A fetched variable is not a fixed one under another name, if either is changed."""
        others = [n.variable for n in fixed if node.changed or n.changed]
        if others:
            known = self._source.constant({id(v): v for v in others}, "known_objects")
            name, label = self._writer.name(node), self._writer.label(node)
            description = f"{label} is not a fixed object under another name"
            self._writer.check(Kind.NOT_A_FIXED_OBJECT, f"id({name}) not in {known}", description)

    def _compared(self) -> None:
        """Objects of one type that native code compared are as many distinct objects."""
        writer = self._writer
        by_type: dict[type, list[ShadowNode]] = {}
        for node in self._guarded.order:
            if node.node_id in self._rec.inspections.compared:
                by_type.setdefault(node.type, []).append(node)
        for nodes in by_type.values():
            if len(nodes) > 1 and any(node.node_id in writer.variables for node in nodes):
                ids = ", ".join(f"id({writer.name(node)})" for node in nodes)
                labels = ", ".join(map(writer.label, nodes))
                writer.check(
                    Kind.DISTINCT_COMPARED,
                    f"len({{{ids}}}) == {len(nodes)}",
                    f"{labels} are distinct objects",
                )

    def write_separate_iterators(self) -> None:
        """No iterator yields elements that the program takes out of another one.

        Raises:
            Split: they do in the recorded run.
        """
        nodes = [n for n in self._guarded.order if n.type in PEEKABLE]
        if self._rec.effects.advanced_iterators and (
            len(nodes) > 1 or nodes[0].type in (enumerate, zip)
        ):
            if not are_independent(*(node.variable for node in nodes)):
                raise Split(
                    SplitReason.ITERATOR_STATE,
                    "advances external iterators that take elements from each other",
                )
            test = f"{self._source.constant(are_independent, 'separate')}"
            test += f"({', '.join(map(self._writer.name, nodes))})"
            description = "the iterators share no elements"
            self._writer.check(Kind.SEPARATE_ITERATORS, test, description)

    def write_shared_memory(self, inputs: list[ShadowNode], changed: list[ShadowNode]) -> None:
        """Inputs share memory with those changed in place as they did in the recorded run."""
        writer = self._writer
        fetched = [n for n in inputs if n.node_id in writer.variables]
        nodes = [n for n in inputs if n in fetched or n in changed]
        nodes = [n for n in nodes if n.variable.layout == torch.strided]
        others = [n for n in inputs if n not in nodes and n.variable.layout == torch.strided]
        written = [n for n in changed if n in fetched and n in nodes]
        if written and others:
            self._no_memory_of_fixed(written, nodes, others)
        if len(nodes) < 2 or not fetched:
            return
        memory = memory_of(*(n.variable for n in nodes))
        storages = memory[::2]
        shared = (
            storages.count(s) > 1 for s, n in zip(storages, nodes, strict=True) if n in changed
        )
        if any(shared):
            self._rec.graph.runs_as_is = "changes tensors that share memory with others"
        elif any(has_outdated_base(n.variable) for n in nodes):
            # Autograd counts and records a write to one view as one to all views of a base.
            self._rec.graph.runs_as_is = "changes tensors beside a view whose data was replaced"
        check = self._source.constant(memory_of, "memory_of")
        expected = self._source.constant(memory, "memory")
        test = f"{check}({', '.join(map(writer.name, nodes))}) == {expected}"
        writer.check(Kind.SHARED_MEMORY, test, "the tensors share memory as recorded")

    def _no_memory_of_fixed(
        self, written: list[ShadowNode], nodes: list[ShadowNode], others: list[ShadowNode]
    ) -> None:
        """Fetched tensors that are changed share no memory with fixed ones, such as parameters.

        Those that share memory with them in the recorded run join ``nodes``.
        """
        first = memory_of(*(n.variable for n in (*written, *others)))[::2]
        shares = [index < len(written) for index in first[len(written) :]]
        nodes += [n for n, share in zip(others, shares, strict=True) if share]
        fixed = tuple(n.variable for n, share in zip(others, shares, strict=True) if not share)
        if fixed:
            names = ", ".join(map(self._writer.name, written))
            arguments = f"({names},), {self._source.constant(fixed, 'fixed')}"
            test = f"{self._source.constant(share_no_memory)}({arguments})"
            description = "changed tensors share no memory with fixed ones"
            self._writer.check(Kind.NO_SHARED_MEMORY, test, description)

    def write_writability(self, changed: list[ShadowNode]) -> None:
        """Tensors that are changed in place are no leaves of autograd's graph, if they were none.

        Eager mode raises where it records a write to a leaf. A record made for a leaf has no such
        write, and serves other tensors.
        """
        writer = self._writer
        nodes = [node for node in changed if node.node_id in writer.variables]
        if any(map(_is_view_of_leaf, nodes)):
            # AOTAutograd writes to a view by an operator that autograd records.
            self._rec.graph.runs_as_is = "changes a view of a tensor that requires gradients"
        nodes = [node for node in nodes if node.node_id in self._rec.writes.recorded]
        if nodes:
            check = self._source.constant(are_no_leaves)
            test = f"{check}({', '.join(map(writer.name, nodes))})"
            writer.check(Kind.WRITABILITY, test, "autograd admits writes to the changed tensors")


def _is_view_of_leaf(node: ShadowNode) -> bool:
    """True for a view of a leaf that requires gradients, as it was before the run."""
    tensor, check = node.variable, node.first.value
    if not tensor.requires_grad or tensor._base is None or not is_leaf_or_view_of_one(tensor):
        return False
    return check is None or check.why(tensor) != "requires_grad"
