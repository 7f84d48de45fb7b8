"""Guard generation (MagPy, section 4.2): may this record be used for this call?

A guard is a generated function ``guard(args, kwargs)``. It returns the variables that the mock
needs, as a tuple, or the number of the check that failed; ``reasons[number]`` says it in words.
What fixed objects hold is left to the native :class:`Watch`.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.containers import CONTAINERS, SCALARS, elements, length_of
from magpy_like.monitor.devices import default_devices
from magpy_like.monitor.expressions import Address, Size, made_of
from magpy_like.monitor.iterators import FORESEEN, separate
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.split import Split
from magpy_like.monitor.twin import Twin
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import StateCheck, TensorCheck, Watch, instance_dict, lacks
from magpy_like.native.kinds import answers_in_python, isinstance
from magpy_like.refgraph import ABSENT, EXTERNAL, MRO, ByIdentity, Fact, Relation, ShadowNode
from magpy_like.refgraph.values import (
    HEAP_TYPE,
    has_values,
    is_identity,
    is_plain,
    is_same_value,
    own_entries,
    storage_of,
)
from magpy_like.synthesis import numbers
from magpy_like.synthesis.checks import (
    gives,
    gives_cached,
    is_missing,
    is_same,
    memory_of,
    ordered_keys,
    place_check,
    same_array,
    same_keys,
    same_layout,
    same_scalar,
    share_no_memory,
)
from magpy_like.synthesis.expected import Expected, expected
from magpy_like.synthesis.places import Places, expression
from magpy_like.synthesis.sizes import LARGEST, Bounds, size_guards
from magpy_like.synthesis.source import Source, literal

_WATCHED_DIRECTLY = {
    RelationKind.KEY,
    RelationKind.GLOBAL,
    RelationKind.MEMBERSHIP,
    RelationKind.CELL,
    RelationKind.ITEM,
}
_FUNCTION_SLOTS = ("__code__", "__defaults__", "__kwdefaults__")


class GuardBuilder:
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
        self.rec, self.places, self._known = rec, places, known
        self._positional, self._keywords = len(args), list(kwargs)
        self.source = Source()
        self.watch = Watch()
        self.reasons: list[str] = []
        self.readable: list[str] = []
        self.lifted: list[str] = []
        """Sizes and numbers that may vary, in words."""
        self.expected = Expected()
        self.variables: dict[int, str] = {}
        """Names of the fetched variables, by node id."""
        self.bound: set[int] = set()
        """Ids of the fixed objects that a call must bring with it."""
        self._labels: dict[int, str] = {}
        self._watched: set[tuple[int, str]] = set()
        self._dynamic: list[tuple[int, int, ShadowNode]] = []
        """Tensors with dynamic dimensions: the numbers of reason and sentence, the node."""
        self._about_lifted: list[str] = []
        """The sentences about the types of lifted numbers."""
        self._later: list[tuple[ShadowNode, Relation, ShadowNode]] = []
        """Edges from variables that are fetched after the one that they lead to."""
        self._missing: list[tuple[ShadowNode, Relation]] = []
        """Places where nothing is, at keys that may be fetched later."""

    # --- text ------------------------------------------------------------------------------------

    def _check(self, condition: str, reason: str) -> None:
        """``condition`` must hold, or this record is not for the call."""
        self.source.emit(f"if not ({condition}): return {len(self.reasons)}")
        self.reasons.append(reason)
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
            if isinstance(value, dict):
                return f"{value.get('__name__', 'module')} globals"
            if answers_in_python(value):
                return f"<{type(value).__qualname__}>"
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
            return name or f"<{type(value).__qualname__}>"
        if kind is RelationKind.LOCAL:
            return f"args[{key}]" if isinstance(key, int) else str(key)
        above = self.label(parent)
        if kind in (RelationKind.ATTRIBUTE, RelationKind.SLOT):
            return f"{above}.{key}"
        if kind is RelationKind.GLOBAL:
            return f"{key} ({above})"
        if kind is RelationKind.TYPE:
            return f"{above}.{key[0] if isinstance(key, tuple) else key}"
        if kind is RelationKind.KEY and parent.node_id in self.rec.classes:
            return f"{above}.{key}"
        if kind in (RelationKind.KEY, RelationKind.ITEM):
            variable = self.places.key_node(relation)
            return f"{above}[{repr(key) if variable is None else self.label(variable)}]"
        if kind is RelationKind.CLOSURE:
            names = parent.variable.__code__.co_freevars
            return f"{names[key] if isinstance(key, int) else key} (closure of {above})"
        if kind is RelationKind.CELL:
            return above
        return f"{above} → {relation}"

    # --- building --------------------------------------------------------------------------------

    def build(self) -> None:
        emit = self.source.emit
        emit(f"if not state(): return {len(self.reasons)}")
        self.source.names["state"] = self._state()
        self.reasons.append(
            "torch's global modes (grad, inference, autocast, dtype) and the classes of tensors "
            "are as they were"
        )
        devices = default_devices()  # the program may leave one that was set before
        if devices:
            told = self.source.constant(default_devices)
            expected = self.source.constant(devices, "devices")
            words = ", inside ".join(map(str, devices))
            self._check(f"{told}() == {expected}", f"the default device is {words}")
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
        if self.watch.counts()[0] or self.watch.counts()[2]:
            # Fetched variables hang on fixed ones, so these are looked at first.
            self.source.lines.insert(at, f"if not watch(): return {len(self.reasons)}")
            self.source.names["watch"] = self.watch
            self.watch_reason = len(self.reasons)
            self.reasons.append("")
        else:
            self.watch_reason = -1

    def _state(self) -> StateCheck:
        """
        Raises:
            Split: operators that are methods are others by now.
        """
        classes = self.rec.tensor_classes.items()
        state = StateCheck(*((own_entries(cls), entries) for cls, entries in classes))
        if not state():
            raise Split("leaves a class of tensors changed")
        return state

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

    def name(self, node: ShadowNode) -> str:
        """The guard's name for a variable: fetched before, or a constant of the record."""
        if node.node_id in self.variables:
            return self.variables[node.node_id]
        assert self.places.is_fixed(node), "the guard has not fetched this variable yet"
        return self.source.constant(node.variable)

    def _way(self, parent: ShadowNode, relation: Relation) -> str:
        if parent.node_id == EXTERNAL:
            if relation.kind is not RelationKind.LOCAL:
                raise Split(f"no way to {relation}")
            key = relation.key
            return f"args[{key}]" if isinstance(key, int) else f"kwargs[{key!r}]"
        return expression(self.name(parent), relation, parent.type, self._constant)

    def _constant(self, value: Any) -> str:
        """The text for an object that is the same at every call, or for a key that is a variable.

        Raises:
            Split: a key holds a variable that may be another one.
        """
        if isinstance(value, ByIdentity):
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
                raise Split(f"looks up a key that holds a {type(part).__qualname__}")

    def _key(self, key: Any) -> str:
        return literal(key) or self._constant(key)

    # fixed objects -------------------------------------------------------------------------------

    def _fixed_edge(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        """A fixed object must still be where it was met."""
        if parent.node_id == EXTERNAL:
            if relation.kind is RelationKind.LOCAL:
                self.bound.add(id(node.variable))
                text = f"{self._way(parent, relation)} is {self.name(node)}"
                self._check(text, f"{self.label(node)} is the same {node.type.__qualname__}")
            return
        if self.places.is_watched(parent, relation):
            self._watch(parent, relation, node.variable, equal=False)
            return
        self.bound.add(id(node.variable))
        text = f"{self._way(parent, relation)} is {self.name(node)}"
        self._check(text, f"{self.label(node)} is the same {node.type.__qualname__}")

    def _fixed_node(self, node: ShadowNode) -> None:
        value = node.variable
        if node.plain:
            return  # which object it is says all about it
        if node.type.__flags__ & HEAP_TYPE and not isinstance(value, type):
            self.watch.type(value)  # an instance may be given another class
        as_found = node.first.value
        if isinstance(value, np.ndarray) and as_found is not None:
            same = functools.partial(same_layout, value, as_found)
            self._call(same, f"{self.label(node)} is an array of {value.shape}")
        if isinstance(value, torch.Tensor) and as_found is not None and not as_found(value):
            # The program has changed its metadata.
            self._call(functools.partial(as_found, value), f"{self.label(node)} is as it was found")
        elif isinstance(value, torch.Tensor):
            self.watch.tensor(value)
            self.readable.append(f"{self.label(node)}: {describe_tensor(value)}, the same object")
        elif isinstance(value, types.FunctionType):
            self._once(value, "__code__", value.__code__)
        elif Fact.KEYS in node.facts or Fact.LENGTH in node.facts or Fact.VALUE in node.facts:
            self._fixed_extent(node, value)
        elif Fact.TRUTH in node.facts:
            self._call(lambda: bool(elements(value)), f"{self.label(node)} is not empty")

    def _fixed_extent(self, node: ShadowNode, value: Any) -> None:
        label = self.label(node)
        before = value if node.contents is None else node.contents
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            self._call(lambda: value.default_factory is factory, f"{label} makes the same defaults")
        if isinstance(value, dict) and Fact.KEYS in node.facts:
            keys = ordered_keys(before)
            if isinstance(value, collections.OrderedDict):  # its order is not that of a dict
                self._call(lambda: same_keys(ordered_keys(value), keys), f"{label}: {keys!r}")
            else:
                self.watch.size(value, keys)
            self.readable.append(f"{label} has {len(keys)} keys, the same in the same order")
        elif isinstance(value, list | dict) and Fact.LENGTH in node.facts:
            size = list.__len__(before) if isinstance(before, list) else dict.__len__(before)
            self.watch.size(value, size)
            self.readable.append(f"len({label}) == {size}")
        elif isinstance(value, np.ndarray):
            self._call(functools.partial(same_array, value, before), f"{label} holds what it held")
        elif isinstance(value, set | frozenset) and Fact.VALUE in node.facts:
            members = elements(before)
            self._call(lambda: same_keys(elements(value), members), f"{label} has the same members")
        elif not isinstance(value, (tuple, frozenset, *SCALARS)):  # these cannot change
            length = length_of if isinstance(value, CONTAINERS) else len
            size = length(before)
            self._call(lambda: length(value) == size, f"len({label}) == {size}")

    def _call(self, check: Callable[[], bool], reason: str) -> None:
        self.watch.place(check, reason, True, False)
        self.readable.append(reason)

    def _watch(self, parent: ShadowNode, relation: Relation, value: Any, *, equal: bool) -> None:
        """A place of a fixed object must hold ``value`` (... for anything, NOTHING for nothing)."""
        owner = parent.variable
        kind, key = relation
        if isinstance(key, ByIdentity):
            key = key.variable
        if kind is RelationKind.TYPE:
            self.watch.place(owner, key, value, equal)
        elif relation == (RelationKind.SLOT, MRO) and isinstance(owner, type):
            self.watch.place(owner, None, value, False)
        elif key in _FUNCTION_SLOTS and isinstance(owner, types.FunctionType):
            self._once(owner, key, value)
        elif kind is RelationKind.ATTRIBUTE:
            self.watch.place(instance_dict(owner), key, value, equal)
            self._holds(owner)
        elif kind is RelationKind.CELL and isinstance(owner, types.CellType):
            self.watch.place(owner, None, value, equal)
        elif kind is RelationKind.ITEM and isinstance(owner, tuple):
            pass  # a tuple cannot change
        elif kind in _WATCHED_DIRECTLY and isinstance(owner, dict | list):
            self.watch.place(owner, key, value, equal)
        elif kind is RelationKind.CLOSURE or isinstance(owner, types.MethodType):
            pass  # the cells of a function cannot change, nor can the parts of a bound method
        elif kind is RelationKind.DEFAULT and isinstance(key, int):
            self._once(owner, "__defaults__", owner.__defaults__)
        elif kind is RelationKind.DEFAULT:
            self._once(owner, "__kwdefaults__", owner.__kwdefaults__)
            self.watch.place(owner.__kwdefaults__, key, value, equal)
        elif kind is RelationKind.DICT:
            if not isinstance(owner, type):
                self._holds(owner)
        elif kind is not RelationKind.MAPPING and not isinstance(owner, slice):
            label = f"{self.label(parent)} → {relation}"
            self.watch.place(place_check(owner, relation, value, equal), label, True, False)

    def _holds(self, owner: Any) -> None:
        """The owner keeps its attributes in the dictionary that it has: it may be given another."""
        if (id(owner), "__dict__") not in self._watched:
            self._watched.add((id(owner), "__dict__"))
            self.watch.holder(owner)

    def _once(self, owner: Any, slot: str, value: Any) -> None:
        if (id(owner), slot) not in self._watched:
            self._watched.add((id(owner), slot))
            self.watch.place(owner, slot, value, False)

    def _lacks_key(self, node: ShadowNode, relation: Relation) -> None:
        """A dictionary has nothing at a key that is one object and no other."""
        key = relation.key
        assert isinstance(key, ByIdentity)
        if key.is_new:
            return  # no dictionary has had it before
        if self.places.is_watched(node, relation):
            self._watch(node, relation, NOTHING, equal=False)
            return
        self._check(
            f"not dict.__contains__({self.name(node)}, {self._key(key)})",
            f"{self.label(node)} has no {relation}",
        )

    def _absent(self, node: ShadowNode, relations: list[Relation]) -> None:
        self._missing += [(node, r) for r in relations if isinstance(r.key, ByIdentity)]
        relations = [r for r in relations if not isinstance(r.key, ByIdentity)]
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

    # fetched variables ---------------------------------------------------------------------------

    def _fetch(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        if node.plain and Fact.VALUE in node.facts:
            self._value(parent, relation, node)
            return
        name = self.source.fresh("v")
        self.source.emit(f"{name} = {self._way(parent, relation)}")
        if relation.kind is RelationKind.ITERATION:
            self.source.names["NOTHING"] = NOTHING
            self._check(f"{name} is not NOTHING", f"{self.label(parent)} has something left")
        self.variables[node.node_id] = name
        self._contents(name, node)

    def _value(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        value = node.first.value
        if parent.node_id != EXTERNAL and self.places.is_watched(parent, relation):
            if relation.kind is RelationKind.MEMBERSHIP:
                self._watch(parent, relation, ..., equal=False)
                return
            self._watch(parent, relation, value, equal=True)
            self.readable.append(f"{self._label(parent, relation, node)} == {value!r}")
            return
        label = self._label(parent, relation, node)
        if relation.kind is RelationKind.MEMBERSHIP:
            where = self._key(relation.key)
            self._check(
                f"dict.__contains__({self.name(parent)}, {where})",
                f"{relation.key!r} in {self.label(parent)}",
            )
            return
        self._check(self._equals(self._way(parent, relation), value), f"{label} == {value!r}")

    def _equals(self, way: str, value: Any) -> str:
        if value is None or value is ... or isinstance(value, bool) or value is NotImplemented:
            return f"{way} is {value!r}"
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return f"{way} is {self.source.constant(value, str(value))}"
        if isinstance(value, np.generic | np.dtype):
            same = self.source.constant(is_same_value)
            return f"{same}({way}, {self.source.constant(value, 'value')})"
        name = self.source.fresh("x")
        kind = self.source.constant(type(value), type(value).__name__)
        text = literal(value) or self.source.constant(value, "value")
        is_kind = f"type({name} := {way}) is {kind}"
        if isinstance(value, float):
            if value != value or value == 0:
                return f"{is_kind} and repr({name}) == {repr(value)!r}"
        elif not isinstance(value, int | str | bytes | torch.device):
            # 0j and -0j, or two empty ranges, are equal and yet not the same.
            return f"{is_kind} and repr({name}) == {repr(value)!r} and {name} == {text}"
        return f"{is_kind} and {name} == {text}"

    def _contents(self, name: str, node: ShadowNode) -> None:
        """What is relied on about a fetched variable itself."""
        value, label = node.variable, self.label(node)
        if isinstance(node.type, type) and issubclass(node.type, torch.Tensor):
            self._tensor(name, node, label)
            return
        parent, relation = self.places.edges[node.node_id][0]
        if self._known and parent.node_id == EXTERNAL and relation.key in self._known:
            return
        kind = self.source.constant(node.type, node.type.__name__)
        self._check(f"type({name}) is {kind}", f"type({label}) is {node.type.__qualname__}")
        if node.node_id in self.rec.lifted.nodes:
            self._about_lifted.append(self.readable[-1])
        before = value if node.contents is None else node.contents
        if isinstance(value, SCALARS) and Fact.VALUE in node.facts:  # a lifted number may differ
            same = self.source.constant(same_scalar, "same_scalar")
            self._check(
                f"{same}({name}, {self.source.constant(value, 'value')})", f"{label} == {value!r}"
            )
        if isinstance(value, collections.deque):
            self._check(f"{name}.maxlen == {value.maxlen}", f"{label}.maxlen == {value.maxlen}")
        if isinstance(value, types.FunctionType):
            code = self.source.constant(value.__code__, "code")
            self._check(f"{name}.__code__ is {code}", f"{label} runs the same code")
        elif isinstance(value, dict):
            if isinstance(value, collections.defaultdict):
                factory = self.source.constant(value.default_factory, "factory")
                self._check(
                    f"{name}.default_factory is {factory}", f"{label} makes the same defaults"
                )
            if Fact.KEYS in node.facts:
                self._keys(
                    f"{self.source.constant(ordered_keys)}({name})", ordered_keys(before), label
                )
            elif Fact.LENGTH in node.facts:
                size = length_of(before)
                self._check(f"{self._length(node)} == {size}", f"len({label}) == {size}")
        elif isinstance(value, set | frozenset) and Fact.VALUE in node.facts:
            held = name if node.type in CONTAINERS else f"{self.source.constant(elements)}({name})"
            self._keys(held, elements(before), label)
        elif Fact.LENGTH in node.facts:
            size = length_of(before) if isinstance(before, CONTAINERS) else len(before)
            self._check(f"{self._length(node)} == {size}", f"len({label}) == {size}")
        if Fact.TRUTH in node.facts and not _EXTENTS & node.facts:
            held = self.source.constant(elements, "elements")
            self._check(f"{held}({name})", f"{label} is not empty")
        if isinstance(value, np.ndarray) and node.first.value is not None:
            same = self.source.constant(same_layout)
            layout = self.source.constant(node.first.value, "layout")
            self._check(f"{same}({name}, {layout})", f"{label} is an array of {value.shape}")
        if Fact.VALUE in node.facts and isinstance(value, np.ndarray):
            same = self.source.constant(same_array, "same_array")
            array = self.source.constant(before, "array")
            self._check(f"{same}({name}, {array})", f"{label} holds what it held")

    def _length(self, node: ShadowNode) -> str:
        """An expression for how much a variable holds that runs no method of a class in Python."""
        if node.type in CONTAINERS or not issubclass(node.type, CONTAINERS):
            return f"len({self.name(node)})"
        return f"{self.source.constant(length_of)}({self.name(node)})"

    def _keys(self, way: str, keys: list[Any], label: str) -> None:
        same = self.source.constant(same_keys, "same_keys")
        self._check(
            f"{same}({way}, {self.source.constant(keys, 'keys')})", f"list({label}) == {keys!r}"
        )

    def _tensor(self, name: str, node: ShadowNode, label: str) -> None:
        tensor = node.variable  # None when the program has replaced it and let it go
        if self.rec.twin is not None and node.node_id in self.rec.twin.checks:
            self._dynamic.append((len(self.reasons), len(self.readable), node))
        check = self.source.fresh("tensor")
        self.source.names[check] = node.first.value or TensorCheck(tensor)
        said = "a tensor as it was" if tensor is None else describe_tensor(tensor)
        self._check(f"{check}({name})", f"{label}: {said}")

    def _alias(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        if node.plain:
            self._value(parent, relation, node)
            return
        label = self._label(parent, relation, node)
        self._check(
            f"{self._way(parent, relation)} is {self.name(node)}", f"{label} is {self.label(node)}"
        )

    def _iterators(self) -> None:
        """What the program takes out of one iterator must not be missing in another."""
        nodes = [n for n in self.places.order if n.type in FORESEEN]
        if self.rec.advanced and (len(nodes) > 1 or nodes[0].type in (enumerate, zip)):
            if not separate(*(node.variable for node in nodes)):
                raise Split("has iterators that take elements from each other")
            apart = self.source.constant(separate, "separate")
            names = ", ".join(map(self.name, nodes))
            self._check(f"{apart}({names})", "the iterators take no elements from each other")

    def _state_reads(self) -> None:
        """Process-wide state is looked at again by the calls that looked at it.

        Raises:
            Split: they were given an object that the program has made.
        """
        seen: list[Any] = []
        for operation, args, kwargs, result in self.rec.state_reads:
            if operation in _COVERED:
                continue
            given = (*args, *kwargs.values())
            known = (operation, [id(v) for v in given], list(kwargs))
            if known in seen:
                continue
            seen.append(known)
            again = functools.partial(operation, *args, **kwargs)
            if not gives(again, result):
                continue  # an object that is made anew for each call, or what the monitor answers
            name = operation.__name__
            words = ", ".join(repr(v) if is_plain(v) else type(v).__qualname__ for v in given)
            reason = f"{name}({words}) == {result!r}"
            if all(map(self._is_known, given)):
                self._call(functools.partial(gives, again, result), reason)
                continue
            ways = [self._way_of(v) for v in args]
            ways += [f"{key}={self._way_of(v)}" for key, v in kwargs.items()]
            same = self.source.constant(is_same)
            call = f"{self.source.constant(operation, name)}({', '.join(ways)})"
            self._check(f"{same}({call}, {self.source.constant(result, 'result')})", reason)

    def _is_known(self, value: Any) -> bool:
        """Whether it is this very object at every call."""
        if is_plain(value) or is_identity(value):
            return True
        node = self.rec.node(value)
        return node is not None and self.places.is_fixed(node)

    def _way_of(self, value: Any) -> str:
        if self._is_known(value):
            return self.source.constant(value, "known")
        node = self.rec.node(value)
        if node is None or node.node_id not in self.variables:
            raise Split(f"asks for state with a {type(value).__qualname__} that it has made")
        return self.name(node)

    def _cached_calls(self) -> None:
        """Functions with a cache must give what they gave: the cache may have been cleared.

        They come last, so that only a program that would call them can fill the cache again.
        """
        seen: list[Any] = []
        for operation, args, kwargs, result in self.rec.cached_calls:
            known = (operation, args, kwargs, [type(v) for v in (*args, *kwargs.values())])
            if any(known == other for other in seen):
                continue
            seen.append(known)
            again = functools.partial(operation, *args, **kwargs)
            name = getattr(operation, "__name__", "cached")
            check = self.source.constant(
                functools.partial(gives_cached, again, result), f"{name}_gives"
            )
            self._check(f"{check}()", f"the cache of {name} holds what it held")

    def _not_fixed(self, node: ShadowNode, fixed: list[ShadowNode]) -> None:
        """A fetched variable must not be a fixed one under another name, if either is changed."""
        others = [n.variable for n in fixed if node.changed or n.changed]
        if others:
            known = self.source.constant({id(v): v for v in others}, "known_objects")
            name, label = self.name(node), self.label(node)
            self._check(
                f"id({name}) not in {known}", f"{label} is not what the program knows otherwise"
            )

    def conditions(self) -> None:
        """Lifted numbers that the program has looked at must give the same again.

        The backend has been at work by now: it may look at sizes as well.
        """
        self.expected = expected(self.rec, self.places)
        self.expected.names = {
            self.expected.places[node.node_id]: self.label(node)
            for node in self.places.order
            if node.node_id in self.expected.places
        }
        said = len(self.readable)
        if self.rec.twin is not None:
            self._sizes(self.rec.twin)
        for number, value in self.rec.lifted.conditions:
            if isinstance(number, Address) and self.places.is_fixed(number.node):
                continue  # the record holds the very object
            way = numbers.text(number, self.name_of_number, self.source.constant)
            words = numbers.text(number, self.label, repr)
            self._check(self._equals(way, value), f"{words} == {value!r}")
        self.expected.conditions += map(_of_places, self.rec.lifted.conditions)
        self.expected.about_lifted.update(self.readable[said:], self._about_lifted)
        for node in self.places.order:
            if self.expected.places.get(node.node_id) in self.expected.lifted:
                self.lifted.append(self.label(node))
        self._cached_calls()

    def _sizes(self, twin: Twin) -> None:
        bounds, conditions = size_guards(twin)
        free: dict[int, dict[int, Bounds]] = {}
        for bound in bounds:
            if isinstance(bound.number, Size):
                node = bound.number.node
                free.setdefault(node.node_id, {})[bound.number.dim] = bound
                if bound.varies:
                    self.lifted.append(f"{self.label(node)}.size({bound.number.dim})")
                twin.checks[node.node_id].allow(bound.number.dim, bound.least, bound.most)
            else:
                self._bound(bound)
        for reason, sentence, node in self._dynamic:
            described = describe_tensor(node.variable, free[node.node_id])
            self.reasons[reason] = self.readable[sentence] = f"{self.label(node)}: {described}"
            self.expected.about_lifted.add(self.readable[sentence])
            place = self.expected.places[node.node_id]
            self.expected.inner[place] = twin.inner[node.node_id]
            for dim, bound in free[node.node_id].items():
                if not bound.varies:
                    self.expected.reasons[place, dim] = bound.reason
            self.expected.free[place] = {
                dim: (bound.least, bound.most) for dim, bound in free[node.node_id].items()
            }
        for condition in conditions:
            way = numbers.text(condition, self.name_of_number, self.source.constant)
            self._check(way, numbers.text(condition, self.label, repr))
            self.expected.conditions.append((condition, True))

    def _bound(self, bound: Bounds) -> None:
        node = bound.number.node
        if Fact.VALUE in node.facts:
            return
        self.expected.bounds[self.expected.places[node.node_id]] = bound.least, bound.most
        name = self.name(node)
        if bound.least > -LARGEST:
            self._check(f"{name} >= {bound.least}", f"{self.label(node)} >= {bound.least}")
        if bound.most < LARGEST:
            self._check(f"{name} <= {bound.most}", f"{self.label(node)} <= {bound.most}")

    def name_of_number(self, node: ShadowNode) -> str:
        """A lifted number that was looked at as a whole as well is a constant after all."""
        if Fact.VALUE in node.facts:
            return literal(node.first.value) or self.source.constant(node.first.value, "value")
        return self.name(node)

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
            if self.places.is_fixed(n) and not isinstance(n.variable, torch.Tensor)
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


def _of_places(condition: tuple[Any, Any]) -> tuple[Any, Any]:
    """A condition as other records can be held to it. Where an object lies says nothing of theirs,
    and the record must not keep it alive."""
    number, value = condition
    told = any(isinstance(part, Address) for part in made_of(number))
    return (None if told else number), value


_FEW = 2
"""So many objects that are changed are told apart from all others pair by pair."""
_EXTENTS = {Fact.LENGTH, Fact.KEYS, Fact.VALUE}
"""What tells whether a container holds anything, and more."""

_COVERED = {torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype}
"""Looks at state that the check of torch's modes covers."""


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


def same_memory(guard: GuardBuilder, inputs: list[ShadowNode], changed: list[ShadowNode]) -> None:
    """When inputs are changed in place, the others must share memory with them as before."""
    fetched = [n for n in inputs if n.node_id in guard.variables]
    nodes = [n for n in inputs if n in fetched or n in changed]
    nodes = [n for n in nodes if n.variable.layout == torch.strided]
    others = [n for n in inputs if n not in nodes and n.variable.layout == torch.strided]
    written = [n for n in changed if n in fetched and n in nodes]
    if written and others:
        _apart(guard, written, nodes, others)
    if len(nodes) < 2 or not fetched:
        return
    places = memory_of(*(n.variable for n in nodes))
    memory = places[::2]  # which of them lie in one storage
    if any(memory.count(m) > 1 for m, n in zip(memory, nodes, strict=True) if n in changed):
        guard.rec.runs_as_is = "changes tensors that share memory with others"
    check = guard.source.constant(memory_of, "memory_of")
    expected = guard.source.constant(places, "memory")
    names = ", ".join(guard.name(n) for n in nodes)
    guard._check(f"{check}({names}) == {expected}", "the tensors share memory as they did")


def _apart(
    guard: GuardBuilder,
    written: list[ShadowNode],
    nodes: list[ShadowNode],
    others: list[ShadowNode],
) -> None:
    """A tensor that a call brings and that is changed may share memory with a fixed one, such as
    a parameter. Those that it shares memory with now join ``nodes``."""
    memory = {storage_of(n.variable) for n in written}
    nodes += [n for n in others if storage_of(n.variable) in memory]
    fixed = tuple(n.variable for n in others if storage_of(n.variable) not in memory)
    if fixed:
        check = guard.source.constant(share_no_memory)
        names = ", ".join(guard.name(n) for n in written)
        given = f"({names},), {guard.source.constant(fixed, 'fixed')}"
        guard._check(f"{check}({given})", "what is changed shares no memory with parameters")
