"""What a long run does, one call at a time; every result is compared with eager mode."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import magpy_like as magpy
from tests.compare import assert_same


class Interrupted(TimeoutError):
    """The exception of the alarm that interrupts calls."""


class Encoder(nn.Module):
    """Normalisation, dropout, a residual connection, and state in Python."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(x + self.second(torch.relu(self.first(x))))


class Convolving(nn.Module):
    """Buffers that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)).relu().mean((2, 3))


def steps(x: Tensor, n: int) -> list[Tensor]:
    """A loop whose length varies."""
    results = []
    for i in range(n):
        x = x * 0.5 + i
        results.append(x.sum())
    return results


class Activities:
    """Models on one device, their compiled versions, and random calls of them."""

    def __init__(self, seed: int, device: str, backend: str) -> None:
        self._random = random.Random(seed)
        self._device, self._backend = device, backend
        torch.manual_seed(seed)
        self._models = [Encoder().to(device), Convolving().to(device)]
        self._compiled = [self._compile(model) for model in self._models]
        self._loop = self._compile(steps)
        self.interrupted = 0
        self.calls = 0

    def _compile(self, target: Any) -> Any:
        return magpy.compile(target, backend=self._backend)

    def once(self) -> None:
        """One random activity.

        Raises:
            AssertionError: a result differs from eager mode's.
        """
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.infer, 40), (self.train, 20), (self.loop, 10), (self.new_function, 8),
            (self.in_threads, 3), (self.interrupt, 8), (self.reset, 1),
        ]  # fmt: skip
        activity = self._random.choices(*zip(*kinds, strict=True))[0]
        activity()
        self.calls += 1

    def _input(self, index: int) -> Tensor:
        batch = self._random.randint(2, 9)
        shape = (batch, 16) if index == 0 else (batch, 3, self._random.choice((8, 12)), 8)
        return torch.randn(shape, device=self._device)

    def infer(self) -> None:
        index = self._random.randrange(2)
        model, x = self._models[index].eval(), self._input(index)
        with torch.no_grad():
            self._compare(self._compiled[index](x), model(x))

    def train(self) -> None:
        index = self._random.randrange(2)
        model, x = self._models[index].train(), self._input(index)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        gradients = []
        for program in (self._compiled[index], model):
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            model.zero_grad(set_to_none=True)
            program(x).square().sum().backward()
            gradients.append([p.grad for p in model.parameters()])
        self._compare(*gradients)

    def loop(self) -> None:
        x, n = self._input(0), self._random.randint(1, 12)
        self._compare(self._loop(x, n), steps(x, n))

    def new_function(self) -> None:
        """A function that is compiled, called and dropped."""
        factor = self._random.random()

        def scaled(x: Tensor) -> Tensor:
            return x * factor + x.shape[0]

        fast, x = self._compile(scaled), self._input(0)
        for _ in range(2):
            self._compare(fast(x), scaled(x))

    def in_threads(self) -> None:
        failures: list[BaseException] = []

        def work(x: Tensor) -> None:
            try:
                with torch.no_grad():
                    self._compare(self._compiled[0](x), self._models[0](x))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(self._input(0),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def interrupt(self) -> None:
        """A first call that an alarm interrupts after a random time, and then a whole one."""
        model = Encoder().to(self._device)
        fast, x = self._compile(model), self._input(0)
        is_over = []

        def ring(number: int, frame: Any) -> None:
            if not is_over:
                raise Interrupted("now")

        handler = signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, 10 ** self._random.uniform(-4, -1))
            fast(x)
            is_over.append(True)
        except Interrupted:
            self.interrupted += 1
        finally:
            is_over.append(True)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        self._compare(fast(x), model(x))

    def reset(self) -> None:
        magpy.reset()
        torch.compiler.reset()

    def _compare(self, actual: Any, expected: Any) -> None:
        assert_same(actual, expected, rtol=1e-4, atol=1e-4)
