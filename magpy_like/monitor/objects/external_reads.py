"""Reads of external variables: the facts that a record relies on.

A variable has a node before the program uses it, with the weakest fact that every use needs: the
value of a plain value, the metadata of a tensor, the identity of a class or module, the type of
anything else. The facts of an element describe its state at entry, even if the program has changed
its container since.
"""

from __future__ import annotations

import collections
import contextvars
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.config import config
from magpy_like.monitor.objects.containers import (
    SCALARS,
    arguments_of,
    elements,
    exposes_only_identity,
    holds_only_arguments,
    items_of,
    plain_key,
)
from magpy_like.monitor.objects.loop_written_locations import SubstitutedLocations
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.running_operator import RunningOperator
from magpy_like.monitor.operator_graph.tensor_sizes import TensorSizes
from magpy_like.monitor.operator_graph.tensor_writes import TensorWrites
from magpy_like.monitor.replayed_effects import Effects
from magpy_like.monitor.symbolic.expressions import is_number_or_flag
from magpy_like.native import TensorCheck, instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import (
    ABSENT,
    Fact,
    RefGraph,
    Relation,
    ShadowNode,
    is_of_contents,
)
from magpy_like.refgraph.plain_values import (
    HEAP_TYPE,
    MonitorWeakRef,
    array_metadata,
    class_entries,
    has_values,
    is_identity,
    is_plain,
    memory_span,
    overrides_torch_function,
)
from magpy_like.split_points import EffectInsideOperator, Split, unknown_value_split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.symbolic.lists.varying_lists import ListValue
    from magpy_like.monitor.symbolic.numbers.lifted_numbers import LiftedNumbers


ExceptionOrigin = tuple[
    types.TracebackType | None, BaseException | None, BaseException | None, bool
]


def exception_origin(exception: BaseException) -> ExceptionOrigin:
    """Traceback, cause and context of an exception, and whether the context is suppressed."""
    error = exception
    return error.__traceback__, error.__cause__, error.__context__, error.__suppress_context__


class ExternalReads:
    """External variables, in the order in which the program reads them."""

    def __init__(
        self,
        refs: RefGraph,
        variables: Variables,
        running: RunningOperator,
        writes: TensorWrites,
        sizes: TensorSizes,
        effects: Effects,
        lifted: LiftedNumbers,
    ) -> None:
        self._refs, self._variables, self._running = refs, variables, running
        self._writes, self._sizes, self._effects, self._lifted = writes, sizes, effects, lifted
        self.just_read: set[int] = set()
        """Nodes of numbers on which only the present read relies: they may still be lifted."""
        self.layouts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Sizes and strides of external tensors at their first read, by node."""
        self.tensor_kinds: dict[int, tuple[Any, ...]] = {}
        """What else a guard checks of these tensors, by node."""
        self.tensor_classes: dict[type, dict[str, Any]] = {}
        """Attributes of tensor classes before the program ran: operators are their methods."""
        self.exceptions: dict[int, tuple[BaseException, ExceptionOrigin]] = {}
        """External exceptions with their origin at the first read, by node."""
        self.dictionaries: dict[int, ShadowNode] = {}
        """Instances whose dictionaries the program has read, by the nodes of the dictionaries."""
        self.new_dictionaries: dict[int, MonitorWeakRef] = {}
        """By id, dictionaries that the program has read of instances that it has created; each with
        its instance."""
        self.drawn: list[ShadowNode] = []
        """Random arrays and generators, which the mock creates first."""
        self.globals_read: set[tuple[int, str]] = set()
        """Global variables that have been read: id of the dictionary, and name."""
        self.cached: list[Any] = []
        """Tensors from caches, kept alive until the record is synthesised."""
        self.list_values: dict[int, ListValue] = {}
        """Lifted lists, by node: the record holds for any contents."""
        self.substituted = SubstitutedLocations()
        """Locations that hold placeholders while an iteration runs in isolation."""
        for cls in (torch.Tensor, torch.nn.Parameter):
            self.know_tensor_class(cls)

    def record(self, source: ShadowNode, relation: Relation, value: Any) -> ShadowNode:
        """Record that ``relation`` leads from ``source`` to ``value``.

        Returns:
            The node of ``value``.

        Raises:
            Split: the value is a tensor with a ``__torch_function__``, or a traceback.
        """
        if self.substituted.covers(source, relation):
            return source
        if source.replays and is_of_contents(relation):
            self.specialize_iterator_reads(source)
        if source.node_id in self.dictionaries:
            self.check_dictionary(source, relation)
        check_global_name(source, relation)
        if source.contents is not None and source.rewrites(relation):
            self.record_contents(source)
            return source
        if overrides_torch_function(value):
            raise Split(
                SplitReason.TENSOR_SUBCLASS,
                f"reads a {type(value).__qualname__}, which has a __torch_function__",
            )
        if type(value) is types.TracebackType and relation.kind is RelationKind.SLOT:
            raise Split(SplitReason.EXCEPTION_STATE, "reads the traceback of an exception")
        plain = is_plain(value)
        node = self._refs.read(source, relation, value, plain=plain)
        if node.existed:
            self._variables.add_path(node, source, relation)
            self._expect(node, value, plain)
        if self._running.depth:
            self.check_unchanged_inside(source, relation)
            if is_instance(value, torch.Tensor):
                self._running.keep_as_is("uses an external tensor that is not an argument of it")
        return node

    def check_unchanged_inside(self, node: ShadowNode, relation: Relation | None = None) -> None:
        """Check a read by the Python code of a running operator.

        The code reads again whenever the graph runs, which is before all external effects of the
        program.

        Raises:
            EffectInsideOperator: the program has changed the contents of the variable, or the
                location that ``relation`` names.
        """
        written = node.written if relation is None else relation in node.written
        if self._running.depth and (written or node.rewritten or node.replays):
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR,
                "reads an object inside an operator that the program has changed",
            )

    def record_absent(self, source: ShadowNode, relation: Relation) -> None:
        """Record that the location ``relation`` of ``source`` has no value."""
        self.check_unchanged_inside(source, relation)
        if source.replays and is_of_contents(relation):
            self.specialize_iterator_reads(source)
        if source.node_id in self.dictionaries:
            self.check_dictionary(source, relation)
        check_global_name(source, relation)
        if not (source.contents is not None and source.rewrites(relation)):
            self._refs.read_absent(source, relation)

    def record_cached(self, value: Any) -> None:
        """Record a cached result: the same object at every call from now on.

        A variable with an access path of its own may be another object then.
        """
        node = self._variables.node(value)
        if node is not None:
            node.facts.add(Fact.IDENTITY)
            return
        node = self._variables.constant(value)
        if is_instance(value, torch.Tensor):
            self._expect(node, value, False)
            self.cached.append(value)

    def record_global(self, names: dict[str, Any], name: str, builtins: dict[str, Any]) -> None:
        """Record a read of a name of a module, or else of the built-ins."""
        entry = (id(names), name)
        is_recorded = entry in self.globals_read and not self._running.depth
        if is_recorded and not is_number_or_flag(names.get(name)):
            return
        self.globals_read.add(entry)
        node, relation = self._variables.constant(names), Relation(RelationKind.GLOBAL, name)
        if name in names:
            self.record(node, relation, names[name])
        elif relation not in node.written:
            self.record_absent(node, relation)
            if name in builtins:
                self.record(self._variables.constant(builtins), relation, builtins[name])

    def record_function(self, function: types.FunctionType) -> None:
        """Record the cells and default values of a function whose code runs."""
        node = self._variables.node(function) or self._variables.constant(function)
        for i, cell in enumerate(function.__closure__ or ()):
            self.record(node, Relation(RelationKind.CLOSURE, i), cell)
        for i, value in enumerate(function.__defaults__ or ()):
            self.record(node, Relation(RelationKind.DEFAULT, i), value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.record(node, Relation(RelationKind.DEFAULT, name), value)

    def record_drawn(self, value: Any) -> None:
        """Record a random object, which the mock creates before the operator graph runs."""
        self.drawn.append(self._refs.add(value, existed=True))

    def record_context_variable(self, variable: contextvars.ContextVar[Any]) -> None:
        """Record a read of a context variable."""
        node, relation = self._variables.constant(variable), Relation(RelationKind.CONTEXT)
        try:
            self.record(node, relation, variable.get())
        except LookupError:
            self.record_absent(node, relation)

    def record_dictionary(self, owner: ShadowNode, attributes: dict[str, Any]) -> ShadowNode:
        """Record a read of the dictionary that holds an instance's attributes; return its node."""
        node = self.record(owner, Relation(RelationKind.DICT), attributes)
        self.dictionaries[node.node_id] = owner
        return node

    def note_new_dictionary(self, owner: Any, attributes: dict[str, Any]) -> None:
        """Note a read of the dictionary of an instance that the program has created."""
        if type(owner).__weakrefoffset__:
            self.new_dictionaries[id(attributes)] = MonitorWeakRef(owner)

    def owner_of(self, attributes: dict[str, Any]) -> Any:
        """The instance that the program has created with this dictionary; None if none is noted."""
        reference = self.new_dictionaries.get(id(attributes))
        owner = None if reference is None else reference()
        return owner if owner is not None and instance_dict(owner) is attributes else None

    def check_dictionary(self, node: ShadowNode, relation: Relation | None = None) -> None:
        """Check a read of one entry of an instance's dictionary, or of all if ``relation`` is None.

        Raises:
            Split: the program has set the entry as an attribute of the instance.
        """
        written = self.dictionaries[node.node_id].written
        if relation is None:
            is_written = any(other.kind is RelationKind.ATTRIBUTE for other in written)
        else:
            is_written = Relation(RelationKind.ATTRIBUTE, relation.key) in written
        if is_written:
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                "reads an attribute that it has set through the dictionary of the instance",
            )

    def check_extent(self, node: ShadowNode) -> None:
        """Check a read of the length or the keys of a container.

        Raises:
            Split: it is the dictionary of an instance whose attributes the program has set.
            EffectInsideOperator: see :meth:`check_unchanged_inside`.
        """
        self.check_unchanged_inside(node)
        if node.node_id in self.dictionaries:
            self.check_dictionary(node)

    def _expect(self, node: ShadowNode, value: Any, plain: bool) -> None:
        if plain:
            if Fact.VALUE in node.facts:
                self.just_read.discard(node.node_id)
            else:
                node.facts.add(Fact.VALUE)
                self.just_read.add(node.node_id)
        elif is_instance(value, torch.Tensor):
            if Fact.METADATA not in node.facts:
                if value.is_nested:
                    cause = "reads a nested tensor, whose sizes a guard cannot check"
                    raise Split(SplitReason.NESTED_TENSOR, cause)
                node.facts.add(Fact.METADATA)
                node.first.value = self._sizes.check(node, value) or TensorCheck(value)
                if value.layout is torch.strided and has_values(value):
                    self.layouts[node.node_id] = tuple(value.shape), tuple(value.stride())
                    self.tensor_kinds[node.node_id] = _kind_of_tensor(value)
                self._writes.note_read(node)
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
                self.record_contents(node)  # native code reads its parts directly
            elif is_instance(value, types.MethodType):
                # Python 3.11 unpacks it before the call that the monitor sees.
                self.record_bound_method(node)
            elif is_instance(value, BaseException):
                self.exceptions.setdefault(node.node_id, (value, exception_origin(value)))

    def has_layout_of_entry(self, node: ShadowNode) -> bool:
        """True unless an external tensor has other sizes or strides than at its first read."""
        layout, tensor = self.layouts.get(node.node_id), node.variable
        if layout is None or not is_instance(tensor, torch.Tensor):
            return True
        return layout == (tuple(tensor.shape), tuple(tensor.stride()))

    def know_tensor_class(self, cls: type) -> None:
        """Guard all attributes that a tensor class and its bases define in Python."""
        for base in cls.__mro__:
            if base.__flags__ & HEAP_TYPE and base not in self.tensor_classes:
                entries = dict(class_entries(base))
                entries.pop("__slotnames__", None)
                self.tensor_classes[base] = entries

    def record_bound_method(self, node: ShadowNode) -> None:
        """Record the function and the receiver of an external bound method."""
        for name in ("__func__", "__self__"):
            self.record(node, Relation(RelationKind.SLOT, name), getattr(node.variable, name))

    def note_raised(self, exception: BaseException, traceback: types.TracebackType | None) -> None:
        """Note that an external exception was raised: Python 3.11 sets its traceback later."""
        node = self._variables.node(exception)
        if node is not None:
            self.exceptions[node.node_id] = exception, (traceback, *exception_origin(exception)[1:])

    def record_contents(self, node: ShadowNode) -> None:
        """Record a read of all direct contents of a container, in their state at entry.

        Raises:
            Split: the variable has contents that a guard cannot check.
        """
        self.substituted.check(node)
        self.check_unchanged_inside(node)
        if node.replays:
            self.specialize_iterator_reads(node)
        if node.node_id in self.dictionaries:
            self.check_dictionary(node)
        check_global_name(node)
        value = node.variable
        before = value if node.contents is None else node.contents
        if is_instance(value, dict):
            entries = [
                (self._variables.key(plain_key(key)), item) for key, item in items_of(before)
            ]
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
            self._record_array(node, value)
        elif is_instance(value, slice):
            for part in ("start", "stop", "step"):
                self._keep(node, Relation(RelationKind.SLOT, part), getattr(value, part))
        elif is_instance(value, BaseException) and holds_only_arguments(value):
            self.record(node, Relation(RelationKind.SLOT, "args"), arguments_of(value))
        elif is_instance(value, BaseException) or not exposes_only_identity(value):
            raise unknown_value_split(
                value,
                SplitReason.CUSTOM_CLASS_STATE,
                f"reads an external {type(value).__qualname__}, whose value native code stores",
            )

    def _record_array(self, node: ShadowNode, array: np.ndarray[Any, Any]) -> None:
        if node in self.drawn:
            raise Split(SplitReason.RANDOM_VALUE_DECIDES, "reads a random NumPy array in Python")
        if array.nbytes > config.max_guarded_array_bytes or array.dtype.hasobject:
            raise Split(
                SplitReason.NUMPY_ARRAY, f"reads an external NumPy array of {array.nbytes} bytes"
            )
        node.facts.add(Fact.VALUE)
        if node.contents is None:
            self._check_unwritten(array)
            node.contents = array.copy()

    def _check_unwritten(self, array: np.ndarray[Any, Any]) -> None:
        """Check that an array holds its values at entry, which a guard compares.

        Raises:
            Split: the program has changed the array through a tensor with the same memory.
        """
        for node in self._refs:
            tensor = node.variable
            if is_instance(tensor, torch.Tensor) and node.existed and self._writes.is_written(node):
                start, size = memory_span(tensor)
                if start <= array.ctypes.data < start + size:
                    raise Split(
                        SplitReason.NUMPY_MEMORY,
                        "reads a NumPy array that was changed through a tensor",
                    )

    def _keep(self, node: ShadowNode, relation: Relation, item: Any) -> None:
        """Record an element of a container's first version."""
        if relation in node.first.refs:
            child_id = node.first.refs[relation]
            if child_id == ABSENT:
                return
            child = self._refs.get_node_by_id(child_id)
            if child.plain and not self._lifted.external.is_entry_value(item, child):
                # The number is lifted elsewhere, and its value is read here.
                child.facts.add(Fact.VALUE)
                self.just_read.discard(child_id)
            return
        plain = is_plain(item)
        known = None if plain else self._refs.get_node_by_var(item)
        child = known or self._refs.add(item, existed=True, plain=plain)
        self._variables.add_path(child, node, relation)
        for version in node.versions if relation not in node.written else node.versions[:1]:
            version.refs.setdefault(relation, child.node_id)
        if child.existed:
            self._expect(child, item, plain)

    def specialize_iterator_reads(self, node: ShadowNode) -> None:
        """Guard the contents at entry of a container; its changes can no longer be replayed."""
        for changed, operation, args in self._effects.replays:
            if changed is node and operation in (list.__setitem__, list.pop):
                self._lifted.specialize(args[:1])  # relations name its elements by their positions
        self.list_values.pop(node.node_id, None)
        self._effects.replays = [entry for entry in self._effects.replays if entry[0] is not node]
        node.replays = []
        node.rewritten = True
        self.record_contents(node)


_OTHER_KIND = {
    RelationKind.GLOBAL: RelationKind.KEY,
    RelationKind.MEMBERSHIP: RelationKind.GLOBAL,
    RelationKind.KEY: RelationKind.GLOBAL,
}
"""The kind of relation by which the same entry of a namespace may have been written."""


def check_global_name(node: ShadowNode, relation: Relation | None = None) -> None:
    """Check an access to one entry of a namespace, or to all entries if ``relation`` is None.

    The globals of a function are a dictionary that a program may also hold as an object: an entry
    then is a global name and a key, which are two locations.

    Raises:
        Split: the program has written the entry under the other kind.
    """
    if not node.written:
        return
    if relation is None:
        is_written = any(other.kind is RelationKind.GLOBAL for other in node.written)
    else:
        kind = _OTHER_KIND.get(relation.kind)
        is_written = kind is not None and Relation(kind, relation.key) in node.written
    if is_written:
        raise Split(
            SplitReason.INTERPRETER_STATE,
            "accesses a global variable that it has written, by its name or through the dictionary",
        )


def _kind_of_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a guard checks of a tensor besides its layout."""
    modes = tensor.is_inference(), tensor.is_conj(), tensor.is_neg()
    return type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, *modes
