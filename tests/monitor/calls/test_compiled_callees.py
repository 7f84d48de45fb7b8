"""Compiled callees: part of the record of their caller, with their own splits."""

import functools

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same


def compiled(target):
    return magpy.compile(target, backend="eager")


class Scaled(nn.Module):
    def __init__(self, message):
        super().__init__()
        self.weight, self.factor, self.message = (
            nn.Parameter(torch.ones(2)),
            torch.tensor(2.0),
            message,
        )

    def forward(self, x):
        if self.message:
            print(self.message)
        return x * self.weight * self.factor

    def scale(self, x):
        return x * self.factor


@compiled
def double(x):
    return x * 2


def module(scaled):
    inner = compiled(scaled)
    return lambda x: inner(x) + inner.factor


def method(scaled):
    scale = compiled(scaled.scale)
    return lambda x: scale(x) + 1


def module_of_modules(scaled):
    inner = compiled(nn.Sequential(compiled(scaled), nn.ReLU()))
    return lambda x: (
        sum(parameter.sum() for parameter in inner.parameters()) + inner(x) * len(inner)
    )


def module_that_splits(scaled):
    scaled.message = "called"
    inner = compiled(scaled)

    def program(x):
        try:
            return inner(x=x) + 1
        finally:
            print("ended")

    return program


def function_of_the_same_name(scaled):
    @functools.wraps(double)
    def named_double(x):
        return double(x) * scaled.factor

    return lambda x: named_double(x) + 1


@pytest.mark.parametrize(
    "make", [module, method, module_of_modules, module_that_splits, function_of_the_same_name]
)
def test_compiled_callee_is_part_of_its_callers_record(make, capsys):
    scaled, x = Scaled(""), torch.ones(2)
    program = make(scaled)
    fast = compiled(program)
    for hit in (False, True, False, True):
        before = magpy.cache_info(fast)
        actual = fast(x), capsys.readouterr().out
        assert_same(actual, (program(x), capsys.readouterr().out))
        assert (magpy.cache_info(fast).hits > before.hits) == hit
        if hit:
            scaled.factor = torch.tensor([3.0, 4.0])


def test_function_disabled_for_torch_compile_runs_natively_with_its_callees():
    calls = []

    @magpy.disable
    def count_call(x):
        calls.append(len(calls))

    @torch.compiler.disable
    def inner(x):
        y = x * 2
        count_call(y)
        return y + 1

    def program(x):
        return inner(x) * 3

    fast, x = compiled(program), torch.ones(2)
    for _ in range(3):
        assert_same(fast(x), program(x))
    assert calls == [*range(6)]
    info = magpy.cache_info(fast)
    assert (info.hits, info.graphs) == (2, 1)
