"""Double backward of compiled passes, and backward passes for a batch of gradients.

A compiled backward pass has no backward of its own. Under ``create_graph``, for a batch of
gradients (``is_grads_batched``) and for gradients with tangents (forward-mode AD), autograd runs
the program once more instead, operator by operator, from the arguments of the compiled call.
So all arguments must still exist, unmodified but for the writes of the call itself. Random numbers
are drawn again from the state of the generators at the call.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd import forward_ad

from magpy_like.compiler.autograd.outside_writes import is_backward
from magpy_like.compiler.passes.graph_queries import draws_random_numbers
from magpy_like.graph_operators.checkpoint_batch_norm import Recomputations
from magpy_like.torch_compat.functorch import is_forward_ad_active
from magpy_like.torch_interop.random_states import generator_states, restore_generators
from magpy_like.torch_patches import untraced

CallArguments = list[Any] | None
"""A call's arguments: numbers, and references to tensors with their version counters; None if a
tensor has no version counter."""


AutocastStates = dict[str, tuple[bool, torch.dtype]]
"""Type of device -> (autocast enabled? its dtype)."""


def autocast_states() -> AutocastStates:
    """The present state."""
    return {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    }


@contextlib.contextmanager
def _autocast(states: AutocastStates) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind, (enabled, dtype) in states.items():
            if enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype, enabled=enabled))
        yield


@dataclass(frozen=True)
class SecondRun:
    """How a program runs once more, operator by operator."""

    program: Callable[..., Any]
    autocast: AutocastStates
    """The state in which the program is called."""
    overwritten: frozenset[int]
    """Arguments that a call writes to, and whose old values decide nothing else: the statistics of
    a batch norm, for example."""
    copied: frozenset[int]
    """Arguments that a call writes to, and whose old values it uses: a copy is kept, as the vectors
    of a spectral norm are small."""
    draws: bool
    """Whether the program draws from the default generators."""

    def note_call(self, ctx: Any, args: Sequence[Any]) -> None:
        """Keep the state that a compiled call is about to change."""
        with torch.enable_grad():  # with the gradients of the argument, whatever is written to it
            ctx.old_values = {k: args[k].clone() for k in self.copied}
        ctx.random_states = _random_states() if self.draws else []

    def gradients(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...] | None:
        """The gradients of the call's arguments, differentiable, by a second run.

        Args:
            ctx: of the compiled call, as :meth:`note_call` has left it.
            gradients: of the program's results, None for absent ones.

        Returns None where the program cannot run once more.
        """
        if self.draws and ctx.random_states is None:
            return None
        recomputed: Recomputations | None = ctx.recomputations
        modified = self.overwritten | self.copied
        args = _restore_call_arguments(ctx, modified)
        if args is None:
            return None
        # Views, so that hooks on the arguments do not run; the program writes to copies. An alias
        # passes sparse gradients on, too.
        with torch.enable_grad():
            alias = torch.ops.aten.alias.default
            views = [alias(a) if isinstance(a, Tensor) else a for a in args]
            for k in self.copied:
                views[k] = ctx.old_values[k]
            writable = [v.clone() if k in modified else v for k, v in enumerate(views)]
        with contextlib.nullcontext() if recomputed is None else recomputed.second_run():
            with self._context_of_call(ctx), torch.enable_grad():
                results = self.program(*writable)
            return _differentiate(ctx, results, views, gradients)

    @property
    def notes_calls(self) -> bool:
        """Whether :meth:`note_call` has anything to keep."""
        return bool(self.copied or self.draws)

    @contextlib.contextmanager
    def _context_of_call(self, ctx: Any) -> Iterator[None]:
        now = generator_states() if self.draws else []
        try:
            restore_generators(ctx.random_states if self.draws else [])
            with _autocast(self.autocast):
                yield
        finally:
            restore_generators(now)


def find_overwritten(joint: fx.GraphModule) -> frozenset[int]:
    """The inputs of a graph of both passes that it writes to, and whose old values decide nothing
    but their own new ones."""
    inputs = [node for node in joint.graph.nodes if node.op == "placeholder"]
    return frozenset(k for k, node in enumerate(inputs) if _only_decides_itself(node))


def _only_decides_itself(source: fx.Node) -> bool:
    waiting, seen, written = [source], {source}, False
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output":
                return False
            if user.target is torch.ops.aten.copy_.default:
                if user.args[0] is not source:
                    return False
                written = True
            elif user not in seen:
                seen.add(user)
                waiting.append(user)
    return written


def draws_alike_again(joint: fx.GraphModule) -> bool:
    """True if a second run draws the same random numbers as the forward pass: from the default
    generators, and none in the backward pass."""
    drawing = filter(draws_random_numbers, joint.graph.nodes)
    return not any(n.kwargs.get("generator") is not None or is_backward(n) for n in drawing)


def _random_states() -> list[tuple[torch.Generator, Tensor]] | None:
    """The states of the default generators; None while a CUDA graph is captured, whose replays draw
    other numbers."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    return generator_states()


def save_call_arguments(args: Sequence[Any]) -> CallArguments:
    """The arguments, so that tensors live as long as somebody else keeps them.

    Parameters have no weak references, with which torch could not swap their contents. Autograd's
    graph refers to the trained ones. A frozen one is kept, with its ``__dict__``, which changes
    when the contents are swapped.
    """
    try:
        return [
            a if (kind := type(a)) in _NUMBERS
            else (None, a._version) if a.requires_grad and a.is_leaf
            else ((a, a.__dict__), a._version) if kind is torch.nn.Parameter
            else (weakref.ref(a), a._version)
            for a in args
        ]  # fmt: skip
    except RuntimeError:  # inference tensors have no version counter
        return None


_NUMBERS = (int, float)


def _referents(ctx: Any) -> list[Tensor | None]:
    """The tensors among the arguments of a call; None for those that are gone."""
    references = [argument[0] for argument in ctx.call_arguments if isinstance(argument, tuple)]
    pairs = zip(references, ctx.next_functions, strict=True)
    return [_referent(reference, function) for reference, (function, _) in pairs]


def _referent(reference: Any, function: Any) -> Tensor | None:
    if reference is None:
        variable: Tensor | None = getattr(function, "variable", None)
        return variable
    if isinstance(reference, tuple):
        parameter, attributes = reference
        return parameter if parameter.__dict__ is attributes else None
    tensor: Tensor | None = reference()
    return tensor


def _restore_call_arguments(ctx: Any, modified: Collection[int]) -> list[Any] | None:
    """The arguments again; None if one is gone, or was modified in place, except by the call
    itself."""
    if ctx.call_arguments is None:
        return None
    found, tensors = [], iter(_referents(ctx))
    for k, argument in enumerate(ctx.call_arguments):
        if isinstance(argument, tuple):
            tensor, version = next(tensors), argument[1]
            if tensor is None or (k not in modified and tensor._version != version):
                return None
            argument = tensor
        found.append(argument)
    return found


def _differentiate(
    ctx: Any, results: Sequence[Any], args: Sequence[Any], gradients: Sequence[Any]
) -> tuple[Any, ...]:
    """The gradients of ``args`` by those of ``results``, None where there is none."""
    needed = [k for k, needs in enumerate(ctx.needs_input_grad) if needs]
    pairs = [
        (result, gradient)
        for result, gradient in zip(results, gradients, strict=True)
        if gradient is not None and isinstance(result, Tensor) and result.requires_grad
    ]
    found: list[Any] = [None] * len(args)
    if pairs:
        outputs, incoming = zip(*pairs, strict=True)
        inputs = [args[k] for k in needed]
        taken = torch.autograd.grad(
            outputs, inputs, incoming, create_graph=torch.is_grad_enabled(), allow_unused=True
        )
        for k, gradient in zip(needed, taken, strict=True):
            found[k] = gradient
    return tuple(found)


def has_tangents(gradients: Sequence[Any]) -> bool:
    """True if a gradient has a tangent of forward-mode AD, which compiled passes do not compute."""
    if not is_forward_ad_active():
        return False
    tensors = (g for g in gradients if isinstance(g, Tensor))
    return any(forward_ad.unpack_dual(g).tangent is not None for g in tensors)


def call_once_differentiable(
    backward: Callable[[list[Any]], Any], args: Sequence[Any], ctx: Any
) -> Any:
    """The results of a backward pass, as tensors whose own backward raises a RuntimeError, whatever
    they are differentiated by."""
    return _OnceDifferentiable.apply(backward, len(args), *args, *_differentiable_sources(ctx))


def make_once_differentiable(function: Any) -> None:
    """Replace the backward of AOTAutograd's ``autograd.Function`` by one that refuses double
    backward in all cases: AOTAutograd's own does so only for gradients that depend on arguments
    which the pass has saved as they are."""
    backward = function.backward

    @untraced
    def run(ctx: Any, *gradients: Any) -> Any:
        if has_tangents(gradients[0] if type(gradients[0]) is list else gradients):
            raise RuntimeError(
                "no gradients with tangents (forward-mode AD) through this magpy-compiled "
                "function. Compute them in eager mode"
            )
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        if type(gradients[0]) is list:
            return call_once_differentiable(lambda args: backward(ctx, args), gradients[0], ctx)
        return call_once_differentiable(lambda args: backward(ctx, *args), gradients, ctx)

    function.backward = staticmethod(run)


class _OnceDifferentiable(torch.autograd.Function):
    """Calls a function with the first ``count`` of its arguments; the others only connect the
    results to the graph of autograd, so that differentiating them reaches ``backward``."""

    @staticmethod
    def forward(ctx: Any, backward: Callable[[list[Any]], Any], count: int, *args: Any) -> Any:
        return tuple(backward([*args[:count]]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "no double backward through this magpy-compiled function: its arguments are gone or "
            "were modified since the call, or it draws from a generator of its own, or uses the "
            "old values of a large argument that it modifies, or returns a view of one. Keep the "
            "arguments as they are until the second backward pass, or take the gradients inside of "
            "the compiled function"
        )


def _differentiable_sources(ctx: Any) -> list[Tensor]:
    """Tensors that the gradients depend on: arguments of the call that still exist, and the leaves
    that the others were computed from."""
    arguments = _referents(ctx) if getattr(ctx, "call_arguments", None) is not None else ()
    found = {id(t): t for t in arguments if t is not None and t.requires_grad}
    nodes, seen = [ctx], {ctx}
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        further = {next_node for next_node, _ in node.next_functions} - seen - {None}
        seen |= further
        nodes += further
    return list(found.values())
