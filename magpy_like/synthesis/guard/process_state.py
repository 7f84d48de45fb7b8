"""The state of the process: torch's modes, the classes of tensors, and whatever calls looked at.

It is asked for by the calls that looked at it, with what they were given; what these gave is
compared with what they gave when the program ran.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from magpy_like.monitor.torch_state.default_device import default_devices
from magpy_like.native import StateCheck
from magpy_like.refgraph.plain_values import class_entries, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.guard.abstract_classes import StillDenied
from magpy_like.synthesis.guard.guard_checks import gives, gives_cached, is_same
from magpy_like.synthesis.guard.guard_writer import GuardText

_COVERED = {torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype}
"""Looks at state that the check of torch's modes covers."""


class ProcessState(GuardText):
    """Conditions about what is in no variable."""

    def _modes(self) -> None:
        """Torch's modes, the classes of tensors and the default device are what they were."""
        self.source.emit(f"if not state(): return {len(self.reasons)}")
        state = self.source.names["state"] = self._state()
        self.modes = state.modes()
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

    def _state(self) -> StateCheck:
        """
        Raises:
            Split: operators that are methods are others by now.
        """
        classes = self.rec.tensor_classes.items()
        state = StateCheck(*((class_entries(cls), entries) for cls, entries in classes))
        if not state():
            raise Split(SplitReason.CLASS_CHANGE, "leaves a tensor class changed")
        return state

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

    def _denied(self) -> None:
        """Classes that abstract ones denied have not been registered with them since."""
        if self.rec.denied:
            words = [f"{cls.__name__} is no {base.__name__}" for base, cls in self.rec.denied]
            self._call(StillDenied(self.rec.denied), ", ".join(words))
            self.readable[-1:] = words  # one by one, since records are compared by what they say

    def _way_of(self, value: Any) -> str:
        if self._is_known(value):
            return self.source.constant(value, "known")
        node = self.rec.node(value)
        if node is None or node.node_id not in self.variables:
            raise Split(
                SplitReason.UNREACHABLE_VARIABLE,
                f"reads process-wide state with a {type(value).__qualname__} that it has created",
            )
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
