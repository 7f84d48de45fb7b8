"""Guard generation (MagPy, section 4.2): may this record be used for this call?

A guard is a generated function ``guard(args, kwargs)``. It returns the variables that the mock
needs, as a tuple, or the number of the condition that failed. The native :class:`Watch` checks the
contents of fixed objects.
"""

from __future__ import annotations

from typing import Any

from magpy_like.annotation import RelationKind
from magpy_like.monitor.recording import Recording
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import lacks
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ABSENT, ByIdentity, Relation, ShadowNode
from magpy_like.synthesis.guard.conditions import Kind
from magpy_like.synthesis.guard.distinctness_conditions import Distinctness
from magpy_like.synthesis.guard.fetched_variables import FetchedVariables
from magpy_like.synthesis.guard.fixed_objects import FixedObjects
from magpy_like.synthesis.guard.guard_checks import is_missing
from magpy_like.synthesis.guard.guard_writer import GuardWriter
from magpy_like.synthesis.guard.guarded_variables import GuardedVariables
from magpy_like.synthesis.guard.lifted_conditions import LiftedConditions
from magpy_like.synthesis.guard.process_state_conditions import ProcessState


class GuardBuilder:
    """Builds the guard of one record. Each subject writes its conditions through one writer."""

    def __init__(
        self,
        rec: Recording,
        guarded: GuardedVariables,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        functions: frozenset[int] | None = None,
    ):
        """
        Args:
            functions: For a continuation, whose number of arguments is constant: the positions of
                the functions among its arguments, whose code is known.
        """
        self._rec, self._guarded = rec, guarded
        self._positional, self._keywords = len(args), list(kwargs)
        self._is_continuation = functions is not None
        self.writer = GuardWriter(rec, guarded)
        self.fixed = FixedObjects(self.writer)
        self.fetched = FetchedVariables(self.writer, self.fixed, functions)
        self.distinctness = Distinctness(self.writer)
        self.state = ProcessState(self.writer)
        self.lifted = LiftedConditions(self.writer)
        self.watch_number = -1
        """The number of the condition that calls the native watch; -1 if it watches nothing."""
        self._later: list[tuple[ShadowNode, Relation, ShadowNode]] = []
        """Edges whose source is fetched after their destination."""
        self._missing: list[tuple[ShadowNode, Relation]] = []
        """Absent keys compared by identity, whose variables may be fetched later."""

    def build(self) -> None:
        """Write all conditions but the last ones.

        Raises:
            Split: no guard can check a fact of the recording.
        """
        self.state.write_modes()
        if not self._is_continuation:
            self._arguments()
        first_fetch = len(self.writer.source.lines)
        for node in self._guarded.order:
            self._node(node)
        for edge in self._later:
            self._further_edge(*edge)
        for location in self._missing:
            self._lacks_key(*location)
        self.distinctness.write_distinct()
        self.distinctness.write_separate_iterators()
        self.state.write_state_reads()
        self.state.write_denied()
        objects, _, tensors = self.writer.watch.counts()
        if objects or tensors:
            # Access paths to fetched variables begin at fixed objects, so these are checked first.
            self.watch_number = self.writer.insert_watch(first_fetch)

    def finish(self) -> None:
        """Write the last conditions, once the backend has compiled the operator graph."""
        self.lifted.write(self.fetched.dynamic)
        self.state.write_cached_calls(self.lifted.name_of_number)
        self.lifted.write_after_look_ups()

    def _arguments(self) -> None:
        count, keywords = self._positional, ", ".join(map(repr, self._keywords))
        if self._keywords:
            self.writer.check(
                Kind.KEYWORD_ARGUMENTS,
                f"len(args) == {count} and kwargs.keys() == {{{keywords}}}",
                f"{count} positional arguments, and {keywords}",
            )
        else:
            self.writer.check(
                Kind.POSITIONAL_ARGUMENTS,
                f"len(args) == {count} and not kwargs",
                f"{count} positional arguments, no keywords",
            )
        ordered = self._rec.keyword_order
        if len(ordered) > 1:  # one keyword, or a parameter's own, has no order for the program
            others = sorted(set(self._keywords) - set(ordered))
            found = f"[k for k in kwargs if k not in {others}]" if others else "list(kwargs)"
            self.writer.check(
                Kind.KEYWORD_ORDER,
                f"{found} == {list(ordered)}",
                f"keywords in the order {', '.join(ordered)}",
            )

    def _node(self, node: ShadowNode) -> None:
        """Write the conditions on the edges to a variable, its contents, and absent relations."""
        fixed = self._guarded.is_fixed(node)
        for i, (parent, relation) in enumerate(self._guarded.edges[node.node_id]):
            is_fetched = self._guarded.is_fixed(parent) or parent.node_id in self.writer.variables
            if i and not is_fetched:
                self._later.append((parent, relation, node))
            elif i or fixed:
                self._further_edge(parent, relation, node)
            else:
                self.fetched.fetch(parent, relation, node)
        if fixed:
            self.fixed.contents(node)
        absent = [relation for relation, target in node.first.refs.items() if target == ABSENT]
        if absent:
            self._absent(node, absent)

    def _further_edge(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        subject = self.fixed.edge if self._guarded.is_fixed(node) else self.fetched.alias
        subject(parent, relation, node)

    def _absent(self, node: ShadowNode, relations: list[Relation]) -> None:
        """Check that these locations of a variable have no value."""
        writer = self.writer
        self._missing += [(node, r) for r in relations if is_instance(r.key, ByIdentity)]
        relations = [r for r in relations if not is_instance(r.key, ByIdentity)]
        if self._guarded.is_fixed(node):
            for relation in relations:
                self.fixed.location(Kind.ABSENT_IN_FIXED, node, relation, NOTHING, equal=False)
            return
        attributes = [r for r in relations if r.kind is RelationKind.ATTRIBUTE]
        if attributes:
            names = ", ".join(repr(relation.key) for relation in attributes)
            test = f"{writer.source.constant(lacks)}({writer.name(node)}, {names})"
            sentences = [f"{writer.label(node)} has no {r}" for r in attributes]
            description = f"{writer.label(node)} has no {names}"
            writer.check(Kind.ABSENT_ATTRIBUTE, test, description, *sentences)
        for relation in relations:
            description = f"{writer.label(node)} has no {relation}"
            if relation.kind in (RelationKind.KEY, RelationKind.MEMBERSHIP):
                test = f"not dict.__contains__({writer.name(node)}, {writer.key(relation.key)})"
                writer.check(Kind.ABSENT_KEY, test, description)
            elif relation not in attributes:
                missing = writer.source.constant(is_missing)
                test = f"{missing}({writer.name(node)}, {writer.source.constant(relation)})"
                writer.check(Kind.ABSENT_ELSEWHERE, test, description)

    def _lacks_key(self, node: ShadowNode, relation: Relation) -> None:
        """Check that a dictionary has no entry for a key that is compared by identity."""
        key, writer = relation.key, self.writer
        assert is_instance(key, ByIdentity)
        if key.is_new:
            return  # no external dictionary has it
        if self._guarded.is_fixed_location(node, relation):
            kind = Kind.ABSENT_IDENTITY_KEY_IN_FIXED
            self.fixed.location(kind, node, relation, NOTHING, equal=False)
            return
        test = f"not dict.__contains__({writer.name(node)}, {writer.key(key)})"
        writer.check(Kind.ABSENT_IDENTITY_KEY, test, f"{writer.label(node)} has no {relation}")
