"""Programs that rely on properties of tensors, and on torch's modes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import (
    Calls,
    ones,
    relies_on,
    varied_argument,
    varied_state,
)

KIND = Kind.TENSOR


@relies_on(KIND)
def tensor_class() -> Calls:
    return varied_argument(
        lambda x, t: x * 2 if type(t) is nn.Parameter else x,
        lambda: ones().requires_grad_(),
        lambda: nn.Parameter(ones()),
    )


@relies_on(KIND)
def tensor_dtype() -> Calls:
    return varied_argument(
        lambda x, t: x * 2 if t.dtype is torch.int32 else x, ones, lambda: torch.ones(2).int()
    )


@relies_on(KIND)
def tensor_device() -> Calls:
    return varied_argument(lambda x, t: x * 2 if t.is_meta else x, ones, lambda: ones().to("meta"))


@relies_on(KIND)
def tensor_requires_grad() -> Calls:
    return varied_argument(
        lambda x, t: x * 2 if t.requires_grad else x, ones, lambda: ones().requires_grad_()
    )


@relies_on(KIND)
def tensor_layout() -> Calls:
    return varied_argument(
        lambda x, t: x * 2 if t.is_sparse else x, ones, lambda: ones().to_sparse()
    )


@relies_on(KIND)
def conjugated_tensor() -> Calls:
    return varied_argument(
        lambda x, t: x * 2 if t.is_conj() else x,
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
    )


@relies_on(KIND)
def tensor_size() -> Calls:
    return varied_argument(lambda x, t: x * t.shape[0], ones, lambda: ones(3))


@relies_on(KIND)
def tensor_strides() -> Calls:
    return varied_argument(
        lambda x, t: x * 2 if t.is_contiguous() else x,
        lambda: ones(2, 2),
        lambda: torch.arange(4.0).view(2, 2).t(),
    )


def _with_dynamic_sizes(program: Any, *others: Any) -> Calls:
    sizes = [lambda n=n: (ones(n, 3),) for n in (5, 5, 6, 7, 8)]
    return program, [*sizes, *(lambda other=other: (other(),) for other in others)]


@relies_on(KIND)
def dimensions_with_a_dynamic_size() -> Calls:
    return _with_dynamic_sizes(lambda x: x.sum(0) * x.dim(), lambda: ones(9, 3, 1))


@relies_on(KIND)
def static_size_next_to_a_dynamic_one() -> Calls:
    return _with_dynamic_sizes(lambda x: x.sum() * x.shape[1], lambda: ones(9, 4))


@relies_on(KIND)
def strides_with_a_dynamic_size() -> Calls:
    return _with_dynamic_sizes(
        lambda x: x * 2 if x.is_contiguous() else x, lambda: torch.arange(27.0).view(3, 9).t()
    )


@relies_on(Kind.TORCH_MODES)
def inference_mode() -> Calls:
    def program(x):
        return x * 2 if torch.is_inference_mode_enabled() else x

    modes: list[Any] = []

    def change(i):
        while modes:
            modes.pop().__exit__(None, None, None)
        if i == 1:
            modes.append(torch.inference_mode())
            modes[-1].__enter__()

    return varied_state(program, change, 0, 0, 1, 0)


@relies_on(Kind.TORCH_MODES)
def default_dtype() -> Calls:
    types = torch.float32, torch.float64
    return varied_state(
        lambda x: x * 2 if torch.get_default_dtype() is torch.float64 else x,
        lambda i: torch.set_default_dtype(types[i]),
        *(0, 0, 1, 0),
    )


@relies_on(Kind.TORCH_MODES, backend="magpy")
def autocast_mode() -> Calls:
    modes: list[Any] = []

    def change(i):
        while modes:
            modes.pop().__exit__(None, None, None)
        if i == 1:
            modes.append(torch.autocast("cpu", dtype=torch.bfloat16))
            modes[-1].__enter__()

    def program(x):
        return nn.functional.mse_loss(x.bfloat16(), x.bfloat16() + 1)

    return varied_state(program, change, 0, 0, 1, 0)


@relies_on(Kind.TORCH_MODES, backend="magpy", after_split=False)
def default_device_that_was_unset() -> Calls:
    return varied_state(
        lambda x: torch.ones(2), lambda i: torch.set_default_device((None, "meta")[i])
    )


@relies_on(backend="magpy")
def torch_dispatch_mode() -> Calls:
    """Seen without the guard at entry; after a split only the guard sees it."""

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

    return varied_state(lambda x: torch.sin(x), change, 0, 0, 1, 0)


@relies_on(Kind.TORCH_MODES, backend="magpy")
def method_added_to_tensors() -> Calls:
    def change(i):
        if i == 1:
            torch.Tensor.__add__ = lambda tensor, other: tensor * 5
        elif "__add__" in torch.Tensor.__dict__:
            del torch.Tensor.__add__

    return varied_state(lambda x: x + 1, change, 0, 0, 1, 0)
