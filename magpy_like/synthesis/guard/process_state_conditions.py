"""Conditions on the state of the process: torch's modes, tensor classes, and results of calls.

A call that read process-wide state is repeated with the same arguments, and its result compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magpy_like.monitor.process_state import Query, RepeatedLookUp
from magpy_like.monitor.symbolic.numbers.cached_look_ups import (
    CONTAINERS,
    are_same_look_ups,
    begin_look_ups,
)
from magpy_like.monitor.torch_state.default_device import default_devices
from magpy_like.native import StateCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import class_entries, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis import number_source
from magpy_like.synthesis.guard.abstract_classes import StillDenied
from magpy_like.synthesis.guard.conditions import Condition, Kind
from magpy_like.synthesis.guard.guard_checks import is_same, returns
from magpy_like.synthesis.guard.guard_writer import GuardWriter
from magpy_like.synthesis.guard.look_up_aliasing import SameAliasing, containers_in

_COVERED = {
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
}  # fmt: skip
"""Reads of state that the condition on torch's modes covers."""


class ProcessState:
    """Writes the conditions on state that is in no variable."""

    def __init__(self, writer: GuardWriter) -> None:
        self._writer, self._rec, self._source = writer, writer.rec, writer.source
        self.modes: tuple[int, ...] = ()
        """Torch's modes in which the record serves calls."""

    def write_modes(self) -> None:
        """Torch's modes, the classes of tensors and the default device are unchanged.

        Raises:
            Split: the program has changed a class of tensors.
        """
        state = self._source.names["state"] = self._state_check()
        self.modes = state.modes()
        description = (
            "torch's global modes (grad, inference, autocast, dtype, deterministic) and the "
            "classes of tensors are unchanged"
        )
        self._writer.add(Condition((Kind.TORCH_MODES,), description, "state()"))
        devices = default_devices()  # the program may leave one that was set before
        if devices:
            now = self._source.constant(default_devices)
            expected = self._source.constant(devices, "devices")
            words = ", inside ".join(map(str, devices))
            self._writer.check(
                Kind.DEFAULT_DEVICE, f"{now}() == {expected}", f"the default device is {words}"
            )

    def _state_check(self) -> StateCheck:
        classes = self._rec.reads.tensor_classes.items()
        state = StateCheck(*((class_entries(cls), entries) for cls, entries in classes))
        if not state():
            raise Split(SplitReason.CLASS_CHANGE, "leaves a tensor class changed")
        return state

    def write_state_reads(self) -> None:
        """Calls that read process-wide state return the same again.

        Raises:
            Split: such a call received an object that the program created.
        """
        writer, seen = self._writer, list[Any]()
        for operation, args, kwargs, result in self._rec.state.queries:
            if operation in _COVERED:
                continue
            arguments = (*args, *kwargs.values())
            entry = (operation, [id(v) for v in arguments], list(kwargs))
            if entry in seen:
                continue
            seen.append(entry)
            repeat = functools.partial(operation, *args, **kwargs) if arguments else operation
            if not returns(repeat, result):
                continue  # each call creates the result, or the monitor answers
            name = operation.__name__
            texts = (repr(v) if is_plain(v) else type(v).__qualname__ for v in arguments)
            description = f"{name}({', '.join(texts)}) == {result!r}"
            if all(map(writer.is_constant, arguments)):
                writer.result(Kind.STATE_READ, repeat, result, description)
                continue
            names = [self._argument(v) for v in args]
            names += [f"{key}={self._argument(v)}" for key, v in kwargs.items()]
            call = f"{self._source.constant(operation, name)}({', '.join(names)})"
            same = self._source.constant(is_same)
            test = f"{same}({call}, {self._source.constant(result, 'result')})"
            writer.check(Kind.STATE_READ_OF_FETCHED, test, description)

    def _argument(self, value: Any) -> str:
        if self._writer.is_constant(value):
            return self._source.constant(value, "known")
        node = self._rec.variables.node(value)
        if node is None or node.node_id not in self._writer.variables:
            raise Split(
                SplitReason.UNREACHABLE_VARIABLE,
                f"reads process-wide state with a {type(value).__qualname__} that it has created",
            )
        return self._writer.name(node)

    def write_denied(self) -> None:
        """Classes that are no subclasses of abstract ones have not been registered since."""
        if self._rec.state.denied:
            words = [
                f"{cls.__name__} is no {base.__name__}" for base, cls in self._rec.state.denied
            ]
            check = StillDenied(self._rec.state.denied)
            self._writer.call(Kind.ABSTRACT_CLASS, check, ", ".join(words), *words)

    def write_cached_calls(self, name_of_number: Callable[[ShadowNode], str]) -> None:
        """Functions with a cache return the same: the cache may have been cleared.

        Each call is made, in the program's order: a cache counts its look-ups, and forgets the
        entry that was looked up first. The last conditions, so that only a program that would make
        these calls fills the cache.
        """
        plain: list[Query] = []
        tests: list[tuple[str, str]] = []
        for call in self._rec.state.cached_calls:
            if is_instance(call, RepeatedLookUp):
                tests += [*self._repeated(plain), self._look_up(call, name_of_number)]
                plain = []
            else:
                plain.append(call)
        tests += self._repeated(plain)
        begin = f"{self._source.constant(begin_look_ups)}() and " if tests else ""
        for test, description in tests:
            self._writer.check(Kind.CACHED_CALL, f"{begin}{test}", description)
            begin = ""
        self._same_aliasing()

    def _same_aliasing(self) -> None:
        """What look-ups by lifted numbers return is one object where it was."""
        calls = list(enumerate(self._rec.state.cached_calls))
        looked_up = {k: call for k, call in calls if is_instance(call, RepeatedLookUp)}
        if not looked_up:
            return
        variables = [n for n in self._writer.guarded.order if n.type in CONTAINERS]
        fetched = [n for n in variables if n.node_id in self._writer.variables]
        fixed = [n.variable for n in variables if self._writer.guarded.is_fixed(n)]
        fixed += containers_in(call[-1] for k, call in calls if k not in looked_up)
        check = SameAliasing(
            [call.result for call in looked_up.values()], list(looked_up),
            tuple(n.variable for n in fetched), fixed,
        )  # fmt: skip
        if check:
            names = ", ".join(map(self._writer.name, fetched))
            test = f"{self._source.constant(check, 'same_aliasing')}({names})"
            words = "results of functions with a cache are one object where they were"
            self._writer.check(Kind.ALIASING_OF_ENTRIES, test, words)

    def _repeated(self, calls: Sequence[Query]) -> list[tuple[str, str]]:
        """The test that these calls return the same, with its description; none without calls."""
        if not calls:
            return []
        repeated = [(functools.partial(f, *args, **kwargs), r) for f, args, kwargs, r in calls]
        names = dict.fromkeys(getattr(f, "__name__", "cached") for f, *_ in calls)
        check = functools.partial(are_same_look_ups, repeated)
        test = f"{self._source.constant(check, 'caches_return')}()"
        return [(test, f"the cache of {', '.join(names)} returns the same")]

    def _look_up(
        self, call: RepeatedLookUp, name_of_number: Callable[[ShadowNode], str]
    ) -> tuple[str, str]:
        """The test that a result has its form, with its description."""
        texts = [
            number_source.text(argument, name_of_number, self._source.constant)
            for argument in call.arguments
        ]
        name = self._source.constant(call.look_up, call.look_up.__name__)
        return f"{name}({', '.join(texts)})", str(call.look_up)
