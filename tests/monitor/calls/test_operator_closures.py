"""Closures of functions that are arguments of operators: each call uses its own tensors."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import magpy_like as magpy
from tests.programs import Twins, tensor


def tensor_from(start):
    return tensor(start, start + 1.5, -start)


def check_calls(make, *, inputs=lambda start: (tensor_from(start),), splits=None, hits=True):
    """Compare four calls with different tensors to eager calls.

    The last calls hit if ``hits``; ``splits`` states whether the program is split.
    """
    twins = Twins(make)
    for start in (1.0, 2.0, 3.0, 4.0):
        twins.call(lambda start=start: inputs(start), why=f"from {start}")
    info = magpy.cache_info(twins.compiled)
    if hits:
        assert info.hits >= 2
    if splits is not None:
        assert bool(twins.compiled._magpy_dispatcher.split_points) is splits
    return twins


class Rows:
    def __init__(self, weight):
        self.weight = weight

    def scaled(self, row):
        return row * self.weight


def default(x):
    return vmap(lambda row, y=x: row * y)(x)


def keyword_default(x):
    def scaled(row, *, y=x):
        return row * y

    return vmap(scaled)(x)


def nested(x):
    return vmap(lambda row: grad(lambda t: (t * x * row).sum())(row))(x)


def of_a_tuple(x):
    both = x, x * 2
    return vmap(lambda row: row * both[0] + both[1])(x)


def function_in_a_function(x):
    y = x.exp()

    def scaled(row):
        return row * y

    return vmap(lambda row: scaled(row) + scaled(row * x))(x)


def recursive(x):
    def power(row, times=3):
        return row if times == 0 else power(row * x, times - 1)

    return vmap(power)(x)


CLOSURES = {
    "an argument": lambda x: vmap(lambda row: row * x)(x),
    "a result": lambda x: (lambda y: vmap(lambda row: row * y)(x))(x * 2),
    "an argument, differentiated": lambda x: grad(lambda t: (t * x).sum())(x),
    "a default": default,
    "a default of a keyword": keyword_default,
    "partial": lambda x: vmap(functools.partial(torch.mul, x))(x),
    "partial of a lambda": lambda x: vmap(functools.partial(lambda y, row: y - row, x))(x),
    "partial by keyword": lambda x: vmap(functools.partial(lambda row, y: y - row, y=x))(x),
    "a function in a function": function_in_a_function,
    "a transform in a transform": nested,
    "a tuple": of_a_tuple,
    "itself": recursive,
}


@pytest.mark.parametrize("program", CLOSURES.values(), ids=CLOSURES)
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_closure_of_a_transformed_function_has_the_tensors_of_each_call(program, backend):
    twins = Twins(lambda: program, backend=backend)
    for start in (1.0, 2.0, 3.0, 4.0):
        twins.call(lambda start=start: (tensor_from(start),), why=f"from {start}")
    assert magpy.cache_info(twins.compiled).hits == 3
    assert not twins.compiled._magpy_dispatcher.split_points


def test_gradients_reach_tensors_in_a_closure():
    twins = Twins(lambda: lambda x: vmap(lambda row: row * x.exp())(x))
    for start in (1.0, 2.0, 3.0):
        twins.call(lambda start=start: (tensor_from(start).requires_grad_(),), backward=True)


def test_closure_variable_changes_between_two_transforms():
    def program(x):
        scale, count = x, 1

        def scaled(row):
            nonlocal count
            count += 1
            return row * scale * count

        first = vmap(scaled)(x)
        scale = x + 1
        return first, vmap(scaled)(x), count

    check_calls(lambda: program)


class Scaling:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, row):
        return row * self.weight


class ApplyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        return (function[0] if isinstance(function, tuple) else function)(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def number_of_data(x):
    n = float(x.sum())
    return vmap(lambda row: row * n)(x), vmap(lambda row, k=x.mean().item(): row * k)(x)


def size(x):
    n = x.shape[0]
    return vmap(lambda row: row * n)(x)


OTHER_REFERENCES = {
    "numbers that data decide": number_of_data,
    "a size": size,
    "an instance that is called": lambda x: vmap(Scaling(x))(x),
    "an instance for a custom function": lambda x: ApplyFunction.apply(x, Scaling(x)),
    "a function for a custom function": lambda x: ApplyFunction.apply(x, lambda t: t * x),
    "a function in a tuple": lambda x: ApplyFunction.apply(x, (lambda t: t * x,)),
}


@pytest.mark.parametrize("program", OTHER_REFERENCES.values(), ids=OTHER_REFERENCES)
def test_other_references_have_the_values_of_each_call(program):
    check_calls(lambda: program)


HOLDERS = {
    "an attribute": (
        lambda x, held: vmap(lambda row: row * held.weight)(x),
        lambda start: (tensor_from(start), Rows(tensor_from(-start))),
    ),
    "a method": (
        lambda x, held: vmap(held.scaled)(x),
        lambda start: (tensor_from(start), Rows(tensor_from(-start))),
    ),
    "a list": (
        lambda x, held: vmap(lambda row: row * held[0])(x),
        lambda start: (tensor_from(start), [tensor_from(-start)]),
    ),
    "a dictionary": (
        lambda x, held: vmap(lambda row: row * held["w"])(x),
        lambda start: (tensor_from(start), {"w": tensor_from(-start)}),
    ),
    "an object of the region": (
        lambda x, held: vmap(Rows(held * 2).scaled)(x),
        lambda start: (tensor_from(start), tensor_from(-start)),
    ),
}


@pytest.mark.parametrize("program, inputs", HOLDERS.values(), ids=HOLDERS)
def test_objects_in_a_closure_have_the_tensors_of_each_call(program, inputs):
    check_calls(lambda: program, inputs=inputs)


def test_closure_of_an_argument_has_the_tensors_of_each_call():
    def inputs(start):
        weight = tensor_from(start)

        def function(x):
            return vmap(lambda row: row * weight)(x)

        return tensor_from(-start), function

    check_calls(lambda: lambda x, function: function(x), inputs=inputs, hits=False)


def test_module_created_inside_is_transformed():
    def program(x):
        layer = nn.Linear(3, 3)
        return vmap(layer)(torch.stack([x, x])), vmap(lambda row: layer(row))(torch.stack([x, x]))

    check_calls(lambda: program, hits=False)


def test_function_arguments_are_transformed():
    def inputs(start):
        weight = tensor_from(start)
        return weight, lambda row: row * weight

    check_calls(lambda: lambda x, function: vmap(function)(x), inputs=inputs, hits=False)


def test_argument_stored_in_an_object_splits():
    def make():
        held = types.SimpleNamespace(weight=None)

        def program(x):
            held.weight = x
            return vmap(lambda row: row * held.weight)(x)

        program.held = held
        return program

    check_calls(make, splits=True)


def changes_attribute(state, x):
    state.weight = x
    return vmap(lambda row: row * state.weight)(x)


def changes_attribute_to_a_result(state, x):
    state.weight = x * 2
    return vmap(lambda row: row * state.weight)(x)


def counts(state, x):
    state.count += 1.0
    return vmap(lambda row: row * state.count)(x)


def changes_element(state, x):
    state.items[0] = x
    return vmap(lambda row: row * state.items[0])(x)


def appends(state, x):
    state.items.append(x)
    return vmap(lambda row: row * state.items[-1])(x)


def reads_length(state, x):
    state.items.append(1.0)
    return vmap(lambda row: row * len(state.items))(x)


def changes_key(state, x):
    state.named["weight"] = x
    return vmap(lambda row: row * state.named["weight"])(x)


class ScaledBy(torch.autograd.Function):
    state = None

    @staticmethod
    def forward(ctx, x):
        return x * ScaledBy.state.weight

    @staticmethod
    def backward(ctx, grad):
        return grad


def in_a_custom_function(state, x):
    ScaledBy.state = state
    state.weight = x
    return ScaledBy.apply(x * 1)


CHANGES = [
    changes_attribute, changes_attribute_to_a_result, counts, changes_element, appends,
    reads_length, changes_key, in_a_custom_function,
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES, ids=lambda function: function.__name__)
def test_transformed_function_reads_values_changed_before(changes):
    """The graph runs before all changes, so the program splits here once that is known."""

    def make():
        state = types.SimpleNamespace(
            weight=tensor(1, 1, 1), count=1.0, items=[tensor(1, 1, 1)], named={}
        )
        program = functools.partial(changes, state)
        return lambda x: program(x)

    twins = Twins(make)
    for start in (1.0, 2.0, 3.0, 4.0, 5.0):
        twins.call(lambda start=start: (tensor_from(start),), why=f"from {start}")
    assert twins.compiled._magpy_dispatcher.split_points


def test_transformed_method_reads_a_changed_module_attribute():
    class Remembers(nn.Module):
        def forward(self, x):
            self.last = x
            return torch.vmap(self.scaled)(x)

        def scaled(self, row):
            return row * self.last

    check_calls(Remembers)


def test_per_sample_gradients_match_eager():
    def make():
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)

        def program(x):
            parameters = dict(layer.named_parameters())

            def loss(parameters, sample):
                return (functional_call(layer, parameters, (sample,)) * x.mean()).sum()

            return vmap(grad(loss), in_dims=(None, 0))(parameters, torch.stack([x, x * 2]))

        program.layer = layer
        return program

    check_calls(make)
