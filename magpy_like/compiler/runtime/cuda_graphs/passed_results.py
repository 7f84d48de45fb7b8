"""Results that a replay hands out.

A result may be an argument, a window on one, a constant, or memory of the CUDA graph. That memory
is lent where only autograd or the optimizer holds it, from one step to the next; all other results
are copied to new memory of the same layout. Results that share memory share it after the copy, and
views of one tensor share its version counter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from magpy_like import native
from magpy_like.compiler.runtime.cuda_graphs import streams_of_loans
from magpy_like.compiler.runtime.cuda_graphs.tensor_windows import (
    Window,
    over_memory_like,
    window_like,
)
from magpy_like.torch_compat.tensor_memory import copy_all, reinterpret_tensor

Maker = Callable[[], tuple[Tensor, Sequence[Tensor]]]
"""Returns (new memory in the form of its source, the results over it)."""


class PassedResults:
    """The results of one CUDA graph, as they are handed out after each replay."""

    def __init__(
        self,
        results: Sequence[Any],
        passed: Sequence[Any],
        constants: Collection[int],
        lendable: Collection[int],
    ) -> None:
        """
        Args:
            results: those of the captured call.
            passed: the arguments of the captured call.
            constants: ``_cdata`` of the storages of the launcher's constant tensors.
            lendable: positions of results that may be lent.
        """
        self._fixed: list[Any] = [None] * len(results)
        self._arguments: list[tuple[int, int]] = []
        self._windows: list[tuple[int, int, Window]] = []
        self._repeated: list[tuple[int, int]] = []
        owners: dict[int, int] = {}
        for k, argument in enumerate(passed):
            if isinstance(argument, Tensor):
                owners.setdefault(argument.untyped_storage()._cdata, k)
        groups: dict[int, list[int]] = {}
        for position, result in enumerate(results):
            same = next((k for k, argument in enumerate(passed) if argument is result), None)
            first = next(k for k, earlier in enumerate(results) if earlier is result)
            if not isinstance(result, Tensor):
                self._fixed[position] = result
            elif same is not None:
                self._arguments.append((position, same))
            elif first < position:
                self._repeated.append((position, first))
            elif (storage := result.untyped_storage()._cdata) in owners:
                k = owners[storage]
                self._windows.append((position, k, window_like(result, passed[k])))
            elif storage in constants:
                self._fixed[position] = result
            else:
                groups.setdefault(storage, []).append(position)
        repeated = {first for k, first in self._repeated if k not in lendable}
        lent = {s for s, of in groups.items() if set(of) <= set(lendable) - repeated}
        self._lent = [k for s in lent for k in groups[s]]
        self._lender: native.Lender | None = None
        if self._lent:
            streams_of_loans.watch()
            self._lender = native.Lender([results[k] for k in self._lent])
        self._copied = [of for s, of in groups.items() if s not in lent]
        self._sources: list[Tensor] = []
        self._makers: list[Maker] = []
        for of in self._copied:
            self._add_copy([results[k] for k in of])
        self.nbytes = sum(results[of[0]].untyped_storage().nbytes() for of in groups.values())

    def _add_copy(self, results: Sequence[Tensor]) -> None:
        """Copies of results over one storage."""
        first = results[0]
        storage = first.untyped_storage()
        size, stride, dtype, device = first.size(), first.stride(), first.dtype, first.device
        plain = not (first.is_conj() or first.is_neg())
        if len(results) == 1 and plain and storage.nbytes() == first.nbytes:
            self._sources.append(first)

            def make() -> tuple[Tensor, Sequence[Tensor]]:
                new = torch.empty_strided(size, stride, dtype=dtype, device=device)
                # The copy must not count as a write to the result.
                return new, (reinterpret_tensor(new, size, stride, 0),)

        else:
            whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
            self._sources.append(whole)
            roots, windows = _roots_and_windows(results)

            def make() -> tuple[Tensor, Sequence[Tensor]]:
                new = torch.empty(whole.size(), dtype=torch.uint8, device=device)
                memory = new.untyped_storage()
                made = [root(memory) for root in roots]
                return new, [window(made[k]) if window else made[k] for k, window in windows]

        self._makers.append(make)

    def are_held(self) -> bool:
        """True while somebody holds a lent result of an earlier replay."""
        return self._lender is not None and self._lender.open > 0

    def make_memory(self) -> list[tuple[Tensor, Sequence[Tensor]]]:
        """New memory for the results to copy, before the replay: it may be exhausted."""
        return [make() for make in self._makers]

    def collect(
        self, args: Sequence[Any], memory: Sequence[tuple[Tensor, Sequence[Tensor]]]
    ) -> tuple[Any, ...]:
        """The results after a replay, for the arguments of the call."""
        results = [*self._fixed]
        for position, k in self._arguments:
            results[position] = args[k]
        for position, k, window in self._windows:
            results[position] = window(args[k])
        if memory:
            new = [memory for memory, _ in memory]
            if len(new) == 1:
                new[0].copy_(self._sources[0])
            else:
                copy_all(new, self._sources)
            for of, (_, made) in zip(self._copied, memory, strict=True):
                for position, result in zip(of, made, strict=True):
                    results[position] = result
        if self._lender is not None:
            for position, result in zip(self._lent, self._lender.lend(), strict=True):
                results[position] = result
        for position, k in self._repeated:
            results[position] = results[k]
        return tuple(results)


def _roots_and_windows(
    results: Sequence[Tensor],
) -> tuple[list[Callable[[torch.UntypedStorage], Tensor]], list[tuple[int, Window | None]]]:
    """The tensors that results over one storage are or view, and for each result the position of
    that tensor and the window on it, None for the tensor itself."""
    roots: list[Tensor] = []
    windows: list[tuple[int, Window | None]] = []
    for result in results:
        root = result if result._base is None else result._base
        k = next((k for k, known in enumerate(roots) if known is root), len(roots))
        if k == len(roots):
            roots.append(root)
        windows.append((k, None if root is result else window_like(result, root)))
    return [over_memory_like(root) for root in roots], windows
