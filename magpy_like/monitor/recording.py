"""What one monitor run has learnt: the RefGraph, the operator graph, and how it ended.

The primitives here are the vocabulary in which the rules for instructions and calls are written:
meet a variable, look into it, change it.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx

from magpy_like.annotation.schema import DataShape, RelationKind, ValueRead
from magpy_like.monitor.constants import ConstantTensors
from magpy_like.monitor.containers import (
    CONTAINERS,
    SCALARS,
    any_hashes_in_python,
    copy_of,
    elements,
    is_told_by_identity,
    items_of,
    plain_key,
    transparent,
)
from magpy_like.monitor.devices import default_device, with_device
from magpy_like.monitor.endings import contents, dropped, held_by, is_heard_of, is_noticed
from magpy_like.monitor.expressions import Expression
from magpy_like.monitor.modes import Modes
from magpy_like.monitor.operator_graph import AS_IS, OperatorGraph, UnknownTensor, replace_data
from magpy_like.monitor.split import Effect, Split, SplitPoint, unknown
from magpy_like.monitor.tensor_counters import TensorCounters
from magpy_like.monitor.twin import TWIN, Twin
from magpy_like.monitor.variation import Path
from magpy_like.native import NULL, TensorCheck, lookup_in_type
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph import ABSENT, EXTERNAL, ByIdentity, Fact, RefGraph, Relation, ShadowNode
from magpy_like.refgraph.values import (
    HEAP_TYPE,
    OwnReference,
    Steady,
    answers_for_itself,
    array_layout,
    behind_proxy,
    generator_states,
    has_values,
    is_identity,
    is_plain,
    is_single,
    memory_span,
    own_entries,
    storage_of,
    tensor_version,
)

GUARDED_BYTES = 1 << 16
"""The largest NumPy array whose contents are compared at every call."""


class Hook(NamedTuple):
    """Something that is done in a backward pass, as the mock has it done again."""

    owner: Any
    """A tensor, or a node of the autograd graph."""
    method: str
    """The name of the owner's method that registers it."""
    args: tuple[Any, ...]
    version: int | None
    """The owner's version at that time, if it is a tensor."""
    handle: Any = None
    """What the method has given."""


Came = tuple[types.TracebackType | None, BaseException | None, BaseException | None, bool]


def came(exception: BaseException) -> Came:
    """Where an exception came from: frames, cause, context, and whether the last one counts."""
    error = exception
    return error.__traceback__, error.__cause__, error.__context__, error.__suppress_context__


def _none_dynamic(path: Path, tensor: torch.Tensor) -> Collection[int]:
    return ()


class Recording:
    """The record in the making."""

    def __init__(self) -> None:
        self.refs = RefGraph()
        self.operators = OperatorGraph()
        self.twin: Twin | None = None
        """The run on symbolic sizes beside this one, while there are dynamic dimensions."""
        self.dynamic_dims: Callable[[Path, torch.Tensor], Collection[int]] = _none_dynamic
        """Which dimensions of a tensor at a place outside may vary."""
        self.varying_lengths: Collection[Path] = ()
        """Where lists are whose length has varied."""
        self._paths: dict[int, Path] = {}
        self._roots: dict[Relation, Any] = {}
        self.layouts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Sizes and strides of the tensors from outside, when they were met."""
        self.just_read: set[int] = set()
        """The ids of numbers that nothing has relied on but the read that is going on: it may turn
        out that they are lifted."""
        self.split: SplitPoint | None = None
        self.constants = ConstantTensors()
        self.counters = TensorCounters()
        self.lifted: Any = None
        """The lifted numbers of the run, once it has begun."""
        self.inside = 0
        """How many operators are running: what runs inside one is not on the graph itself."""
        self.given: set[int] = set()
        """The ids of the tensors that the running operator was given."""
        self.dynamic_inside = False
        """Whether the running operator does something that is dynamic, so that running it a second
        time would be more than to compute."""
        self.running_as_is: str | None = None
        """Why the running operator is not for a backend: it does more than to compute."""
        self.operators_as_is: list[str] = []
        """The same of each such operator on the graph."""
        self.runs_as_is: str | None = None
        """Why no part of the operator graph must be compiled."""
        self.stays_whole: str | None = None
        """Why the operator graph must not be compiled in parts."""
        self.cached: list[Any] = []
        """Tensors that a cache keeps, held until the record holds them."""
        self._asks_members: dict[int, bool] = {}
        self.advanced: dict[int, int] = {}
        """How many elements the program has taken out of iterators from outside, by node."""
        self.distinct: set[tuple[int, int]] = set()
        """Pairs of nodes that the program found to be different objects."""
        self.compared: dict[int, None] = {}
        """Objects that native code has compared with others, as it does by identity."""
        self.dictionaries: dict[int, ShadowNode] = {}
        """The instances whose dictionaries the program has got at, by the nodes of these."""
        self.classes: dict[int, type] = {}
        """The classes whose own attributes the program has looked at one by one, by the nodes of
        the dictionaries that these are in."""
        self.set_on_classes: set[str] = set()
        """The names that the program has set on classes."""
        self.specials: dict[type, dict[types.FunctionType, list[str]]] = {}
        """The special names of the functions of classes: see `monitor.specials`."""
        self.read_from: set[type] = set()
        """The classes of which it is known how attributes of their instances are read."""
        self.looked_through: set[type] = set()
        """The classes of which all special methods that native code may look for are known."""
        self.replays: list[tuple[ShadowNode, Callable[..., Any], tuple[Any, ...]]] = []
        """Changes of outside containers that depend on nothing in them, in program order."""
        self.quiet_locks: list[Any] = []
        """Locks that the program has taken and nobody else can wait for: see `monitor.locks`."""
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        """Calls that the mock repeats, such as those of a logger."""
        self.hooks: list[Hook] = []
        """What is to be done in a backward pass."""
        self.autograd_nodes: dict[int, tuple[Any, fx.Node]] = {}
        """By id, those that the program has got at, with the nodes of the graph that give them."""
        self.looks_behind = False
        """Whether the program looks at the place in the autograd graph of what was there before."""
        self.state_reads: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        """Calls that look at process-wide state, with what they gave."""
        self.cached_calls: list[
            tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]
        ] = []
        """Calls of functions with a cache, with what they gave."""
        self.data_replaced: dict[int, None] = {}
        """The tensors from outside that were given other data."""
        self.written_memory: dict[int, fx.Node | None] = {}
        """The memory of tensors that operators have written to, through whatever tensor, and what
        the graph ended with before the first time."""
        self.tensor_versions: dict[int, int] = {}
        """torch's own version counters of the tensors from outside, when they were met."""
        self.exceptions: dict[int, tuple[BaseException, Came]] = {}
        """The exceptions from outside, with where they came from when they were met."""
        self.goes_on = False
        """Whether the program goes on behind the end of the record."""
        self.handled_outside: BaseException | None = None
        """The exception that the program's caller handles."""
        self.default_device = default_device()
        """The one under which the region was entered."""
        self.devices_left: tuple[int, list[torch.device]] | None = None
        """How many default devices the program has left, and which ones it has entered then."""
        self.modes_left: tuple[Modes, Modes] | None = None
        """Torch's modes that the program found, and those that it left, if they are others."""
        self.random_states = generator_states()
        """Of torch's generators, when the region was entered."""
        self.drawn: list[ShadowNode] = []
        """Arrays and generators that the mock makes before anything else."""
        self.kept: list[torch.Tensor] = []
        """The inputs of the operator graph: the backend needs them even if the program lets go."""
        self.loses = False
        """Whether the program has taken something, for which there are weak references, out of what
        is outside: it dies when the record is made, at the latest."""
        self.losing: set[int] = set()
        """The ids of what the instruction that splits the program takes out of what is outside."""
        self.unchanged: list[Steady] = []
        """Tensors that must keep their data, as one may be another."""
        self._born: dict[int, Callable[[], Any]] = {}
        self.tensor_classes: dict[type, dict[str, Any]] = {}
        """What the classes of tensors held before the program ran: operators are their methods."""
        for cls in (torch.Tensor, torch.nn.Parameter):
            self.know_tensor_class(cls)

    def release(self) -> None:
        """Let go of the program once a record is made; the parts refer to each other."""
        self.__init__()  # type: ignore[misc]

    def let_go(self) -> None:
        """Hold nothing but tensors and numbers that may vary: the record is made, and the program
        stands at the instruction behind it."""
        self.refs.let_go()
        self._born, self._roots, self.exceptions = {}, {}, {}
        self.calls, self.replays, self.state_reads, self.cached_calls = [], [], [], []
        self.hooks, self.autograd_nodes = [], {}

    def has_changed(self, since: int = 0) -> bool:
        """Whether one of the tensors that must keep their data was changed in place."""
        return any(steady.has_changed() for steady in self.unchanged[since:])

    def has_effects(self) -> bool:
        """Whether the program has changed anything that was there before, but for the states of
        torch's generators, which are in ``random_states``."""
        changes = (self.calls, self.hooks, self.replays, self.data_replaced, self.advanced)
        return (
            any(changes)
            or any(node.existed and node.changed for node in self.refs)
            or bool(self.changed_inputs())
            or bool(self.lifted.draws)
        )

    def changed_objects(self) -> list[Any]:
        """What was there before and the program has changed, but for tensors."""
        return [node.variable for node in self.refs if node.existed and node.changed]

    # --- meeting variables ---------------------------------------------------------------------

    def node(self, value: Any) -> ShadowNode | None:
        """The node of a variable that was there when the region was entered."""
        if self.operators.lists:
            self.operators.look_at(value)
        found = self.refs.get_node_by_var(value)
        return found if found is not None and found.existed else None

    def constant(self, value: Any) -> ShadowNode:
        """The node of an object that is what it is: a class, a module, a function's globals."""
        node = self.refs.get_node_by_var(value)
        if node is None:
            relation = Relation(RelationKind.CONSTANT, id(value))
            node = self.refs.read(self.refs.external, relation, value)
            self._paths[node.node_id] = (relation,)
            self._roots[relation] = value
            node.facts.add(Fact.IDENTITY)
        return node

    def keep(self, value: Any) -> None:
        """A cached result: the same object at every call from now on."""
        node = self.constant(value)
        if isinstance(value, torch.Tensor):
            self._expect(node, value, False)
            self.cached.append(value)

    def meet(self, source: ShadowNode, relation: Relation, value: Any) -> ShadowNode:
        """The program got ``value`` by following ``relation`` from ``source``.

        Raises:
            Split: it is a tensor whose class must not be asked anything out of turn.
        """
        if source.replays:
            self.settle(source)
        if source.node_id in self.dictionaries:
            self._check_dictionary(source, relation)
        if source.contents is not None and source.rewritten:
            self.open(source)
            return source
        if answers_for_itself(value):
            raise Split(f"meets a {type(value).__qualname__}, which has a __torch_function__")
        if type(value) is types.TracebackType and relation.kind is RelationKind.SLOT:
            raise Split("looks at the frames that an exception came through")
        plain = is_plain(value)
        node = self.refs.read(source, relation, value, plain=plain)
        if node.existed:
            self._paths.setdefault(node.node_id, (*self.path(source), relation))
            self._expect(node, value, plain)
        return node

    def meet_dictionary(self, owner: ShadowNode, attributes: dict[str, Any]) -> ShadowNode:
        """The program has got at the dictionary that keeps an instance's attributes."""
        node = self.meet(owner, Relation(RelationKind.DICT), attributes)
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
            raise Split("looks up in a dictionary what it has set as an attribute")

    def path(self, node: ShadowNode) -> Path:
        """The way on which the program first got to a variable."""
        return self._paths.get(node.node_id, ())

    def root(self, relation: Relation) -> Any:
        """The object that is the same at every call and that a way begins at, or None."""
        return self._roots.get(relation)

    def place(self, owner: ShadowNode, relation: Relation) -> Path:
        """A place outside, as far as it can be told from one run to the next: by the way from the
        arguments, or by the object that is there at every call."""
        path = self.path(owner)
        if owner.node_id == EXTERNAL or (path and path[0].kind is RelationKind.LOCAL):
            return (*path, relation)
        return (Relation(RelationKind.CONSTANT, id(owner.variable)), relation)

    def _expect(self, node: ShadowNode, value: Any, plain: bool) -> None:
        if plain:
            if Fact.VALUE in node.facts:
                self.just_read.discard(node.node_id)
            else:
                node.facts.add(Fact.VALUE)
                self.just_read.add(node.node_id)
        elif isinstance(value, torch.Tensor):
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
            if isinstance(value, np.ndarray):
                if Fact.METADATA not in node.facts:
                    node.facts.add(Fact.METADATA)
                    node.first.value = array_layout(value)
            elif isinstance(value, SCALARS):
                node.facts.add(Fact.VALUE)
            elif isinstance(value, slice):
                self.open(node)  # native code takes its parts without asking
            elif isinstance(value, types.MethodType):
                self.take_apart(node)  # Python 3.11 does, before the call that the monitor sees
            elif isinstance(value, BaseException):
                self.exceptions.setdefault(node.node_id, (value, came(value)))

    def note_raised(self, exception: BaseException, traceback: types.TracebackType | None) -> None:
        """An exception from outside was raised: Python 3.11 tells it later through which frames."""
        node = self.node(exception)
        if node is not None:
            self.exceptions[node.node_id] = exception, (traceback, *came(exception)[1:])

    def know_tensor_class(self, cls: type) -> None:
        """All that a class of tensors holds in Python is relied on."""
        for base in cls.__mro__:
            if base.__flags__ & HEAP_TYPE and base not in self.tensor_classes:
                entries = dict(own_entries(base))
                entries.pop("__slotnames__", None)
                self.tensor_classes[base] = entries

    def take_apart(self, node: ShadowNode) -> None:
        """A bound method from outside leads to its function and receiver."""
        for name in ("__func__", "__self__"):
            self.meet(node, Relation(RelationKind.SLOT, name), getattr(node.variable, name))

    def _dynamic(self, node: ShadowNode, tensor: torch.Tensor) -> TensorCheck | None:
        """The check of a tensor of which some dimensions may vary."""
        if self.twin is None or isinstance(tensor, torch.nn.Parameter):
            return None
        path = self.path(node)
        if not path or (len(path) > 1 and path[-2].key in ("_parameters", "_buffers")):
            return None
        return self.twin.tensor(node, tensor, self.dynamic_dims(path, tensor))

    def begin_twin(self, account: Callable[[], None], locate: Callable[[], str]) -> None:
        """Every operator is to run on symbolic sizes as well; ``account`` hears of it, ``locate``
        says where the program is."""
        self.twin = self.operators.twin = Twin(self.operators.size, account, locate)

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The symbolic twin of a tensor, where there is one."""
        if self.twin is None:
            return None
        node = self.node(tensor)
        if node is not None and node.node_id in self.twin.inputs:
            return self.twin.inputs[node.node_id]
        return self.operators.twin_of(tensor)

    def varying_dims(self, tensor: torch.Tensor) -> list[int]:
        """The dimensions of a tensor whose sizes are made of varying ones, or decided by data.

        Where nobody knows which, it is most likely the first one: operators that select elements
        put them there.
        """
        twin = self.twin_of(tensor)
        if twin is None or self.twin is None:
            if not self.operators.has_data_shape(tensor):
                return []
            with torch._C.DisableTorchFunctionSubclass():  # a class of it would hear of this
                return [0] if tensor.dim() else []
        return [dim for dim, size in enumerate(twin.shape) if self.twin.is_open(size)]

    def meet_context(self, variable: contextvars.ContextVar[Any]) -> None:
        """The program looked at a context variable."""
        node, relation = self.constant(variable), Relation(RelationKind.CONTEXT)
        try:
            self.meet(node, relation, variable.get())
        except LookupError:
            self.absent(node, relation)

    def key(self, key: Any) -> Any:
        """How a relation names a dictionary's key: by its value, or by which variable it is.

        Raises:
            Split: a guard could not look for it again.
        """
        if not is_told_by_identity(key):
            return plain_key(key)
        node, is_new = self.node(key), self.is_new(key)
        if node is None and not is_new:
            plain_key(key)
        with contextlib.suppress(TypeError):
            return ByIdentity(key, None if node is None else node.node_id, is_new=is_new)
        raise unknown(key, f"looks up a {type(key).__qualname__} as a key")

    def is_new(self, value: Any) -> bool:
        """Whether the program has made an object, or an operator a tensor."""
        if isinstance(value, torch.Tensor):
            return self.node(value) is None and self.operators.node_of(value) is not None
        return self.is_born(value)

    def absent(self, source: ShadowNode, relation: Relation) -> None:
        if source.replays:
            self.settle(source)
        if source.node_id in self.dictionaries:
            self._check_dictionary(source, relation)
        if not (source.contents is not None and source.rewritten):
            self.refs.read_absent(source, relation)

    def bear(self, value: Any) -> None:
        """``value`` was created inside the region."""
        if is_plain(value) or self.refs.get_node_by_var(value) is not None:
            return
        if isinstance(value, BaseException) or _is_native_iterator(value):
            return  # would keep alive what it goes through, or the frames that it came through
        try:
            self._born[id(value)] = OwnReference(value)
        except TypeError:
            if not isinstance(value, CONTAINERS) and not is_noticed(value):
                self._born[id(value)] = functools.partial(_identity, value)

    def is_born(self, value: Any) -> bool:
        held = self._born.get(id(value))
        return held is not None and held() is value

    def meet_drawn(self, value: Any) -> None:
        """``value`` is there before the operator graph runs, but another one at every call."""
        self.drawn.append(self.refs.add(value, existed=True))

    def has_drawn(self) -> bool:
        """Whether one of torch's generators was drawn from, or given a seed."""
        seeded = any(drawing.generator is torch.default_generator for drawing in self.lifted.draws)
        return seeded or not _same_states(self.random_states)

    # --- looking into variables ------------------------------------------------------------------

    def visit(self, value: Any, read: ValueRead) -> None:
        """An operation looked at ``value`` to the depth ``read``."""
        if read is ValueRead.NONE or is_plain(value) or isinstance(value, torch.Tensor):
            return
        if isinstance(value, types.MappingProxyType) and read is not ValueRead.TYPE:
            value = self.proxied(value)
        node = self.node(value)
        if node is None:
            if read in (ValueRead.ALL, ValueRead.PAIRS) and isinstance(value, CONTAINERS):
                deeper = read if read is ValueRead.ALL else ValueRead.ELEMENTS
                for item in elements(value):
                    if not is_plain(item):
                        self.visit(item, deeper)
            return
        if read is ValueRead.LENGTH:
            self.look_at_length(node)
        elif read is ValueRead.KEYS:
            self.look_at_keys(node)
        elif read in (ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL):
            self.open(node)
            if read is not ValueRead.ELEMENTS and isinstance(value, CONTAINERS):
                deeper = read if read is ValueRead.ALL else ValueRead.ELEMENTS
                for item in elements(value):
                    if not is_plain(item):
                        self.visit(item, deeper)

    def proxied(self, value: Any) -> Any:
        """The mapping that a mapping proxy shows, or any other value itself."""
        if not isinstance(value, types.MappingProxyType):
            return value
        mapping, node = behind_proxy(value), self.node(value)
        if node is not None:
            self.meet(node, Relation(RelationKind.MAPPING), mapping)
        return mapping

    def tell_apart(self, *values: Any) -> None:
        """Which objects these plain values are makes a difference: those from outside must be the
        very same again, wherever they were found, as there may be equal ones."""
        told = [value for value in values if not is_single(value)]
        if not told:
            return
        for node in self.refs:
            if node.plain and node.existed and any(node.variable is value for value in told):
                node.facts.update((Fact.VALUE, Fact.IDENTITY))
                self.just_read.discard(node.node_id)

    def compare(self, value: Any, seen: frozenset[int] = frozenset()) -> None:
        """Native code compares ``value``, or what it holds, with other objects or hashes it.

        By default objects are equal to themselves alone, so those that differ must differ again.
        """
        if is_plain(value) or is_identity(value) or id(value) in seen:
            return
        if isinstance(value, torch.Tensor) and any(s.tensor() is value for s in self.unchanged):
            raise Split("asks which tensor it is that a branch has handed on")
        node = self.node(value)
        if node is not None:
            self.compared[node.node_id] = None
        if isinstance(value, CONTAINERS):
            seen |= {id(value)}
            for item in elements(value):
                self.compare(item, seen)
            for key in dict.keys(value) if isinstance(value, dict) else ():
                self.compare(key, seen)

    def look_at_length(self, node: ShadowNode) -> None:
        if not self._has_first_length(node):
            self.open(node)
        elif isinstance(node.variable, CONTAINERS) or not isinstance(
            lookup_in_type(node.type, "__len__"), types.FunctionType
        ):  # others answer in Python
            node.facts.add(Fact.LENGTH)

    def _has_first_length(self, node: ShadowNode) -> bool:
        """Whether a container holds as many elements as it did: a list may have others by now."""
        replaced = isinstance(node.variable, list) and not (node.replays or node.rewritten)
        return node.contents is None or replaced

    def look_at_truth(self, value: Any) -> None:
        """The program asked whether a container holds anything."""
        node = self.node(value)
        if node is None:
            return
        if self._has_first_length(node):
            node.facts.add(Fact.TRUTH if elements(value) else Fact.LENGTH)
        else:
            self.open(node)

    def length_varies(self, value: Any) -> bool:
        """Whether a variable is a list from outside that has had other lengths at other calls."""
        if not self.varying_lengths or type(value) is not list:
            return False
        node = self.node(value)
        return node is not None and self.path(node) in self.varying_lengths

    def asks_members(self, node: ShadowNode) -> bool:
        """Whether a dictionary or set from outside runs code of what it holds to find anything."""
        known = self._asks_members.get(node.node_id)
        if known is None:
            known = self._asks_members[node.node_id] = any_hashes_in_python(node.variable)
        return known

    def key_in(self, node: ShadowNode, key: Any) -> Any:
        """How a relation names a key that the program looks up in a dictionary, or puts there.

        Raises:
            Split: a guard or mock would run code of the program's to find it, or could not.
        """
        if self.asks_members(node):
            raise Split("looks up a key among others that compare themselves in Python")
        return self.key(key)

    def look_at_keys(self, node: ShadowNode) -> None:
        if node.contents is not None or not isinstance(node.variable, dict):
            self.open(node)
        else:
            if self.asks_members(node):
                self.open(node)
            node.facts.add(Fact.KEYS)

    def open(self, node: ShadowNode) -> None:
        """Everything that a container held directly is now relied on.

        Raises:
            Split: the variable has contents that a guard cannot check.
        """
        if node.replays:
            self.settle(node)
        if node.node_id in self.dictionaries:
            self._check_dictionary(node)
        value = node.variable
        before = value if node.contents is None else node.contents
        if isinstance(value, dict):
            entries = [(self.key(plain_key(key)), item) for key, item in items_of(before)]
            node.facts.add(Fact.KEYS)
            for key, item in entries:
                self._keep(node, Relation(RelationKind.KEY, key), item)
        elif isinstance(value, list | tuple | collections.deque):
            node.facts.add(Fact.LENGTH)
            for i, item in enumerate(elements(before)):
                self._keep(node, Relation(RelationKind.ITEM, i), item)
        elif isinstance(value, set | frozenset):
            members = elements(before)
            for item in members:
                plain_key(item)
            node.facts.add(Fact.VALUE)
            if node.contents is None:
                node.contents = tuple(members)
        elif isinstance(value, np.ndarray):
            self._open_array(node, value)
        elif isinstance(value, slice):
            for part in ("start", "stop", "step"):
                self._keep(node, Relation(RelationKind.SLOT, part), getattr(value, part))
        elif not transparent(value):
            raise unknown(value, f"reads the value of a {type(value).__qualname__} from outside")

    def _open_array(self, node: ShadowNode, array: np.ndarray[Any, Any]) -> None:
        if node in self.drawn:
            raise Split("looks at a random array in Python")
        if array.nbytes > GUARDED_BYTES or array.dtype.hasobject:
            raise Split(f"reads a NumPy array of {array.nbytes} bytes from outside")
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
            if isinstance(tensor, torch.Tensor) and node.existed and self.is_written(node):
                start, size = memory_span(tensor)
                if start <= array.ctypes.data < start + size:
                    raise Split("reads a NumPy array that was changed by a tensor")

    def _keep(self, node: ShadowNode, relation: Relation, item: Any) -> None:
        """An element of the first version, whatever has become of the container since."""
        if relation in node.first.refs:
            child_id = node.first.refs[relation]
            if child_id == ABSENT:
                return
            child = self.refs.get_node_by_id(child_id)
            if child.plain and not self.lifted.is_read_of(item, child):
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

    # --- changing variables ----------------------------------------------------------------------

    def snapshot(self, node: ShadowNode) -> None:
        """Remember a container's contents before its first change.

        Raises:
            Effect: the change happens inside an operator.
        """
        if self.inside:
            raise Effect(f"changes a {node.type.__qualname__} from outside inside an operator")
        if node.node_id in self.dictionaries:
            self._check_dictionary(node)
        value = node.variable
        if node.contents is None:
            if isinstance(value, dict):
                node.contents = copy_of(value)
            elif isinstance(value, list | tuple | collections.deque):
                node.contents = elements(value)
            elif isinstance(value, set):
                node.contents = tuple(elements(value))

    def settle(self, node: ShadowNode) -> None:
        """A container that was only added to is looked at: its first contents count after all."""
        self.replays = [entry for entry in self.replays if entry[0] is not node]
        node.replays = []
        node.rewritten = True
        self.open(node)

    def rewrite(self, node: ShadowNode) -> None:
        """A container from outside is about to be changed in a way that depends on its contents."""
        if not isinstance(node.variable, list | dict | set | collections.deque):
            raise Split(f"changes a {node.type.__qualname__} from outside in native code")
        self._look_at_end(node, contents(node.variable))
        self.snapshot(node)
        self.open(node)
        node.rewritten = True
        self.refs.in_place(node)

    def _look_at_end(self, node: ShadowNode, dropped: list[Any]) -> None:
        """
        Raises:
            Split: the end of what a variable from outside is about to lose is noticed.
        """
        noticed = next(filter(is_noticed, held_by(dropped)), None)
        if noticed is None:
            return
        self.loses = True
        heard_of = next(filter(is_heard_of, held_by(dropped)), None)
        if heard_of is not None:
            self.losing = {id(value) for value in held_by(dropped)}
            kind, owner = type(heard_of).__qualname__, node.type.__qualname__
            raise Split(f"takes a {kind}, whose end is heard of, out of a {owner} from outside")

    def look_for_lost(self) -> None:
        """
        Raises:
            Split: the program looks at weak references, and has let go of an object that has some.
        """
        if self.loses:
            raise Split("asks which objects are there when it may have let go of one")

    def store(self, node: ShadowNode, relation: Relation, value: Any) -> None:
        """One place of a variable from outside is about to hold ``value``."""
        if node.replays:
            self.settle(node)
        self._look_at_end(node, dropped(node, relation, value))
        self.snapshot(node)
        if node.rewritten:
            self.refs.in_place(node)
        else:
            self.refs.write(node, relation, value)

    def remove(self, node: ShadowNode, relation: Relation) -> None:
        if node.replays:
            self.settle(node)
        self._look_at_end(node, dropped(node, relation, NULL))
        self.snapshot(node)
        if node.rewritten:
            self.refs.in_place(node)
        else:
            self.refs.delete(node, relation)

    # --- operators -------------------------------------------------------------------------------

    def operator(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        shape: DataShape = DataShape.NEVER,
    ) -> None:
        """A tensor operator ran.

        Raises:
            Split: an input is a tensor of unknown origin.
        """
        kwargs = with_device(operation, dict(kwargs))
        try:
            node = self.operators.add_operator(
                operation, args, kwargs, result, self.graph_value, shape, not self.dynamic_inside
            )
        except UnknownTensor as problem:
            raise Split(str(problem)) from None
        if self.running_as_is:
            node.meta[AS_IS] = self.running_as_is
            self.operators_as_is.append(self.running_as_is)
        self.constants.note(operation, args, kwargs, result, self._is_lifted)
        self.counters.note(self, operation, args, kwargs)

    def _is_lifted(self, value: Any) -> bool:
        return self.operators.expression(value) is not None

    def replace_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """``tensor.data = value``: from here on the tensor is another value of the graph.

        Raises:
            Split: the tensor is one of the program's own intermediate values.
        """
        node = self.node(tensor)
        if node is None:
            raise Split("sets the data of an intermediate tensor")
        if self.inside:
            raise Effect("sets the data of a tensor inside an operator")
        before, after = self.graph_value(tensor), self.graph_value(value)
        if tensor.requires_grad:
            after = self.operators.graph.call_function(replace_data, (before, after))
        self.operators.know(tensor, after)
        self.data_replaced[node.node_id] = None

    def item(
        self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any
    ) -> tuple[fx.Node, Any]:
        """The graph's node for a number read from a tensor, and its twin if there is one."""
        try:
            node = self.operators.scalar(operation, args, value, self.graph_value)
            return node, node.meta.get(TWIN)
        except UnknownTensor as problem:
            raise Split(str(problem)) from None

    def items(
        self, operation: Callable[..., Any], tensor: torch.Tensor
    ) -> Callable[[Any], fx.Node]:
        """Gives the graph's nodes for the numbers that a tensor holds, one after the other.

        Raises:
            Split: the tensor is of unknown origin.
        """
        try:
            elements = self.operators.elements(self.graph_value(tensor), tensor.numel())
        except UnknownTensor as problem:
            raise Split(str(problem)) from None
        return lambda value: self.operators.scalar(
            operation, (tensor,), value, lambda _: next(elements)
        )

    def snapshot_of(self, tensor: torch.Tensor) -> fx.Node:
        """The graph's node for what a tensor holds now, whatever becomes of it.

        Raises:
            Split: the tensor is of unknown origin.
        """
        try:
            return self.operators.snapshot(self.graph_value(tensor))
        except UnknownTensor as problem:
            raise Split(str(problem)) from None

    def plain_result(
        self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> fx.Node:
        """The graph's node for plain values that an operation on tensors gives.

        Raises:
            Split: an input is a tensor of unknown origin.
        """
        self.runs_as_is = "tensors' values become Python's"
        try:
            return self.operators.add_operator(operation, args, kwargs, None, self.graph_value)
        except UnknownTensor as problem:
            raise Split(str(problem)) from None

    def changed_inputs(self) -> list[ShadowNode]:
        """The tensors from outside that operators have changed in place."""
        return [
            node
            for _, shadow in self.operators.inputs
            if isinstance(shadow, int)
            and isinstance((node := self.refs.get_node_by_id(shadow)).variable, torch.Tensor)
            and self.is_written(node)
        ]

    def is_written(self, node: ShadowNode) -> bool:
        """Whether the program has changed what a tensor from outside holds."""
        tensor = node.variable
        return (
            node.node_id in self.data_replaced
            or tensor_version(tensor) != self.tensor_versions.get(node.node_id)
            or (bool(self.written_memory) and storage_of(tensor) in self.written_memory)
        )

    def note_write(self, tensor: torch.Tensor) -> None:
        """An operator that is not on the graph yet has written to a tensor."""
        memory = storage_of(tensor)
        if memory:
            last = next(iter(reversed(self.operators.graph.nodes)), None)
            self.written_memory.setdefault(memory, last)
            self.counters.note_write(memory)

    def add_drawn(self, tensor: torch.Tensor, drawn: Expression) -> None:
        """A tensor made of what was drawn is an input of the operator graph."""
        self.kept.append(tensor)
        self.operators.add_drawn(tensor, drawn)

    def changed_arrays(self) -> bool:
        """Whether NumPy arrays that count hold something else by now."""
        seen = [(n.variable, n.contents) for n in self.refs if isinstance(n.contents, np.ndarray)]
        pairs = [*seen, *self.operators.arrays]
        return any(array.tobytes() != before.tobytes() for array, before in pairs)

    def graph_value(self, tensor: torch.Tensor) -> fx.Node:
        known = self.operators.node_of(tensor)
        if known is not None:
            return known
        node = self.node(tensor)
        if node is None:
            raise UnknownTensor("uses a tensor that code outside the monitor's sight has made")
        self.kept.append(tensor)
        return self.operators.add_input(tensor, node.node_id)


def _same_states(before: list[torch.Tensor]) -> bool:
    now = generator_states()
    return len(now) == len(before) and all(map(torch.equal, before, now))


def _is_native_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and not type(value).__flags__ & HEAP_TYPE


def _identity(value: Any) -> Any:
    return value
