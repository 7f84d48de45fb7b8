"""Meeting variables from outside: what a record relies on from then on.

Whatever the program gets hold of has a node before anything is done with it, and the least fact
that its later use cannot do without: of a plain value the value, of a tensor its metadata, of a
class or module which one it is, of anything else the type. An element counts as it was when the
region was entered, whatever has become of its container since.
"""

from __future__ import annotations

import collections
import contextvars
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.monitor.objects.containers import (
    SCALARS,
    elements,
    items_of,
    plain_key,
    transparent,
)
from magpy_like.monitor.objects.loop_written_places import Filled
from magpy_like.monitor.operator_graph.graph_values import GraphValues
from magpy_like.native import TensorCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ABSENT, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import (
    HEAP_TYPE,
    array_metadata,
    class_entries,
    has_values,
    is_identity,
    is_plain,
    memory_span,
    overrides_torch_function,
    tensor_version,
)
from magpy_like.split_points import EffectInsideOperator, Split, unknown_value_split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.symbolic.varying_lists import ListValue

GUARDED_BYTES = 1 << 16
"""The largest NumPy array whose contents are compared at every call."""


Came = tuple[types.TracebackType | None, BaseException | None, BaseException | None, bool]


def came(exception: BaseException) -> Came:
    """Where an exception came from: frames, cause, context, and whether the last one counts."""
    error = exception
    return error.__traceback__, error.__cause__, error.__context__, error.__suppress_context__


class OutsideReads(GraphValues):
    """Variables from outside as the program finds them, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.just_read: set[int] = set()
        """The ids of numbers that nothing has relied on but the read that is going on: it may turn
        out that they are lifted."""
        self.layouts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Sizes and strides of the tensors from outside, when they were met."""
        self.tensor_classes: dict[type, dict[str, Any]] = {}
        """What the classes of tensors held before the program ran: operators are their methods."""
        self.exceptions: dict[int, tuple[BaseException, Came]] = {}
        """The exceptions from outside, with where they came from when they were met."""
        self.dictionaries: dict[int, ShadowNode] = {}
        """The instances whose dictionaries the program has got at, by the nodes of these."""
        self.drawn: list[ShadowNode] = []
        """Arrays and generators that the mock makes before anything else."""
        self.cached: list[Any] = []
        """Tensors that a cache keeps, held until the record holds them."""
        self.replays: list[tuple[ShadowNode, Callable[..., Any], tuple[Any, ...]]] = []
        """Changes of outside containers that depend on nothing in them, in program order."""
        self.list_values: dict[int, ListValue] = {}
        """By node, the lists that the record holds for whatever they hold."""
        self.filled = Filled()
        """Where other values are than the program's, as a round of a loop runs beside it."""
        for cls in (torch.Tensor, torch.nn.Parameter):
            self.know_tensor_class(cls)

    def record_read(self, source: ShadowNode, relation: Relation, value: Any) -> ShadowNode:
        """The program got ``value`` by following ``relation`` from ``source``.

        Raises:
            Split: it is a tensor whose class must not be asked anything out of turn.
        """
        if self.filled.covers(source, relation):
            return source
        if source.replays:
            self.specialize_iterator_reads(source)
        if source.node_id in self.dictionaries:
            self._check_dictionary(source, relation)
        if source.contents is not None and source.rewritten:
            self.open(source)
            return source
        if overrides_torch_function(value):
            raise Split(
                SplitReason.TENSOR_SUBCLASS,
                f"reads a {type(value).__qualname__}, which has a __torch_function__",
            )
        if type(value) is types.TracebackType and relation.kind is RelationKind.SLOT:
            raise Split(SplitReason.EXCEPTION_STATE, "reads the traceback of an exception")
        plain = is_plain(value)
        node = self.refs.read(source, relation, value, plain=plain)
        if node.existed:
            self._paths.setdefault(node.node_id, (*self.path(source), relation))
            self._expect(node, value, plain)
        if self.inside:
            self.look_from_inside(source, relation)
            if is_instance(value, torch.Tensor):
                self.keep_as_is("uses a tensor from outside that is none of its arguments")
        return node

    def look_from_inside(self, node: ShadowNode, relation: Relation | None = None) -> None:
        """Where an operator is running, its own Python code looks at what a variable holds, or
        follows a relation, and will again whenever the graph runs: before all changes that the
        program makes outside.

        Raises:
            EffectInsideOperator: the program has changed that.
        """
        written = node.written if relation is None else relation in node.written
        if self.inside and (written or node.rewritten or node.replays):
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR,
                "reads an object inside an operator that the program has changed",
            )

    def absent(self, source: ShadowNode, relation: Relation) -> None:
        self.look_from_inside(source, relation)
        if source.replays:
            self.specialize_iterator_reads(source)
        if source.node_id in self.dictionaries:
            self._check_dictionary(source, relation)
        if not (source.contents is not None and source.rewritten):
            self.refs.read_absent(source, relation)

    def keep(self, value: Any) -> None:
        """A cached result: the same object at every call from now on."""
        node = self.constant(value)
        if is_instance(value, torch.Tensor):
            self._expect(node, value, False)
            self.cached.append(value)

    def record_drawn(self, value: Any) -> None:
        """``value`` is there before the operator graph runs, but another one at every call."""
        self.drawn.append(self.refs.add(value, existed=True))

    def read_context(self, variable: contextvars.ContextVar[Any]) -> None:
        """The program looked at a context variable."""
        node, relation = self.constant(variable), Relation(RelationKind.CONTEXT)
        try:
            self.record_read(node, relation, variable.get())
        except LookupError:
            self.absent(node, relation)

    def read_dictionary(self, owner: ShadowNode, attributes: dict[str, Any]) -> ShadowNode:
        """The program has got at the dictionary that keeps an instance's attributes."""
        node = self.record_read(owner, Relation(RelationKind.DICT), attributes)
        self.dictionaries[node.node_id] = owner
        return node

    def _check_dictionary(self, node: ShadowNode, relation: Relation | None = None) -> None:
        """Raises Split: what a dictionary holds there was set as an attribute of its owner."""
        written = self.dictionaries[node.node_id].written
        if relation is None:
            found = any(other.kind is RelationKind.ATTRIBUTE for other in written)
        else:
            found = Relation(RelationKind.ATTRIBUTE, relation.key) in written
        if found:
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                "reads an attribute that it has set through the dictionary of the instance",
            )

    def _expect(self, node: ShadowNode, value: Any, plain: bool) -> None:
        if plain:
            if Fact.VALUE in node.facts:
                self.just_read.discard(node.node_id)
            else:
                node.facts.add(Fact.VALUE)
                self.just_read.add(node.node_id)
        elif is_instance(value, torch.Tensor):
            if Fact.METADATA not in node.facts:
                node.facts.add(Fact.METADATA)
                node.first.value = self._dynamic(node, value) or TensorCheck(value)
                if value.layout is torch.strided and has_values(value):
                    self.layouts[node.node_id] = tuple(value.shape), tuple(value.stride())
                self.tensor_versions[node.node_id] = tensor_version(value)
                if type(value) not in self.tensor_classes:
                    self.know_tensor_class(type(value))
        elif is_identity(value):
            node.facts.add(Fact.IDENTITY)
        else:
            node.facts.add(Fact.TYPE)
            if is_instance(value, np.ndarray):
                if Fact.METADATA not in node.facts:
                    node.facts.add(Fact.METADATA)
                    node.first.value = array_metadata(value)
            elif is_instance(value, SCALARS):
                node.facts.add(Fact.VALUE)
            elif is_instance(value, slice):
                self.open(node)  # native code takes its parts without asking
            elif is_instance(value, types.MethodType):
                self.take_apart(node)  # Python 3.11 does, before the call that the monitor sees
            elif is_instance(value, BaseException):
                self.exceptions.setdefault(node.node_id, (value, came(value)))

    def know_tensor_class(self, cls: type) -> None:
        """All that a class of tensors holds in Python is relied on."""
        for base in cls.__mro__:
            if base.__flags__ & HEAP_TYPE and base not in self.tensor_classes:
                entries = dict(class_entries(base))
                entries.pop("__slotnames__", None)
                self.tensor_classes[base] = entries

    def take_apart(self, node: ShadowNode) -> None:
        """A bound method from outside leads to its function and receiver."""
        for name in ("__func__", "__self__"):
            self.record_read(node, Relation(RelationKind.SLOT, name), getattr(node.variable, name))

    def note_raised(self, exception: BaseException, traceback: types.TracebackType | None) -> None:
        """An exception from outside was raised: Python 3.11 tells it later through which frames."""
        node = self.node(exception)
        if node is not None:
            self.exceptions[node.node_id] = exception, (traceback, *came(exception)[1:])

    def open(self, node: ShadowNode) -> None:
        """Everything that a container held directly is now relied on.

        Raises:
            Split: the variable has contents that a guard cannot check.
        """
        self.filled.check(node)
        self.look_from_inside(node)
        if node.replays:
            self.specialize_iterator_reads(node)
        if node.node_id in self.dictionaries:
            self._check_dictionary(node)
        value = node.variable
        before = value if node.contents is None else node.contents
        if is_instance(value, dict):
            entries = [(self.key(plain_key(key)), item) for key, item in items_of(before)]
            node.facts.add(Fact.KEYS)
            for key, item in entries:
                self._keep(node, Relation(RelationKind.KEY, key), item)
        elif is_instance(value, list | tuple | collections.deque):
            node.facts.add(Fact.LENGTH)
            for i, item in enumerate(elements(before)):
                self._keep(node, Relation(RelationKind.ITEM, i), item)
        elif is_instance(value, set | frozenset):
            members = elements(before)
            for item in members:
                plain_key(item)
            node.facts.add(Fact.VALUE)
            if node.contents is None:
                node.contents = tuple(members)
        elif is_instance(value, np.ndarray):
            self._open_array(node, value)
        elif is_instance(value, slice):
            for part in ("start", "stop", "step"):
                self._keep(node, Relation(RelationKind.SLOT, part), getattr(value, part))
        elif not transparent(value):
            raise unknown_value_split(
                value,
                SplitReason.CUSTOM_CLASS_STATE,
                f"reads an external {type(value).__qualname__}, whose value native code stores",
            )

    def _open_array(self, node: ShadowNode, array: np.ndarray[Any, Any]) -> None:
        if node in self.drawn:
            raise Split(SplitReason.RANDOM_VALUE_DECIDES, "reads a random NumPy array in Python")
        if array.nbytes > GUARDED_BYTES or array.dtype.hasobject:
            raise Split(
                SplitReason.NUMPY_ARRAY, f"reads an external NumPy array of {array.nbytes} bytes"
            )
        node.facts.add(Fact.VALUE)
        if node.contents is None:
            self._look_whether_written(array)
            node.contents = array.copy()

    def _look_whether_written(self, array: np.ndarray[Any, Any]) -> None:
        """
        Raises:
            Split: the program has changed the array already, by a tensor with the same memory: a
                guard would compare what it holds at entry with what it holds now.
        """
        for node in self.refs:
            tensor = node.variable
            if is_instance(tensor, torch.Tensor) and node.existed and self.is_written(node):
                start, size = memory_span(tensor)
                if start <= array.ctypes.data < start + size:
                    raise Split(
                        SplitReason.NUMPY_MEMORY,
                        "reads a NumPy array that was changed through a tensor",
                    )

    def _keep(self, node: ShadowNode, relation: Relation, item: Any) -> None:
        """An element of the first version, whatever has become of the container since."""
        if relation in node.first.refs:
            child_id = node.first.refs[relation]
            if child_id == ABSENT:
                return
            child = self.refs.get_node_by_id(child_id)
            if child.plain and not self.lifted.external.is_entry_value(item, child):
                # A number that is lifted elsewhere was looked at here.
                child.facts.add(Fact.VALUE)
                self.just_read.discard(child_id)
            return
        plain = is_plain(item)
        known = None if plain else self.refs.get_node_by_var(item)
        child = known or self.refs.add(item, existed=True, plain=plain)
        self._paths.setdefault(child.node_id, (*self.path(node), relation))
        for version in node.versions if relation not in node.written else node.versions[:1]:
            version.refs.setdefault(relation, child.node_id)
        if child.existed:
            self._expect(child, item, plain)

    def specialize_iterator_reads(self, node: ShadowNode) -> None:
        """A container that was only added to is looked at: its first contents count after all."""
        for changed, operation, args in self.replays:
            if changed is node and operation in (list.__setitem__, list.pop):
                self.lifted.specialize(args[:1])  # its elements are told by where they are
        self.list_values.pop(node.node_id, None)
        self.replays = [entry for entry in self.replays if entry[0] is not node]
        node.replays = []
        node.rewritten = True
        self.open(node)
