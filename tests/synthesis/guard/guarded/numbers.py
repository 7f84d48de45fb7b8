"""Programs that rely on lifted sizes and numbers, on shared memory, and on autograd's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import Calls, ones, relies_on, varied_argument


@relies_on(Kind.SHARED_MEMORY, backend="magpy")
def memory_shared_by_arguments() -> Calls:
    def program(a, b):
        before = b * 2
        a.add_(1)
        return before, b * 2

    def views() -> Any:
        whole = ones()
        return whole[:], whole[:]

    return program, [lambda: (ones()[:], ones()[:])] * 2 + [views]


@relies_on(Kind.NO_SHARED_MEMORY, backend="magpy")
def memory_shared_with_a_parameter() -> Calls:
    layer = nn.Linear(2, 2, bias=False)

    def program(a, x):
        with torch.no_grad():
            a.add_(1)
            result = layer(x)
            a.mul_(2)
            return result

    return program, [
        lambda: (ones(2, 2), ones()),
        lambda: (ones(2, 2), ones()),
        lambda: (layer.weight.detach(), ones()),
    ]


@relies_on(Kind.WRITABILITY, backend="magpy", after_split=False)
def leaf_changed_in_place() -> Calls:
    def program(a):
        a[0] = 3
        return a * 2

    def leaf() -> Any:
        return ones().requires_grad_()

    return program, [lambda: (leaf() * 1,)] * 2 + [lambda: (leaf(),)]


@relies_on(Kind.SEPARATE_HISTORIES, backend="magpy")
def argument_computed_from_what_gradients_are_taken_by() -> Calls:
    def program(w, x):
        return torch.autograd.grad((w * x).sum(), w)[0]

    def leaf() -> Any:
        return ones().requires_grad_()

    def computed(w: Any) -> Any:
        return w, w * w

    return program, [lambda: (leaf(), leaf())] * 2 + [lambda: computed(leaf())]


@relies_on(Kind.NO_GRADIENT_HOOKS, backend="magpy")
def hook_on_what_gradients_are_taken_by() -> Calls:
    def program(w, x):
        return torch.autograd.grad((w * x).sum(), w)[0]

    def leaf() -> Any:
        return ones().requires_grad_()

    def hooked() -> Any:
        tensor = leaf()
        tensor.register_hook(lambda gradient: gradient * 2)
        return tensor

    return program, [lambda: (leaf(), ones())] * 2 + [lambda: (hooked(), ones())]


@relies_on(Kind.UPPER_BOUND, Kind.VALUE)
def upper_bound_of_a_number() -> Calls:
    return varied_argument(
        lambda x, n: x * n if n < 10 else x, *(lambda n=n: n for n in (2, 3, 4, 20))
    )


@relies_on(Kind.LOWER_BOUND, Kind.VALUE)
def lower_bound_of_a_number() -> Calls:
    return varied_argument(
        lambda x, n: x * n if n > 3 else x, *(lambda n=n: n for n in (5, 6, 7, 2))
    )


@relies_on(Kind.SIZE_RELATION, Kind.VALUE)
def odd_number() -> Calls:
    return varied_argument(
        lambda x, n: x * n if n % 2 else x, *(lambda n=n: n for n in (5, 7, 9, 2))
    )


@relies_on(Kind.LIFTED_VALUE, Kind.VALUE)
def upper_bound_of_a_float() -> Calls:
    return varied_argument(
        lambda x, n: x * n if n < 10 else x, *(lambda n=n: n for n in (2.5, 3.5, 4.5, 20.5))
    )


@relies_on(Kind.SIZE_RANGE, Kind.TENSOR)
def range_of_a_size() -> Calls:
    def program(x):
        return x.sum() * x.shape[0] if x.shape[0] > 4 else x.sum()

    return program, [lambda n=n: (ones(n),) for n in (5, 5, 6, 7, 3)]


@relies_on()
def size_other_than_one() -> Calls:
    def program(x, y):
        return (x + y).sum() * y.shape[0]

    return program, [lambda n=n: (ones(6, 1), ones(1, n)) for n in (5, 5, 6, 7, 1)]


@relies_on(Kind.SIZE_RELATION, Kind.TENSOR)
def odd_size() -> Calls:
    def program(x):
        return x * 2 if x.shape[0] % 2 else x

    return program, [lambda n=n: (ones(n),) for n in (5, 5, 7, 9, 4)]


@relies_on(Kind.SIZE_RELATION, after_split=False)
def relation_of_a_size_and_a_number() -> Calls:
    def program(x, n):
        return x * 2 if x.shape[0] > n else x

    return program, [lambda n=n: (ones(n), n - 1) for n in (5, 5, 7, 9)] + [lambda: (ones(4), 7)]
