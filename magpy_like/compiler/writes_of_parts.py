"""Writes of a part of a graph, counted in a run without data.

The monitor notes in a whole graph how often the program has written to its inputs and results (see
:mod:`.version_counters`). How often a graph with branches and loops writes differs between calls,
but each of its parts always writes as often. A run of the part on fake tensors counts as eager mode
does: views, ``detach`` and ``.data``, copies where the memory admits no view, and operators that
are composed of several writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from magpy_like.compiler.autograd.overwritten_saved_values import Effect, memory_effect
from magpy_like.compiler.lowering.aten_graph_properties import mutated_arguments, tensors_in
from magpy_like.compiler.running_statistics import updated_statistics
from magpy_like.graph_operators.node_metadata import INPUT_UNCHANGED, INPUT_WRITES, RESULT_VERSIONS
from magpy_like.interruption import is_interruption
from magpy_like.torch_compat.autograd import increment_version
from magpy_like.torch_compat.dispatch import TorchDispatchMode
from magpy_like.torch_compat.operators import OpOverload, has_dispatcher_kernel, operator_tags
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensorMode
from magpy_like.torch_interop.autocast_cache import without_autocast_cache
from magpy_like.torch_interop.current_gpu import has_current_gpu_calls, tracing_without_cache
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks
from magpy_like.torch_interop.symbols import ShapeEnvironment
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_interop.version_counters import shares_counter
from magpy_like.torch_patches import silent_fake_tensor_errors


def note_writes(part: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Note in a part how often it writes to its inputs, and the versions of its results.

    Nothing is noted if the part cannot run without data: then it is not compiled either.

    ``inputs`` are those of a call. No input that is written to shares memory with another.
    """
    placeholders, output = part.graph.find_nodes(op="placeholder"), part.graph.output_node()
    for node in placeholders:
        node.meta.pop(INPUT_WRITES, None)
        node.meta.pop(INPUT_UNCHANGED, None)
    output.meta.pop(RESULT_VERSIONS, None)
    if torch.is_inference_mode_enabled():
        return
    try:
        if not _may_count_unlike_eager(part):
            for node in _written_in(part):
                assert node is not None
                node.meta[INPUT_WRITES] = 1
            return
        lock = tracing_without_cache() if has_current_gpu_calls(part) else TRACING_LOCK
        with lock, torch.random.fork_rng(devices=[]), without_saved_tensor_hooks():
            found = _count(part, inputs)
    except Exception as error:
        if is_interruption(error):
            raise
        return
    for node, count, changed in zip(placeholders, found.inputs, found.changed, strict=True):
        if count:
            node.meta[INPUT_WRITES] = count
            if not changed:
                node.meta[INPUT_UNCHANGED] = True
        elif changed:
            node.meta[INPUT_WRITES] = 0
    if any(found.results):
        output.meta[RESULT_VERSIONS] = tuple(found.results)


def _may_count_unlike_eager(part: fx.GraphModule) -> bool:
    """False if the part writes once at most, and to the elements of an input: a run costs time."""
    calls = [node for node in part.graph.nodes if node.op.startswith("call")]
    if any(map(_is_unknown, calls)):
        return True
    if any(torch.Tag.inplace_view in operator_tags(node.target) for node in calls):
        return True
    written = _written_in(part)
    return len(written) > 1 or any(node is None or node.op != "placeholder" for node in written)


def _written_in(part: fx.GraphModule) -> list[fx.Node | None]:
    """The arguments that the part's calls write to, one for each call that writes."""
    calls = [node for node in part.graph.nodes if node.op.startswith("call")]
    return [_written(node) for node in calls if memory_effect(node) is Effect.WRITES]


def _is_unknown(node: fx.Node) -> bool:
    """True for functions that are not torch's, such as custom autograd functions."""
    module = getattr(node.target, "__module__", None) or "torch"
    return module.split(".")[0] not in ("torch", "_operator", "builtins", "math")


def _written(node: fx.Node) -> fx.Node | None:
    """The argument that a mutating operator writes to, if it is a tensor."""
    written = node.kwargs.get("out", node.args[0] if node.args else None)
    return written if isinstance(written, fx.Node) else None


class _Counts(NamedTuple):
    inputs: list[int]
    """The number of writes to each input."""
    changed: list[bool]
    """Whether each input has other elements, sizes or strides after the writes."""
    results: list[int]
    """The version of each result that no input shares the counter of, 0 for others."""


def _count(part: fx.GraphModule, inputs: Sequence[Any]) -> _Counts:
    mode = FakeTensorMode(shape_env=ShapeEnvironment())
    fakes = [_without_data(mode, value) for value in inputs]
    run = _Run(part, mode)
    tensors = [value for value in fakes if isinstance(value, torch.Tensor)]
    before = {id(tensor): tensor._version for tensor in tensors}
    layouts = {id(tensor): _layout(tensor) for tensor in tensors}
    seen = _Writes()
    with mode, seen, silent_fake_tensor_errors(), without_autocast_cache():
        results = run.run(*fakes)
    writes = {id(tensor): tensor._version - before[id(tensor)] for tensor in tensors}
    written = seen.written_elements | run.statistics
    changed = {
        id(tensor)
        for tensor in tensors
        if (memory := _memory(tensor)) in written
        or writes[id(tensor)] > seen.dimension_changes[memory]  # by what has no schema
        or _layout(tensor) != layouts[id(tensor)]
    }
    external = [*tensors, *run.constants]
    return _Counts(
        [writes.get(id(value), 0) for value in fakes],
        [id(value) in changed for value in fakes],
        [_version(leaf, external) if isinstance(leaf, torch.Tensor) else 0 for leaf in results],
    )


def _version(result: torch.Tensor, external: Sequence[torch.Tensor]) -> int:
    """The version of a result; 0 if an external tensor has the same counter."""
    memory = _memory(result)
    others = [tensor for tensor in external if _memory(tensor) == memory]
    return 0 if others and shares_counter(result, others) else result._version


class _Writes(TorchDispatchMode):
    """The memory that operators write to. Counts writes that eager mode counts in kernels.

    Torch counts most writes before it selects a kernel. Those to lists (``torch._foreach_add_``,
    ``torch.unbind_copy(x, out=…)``) it leaves to the kernels, which write by other operators, once
    to each entry. Fake tensors run no such kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written_elements: set[int] = set()
        self.dimension_changes: Counter[int] = Counter()
        """How often operators have changed sizes and strides of tensors, by memory."""

    supports_higher_order_operators = True  # otherwise they raise under a mode

    def __torch_dispatch__(
        self, func: Any, classes: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not (isinstance(func, OpOverload) and func._schema.is_mutable):
            return result
        written = tensors_in(mutated_arguments(func._schema, args, kwargs))
        if torch.Tag.inplace_view in func.tags:
            self.dimension_changes.update(map(_memory, written))
            return result
        self.written_elements.update(map(_memory, written))
        if _counts_in_kernel(func):
            increment_version(written)
        return result


def _counts_in_kernel(func: OpOverload) -> bool:
    """True if an operator's writes are counted by the operators that its kernel is composed of.

    The kernels of others, such as ``_fused_adam_``, write uncounted.
    """
    is_composed = has_dispatcher_kernel(func.name(), "CompositeExplicitAutograd")
    return is_composed and not has_dispatcher_kernel(func.name(), "ADInplaceOrView")


class _Run(fx.Interpreter):
    """A run of a part whose constants have no data either."""

    def __init__(self, part: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(part)
        self._mode = mode
        self.constants: list[torch.Tensor] = []
        self.statistics: set[int] = set()
        """The memory of running statistics, which batch norms write to without counting."""

    def run_node(self, n: fx.Node) -> Any:
        self.statistics.update(_memory(self.env[each]) for each in updated_statistics(n))
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        self.constants.append(_without_data(self._mode, value))
        return self.constants[-1]


def _without_data(mode: FakeTensorMode, value: Any) -> Any:
    return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
