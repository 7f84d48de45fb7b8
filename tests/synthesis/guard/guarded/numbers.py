"""Programs that rely on sizes and numbers that vary, and on memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import Made, given, ones, relies_on


@relies_on(Kind.SHARED_MEMORY, backend="magpy")
def memory_of_another() -> Made:
    def program(a, b):
        before = b * 2
        a.add_(1)
        return before, b * 2

    def views() -> Any:
        whole = ones()
        return whole[:], whole[:]

    return program, [lambda: (ones()[:], ones()[:])] * 2 + [views]


@relies_on(Kind.NO_SHARED_MEMORY, backend="magpy")
def memory_of_a_parameter() -> Made:
    layer = nn.Linear(2, 2, bias=False)

    def program(a, x):
        with torch.no_grad():
            a.add_(1)
            return layer(x)

    return program, [
        lambda: (ones(2, 2), ones()),
        lambda: (ones(2, 2), ones()),
        lambda: (layer.weight.detach(), ones()),
    ]


@relies_on(Kind.UPPER_BOUND, Kind.VALUE)
def a_number_too_large() -> Made:
    return given(lambda x, n: x * n if n < 10 else x, *(lambda n=n: n for n in (2, 3, 4, 20)))


@relies_on(Kind.LOWER_BOUND, Kind.VALUE)
def a_number_too_small() -> Made:
    return given(lambda x, n: x * n if n > 3 else x, *(lambda n=n: n for n in (5, 6, 7, 2)))


@relies_on(Kind.SIZE_RELATION, Kind.VALUE)
def a_number_that_is_odd() -> Made:
    return given(lambda x, n: x * n if n % 2 else x, *(lambda n=n: n for n in (5, 7, 9, 2)))


@relies_on(Kind.LIFTED_VALUE, Kind.VALUE)
def a_float_too_large() -> Made:
    return given(
        lambda x, n: x * n if n < 10 else x, *(lambda n=n: n for n in (2.5, 3.5, 4.5, 20.5))
    )


@relies_on(Kind.SIZE_RANGE, Kind.TENSOR)
def a_size_too_large() -> Made:
    def program(x):
        return x.sum() * x.shape[0] if x.shape[0] > 4 else x.sum()

    return program, [lambda n=n: (ones(n),) for n in (5, 5, 6, 7, 3)]


@relies_on()
def a_size_not_one() -> Made:
    def program(x, y):
        return (x + y).sum() * y.shape[0]

    return program, [lambda n=n: (ones(6, 1), ones(1, n)) for n in (5, 5, 6, 7, 1)]


@relies_on(Kind.SIZE_RELATION, Kind.TENSOR)
def sizes_that_are_even() -> Made:
    def program(x):
        return x * 2 if x.shape[0] % 2 else x

    return program, [lambda n=n: (ones(n),) for n in (5, 5, 7, 9, 4)]


@relies_on(Kind.SIZE_RELATION, behind=False)
def a_size_and_a_number() -> Made:
    def program(x, n):
        return x * 2 if x.shape[0] > n else x

    return program, [lambda n=n: (ones(n), n - 1) for n in (5, 5, 7, 9)] + [lambda: (ones(4), 7)]
