"""Reconstruction of values: source text that makes again what the program has made.

One mechanism for every kind of object: what was there is named, plain values are written down,
tensors come from the operator graph, and any other object is created empty by its class and given
the state that the recorded one has. Each object is made once, so that aliasing comes out the same.
"""

from __future__ import annotations

import collections
import functools
import operator
import struct
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.autograd.profiler import record_function

from magpy_like.monitor.objects.containers import (
    CONTAINERS,
    elements,
    hashes_in_python,
    hashes_of,
    items_of,
)
from magpy_like.monitor.objects.iterators import (
    ARRAY_ITERATOR,
    DICT_ITERATORS,
    FORESEEN,
    advance,
    container_of,
)
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.gathered_lists import GraphList
from magpy_like.native import NULL, dict_of, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import (
    HEAP_TYPE,
    bind,
    is_identity,
    is_plain,
    proxied_mapping,
    slot_names,
    tensor_version,
)
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.suspended_generators import capture_generator, rebuild_generator
from magpy_like.splitting.tracebacks import (
    prepend_frames,
    set_context_from_caller,
    traceback_entries,
)
from magpy_like.synthesis.generated_source import Source, literal

_CONTENTS: tuple[tuple[Any, str], ...] = (
    (list, "list.extend({0}, {1})"),
    (dict, "dict.update({0}, {1})"),
    (set, "set.update({0}, {1})"),
    (collections.deque, "{0}.extend({1})"),
)
_PARTS_OF_WRAPPERS = {
    property: ("fget", "fset", "fdel", "__doc__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_WRAPPERS = tuple(_PARTS_OF_WRAPPERS)
_ITERATORS: tuple[type, ...] = (*FORESEEN, ARRAY_ITERATOR, type(reversed(())), map, filter)
"""Iterators that say how to be made again, half-way through."""


class Reconstruction:
    """Emits the statements of a mock that rebuild objects, and knows the name of each."""

    def __init__(
        self,
        rec: Recording,
        source: Source,
        existing: Callable[[ShadowNode], str],
        output: Callable[[torch.Tensor], str | None],
        scalar: Callable[[fx.Node], str],
        number: Callable[[Any], str],
    ) -> None:
        self.rec, self.source = rec, source
        self.number = number
        """Gives the source text of a lifted number."""
        self._existing = existing
        self._output = output
        self._scalar = scalar
        self._made: dict[int, tuple[Any, str]] = {}
        self._open: set[int] = set()
        self._empty_cells: list[types.CellType] = []
        self._hooks_made, self._hooks_open = 0, False
        self.last: list[str] = []
        """What is left to do when all effects are in place."""

    def value(self, value: Any) -> str:
        """The source text of an expression for ``value``.

        Raises:
            Split: the value cannot be made outside the run that made it.
        """
        expression = self.rec.lifted.expression(value) if self.rec.lifted else None
        if expression is not None:
            return self.number(expression)
        if (
            type(value) is torch.Size
            and self.rec.lifted
            and self.rec.lifted.identities.holds_lifted(value)
        ):
            return f"{self.source.constant(torch.Size, 'Size')}({self.tuple_text(value)})"
        text = literal(value)
        if text is not None:
            return text
        made_inside = is_instance(value, _WRAPPERS) and self.rec.is_born(value)
        if is_plain(value) or (is_identity(value) and not (_is_bound(value) or made_inside)):
            if self.rec.is_born(value if is_instance(value, type) else type(value)):
                raise Split(SplitReason.CLASS_CHANGE, "leaves a class that it has created")
            return self.source.constant(value)
        made = self._made.get(id(value))
        if made is not None:
            return made[1]
        if id(value) in self.rec.autograd_nodes:
            return self._remember(value, self._scalar(self.rec.autograd_nodes[id(value)][1]))
        if self.rec.hooks and any(hook.handle is value for hook in self.rec.hooks):
            self.hooks()
            return self._made[id(value)][1]
        if id(value) in self._open:
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                f"creates a {type(value).__qualname__} that contains itself",
            )
        if is_instance(value, torch.Tensor):
            return self._tensor(value)
        gathered = self.rec.operators.lists.get(id(value))
        if is_instance(gathered, GraphList) and gathered.is_unchanged():
            return self._remember(value, self._scalar(gathered.node))
        node = self.rec.node(value)
        if node is not None:
            return self._remember(value, self._existing(node))
        return self._make(value)

    def hooks(self) -> None:
        """Register what is to be done in a backward pass, in the program's order.

        Raises:
            Split: a hook refers to the handle that removes it, or its tensor has changed since.
        """
        if self._hooks_open:
            raise Split(
                SplitReason.AUTOGRAD_GRAPH, "leaves a hook that refers to the handle of a hook"
            )
        self._hooks_open = True
        for hook in self.rec.hooks[self._hooks_made :]:
            if hook.version is not None and hook.version != tensor_version(hook.owner):
                raise Split(SplitReason.AUTOGRAD_GRAPH, "changes a tensor in place that has a hook")
            args = ", ".join(map(self.value, hook.args))
            text = f"{self.value(hook.owner)}.{hook.method}({args})"
            if hook.handle is None:
                self.source.emit(text)
            else:
                self._bind(hook.handle, text)
            self._hooks_made += 1
        self._hooks_open = False

    def forget(self) -> None:
        """Let go of the recorded run's objects, and of the mock builder that this belongs to."""
        self._made.clear()
        del self._existing, self._output, self._scalar, self.number

    def _remember(self, value: Any, name: str) -> str:
        self._made[id(value)] = (value, name)
        return name

    def _bind(self, value: Any, text: str, prefix: str = "n") -> str:
        name = self.source.fresh(prefix)
        self.source.emit(f"{name} = {text}")
        return self._remember(value, name)

    def _tensor(self, tensor: torch.Tensor) -> str:
        output = self._output(tensor)
        if output is not None:
            self._remember(tensor, output)
            if tensor.__dict__:
                self.source.emit(f"{output}.__dict__.update({self.dict_text(tensor.__dict__)})")
            return output
        node = self.rec.node(tensor)
        if node is None:
            raise Split(
                SplitReason.UNKNOWN_ORIGIN, "leaves a tensor that unmonitored code has created"
            )
        return self._remember(tensor, self._existing(node))

    def _make(self, value: Any) -> str:
        kind = type(value)
        if kind is tuple:
            return self._frozen(value, lambda: self.tuple_text(value))
        if kind is list:
            return self._list(value)
        if kind is dict:
            return self._dict(value)
        if kind is slice:
            parts = (value.start, value.stop, value.step)
            return self._frozen(value, lambda: f"slice({', '.join(map(self.value, parts))})")
        if kind is set or kind is frozenset:
            text = self.members_text(value) if value else ""
            return self._bind(value, f"{kind.__name__}({text})")
        for types_, maker in _MAKERS:
            if is_instance(value, types_):
                return maker(self, value)
        return self._instance(value)

    def _frozen(self, value: Any, text: Callable[[], str]) -> str:
        """An object whose parts must be there before it is."""
        self._open.add(id(value))
        try:
            return self._bind(value, text())
        finally:
            self._open.discard(id(value))

    def tuple_text(self, items: Any) -> str:
        texts = [self.value(item) for item in items]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def list_text(self, items: Any) -> str:
        return f"[{', '.join(self.value(item) for item in items)}]"

    def members_text(self, members: set[Any] | frozenset[Any]) -> str:
        """What a set is to be filled from."""
        found = elements(members)
        if any(map(hashes_in_python, found)):
            return self._of_known_hashes(members, [(member, None) for member in found])
        return self.tuple_text(found)

    def dict_text(
        self, mapping: dict[Any, Any], items: Sequence[tuple[Any, Any]] | None = None
    ) -> str:
        """A dictionary of some ``items`` of a mapping, or of all.

        Raises:
            Split: its keys would have to be asked for their hashes, by code of the program's.
        """
        items = items_of(mapping) if items is None else items
        if any(hashes_in_python(key) for key, _ in items):
            return self._of_known_hashes(mapping, items)
        pairs = [f"{self.value(k)}: {self.value(v)}" for k, v in items]
        return "{" + ", ".join(pairs) + "}"

    def _of_known_hashes(self, container: Any, items: Sequence[tuple[Any, Any]]) -> str:
        """The program has asked the keys for their hashes, with whatever effects that had."""
        if is_instance(container, collections.OrderedDict):
            raise Split(
                SplitReason.UNGUARDABLE_KEY,
                "leaves an OrderedDict with keys that have a __hash__ in Python",
            )
        hashes = hashes_of(container)
        numbers = tuple(hashes[id(key)] for key, _ in items)
        if len(set(numbers)) < len(numbers):
            raise Split(
                SplitReason.UNGUARDABLE_KEY, "leaves keys with equal hashes and an __eq__ in Python"
            )
        if not all(_keeps_hash(key) for key, _ in items):
            raise Split(SplitReason.OBJECT_IDENTITY, "leaves keys that hash by memory address")
        parts = [self.tuple_text([key for key, _ in items]), repr(numbers)]
        parts.append(self.tuple_text([value for _, value in items]))
        return f"{self.source.constant(dict_of)}({', '.join(parts)})"

    def _list(self, value: list[Any]) -> str:
        name = self._bind(value, "[]") if _refers_to_itself(value) else None
        text = self.list_text(value)
        if name is None:
            return self._bind(value, text)
        self.source.emit(f"{name}.extend({text})")
        return name

    def _dict(self, value: dict[Any, Any]) -> str:
        name = self._bind(value, "{}") if _refers_to_itself(value) else None
        text = self.dict_text(value)
        if name is None:
            return self._bind(value, text)
        self.source.emit(f"{name}.update({text})")
        return name

    # --- functions -------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> str:
        if not self.rec.is_born(function):
            return self._remember(function, self.source.constant(function, function.__name__))
        make = self.source.constant(types.FunctionType, "FunctionType")
        code = self.source.constant(function.__code__, "code")
        names = self.source.constant(function.__globals__, "module_globals")
        cells = [self.value(cell) for cell in function.__closure__ or ()]
        closure = f"({', '.join(cells)},)" if cells else "None"
        defaults = self.value(function.__defaults__)
        name = self._bind(
            function, f"{make}({code}, {names}, {function.__name__!r}, {defaults}, {closure})", "f"
        )
        if function.__kwdefaults__:
            self.source.emit(f"{name}.__kwdefaults__ = {self.value(function.__kwdefaults__)}")
        if function.__dict__:
            self.source.emit(f"{name}.__dict__.update({self.dict_text(function.__dict__)})")
        if function.__annotations__:
            annotations = self.value(function.__annotations__)
            self.source.emit(f"{name}.__annotations__ = {annotations}")
        for slot in ("__qualname__", "__doc__", "__module__"):
            self.source.emit(f"{name}.{slot} = {self.value(getattr(function, slot))}")
        for cell in function.__closure__ or ():
            self._fill(cell)
        return name

    def _cell(self, cell: types.CellType) -> str:
        make = self.source.constant(types.CellType, "CellType")
        self._empty_cells.append(cell)
        return self._bind(cell, f"{make}()", "cell")

    def fill_cells(self) -> None:
        """Fill the cells that no function of the mock has brought along, as of an open frame."""
        while self._empty_cells:
            self._fill(self._empty_cells.pop())

    def _fill(self, cell: types.CellType) -> None:
        """Cells are filled once the functions that share them exist: they may refer to those."""
        if self.rec.node(cell) is not None or id(cell) in self._open:
            return
        self._open.add(id(cell))
        try:
            contents = cell.cell_contents
        except ValueError:
            return
        self.source.emit(f"{self.value(cell)}.cell_contents = {self.value(contents)}")

    def _method(self, method: types.MethodType) -> str:
        make = self.source.constant(types.MethodType, "MethodType")
        return self._bind(
            method, f"{make}({self.value(method.__func__)}, {self.value(method.__self__)})"
        )

    def _builtin_method(self, method: Any) -> str:
        """Looked up in the native class itself: one in Python may have a method of that name."""
        receiver, name = method.__self__, method.__name__
        for base in type(receiver).__mro__:
            found = base.__dict__.get(name)
            if is_instance(found, types.MethodDescriptorType) and bind(found, receiver) == method:
                names = self.source.constant(bind, "bind"), self.source.constant(found, name)
                return self._bind(method, f"{names[0]}({names[1]}, {self.value(receiver)})")
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"leaves the method {name} of a {type(receiver).__qualname__}",
        )

    def _partial(self, partial: functools.partial[Any]) -> str:
        make = self.source.constant(type(partial), type(partial).__name__)
        args = ", ".join(
            [self.value(partial.func)]
            + [self.value(a) for a in partial.args]
            + [f"**{self.dict_text(partial.keywords)}"]
        )
        name = self._bind(partial, f"{make}({args})")
        if partial.__dict__:
            self.source.emit(f"{name}.__dict__.update({self.dict_text(partial.__dict__)})")
        return name

    def _reference(self, reference: weakref.ref[Any]) -> str:
        target = reference()
        if target is None or reference.__callback__ is not None:
            raise Split(
                SplitReason.WEAK_REFERENCE, "leaves a weak reference that is dead or has a callback"
            )
        make = self.source.constant(type(reference), "weak_reference")
        return self._bind(reference, f"{make}({self.value(target)})")

    def _generator(self, generator: types.GeneratorType[Any, Any, Any]) -> str:
        try:
            layout, parts = capture_generator(generator)
        except ValueError as reason:
            raise Split(
                SplitReason.GENERATOR_SUSPENDED, f"leaves a suspended generator: {reason}"
            ) from None
        make = self.source.constant(rebuild_generator)
        form = self.source.constant(layout, "generator_layout")
        return self._bind(generator, f"{make}({form}, {self.tuple_text(parts)})")

    def _iterator(self, iterator: Any) -> str:
        """Made as it says itself; that of a dictionary goes as far as this one has gone.

        Raises:
            Split: it would be made before the mock changes what it goes through.
        """
        kind = type(iterator)
        if kind in DICT_ITERATORS:
            mapping = container_of(iterator)
            node = self.rec.node(mapping)
            if node is not None and node.changed:
                if [*map(id, node.contents)] != [*map(id, mapping)]:
                    raise Split(
                        SplitReason.ITERATOR_STATE,
                        "leaves an iterator over a dictionary whose keys it has changed",
                    )
            make = self.source.constant(DICT_ITERATORS[kind], kind.__name__)
            taken = 0 if mapping is None else len(mapping) - operator.length_hint(iterator)
            name = self._bind(iterator, f"{make}({self.value({} if mapping is None else mapping)})")
            self.source.emit(f"{self.source.constant(advance)}({name}, {taken})")
            return name
        maker, parts, *state = iterator.__reduce__()
        make = self.source.constant(maker, maker.__name__)
        name = self._bind(iterator, f"{make}({', '.join(map(self.value, parts))})")
        if state and state[0] is not None:
            # It goes no further than to the end that a list has by then.
            self.last.append(f"{name}.__setstate__({state[0]!r})")
        return name

    def _array(self, array: np.ndarray[Any, Any]) -> str:
        if not self.rec.is_born(array) or array.dtype.hasobject:
            raise Split(SplitReason.UNKNOWN_ORIGIN, "leaves a NumPy array of unknown origin")
        return self._bind(array, f"{self.source.constant(array.copy(), 'array')}.copy()")

    def _proxy(self, proxy: types.MappingProxyType[Any, Any]) -> str:
        if not self.rec.is_born(proxy):
            raise Split(SplitReason.UNKNOWN_ORIGIN, "leaves a mapping proxy of unknown origin")
        make = self.source.constant(types.MappingProxyType, "MappingProxyType")
        return self._bind(proxy, f"{make}({self.value(proxied_mapping(proxy))})")

    def _label(self, label: record_function) -> str:
        """A label in a profile, which is another one at every call."""
        if type(label) is not record_function:
            return self._instance(label)
        make = self.source.constant(labelled if label.record is not None else record_function)
        return self._bind(label, f"{make}({self.value(label.name)}, {self.value(label.args)})")

    def _wrapper(self, value: Any) -> str:
        make = self.source.constant(type(value), type(value).__name__)
        parts = [getattr(value, name) for name in _PARTS_OF_WRAPPERS.get(type(value), ())]
        if not parts or instance_dict(type(value)(*parts)) != instance_dict(value):
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                f"leaves a {type(value).__qualname__} with attributes in its instance dictionary",
            )
        return self._bind(value, f"{make}({', '.join(map(self.value, parts))})")

    # --- instances -------------------------------------------------------------------------------

    def _instance(self, value: Any) -> str:
        cls = type(value)
        if self.rec.is_born(cls):
            raise Split(
                SplitReason.CLASS_CHANGE, "leaves an instance of a class that it has created"
            )
        if lookup_in_type(cls, "__del__") is not NULL:
            raise Split(
                SplitReason.FINALIZER,
                f"leaves a {cls.__qualname__}, whose __del__ runs after the region",
            )
        if is_instance(value, torch.nn.Module) and not self.rec.is_born(value):
            return self._remember(value, self.source.constant(value, cls.__name__.lower()))
        structseq = is_instance(value, tuple) and hasattr(cls, "n_sequence_fields")
        if not self.rec.is_born(value) and not is_instance(value, _KNOWN_BASES):
            raise Split(
                SplitReason.UNKNOWN_ORIGIN, f"leaves a {cls.__qualname__} of unknown origin"
            )
        if is_instance(value, BaseException):
            if value is self.rec.handled_outside:
                raise Split(
                    SplitReason.EXCEPTION_STATE, "leaves an exception that its caller is handling"
                )
            if value.__traceback__ is not None and not self.rec.goes_on:
                raise Split(
                    SplitReason.EXCEPTION_STATE, f"leaves a {cls.__qualname__} with its traceback"
                )
        class_name = self.source.constant(cls, cls.__name__)
        if structseq:
            return self._frozen(
                value, lambda: f"{class_name}({self.tuple_text(tuple.__iter__(value))})"
            )
        name = self._empty(value, cls, class_name)
        state = instance_dict(value)
        if is_instance(value, collections.OrderedDict):
            put = self.source.constant(collections.OrderedDict.__setitem__, "OrderedDict_setitem")
            for key, item in items_of(value):
                if hashes_in_python(key):
                    raise Split(
                        SplitReason.UNGUARDABLE_KEY,
                        "leaves an OrderedDict with keys that have a __hash__ in Python",
                    )
                self.source.emit(f"{put}({name}, {self.value(key)}, {self.value(item)})")
        else:
            self._fill_container(value, name)
        if state:
            own = f"{self.source.constant(instance_dict)}({name})"
            self.source.emit(f"dict.update({own}, {self.dict_text(state)})")
        if is_instance(value, BaseException):
            self._origin(value, name)
        for slot in slot_names(cls):
            try:
                found = object.__getattribute__(value, slot)
            except AttributeError:
                continue
            setter = self.source.constant(object.__setattr__, "object_setattr")
            self.source.emit(f"{setter}({name}, {slot!r}, {self.value(found)})")
        return name

    def _origin(self, error: BaseException, name: str) -> None:
        """What native classes of exceptions keep, and where this one came from."""
        cls = type(error)
        alike = _layout(cls).__new__(cls, *_made_from(error))
        if is_instance(error, BaseExceptionGroup):
            self.source.emit(f"{name}.args = {self.value(error.args)}")
        for slot in _native_slots(cls):
            found, default = getattr(error, slot), getattr(alike, slot)
            if found is not default and not (is_instance(found, _COMPARED) and found == default):
                self.source.emit(f"{name}.{slot} = {self.value(found)}")
        links = {"__cause__": error.__cause__, "__suppress_context__": error.__suppress_context__}
        context = error.__context__
        if context is not None and context is not self.rec.handled_outside:
            links["__context__"] = context
        elif error.__traceback__ is not None:  # it was raised while its caller handled another one
            self.source.emit(f"{self.source.constant(set_context_from_caller)}({name})")
        for link, found in links.items():
            if found:
                self.source.emit(f"{name}.{link} = {self.value(found)}")
        self.source.lines += self.passing(error, name, None)

    def passing(
        self, error: BaseException, name: str, until: types.TracebackType | None
    ) -> list[str]:
        """Lines that let an exception have come through the frames behind ``until``."""
        passed = traceback_entries(error.__traceback__, until)
        if not passed:
            return []
        frames = self.source.constant(passed, "frames")
        return [f"{self.source.constant(prepend_frames)}({name}, {frames})"]

    def _fill_container(self, value: Any, name: str) -> None:
        for base, fill in _CONTENTS:
            if is_instance(value, base) and base.__len__(value):
                if base is dict:
                    text = self.dict_text(value)
                elif base is set:
                    text = self.members_text(value)
                else:
                    text = self.list_text(elements(value))
                self.source.emit(fill.format(name, text))

    def _empty(self, value: Any, cls: type, class_name: str) -> str:
        """The object with nothing in it, made without running ``__init__``."""
        if is_instance(value, tuple):
            return self._frozen(
                value,
                lambda: f"tuple.__new__({class_name}, {self.tuple_text(tuple.__iter__(value))})",
            )
        if is_instance(value, collections.defaultdict):
            factory = self.value(value.default_factory)
            name = self._bind(value, f"{class_name}.__new__({class_name})")
            maker = self.source.constant(collections.defaultdict, "defaultdict")
            self.source.emit(f"{maker}.__init__({name}, {factory})")
            return name
        if is_instance(value, collections.deque):
            maker = self.source.constant(collections.deque, "deque")
            name = self._bind(value, f"{maker}.__new__({class_name})")
            if value.maxlen is not None:
                self.source.emit(f"{maker}.__init__({name}, (), {value.maxlen})")
            return name
        for base, state in _NATIVE_STATE:
            if is_instance(value, base):
                base = _layout(cls) if base is BaseException else base
                maker = self.source.constant(base, base.__name__)
                args = "".join(f", {self.value(part)}" for part in state(value))
                return self._bind(value, f"{maker}.__new__({class_name}{args})")
        if cls.__flags__ & HEAP_TYPE and _layout(cls) is object:
            return self._bind(value, f"object.__new__({class_name})")
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"leaves a {cls.__qualname__}, whose state native code stores",
        )


def labelled(name: str, args: str | None) -> record_function:
    """A label that has begun, and ends when the program leaves it, or lets go of it."""
    return record_function(name, args).__enter__()


def _keeps_hash(key: Any) -> bool:
    """Whether a key has the hash in a mock that the program has asked it for."""
    if is_instance(key, tuple | frozenset) and not is_instance(
        lookup_in_type(type(key), "__hash__"), types.FunctionType
    ):
        return all(map(_keeps_hash, elements(key)))
    return is_plain(key) or is_identity(key) or hashes_in_python(key)


def _stateless(value: Any) -> tuple[()]:
    return ()


_NATIVE_STATE: tuple[tuple[type, Callable[[Any], tuple[Any, ...]]], ...] = (
    (collections.OrderedDict, _stateless),
    (dict, _stateless),
    (list, _stateless),
    (set, _stateless),
    (int, lambda value: (int.__int__(value),)),
    (float, lambda value: (float.__float__(value),)),
    (str, lambda value: (str.__str__(value),)),
    (bytes, lambda value: (bytes.__getitem__(value, slice(None)),)),
    (BaseException, lambda error: _made_from(error)),
    (types.SimpleNamespace, _stateless),
)
"""Native classes that can be extended, and what ``__new__`` needs beside the class."""


def _made_from(error: BaseException) -> tuple[Any, ...]:
    """What a native class makes an exception of: a group looks into the list that it is given,
    which the program may have filled, and the mock will only fill later."""
    if is_instance(error, BaseExceptionGroup):
        return error.message, error.exceptions
    return error.args


def _layout(cls: type) -> type:
    """The native class that makes and lays out the instances of ``cls``."""
    for base in cls.__mro__:
        maker = base.__dict__.get("__new__")
        native_maker = maker is not None and not is_instance(
            maker, staticmethod | types.FunctionType
        )
        if native_maker or not base.__flags__ & HEAP_TYPE or _keeps_native_state(base):
            return base
    return object


_COMPARED = (str, int, tuple)


def _native_slots(cls: type) -> list[str]:
    """What native classes of exceptions keep beside arguments, such as a missing name."""
    native = [b for b in cls.__mro__ if not b.__flags__ & HEAP_TYPE and b is not BaseException]
    kinds = types.MemberDescriptorType
    return [name for b in native for name, d in b.__dict__.items() if is_instance(d, kinds)]


def _keeps_native_state(cls: type) -> bool:
    """Whether instances are larger than their slots account for, as those of `KeyWrapper` are."""
    base = cls.__base__
    assert base is not None
    slots = cls.__dict__.get("__slots__", ())
    names = {slots} if is_instance(slots, str) else set(slots)
    words = len(names - {"__dict__", "__weakref__"})
    words += cls.__dictoffset__ not in (0, _MANAGED) and not base.__dictoffset__
    words += cls.__weakrefoffset__ > 0 >= base.__weakrefoffset__
    return cls.__basicsize__ > base.__basicsize__ + words * _WORD


_WORD = struct.calcsize("P")
_MANAGED = -1
"""The `__dictoffset__` of instances whose dictionary lies in front of them."""
_KNOWN_BASES = (list, dict, set, tuple, collections.deque, BaseException)

_MAKERS: tuple[tuple[Any, Callable[[Reconstruction, Any], str]], ...] = (
    (types.FunctionType, Reconstruction._function),
    (types.CellType, Reconstruction._cell),
    (types.MethodType, Reconstruction._method),
    (types.BuiltinMethodType, Reconstruction._builtin_method),
    (functools.partial, Reconstruction._partial),
    (weakref.ref, Reconstruction._reference),
    (_ITERATORS, Reconstruction._iterator),
    (types.GeneratorType, Reconstruction._generator),
    (np.ndarray, Reconstruction._array),
    (types.MappingProxyType, Reconstruction._proxy),
    (_WRAPPERS, Reconstruction._wrapper),
    (record_function, Reconstruction._label),
)


def _is_bound(value: Any) -> bool:
    """Whether a native function belongs to an object that is not a module or class."""
    if not is_instance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return False
    return not is_instance(value.__self__, type | types.ModuleType | None)


def _refers_to_itself(container: Any) -> bool:
    """Whether a list or dictionary can be reached from its own contents."""
    seen: set[int] = set()
    pending = elements(container)
    while pending:
        item = pending.pop()
        if item is container:
            return True
        if id(item) in seen or is_plain(item):
            continue
        seen.add(id(item))
        if is_instance(item, CONTAINERS):
            pending.extend(elements(item))
        else:
            pending.extend((instance_dict(item) or {}).values())
    return False
