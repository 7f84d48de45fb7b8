"""Programs that are interrupted: each enters other parts of the monitor, synthesis and compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import magpy_like as magpy
from tests.interrupts.injection import Case


class Counting(nn.Module):
    """State in Python, and a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.linear(x)
        if y.sum() > 1e9:
            y = y * 2
        return y.relu() + x.shape[0]


class Normalizing(nn.Module):
    """Buffers that the program changes, and dropout, which draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x))


def _module(kind: type[nn.Module]) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return kind(), lambda: (torch.arange(6.0).view(2, 3),)

    return make


def _splitting() -> Any:
    opaque = magpy.disable(lambda: 2)

    def program(x: Tensor, seen: list[int]) -> Tensor:
        seen.append(len(seen))
        y = x * 3
        n = opaque()
        return y.sum() * n + len(seen)

    return program, lambda: (torch.ones(3), [5])


def _looping() -> Any:
    def program(x: Tensor, n: int) -> Tensor:
        total = x
        for i in range(n):
            total = total * 0.5 + i
            if total.max() > 100:
                break
        try:
            return total / len([])
        except ZeroDivisionError:
            return total

    return program, lambda: (torch.ones(3), 9)


def _training() -> Any:
    torch.manual_seed(0)
    weight = torch.randn(3, 3)

    def program(x: Tensor) -> Tensor:
        return (x @ weight).sin() * x

    return program, lambda: (torch.arange(9.0).view(3, 3).requires_grad_(),)


CASES = {
    "module with state and a branch": Case(_module(Counting)),
    "changed buffers": Case(_module(Normalizing)),
    "split": Case(_splitting),
    "loop on data": Case(_looping),
    "training": Case(_training, trains=True),
    "compiled module": Case(_module(Counting), backend="magpy"),
    "compiled training": Case(_training, backend="magpy", trains=True),
}
