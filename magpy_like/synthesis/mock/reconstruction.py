"""Reconstruction of values: source text that creates the program's new objects again.

One mechanism for every kind of object: external variables are named, plain values are written as
literals, tensors come from the operator graph, and any other object is created empty by its class
and given the state of the recorded one. Each object is created once, so that aliasing is the same.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.autograd.profiler import record_function

from magpy_like.monitor.recording import Recording
from magpy_like.monitor.replayed_effects import autograd_state
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.native import instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.mock.container_reconstruction import Containers
from magpy_like.synthesis.mock.exception_reconstruction import Exceptions
from magpy_like.synthesis.mock.function_reconstruction import DESCRIPTORS, Functions
from magpy_like.synthesis.mock.instance_reconstruction import Instances
from magpy_like.synthesis.mock.iterator_reconstruction import ITERATORS, Iterators


class Reconstruction:
    """Emits the statements of a mock that create objects, and names each object."""

    def __init__(
        self,
        rec: Recording,
        source: Source,
        existing: Callable[[ShadowNode], str],
        output: Callable[[torch.Tensor], str | None],
        graph_output: Callable[[fx.Node], str],
        number: Callable[[Any], str],
    ) -> None:
        """The callables name external variables, outputs of the operator graph (None for an
        external tensor), values of its nodes, and lifted numbers."""
        self.rec, self.source = rec, source
        self.existing, self.number = existing, number
        self._output, self._graph_output = output, graph_output
        self._names: dict[int, tuple[Any, str]] = {}
        """By id, the objects that have a name."""
        self.unfinished: set[int] = set()
        """Ids of the objects whose parts are being emitted."""
        self._emitted_hooks, self._emitting_hooks = 0, False
        self.final_lines: list[str] = []
        """Statements that follow all side effects."""
        self.containers, self.functions = Containers(self), Functions(self)
        self.iterators, self.instances = Iterators(self), Instances(self)
        self.exceptions = Exceptions(self)
        self._makers: tuple[tuple[Any, Callable[[Any], str]], ...] = (
            (types.FunctionType, self.functions.make_function),
            (types.CellType, self.functions.make_cell),
            (types.MethodType, self.functions.make_method),
            (types.BuiltinMethodType, self.functions.make_builtin_method),
            (functools.partial, self.functions.make_partial),
            (weakref.ref, self.instances.make_reference),
            (ITERATORS, self.iterators.make_iterator),
            (types.GeneratorType, self.iterators.make_generator),
            (np.ndarray, self.instances.make_array),
            (types.MappingProxyType, self.instances.make_proxy),
            (DESCRIPTORS, self.functions.make_descriptor),
            (record_function, self.instances.make_profiler_label),
        )

    def value(self, value: Any) -> str:
        """The source text of an expression for ``value``.

        Emits the statements that create it, unless it has a name.

        Raises:
            Split: a mock cannot create the value.
        """
        expression = self.rec.lifted.expression(value) if self.rec.lifted else None
        if expression is None and self.rec.lifted:
            expression = self.rec.lifted.look_ups.expression(value)
        if expression is not None:
            return self.number(expression)
        is_size = type(value) is torch.Size
        if is_size and self.rec.lifted and self.rec.lifted.identities.holds_lifted(value):
            if (named := self._names.get(id(value))) is not None:
                return named[1]
            size = self.source.constant(torch.Size, "Size")
            return self.bind(value, f"{size}({self.containers.tuple_text(value)})")
        text = literal(value)
        if text is not None:
            return text
        is_new = is_instance(value, DESCRIPTORS) and self.rec.variables.is_new_object(value)
        if is_plain(value) or (is_identity(value) and not (_is_bound(value) or is_new)):
            if self.rec.variables.is_new_object(value if is_instance(value, type) else type(value)):
                raise Split(SplitReason.CLASS_CHANGE, "leaves a class that it has created")
            return self.source.constant(value)
        named = self._names.get(id(value))
        if named is not None:
            return named[1]
        if id(value) in self.rec.autograd.nodes:
            return self.remember(value, self._graph_output(self.rec.autograd.nodes[id(value)][1]))
        if self.rec.effects.hooks and any(hook.handle is value for hook in self.rec.effects.hooks):
            self.hooks()
            return self._names[id(value)][1]
        if id(value) in self.unfinished:
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                f"creates a {type(value).__qualname__} that contains itself",
            )
        if is_instance(value, torch.Tensor):
            return self._tensor(value)
        gathered = self.rec.operators.lists.get(id(value))
        if is_instance(gathered, GraphList) and gathered.is_unchanged():
            return self.remember(value, self._graph_output(gathered.node))
        node = self.rec.variables.node(value)
        if node is not None:
            return self.remember(value, self.existing(node))
        return self._make(value)

    def hooks(self) -> None:
        """Register gradient hooks in the program's order.

        Raises:
            Split: a hook refers to the handle that removes it, or its tensor was changed later.
        """
        if self._emitting_hooks:
            raise Split(
                SplitReason.AUTOGRAD_GRAPH, "leaves a hook that refers to the handle of a hook"
            )
        self._emitting_hooks = True
        for hook in self.rec.effects.hooks[self._emitted_hooks :]:
            if hook.state != autograd_state(hook.owner):
                raise Split(SplitReason.AUTOGRAD_GRAPH, "changes a tensor in place that has a hook")
            args = ", ".join(map(self.value, hook.args))
            text = f"{self.value(hook.owner)}.{hook.method}({args})"
            if hook.handle is None:
                self.source.emit(text)
            else:
                self.bind(hook.handle, text)
            self._emitted_hooks += 1
        self._emitting_hooks = False

    def forget(self) -> None:
        """Release the recorded run's objects, some of which refer to each other.

        The parts refer to this object, so that only an empty one may stay in the cycle.
        """
        vars(self).clear()

    def remember(self, value: Any, name: str) -> str:
        """Name an object; returns the name."""
        self._names[id(value)] = (value, name)
        return name

    def bind(self, value: Any, text: str, prefix: str = "n") -> str:
        """Emit the assignment of an object's expression to a new name; returns the name."""
        name = self.source.fresh(prefix)
        self.source.emit(f"{name} = {text}")
        return self.remember(value, name)

    def _tensor(self, tensor: torch.Tensor) -> str:
        output = self._output(tensor)
        if output is not None:
            self.remember(tensor, output)
            if tensor.__dict__:
                attributes = self.containers.dict_text(tensor.__dict__)
                self.source.emit(f"{output}.__dict__.update({attributes})")
            return output
        node = self.rec.variables.node(tensor)
        if node is None:
            raise Split(
                SplitReason.UNKNOWN_ORIGIN, "leaves a tensor that unmonitored code has created"
            )
        return self.remember(tensor, self.existing(node))

    def _make(self, value: Any) -> str:
        kind = type(value)
        if kind is tuple:
            return self.frozen(value, lambda: self.containers.tuple_text(value))
        if kind is list:
            return self.containers.make_list(value)
        if kind is dict:
            owner = self.rec.reads.owner_of(value)
            if owner is not None:
                attributes = self.source.constant(instance_dict)
                return self.bind(value, f"{attributes}({self.value(owner)})")
            return self.containers.make_dict(value)
        if kind is slice:
            parts = (value.start, value.stop, value.step)
            return self.frozen(value, lambda: f"slice({', '.join(map(self.value, parts))})")
        if kind is set or kind is frozenset:
            text = self.containers.members_text(value) if value else ""
            return self.bind(value, f"{kind.__name__}({text})")
        for types_, make in self._makers:
            if is_instance(value, types_):
                return make(value)
        return self.instances.make_instance(value)

    def frozen(self, value: Any, text: Callable[[], str]) -> str:
        """Emit an object whose parts are created before it, such as a tuple."""
        self.unfinished.add(id(value))
        try:
            return self.bind(value, text())
        finally:
            self.unfinished.discard(id(value))


def _is_bound(value: Any) -> bool:
    """True for a native method bound to an object that is neither a module nor a class."""
    if not is_instance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return False
    return not is_instance(value.__self__, type | types.ModuleType | None)
