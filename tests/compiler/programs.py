"""Helpers of the compiler tests: compile programs in strict mode and compare them with eager."""

from __future__ import annotations

import copy
from typing import Any, Callable
from unittest import mock

import torch

from magpy_like.compiler import dynamo_backend, kernel_build
from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.scheduling.scheduler import Schedule, Scheduler
from tests import seeding


def compiled(function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """``function`` compiled as one graph by Dynamo and this compiler; unsupported graphs raise."""
    torch._dynamo.reset()
    return torch.compile(
        function,
        backend=dynamo_backend,
        fullgraph=True,
        dynamic=dynamic,
        options={"strict": True},
    )


def same(function: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kw: Any) -> None:
    """Asserts that results, strides and mutated arguments equal eager's, on the default device."""
    args = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(torch.get_default_device()), args
    )
    compiled_args, eager_args = copy.deepcopy(args), copy.deepcopy(args)
    actual, expected = compiled(function, dynamic=dynamic)(*compiled_args), function(*eager_args)
    torch.testing.assert_close(actual, expected, equal_nan=True, **kw)
    torch.testing.assert_close(compiled_args, eager_args, equal_nan=True, **kw)
    for a, b in zip(tensors(actual), tensors(expected), strict=True):
        assert a.stride() == b.stride()


def same_gradients(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """Asserts that results, and gradients of all arguments for a random upstream gradient, equal
    eager's."""
    compiled_args = [a.detach().clone().requires_grad_() for a in args]
    eager_args = [a.detach().clone().requires_grad_() for a in args]
    seeding.seed(0)
    actual = compiled(function)(*compiled_args)
    seeding.seed(0)
    expected = function(*eager_args)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    upstream = torch.randn_like(expected)
    actual.backward(upstream)
    expected.backward(upstream)
    for a, b in zip(compiled_args, eager_args, strict=True):
        torch.testing.assert_close(a.grad, b.grad, equal_nan=True)


def seeded(*size: int, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers on the default device, equal on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    made = torch.randn(size, generator=generator, device="cpu")
    return made.to(torch.get_default_device())


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def schedule(function: Callable[..., Any], *args: Any) -> Schedule:
    """The schedule of the inference graph of ``function``."""
    found: list[Schedule] = []
    original = Scheduler.run

    def run(self: Scheduler) -> Schedule:
        found.append(original(self))
        return found[-1]

    # A graph in the disk cache would not be scheduled.
    with (
        mock.patch.object(Scheduler, "run", run),
        mock.patch.object(kernel_build, "find", lambda *args: None),
        torch.no_grad(),
    ):
        compiled(function)(*args)
    (result,) = found
    return result


def kernels(function: Callable[..., Any], *args: Any) -> list[Kernel]:
    return [step for step in schedule(function, *args).steps if isinstance(step, Kernel)]


def aten_fallbacks(function: Callable[..., Any], *args: Any) -> list[str]:
    """The operators of the inference graph of ``function`` that have no lowering."""
    found: list[str] = []
    original = Graph.run

    def run(self: Graph) -> Graph:
        result = original(self)
        found.extend(result.fallbacks)
        return result

    with (
        mock.patch.object(Graph, "run", run),
        mock.patch.object(kernel_build, "find", lambda *args: None),
        torch.no_grad(),
    ):
        compiled(function)(*args)
    return found


__all__ = [
    "Graph", "compile_fx", "compiled", "kernels", "same", "same_gradients", "schedule", "seeded",
    "aten_fallbacks",
]  # fmt: skip


def attempt(action: Callable[[], Any]) -> Any:
    """The action's result, or the first words of its RuntimeError."""
    try:
        return action()
    except RuntimeError as error:
        return str(error)[:60]


class Grown(torch.autograd.Function):
    """Its gradient is not that of the operator by which it writes."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Reversed(torch.autograd.Function):
    """Returns a view of its argument."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g
