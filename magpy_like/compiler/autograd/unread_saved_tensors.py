"""Saved tensors that are written to or freed, and that the gradients which are present do not need.

Eager mode has a node in autograd's graph for each operator. A backward pass unpacks the saved
tensors of those that it reaches, and is refused if one was written to, or freed by an earlier pass.
A compiled graph has one node for all operators: autograd would refuse a gradient of one result for
a tensor that only the gradient of another needs, and a second pass though nothing is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from magpy_like.compiler.autograd.absent_gradients import AbsentGradients, tangents
from magpy_like.torch_compat.aot_autograd import PlainAOTOutput


class SavedTensors:
    """The tensors that a forward pass saves for a backward pass with version counters to check."""

    def __init__(self, backward: fx.GraphModule, absent: AbsentGradients, numbers: int) -> None:
        """``backward`` takes ``numbers`` saved numbers, the tensors, others, and the gradients."""
        self._backward, self._absent, self._numbers = backward, absent, numbers
        self._read: dict[frozenset[int], set[int]] = {}
        graph = backward.graph
        inputs = len(graph.find_nodes(op="placeholder"))
        self._saves = inputs > numbers + len(tangents(graph))
        """Whether any tensors are saved."""

    def save(self, ctx: Any, tensors: Sequence[Tensor | None]) -> None:
        """Save the tensors in the context of a call."""
        ctx.save_for_backward(*tensors)
        self._note_versions(ctx, tensors)

    def _note_versions(self, ctx: Any, tensors: Sequence[Tensor | None]) -> None:
        if self._absent.several:
            ctx.versions = [None if t is None else t._version for t in tensors]

    def adapt_node(self, function: Any) -> None:
        """Have nodes of AOTAutograd's ``autograd.Function`` unpack the tensors as ``unpack``."""
        if self._saves and not self._absent.several:
            return
        forward, backward = function.forward, function.backward
        indices = _gradient_indices(function.metadata)

        def run_forward(ctx: Any, *args: Any) -> Any:
            results = forward(ctx, *args)
            self._note_versions(ctx, ctx.to_save)
            return results

        def run_backward(ctx: Any, *gradients: Any) -> Any:
            incoming = gradients[0] if type(gradients[0]) is list else gradients
            # Not the gradients: the pass frees them as soon as it has read them.
            present = [None if incoming[k] is None else True for k in indices]
            return backward(_Context(ctx, lambda: self.unpack(ctx, present)), *gradients)

        function.forward, function.backward = staticmethod(run_forward), staticmethod(run_backward)

    def unpack(self, ctx: Any, gradients: Sequence[Any] | None) -> Sequence[Tensor | None]:
        """The saved tensors, of which the backward pass may read those that it needs for the
        ``gradients``: None for each that is absent. Without ``gradients``, it may read all.

        Raises:
            RuntimeError: it needs one that was written to or freed.
        """
        if not self._saves:
            return ()
        try:
            return ctx.saved_tensors
        except RuntimeError:
            missing = frozenset(k for k, each in enumerate(gradients or ()) if each is None)
            if not missing:
                raise
            read = self._read_without(missing)
            tensors = _unchecked(ctx)
            for k, (tensor, version) in enumerate(zip(tensors, ctx.versions, strict=True)):
                is_intact = tensor is not None and tensor._version == version
                if self._numbers + k in read and not is_intact and version is not None:
                    raise
            return tensors

    def _read_without(self, missing: frozenset[int]) -> set[int]:
        """The indices of the inputs that the pass reads without the gradients ``missing``."""
        if missing not in self._read:
            self._read[missing] = self._absent.read_inputs(self._backward, missing)
        return self._read[missing]


def _unchecked(ctx: Any) -> Sequence[Tensor | None]:
    """The saved tensors of a call, whether or not they were written to; None for each if they are
    freed, or if hooks have packed them."""
    try:
        saved = ctx._raw_saved_tensors
    except RuntimeError:
        return [None] * len(ctx.versions)
    packed = any(each.unpack_hook is not None for each in saved)
    return [None if packed else each.data for each in saved]


class _Context:
    """The context of a call, with saved tensors that a function unpacks."""

    def __init__(self, ctx: Any, unpack: Callable[[], Sequence[Tensor | None]]) -> None:
        self._ctx, self._unpack = ctx, unpack

    @property
    def saved_tensors(self) -> Sequence[Tensor | None]:
        return self._unpack()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _gradient_indices(known: Any) -> list[int]:
    """The index of each gradient that a backward pass takes, among all that AOTAutograd's node
    receives: of the modified arguments, of the results, and of memory that several results view."""
    modified = [known.input_info[k] for k in known.mutated_inp_runtime_indices]
    taken = [k for k, info in enumerate(modified) if info.mutates_data and info.requires_grad]
    origins = [descriptor.output for descriptor in known.traced_tangents_descs]
    results = [origin.idx for origin in origins if isinstance(origin, PlainAOTOutput)]
    viewed = len(modified) + known.num_outputs
    return [
        *taken,
        *(len(modified) + k for k in results),
        *range(viewed, viewed + known.num_intermediate_bases),
    ]
