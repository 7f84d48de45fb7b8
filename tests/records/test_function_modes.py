"""Modes that a program enters: they see the program's operators, and no others."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import magpy_like as magpy

pytestmark = pytest.mark.usefixtures("reset_magpy")


class FunctionMode(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def within(mode, x):
    with mode:
        y = x.sin()
    return y * 2


def from_then_on(mode, x):
    mode.__enter__()
    return x.cos() + x.shape[0]


def after_an_exception(mode, x):
    try:
        with mode:
            raise ValueError
    except ValueError:
        return x.exp()


@pytest.mark.parametrize("kind", [FunctionMode, DispatchMode])
@pytest.mark.parametrize("program", [within, from_then_on, after_an_exception])
def test_mode_that_the_program_enters_sees_the_program_alone(program, kind):
    outcomes = []
    fast = magpy.compile(program, backend="eager")
    for function in (program, fast, fast, fast):
        seen = []
        mode = kind(seen)
        result = function(mode, torch.ones(3))
        if program is from_then_on:
            mode.__exit__(None, None, None)
        outcomes.append((result.tolist(), seen))
    assert outcomes[1:] == outcomes[:1] * 3
