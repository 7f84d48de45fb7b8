"""Metadata of tensors that programs rarely read or set: leaves, gradients, storage."""

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.split_reasons import SplitReason
from tests.programs import Twins, check, check_stateful, one


def _leaf():
    return (torch.ones(2, 3, requires_grad=True),)


def _result():
    return (torch.ones(2, 3, requires_grad=True) + 0,)


READS = {
    "is_leaf": (lambda x: x * 2 if x.is_leaf else x * 3, _leaf, _result),
    "grad_fn": (lambda x: x * 2 if x.grad_fn is None else x * 3, _leaf, _result),
    "retains_grad": (
        lambda x: x * 2 if x.retains_grad else x * 3,
        _result,
        lambda: (_with_retained_gradient(*_result()),),
    ),
    "storage_offset": (
        lambda x: x * (1 + x.storage_offset()),
        lambda: (torch.ones(6),),
        lambda: (torch.ones(8)[2:],),
    ),
}


def _with_retained_gradient(tensor):
    tensor.retain_grad()
    return tensor


@pytest.mark.parametrize("name", READS)
def test_metadata_read_by_the_program_is_guarded(name):
    program, inputs, other = READS[name]
    check(program, inputs, other=[other])


def test_storage_offset_of_a_view_is_not_a_constant():
    def program(x):
        return x[1:] * x[1:].storage_offset()

    twins = Twins(lambda: program)
    for offset in (0, 2, 0, 3):
        twins.call(lambda offset=offset: (torch.ones(8)[offset : offset + 4],))


def _new_leaf(x):
    y = torch.zeros_like(x)
    y.requires_grad = True
    return y, y * x


def _unchanged(x):
    y = x * 2
    y.requires_grad = False
    return y


def _argument(x):
    x.requires_grad = True
    return x * 2


@pytest.mark.parametrize("program", [_new_leaf, _unchanged, _argument])
def test_requires_grad_is_set_without_a_split(program):
    check(program, one(), backward=True)
    assert not magpy.explain(program, *one()()).split_points


class _Freezes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        with torch.no_grad():
            self.layer.weight.fill_(0.5)
            self.layer.bias.zero_()

    def forward(self, x):
        for parameter in self.layer.parameters():
            parameter.requires_grad = False
        return self.layer(x)


def test_parameters_are_frozen_at_every_call():
    twins = check_stateful(_Freezes, one(), max_recordings=2)
    twins.change(lambda module: module.requires_grad_(True))
    twins.call(one(), hit=True, why="the record of the first call")
    assert not any(parameter.requires_grad for parameter in twins.target.parameters())


class _FreezesOnce(_Freezes):
    def forward(self, x):
        scale = 2 if self.layer.weight.requires_grad else 3
        self.layer.weight.requires_grad = False
        return self.layer(x) * scale


def test_entry_value_of_requires_grad_is_guarded():
    twins = Twins(_FreezesOnce)
    for _ in range(4):
        twins.call(one())
    twins.change(lambda module: module.requires_grad_(True))
    twins.call(one())


def _resized(x):
    return x + x.data.new().resize_((x.size(0),)).fill_(2)


def _resized_as_another(x):
    return x * x.new().resize_as_(x).fill_(3)


@pytest.mark.parametrize("program", [_resized, _resized_as_another])
def test_new_tensor_is_resized(program):
    check(program, one())
    assert not magpy.explain(program, *one()()).split_points


def test_external_tensor_is_resized_natively():
    def program(x, y):
        y.resize_(4).fill_(1)
        z = x.view(3)
        return x + 1, z, y * 2

    twins = Twins(lambda: program)
    for _ in range(3):
        twins.call(lambda: (*one()(), torch.zeros(2)))
    assert magpy.explain(program, *one()(), torch.zeros(2)).split_points


class _Uninitialised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(2)

    def forward(self, x):
        y = self.layer(x)
        return torch.zeros_like(y) + len(self.layer._parameters)


def test_uninitialised_parameters_are_not_read():
    twins = Twins(_Uninitialised)
    for _ in range(4):
        twins.call(one())
    points = magpy.api._dispatcher(twins.compiled).split_points
    assert not any(point.reason is SplitReason.INTERNAL_ERROR for point in points)


def test_program_with_an_uninitialised_parameter_hits():
    class Initialises(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.UninitializedParameter()

        def forward(self, x):
            return x + len(self._parameters) if self.weight is not None else x

    twins = Twins(Initialises)
    for _ in range(3):
        actual = twins.compiled(*one()())
        assert torch.equal(actual, twins.eager(*one()()))
    assert magpy.cache_info(twins.compiled).hits == 2
