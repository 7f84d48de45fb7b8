"""Constant tensors: computed from constants alone, such as ``torch.arange(2, 5)``.

Their elements are the same at every call that the guard accepts, so a value read from one is a
constant: ``torch.arange(2, 5).tolist()``, and ``torch.tensor(0, dtype=x.dtype).numpy().dtype`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from magpy_like.annotation.operator_facts import operator_facts
from magpy_like.monitor.objects.containers import elements
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import MonitorWeakRef, is_plain, storage_of, tensor_version

VALUE_READERS = frozenset(
    getattr(torch.Tensor, name)
    for name in (
        *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__complex__"),
        *("__index__", "is_nonzero", "equal", "allclose"),
    )
) | {torch.equal, torch.allclose, torch.is_nonzero, int, float, bool, complex}
"""Functions that read a tensor's elements into Python."""


class ConstantTensors:
    """The constant tensors of a run, as long as only constants are written to their memory."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[MonitorWeakRef, int]] = {}
        self._shared: set[int] = set()
        self.numpy_shares: list[
            tuple[torch.Tensor, int, np.ndarray[Any, Any], np.ndarray[Any, Any]]
        ] = []
        """Tensors that share memory with NumPy, each with its version, the array, and a copy of the
        array."""

    def hold(self, *values: Any) -> bool:
        """True if the tensors among some values, and in containers there, are constant."""
        # Stops at the first other tensor: the containers may be long.
        tensors = (value for value in _leaves(values) if is_instance(value, torch.Tensor))
        return bool(self._known) and all(self._holds(tensor, 0) for tensor in tensors)

    def _holds(self, tensor: torch.Tensor, changes: int) -> bool:
        """True if a tensor was constant until ``changes`` versions ago."""
        if id(tensor) not in self._known:
            return False
        known, version = self._known[id(tensor)]
        unwritten = known() is tensor and version + changes == tensor_version(tensor)
        return unwritten and storage_of(tensor) not in self._shared

    def note_write(self, tensor: torch.Tensor) -> None:
        """Note a write by an operator, which may not count as a version: batch norm's does not."""
        if id(tensor) in self._known and not self._holds(tensor, 0):
            return  # it has counted
        memory = storage_of(tensor)
        for reference, _ in self._known.values():
            known = reference()
            if known is not None and storage_of(known) == memory:
                self._shared.add(memory)
                return

    def note(
        self,
        operation: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        varies: Callable[[Any], bool],
    ) -> None:
        """Note an operator that ran. ``varies`` is true for lifted numbers."""
        name = getattr(operation, "__name__", "")
        facts = operator_facts(name)
        makes = facts.factory
        if not (makes or self._known) or not facts.repeatable:
            return
        inputs = list(_leaves((args, kwargs)))
        tensors = [value for value in inputs if is_instance(value, torch.Tensor)]
        if facts.shares_memory:
            self._shared.update(
                storage_of(tensor) for tensor in tensors if id(tensor) in self._known
            )
            return
        changed = args[0] if name == "setitem" or (args and result is args[0]) else None
        if not tensors and not makes:
            return
        for value in inputs:
            if is_instance(value, torch.Tensor):
                if not self._holds(value, int(value is changed and tensors[0] is changed)):
                    return
            elif varies(value) or not is_plain(value):
                return
        for tensor in (result if changed is None else changed, *_leaves(result)):
            if type(tensor) is torch.Tensor and not tensor.is_inference():
                self._known[id(tensor)] = (MonitorWeakRef(tensor), tensor_version(tensor))

    def share_with_numpy(self, args: Sequence[Any], result: Any) -> None:
        """Note that NumPy may share the memory of the constant tensors among ``args``."""
        if is_instance(result, np.ndarray):
            for tensor in _leaves(args):
                if is_instance(tensor, torch.Tensor):
                    self.numpy_shares.append(
                        (tensor, tensor_version(tensor), result, result.copy())
                    )

    def numpy_shares_are_unchanged(self) -> bool:
        """True if neither tensors nor NumPy have written to memory that they share."""
        return all(
            tensor_version(tensor) == version
            and storage_of(tensor) not in self._shared
            and array.tobytes() == before.tobytes()
            for tensor, version, array, before in self.numpy_shares
        )


def _leaves(value: Any) -> Iterator[Any]:
    if is_instance(value, list | tuple | dict):
        for item in elements(value):
            yield from _leaves(item)
    else:
        yield value
