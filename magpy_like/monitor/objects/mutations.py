"""Changes of external variables: the contents at entry are saved before the first change.

A change of one location is an edge of a new version; a change that depends on all contents of a
container rewrites it. A change that destroys an object with finalizers splits the program: a mock
would destroy it at another time.
"""

from __future__ import annotations

import collections
from typing import Any

from magpy_like.monitor.objects.containers import copy_of, elements
from magpy_like.monitor.objects.external_reads import ExternalReads, check_global_name
from magpy_like.monitor.objects.finalizers import (
    has_finalizers,
    held_by,
    is_observed,
    lost_values,
    removable_contents,
)
from magpy_like.monitor.operator_graph.running_operator import RunningOperator
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import RefGraph, Relation, ShadowNode, is_of_contents
from magpy_like.split_points import EffectInsideOperator, Split
from magpy_like.split_reasons import SplitReason


class Mutations:
    """Changes of external variables."""

    def __init__(self, refs: RefGraph, running: RunningOperator, reads: ExternalReads) -> None:
        self._refs, self._running, self._reads = refs, running, reads
        self.may_destroy = False
        """Whether the program has removed an object with weak references from an external one: the
        object is destroyed when the record is synthesised, or earlier."""
        self.destroying: set[int] = set()
        """Ids of the objects that the splitting instruction removes from external ones."""

    def store(self, node: ShadowNode, relation: Relation, value: Any) -> None:
        """Record that a location of an external variable is about to hold ``value``."""
        if self._reads.substituted.covers(node, relation):
            return
        self.lose(node, relation, value)
        self.put(node, relation, value)

    def lose(self, node: ShadowNode, relation: Relation, value: Any = NULL) -> None:
        """Record that a location is about to lose its value, which ``value`` may replace."""
        if node.replays and is_of_contents(relation):
            self._reads.specialize_iterator_reads(node)
        check_global_name(node, relation)
        self._reads.list_values.pop(node.node_id, None)
        self._check_finalizers(node, lost_values(node, relation, value))
        self.snapshot(node)

    def put(self, node: ShadowNode, relation: Relation, value: Any) -> None:
        """Record that a location now holds ``value``."""
        if node.rewrites(relation):
            self._refs.in_place(node)
        else:
            self._refs.write(node, relation, value)

    def remove(self, node: ShadowNode, relation: Relation) -> None:
        """Record that a location is about to be deleted."""
        if node.replays and is_of_contents(relation):
            self._reads.specialize_iterator_reads(node)
        check_global_name(node, relation)
        self._check_finalizers(node, lost_values(node, relation, NULL))
        self.snapshot(node)
        if node.rewrites(relation):
            self._refs.in_place(node)
        else:
            self._refs.delete(node, relation)

    def rewrite(self, node: ShadowNode) -> None:
        """Record a change of an external container that depends on its contents.

        Raises:
            Split: native code changes an object other than a built-in container.
        """
        if not is_instance(node.variable, list | dict | set | collections.deque):
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                f"changes an external {node.type.__qualname__} in native code",
            )
        check_global_name(node)
        self._reads.list_values.pop(node.node_id, None)
        self._check_finalizers(node, removable_contents(node.variable))
        self.snapshot(node)
        self._reads.record_contents(node)
        node.rewritten = True
        self._refs.in_place(node)

    def snapshot(self, node: ShadowNode) -> None:
        """Save a container's contents before its first change.

        Raises:
            EffectInsideOperator: the change happens inside an operator.
        """
        if self._running.depth:
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR,
                f"changes an external {node.type.__qualname__} inside an operator",
            )
        if node.node_id in self._reads.dictionaries:
            self._reads.check_dictionary(node)
        for number, owner in self._reads.dictionaries.items():
            if owner is node:  # its attributes are about to change
                _keep_contents(self._refs.get_node_by_id(number))
        _keep_contents(node)

    def _check_finalizers(self, node: ShadowNode, lost_values: list[Any]) -> None:
        """Check that the loss of these values runs no code of the program.

        Raises:
            Split: one of them, or an object that it holds, has finalizers.
        """
        observed = next(filter(is_observed, held_by(lost_values)), None)
        if observed is None:
            return
        self.may_destroy = True
        finalized = next(filter(has_finalizers, held_by(lost_values)), None)
        if finalized is not None:
            self.destroying = {id(value) for value in held_by(lost_values)}
            kind, owner = type(finalized).__qualname__, node.type.__qualname__
            raise Split(
                SplitReason.FINALIZER,
                f"removes a {kind}, which has finalizers, from an external {owner}",
            )

    def check_none_lost(self) -> None:
        """Check a read of weak references.

        Raises:
            Split: the program may have destroyed an object that has some.
        """
        if self.may_destroy:
            raise Split(
                SplitReason.WEAK_REFERENCE,
                "reads weak references after it may have destroyed one of their objects",
            )


def _keep_contents(node: ShadowNode) -> None:
    """Save a container's contents, unless they are."""
    value = node.variable
    if node.contents is None:
        if is_instance(value, dict):
            node.contents = copy_of(value)
        elif is_instance(value, list | tuple | collections.deque):
            node.contents = elements(value)
        elif is_instance(value, set):
            node.contents = tuple(elements(value))
