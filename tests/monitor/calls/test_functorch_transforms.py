"""Functions transformed by `torch.func`: one operator each, and followed for their reads."""

import types

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.func import functional_call, grad, grad_and_value, vmap

import magpy_like as magpy
from tests.programs import Twins, check, check_stateful, one, tensor

TRANSFORMS = {
    "grad": lambda function, x: grad(function)(x),
    "grad and value": lambda function, x: grad_and_value(function)(x),
    "vmap": lambda function, x: vmap(function)(x),
    "vmap of grad": lambda function, x: vmap(grad(function))(x),
    "grad of grad": lambda function, x: grad(lambda t: grad(function)(t).sum())(x),
}
ONE_GRAPH = sorted(TRANSFORMS)
transforms = pytest.mark.parametrize("transform", [TRANSFORMS[n] for n in ONE_GRAPH], ids=ONE_GRAPH)


@transforms
def test_transformed_function_is_one_operator(transform):
    twins = check(lambda x: transform(lambda t: (t * t * 2).sum(), x), one(), other=[one(1.0)])
    assert not twins.compiled._magpy_dispatcher.split_points


@transforms
def test_reads_of_a_transformed_function_are_guarded(transform):
    def make():
        state = types.SimpleNamespace(power=2)
        program = lambda x: transform(lambda t: (t**state.power).sum(), x)
        program.state = state
        return program

    check_stateful(make, one(), changes=[lambda program: setattr(program.state, "power", 3)])


@transforms
def test_transformed_function_takes_varying_numbers(transform):
    twins = Twins(lambda: lambda x, k: transform(lambda t: (t * t * k).sum(), x))
    for k in (2.0, 2.0, 3.0, 4.0, 2.0, 5.0):
        twins.call(lambda k=k: (tensor(1, -2, 3), k), why=f"{k}")


@transforms
def test_transformed_function_reads_values_created_inside(transform):
    def program(x):
        scale, items = x.mean(), [2.0]
        first = transform(lambda t: (t * t * scale * items[0]).sum(), x)
        items.append(3.0)
        return first, transform(lambda t: (t * t * len(items)).sum(), x)

    twins = Twins(lambda: program)
    for i in range(4):
        twins.call(one(1.0, 2.0 + i), why=f"call {i}")


@transforms
def test_effects_of_a_transformed_function_are_repeated(transform):
    def make():
        state = types.SimpleNamespace(calls=0, log=[])

        def function(t):
            state.calls += 1
            state.log.append(state.calls)
            return (t * t * state.calls).sum()

        program = lambda x: transform(function, x)
        program.state = state
        return program

    twins = Twins(make)
    for i in range(4):
        twins.call(one(1.0, 2.0 + i), why=f"call {i}")


@transforms
def test_gradients_flow_through_a_transformed_function(transform):
    check(
        lambda x: transform(lambda t: (t * t * t).sum(), x),
        lambda: (tensor(1, 2, 3, grad=True),),
        other=[one(1.0, 2.0, 3.0)],
        backward=True,
    )


def test_functional_call_replaces_parameters():
    def make():
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)

        def program(x):
            doubled = {name: value * 2 for name, value in layer.named_parameters()}
            return functional_call(layer, doubled, (x,))

        program.layer = layer
        return program

    def ties(program):
        program.layer.other = program.layer.weight

    def replaces(program):
        program.layer.bias = nn.Parameter(torch.ones(2))

    twins = check_stateful(make, one())
    for change in (replaces, ties):
        twins.change(change)
        for i in range(2):
            twins.call(one(2.0, 1.0, float(i)))


def test_tensors_are_keys_of_a_new_dictionary():
    def program(x, y):
        named = {x: "first", y: "second"}
        return x * len(named), named[x], named.get(y), y in named

    shared = lambda: (lambda t: (t, t))(tensor(1, 2))
    apart = lambda: (tensor(1, 2), tensor(1, 2))
    check(program, apart, other=[shared])
    check(program, shared, other=[apart])


def misses_for_six_sizes(function):
    """Compare calls with six sizes to eager calls; returns the number of misses."""
    fast, misses = magpy.compile(function, dynamic=True, fullgraph=True), []
    for rows in (2, 3, 5, 7, 4, 12):
        x = torch.linspace(-1, 1, rows * 12).reshape(rows, 3, 4)
        torch.testing.assert_close(fast(x), function(x))
        misses.append(magpy.cache_info(fast).misses)
    return misses[-1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: vmap(lambda r: r * 2 + r.sum())(x),
        lambda x: vmap(lambda r: r @ r.t())(x),
        lambda x: vmap(lambda r: r.sum() * 2, in_dims=1)(x),
        lambda x: vmap(lambda r: vmap(lambda q: q * q)(r), in_dims=2, out_dims=1)(x),
        lambda x: vmap(lambda r: torch.stack(list(r)).sum(0))(x),
    ],
    ids=["elements", "product", "number", "nested", "rows"],
)
def test_one_record_serves_vmap_over_all_sizes(function):
    assert misses_for_six_sizes(function) == 1


NUMBERS = {2: 1.0, 12: 2.0}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: vmap(lambda r: r * r.shape[1], in_dims=1)(x),
        lambda x: vmap(lambda r: r * (r + 1).shape[0], in_dims=1)(x),
        lambda x: vmap(lambda r: r * (r + 1).size(0), in_dims=1)(x),
        lambda x: vmap(lambda r: r * len(r), in_dims=1)(x),
        lambda x: vmap(lambda r: r * (r + 1).numel())(x),
        lambda x: vmap(lambda r: torch.stack([r[i] for i in range(len(r))]), in_dims=1)(x),
        lambda x: vmap(lambda r: r.view((r * 2).shape), in_dims=1)(x),
        lambda x: vmap(lambda r: r * NUMBERS.get(r.shape[0], 3.0), in_dims=1)(x),
        lambda x: vmap(lambda r: r * (2 if (r - 1).shape[0] > 4 else 3), in_dims=1)(x),
        lambda x: vmap(lambda r: r * 2, chunk_size=2)(x),
    ],
    ids=range(10),
)
def test_mapped_function_reads_sizes_of_single_samples(function):
    misses_for_six_sizes(function)


def test_one_record_serves_scans_of_all_batch_sizes():
    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def program(x):
        return associative_scan(combine, (x, x + 1), dim=1, combine_mode="generic")[1]

    assert misses_for_six_sizes(program) == 1
