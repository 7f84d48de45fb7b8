"""Stub compilers whose results differ from eager in a known way."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from paritybench_runner.compilers import Capture
from paritybench_runner.corpus import Case
from paritybench_runner.evaluate import evaluate_compiler, evaluate_eager


@dataclass
class StubCompiler:
    """A compiler: ``make`` returns the callable that replaces a module."""

    make: Callable[[nn.Module], Callable[..., Any]]
    name = "stub"

    def compile(self, module: nn.Module) -> "_Compiled":
        return _Compiled(module, self.make(module))

    def capture(self, fresh: Any) -> Capture:
        return Capture(True, 1)

    def state(self, module: nn.Module) -> nn.Module:
        return module

    def reset(self) -> None:
        pass


@dataclass
class _Compiled:
    module: nn.Module
    call: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def hits(self) -> int:
        return 2


@functools.cache
def _evaluate_in_eager(module: type[nn.Module], inputs: Callable[[], Any], train: bool) -> Any:
    case = Case(0, module.__name__, module, lambda: ([], {}), inputs)
    program, eager = evaluate_eager(case, "cpu", train)
    assert eager["class"] == "ok" and eager["deterministic"], eager
    return program, eager


def verdict(
    compiler: StubCompiler, module: type[nn.Module], inputs: Callable[[], Any], train: bool = True
) -> str:
    """The result class of ``compiler`` for a module; ``inputs`` creates the arguments."""
    return evaluate_compiler(*_evaluate_in_eager(module, inputs, train), compiler)["class"]
