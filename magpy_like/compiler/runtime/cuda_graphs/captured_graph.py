"""One CUDA graph of a launcher's kernels: capture and replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from magpy_like import native
from magpy_like.compiler.runtime.cuda_graphs import streams_of_loans
from magpy_like.compiler.runtime.cuda_graphs.capture_pool import CapturePool
from magpy_like.compiler.runtime.cuda_graphs.passed_results import PassedResults
from magpy_like.compiler.runtime.cuda_graphs.staged_inputs import StagedInput
from magpy_like.torch_compat.autograd import increment_version
from magpy_like.torch_compat.tensor_memory import reinterpret_tensor

_replay_numbers = itertools.count(1)

Call = Callable[[list[Any]], Any]


class CapturedGraph:
    """The kernels of one call, for arguments of the same sizes at the same addresses.

    It holds no argument: only their addresses, and the memory of staged ones.
    """

    def __init__(
        self,
        call: Call,
        args: Sequence[Any],
        staged: Collection[int],
        pool: CapturePool,
        constants: Collection[int],
        lendable: Collection[int],
        written: Collection[int],
    ) -> None:
        """Capture ``call(args)``, which does not run.

        Args:
            staged: the indices of arguments whose addresses may differ at a replay.
            constants, lendable: see :class:`PassedResults`.
            written: see :class:`GraphedLauncher`.

        Raises:
            Exception: a kernel cannot be captured, or memory is exhausted.
        """
        self.pool = pool
        self._staged = [(k, StagedInput(args[k])) for k in staged]
        passed = [*args]
        for k, staged_input in self._staged:
            passed[k] = staged_input.tensor
        versions = [_version(argument) for argument in passed]
        self._graph, self._memory = torch.cuda.CUDAGraph(), pool.memory(lends=bool(lendable))
        reserved = torch.cuda.memory_reserved()
        with pool.capturing(self._graph, self._memory):
            results = call([*passed])
        self._reserved = torch.cuda.memory_reserved() - reserved
        self._addresses = [
            argument.data_ptr() if is_on_gpu(argument) and k not in staged else None
            for k, argument in enumerate(args)
        ]
        self._results = PassedResults(results, passed, constants, lendable)
        # The capture has counted the writes of this call to arguments that are not staged.
        writes = [_version(now) - before for now, before in zip(passed, versions, strict=True)]
        self._written = [(k, count) for k, count in enumerate(writes) if count]
        self._write_back = [(k, m) for k, m in self._staged if writes[k] or k in written]
        self._first = True
        self.last_replay = 0
        """Number of the last replay among those of all graphs."""

    def __del__(self) -> None:
        """Return the memory to the GPU, all that no lent result is in.

        The allocator keeps the memory of a graph for others, which no capture uses. It gives back
        what is free in a pool when the pool is deleted: after the graph and its results.
        """
        for name in ("_graph", "_results", "_memory"):
            vars(self).pop(name, None)

    @property
    def nbytes(self) -> int:
        """Bytes that only this graph uses, about: staged arguments, results, and other values in
        memory that the capture has reserved."""
        own = max(self._results.nbytes, self._reserved)
        return sum(memory.nbytes for _, memory in self._staged) + own

    def accepts(self, args: list[Any]) -> bool:
        """True if a replay reads these arguments and overwrites nothing that somebody holds."""
        if self._results.are_held():
            return False
        same: bool = native.same_addresses(args, self._addresses)
        return same

    def is_held(self) -> bool:
        """True while somebody holds a result that a replay would overwrite."""
        return self._results.are_held()

    def replay(self, args: list[Any]) -> Any:
        """Run the kernels for the arguments of a call that is accepted, and empty the list.

        The caller holds the pool's lock.
        """
        memory = self._results.make_memory()
        for k, staged in self._staged:
            staged.fill(args[k])
        streams_of_loans.wait()
        self._graph.replay()
        self.last_replay = next(_replay_numbers)
        self._count_writes(args)
        for k, staged in self._write_back:
            argument = args[k]
            alias = reinterpret_tensor(argument, argument.size(), argument.stride(), 0)
            staged.write_back(alias)
        results = self._results.collect(args, memory)
        args.clear()
        return results

    def _count_writes(self, args: Sequence[Any]) -> None:
        """Count the graph's writes to arguments, which autograd checks on saved tensors."""
        if self._first:
            self._first = False
            indices = {k for k, _ in self._staged}
            written = [(k, count) for k, count in self._written if k in indices]
        else:
            written = self._written
        for k, count in written:
            for _ in range(count):
                increment_version((args[k],))


def is_on_gpu(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_cuda


def _version(argument: Any) -> int:
    if not isinstance(argument, Tensor) or argument.is_inference():
        return 0
    return argument._version
