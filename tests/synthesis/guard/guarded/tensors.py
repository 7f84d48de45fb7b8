"""Programs that rely on what a tensor is, and on torch's modes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import Made, altered, given, ones, relies_on

KIND = Kind.TENSOR


@relies_on(KIND)
def a_tensor_of_another_class() -> Made:
    return given(
        lambda x, t: x * 2 if type(t) is nn.Parameter else x,
        lambda: ones().requires_grad_(),
        lambda: nn.Parameter(ones()),
    )


@relies_on(KIND)
def a_tensor_of_another_type() -> Made:
    return given(
        lambda x, t: x * 2 if t.dtype is torch.int32 else x, ones, lambda: torch.ones(2).int()
    )


@relies_on(KIND)
def a_tensor_on_another_device() -> Made:
    return given(lambda x, t: x * 2 if t.is_meta else x, ones, lambda: ones().to("meta"))


@relies_on(KIND)
def a_tensor_with_gradients() -> Made:
    return given(
        lambda x, t: x * 2 if t.requires_grad else x, ones, lambda: ones().requires_grad_()
    )


@relies_on(KIND)
def a_tensor_in_another_layout() -> Made:
    return given(lambda x, t: x * 2 if t.is_sparse else x, ones, lambda: ones().to_sparse())


@relies_on(KIND)
def a_conjugated_tensor() -> Made:
    return given(
        lambda x, t: x * 2 if t.is_conj() else x,
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
    )


@relies_on(KIND)
def a_tensor_of_another_size() -> Made:
    return given(lambda x, t: x * t.shape[0], ones, lambda: ones(3))


@relies_on(KIND)
def a_tensor_laid_out_otherwise() -> Made:
    return given(
        lambda x, t: x * 2 if t.is_contiguous() else x,
        lambda: ones(2, 2),
        lambda: torch.arange(4.0).view(2, 2).t(),
    )


def _of_any_size(program: Any, *others: Any) -> Made:
    sizes = [lambda n=n: (ones(n, 3),) for n in (5, 5, 6, 7, 8)]
    return program, [*sizes, *(lambda other=other: (other(),) for other in others)]


@relies_on(KIND)
def a_dimension_more_of_any_size() -> Made:
    return _of_any_size(lambda x: x.sum(0) * x.dim(), lambda: ones(9, 3, 1))


@relies_on(KIND)
def another_size_beside_any_size() -> Made:
    return _of_any_size(lambda x: x.sum() * x.shape[1], lambda: ones(9, 4))


@relies_on(KIND)
def laid_out_otherwise_beside_any_size() -> Made:
    return _of_any_size(
        lambda x: x * 2 if x.is_contiguous() else x, lambda: torch.arange(27.0).view(3, 9).t()
    )


@relies_on(Kind.TORCH_MODES)
def the_inference_mode() -> Made:
    def program(x):
        return x * 2 if torch.is_inference_mode_enabled() else x

    modes: list[Any] = []

    def change(i):
        while modes:
            modes.pop().__exit__(None, None, None)
        if i == 1:
            modes.append(torch.inference_mode())
            modes[-1].__enter__()

    return altered(program, change, 0, 0, 1, 0)


@relies_on(Kind.TORCH_MODES)
def the_default_type() -> Made:
    types = torch.float32, torch.float64
    return altered(
        lambda x: x * 2 if torch.get_default_dtype() is torch.float64 else x,
        lambda i: torch.set_default_dtype(types[i]),
        *(0, 0, 1, 0),
    )


@relies_on(Kind.TORCH_MODES, backend="magpy")
def the_autocast_mode() -> Made:
    modes: list[Any] = []

    def change(i):
        while modes:
            modes.pop().__exit__(None, None, None)
        if i == 1:
            modes.append(torch.autocast("cpu", dtype=torch.bfloat16))
            modes[-1].__enter__()

    def program(x):
        return nn.functional.mse_loss(x.bfloat16(), x.bfloat16() + 1)

    return altered(program, change, 0, 0, 1, 0)


@relies_on(Kind.TORCH_MODES, backend="magpy", behind=False)
def any_default_device() -> Made:
    return altered(lambda x: torch.ones(2), lambda i: torch.set_default_device((None, "meta")[i]))


@relies_on(backend="magpy")
def a_mode_for_operators() -> Made:
    """Seen without the guard at entry, and behind a split by nothing else."""

    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.sin.default else result

    modes: list[Any] = []

    def change(i):
        while modes:
            modes.pop().__exit__(None, None, None)
        if i == 1:
            modes.append(Doubling())
            modes[-1].__enter__()

    return altered(lambda x: torch.sin(x), change, 0, 0, 1, 0)


@relies_on(Kind.TORCH_MODES, backend="magpy")
def a_method_more_of_tensors() -> Made:
    def change(i):
        if i == 1:
            torch.Tensor.__add__ = lambda tensor, other: tensor * 5
        elif "__add__" in torch.Tensor.__dict__:
            del torch.Tensor.__add__

    return altered(lambda x: x + 1, change, 0, 0, 1, 0)
