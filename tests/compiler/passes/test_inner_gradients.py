"""Gradients computed inside of a program are part of its graph, which is compiled as a whole."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from tests import seeding


def penalty(x, w, v=None):
    score = torch.tanh(x @ w).sum()
    (slope,) = torch.autograd.grad(score, x, create_graph=True)
    return (slope.square().sum() - 1).square()


def inner_step(x, w, v):
    """A step of an inner optimisation; its gradients are constants in the outer gradient."""
    hidden = (x * v).exp()
    slope, other = torch.autograd.grad((hidden @ w).sum(), [hidden, v])
    return hidden.detach() - slope, x @ w, other


def attack(x, w, v):
    (slope,) = torch.autograd.grad((x @ w).relu().sum(), [x], None, False)
    return x.detach() + slope.sign()


def random_leaves(seed):
    seeding.seed(seed)
    return [torch.randn(size, requires_grad=True) for size in ((3, 4), (4, 4), (4,))]


@pytest.mark.parametrize("backend", ["magpy", "aot_eager"])
@pytest.mark.parametrize("program", [penalty, inner_step, attack])
def test_inner_gradients_are_compiled(program, backend):
    def run(call, seed):
        leaves = random_leaves(seed)
        results = call(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        differentiable = [r.sum() for r in results if r.requires_grad]
        if differentiable:
            sum(differentiable).backward()
        return [r.detach() for r in results], [leaf.grad for leaf in leaves]

    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for seed in range(3):
        torch.testing.assert_close(run(fast, seed), run(program, seed))
    assert magpy.cache_info(fast).hits == 2


def test_backend_receives_the_whole_graph_with_inner_gradients():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return compile_fx(graph, inputs, options={"strict": True})

    magpy.compile(penalty, backend=backend, fullgraph=True)(*random_leaves(0)[:2])
    (graph,) = graphs
    assert graph.graph.find_nodes(op="call_function", target=torch.autograd.grad)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.bias = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return (x * self.weight + self.bias).tanh()


def by_weight(layer, x):
    return torch.autograd.grad(layer(x).sum(), layer.weight)


def by_all_parameters(layer, x):
    return torch.autograd.grad([layer(x).sum(), x.sum()], list(layer.parameters()))


def by_input_and_unused_weight(layer, x):
    return torch.autograd.grad(x.exp().sum(), [x, layer.weight], allow_unused=True)


def twice(layer, x):
    slopes = torch.autograd.grad(layer(x).sum(), list(layer.parameters()), create_graph=True)
    return torch.autograd.grad(sum(s.square().sum() for s in slopes), layer.weight)


def differentiable(layer, x):
    return torch.autograd.grad(layer(x).sum(), layer.weight, create_graph=True)


def by_weight_with_new_data(layer, x):
    layer.weight.data = layer.weight.data * 1.5
    return torch.autograd.grad((x * layer.weight).sum(), layer.weight)


class SlopeByWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        with torch.enable_grad():
            (slope,) = torch.autograd.grad((x * weight).sum(), weight, retain_graph=True)
            return slope.detach()

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


def inside_a_custom_function(layer, x):
    return (SlopeByWeight.apply(x, layer.weight),)


def leaf(layer):
    return torch.linspace(1, 2, 4, requires_grad=True)


def computed_from_another(layer):
    return leaf(layer) * 2


def computed_from_weight(layer):
    return layer.weight * layer.weight


def data(layer):
    return torch.linspace(1, 2, 4)


def results(call, layer, kind):
    layer.zero_grad()
    found = call(layer, kind(layer))
    differentiable = [f.sum() for f in found if f.requires_grad]
    if differentiable:
        sum(differentiable).backward()
    return [f.detach() for f in found], [p.grad for p in layer.parameters()]


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "kinds",
    [
        (leaf, computed_from_weight, computed_from_another, computed_from_weight, leaf),
        (computed_from_another, computed_from_another, computed_from_weight),
        (computed_from_weight, computed_from_weight, leaf),
    ],
)
@pytest.mark.parametrize(
    "program",
    [
        by_weight,
        by_all_parameters,
        by_input_and_unused_weight,
        twice,
        differentiable,
        by_weight_with_new_data,
        inside_a_custom_function,
    ],
)
def test_inner_gradients_flow_through_what_an_argument_was_computed_from(program, kinds, backend):
    if program is by_input_and_unused_weight:
        kinds = [kind for kind in kinds if kind is computed_from_weight]
    eager, compiled = Layer(), Layer()
    fast = magpy.compile(program, backend=backend)
    for kind in kinds:
        expected = results(program, eager, kind)
        torch.testing.assert_close(results(fast, compiled, kind), expected)


@pytest.mark.parametrize("kind", [leaf, computed_from_another, data])
def test_inner_gradients_apart_from_the_arguments_history_are_compiled_once(kind):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return compile_fx(graph, inputs, options={"strict": True})

    fast, layer = magpy.compile(by_all_but_input, backend=backend, fullgraph=True), Layer()
    for _ in range(3):
        torch.testing.assert_close(
            results(fast, layer, kind), results(by_all_but_input, layer, kind)
        )
    assert len(graphs) == 1
    assert magpy.cache_info(fast).hits == 2


def by_all_but_input(layer, x):
    return torch.autograd.grad(layer(x).sum(), list(layer.parameters()), create_graph=True)


def test_leaf_and_computed_argument_have_a_record_each():
    fast, layer = magpy.compile(by_weight, backend="magpy"), Layer()
    for kind in (leaf, computed_from_weight, leaf, computed_from_another, computed_from_weight):
        results(fast, layer, kind)
    assert magpy.cache_info(fast).misses == 2


def by_argument(layer, x):
    return torch.autograd.grad(layer(x).sum(), x)


def double(gradient):
    return gradient * 2


def hook_on_weight(layer, x):
    return layer.weight.register_hook(double)


def hook_on_argument(layer, x):
    return x.register_hook(double)


def hook_on_any(layer, x):
    def note(gradient):
        layer.log.append(gradient.sum())

    tensors = [*layer.parameters(), x]
    return torch.autograd.graph.register_multi_grad_hook(tensors, note, mode="any")


def no_hook(layer, x):
    return None


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "hooks",
    [
        (no_hook, no_hook, hook_on_weight, hook_on_argument, no_hook),
        (hook_on_weight, hook_on_weight, no_hook, hook_on_any),
        (hook_on_argument, hook_on_argument, no_hook, hook_on_argument),
    ],
)
@pytest.mark.parametrize("kind", [leaf, computed_from_another])
@pytest.mark.parametrize(
    "program",
    [
        by_weight,
        by_all_parameters,
        by_argument,
        twice,
        differentiable,
        by_weight_with_new_data,
        inside_a_custom_function,
    ],
)
def test_inner_gradients_pass_the_hooks_of_what_they_are_taken_by(program, kind, hooks, backend):
    def run(call):
        layer, found = Layer(), []
        layer.log = []
        for add in hooks:
            x = kind(layer)
            handle = add(layer, x)
            found.append(results(call, layer, lambda _, x=x: x))
            if handle is not None:
                handle.remove()
        return found, layer.log

    torch.testing.assert_close(run(magpy.compile(program, backend=backend)), run(program))


def test_hooked_and_plain_weight_have_a_record_each():
    fast, layer = magpy.compile(by_weight, backend="magpy"), Layer()
    for add in (no_hook, hook_on_weight, no_hook, hook_on_weight, no_hook):
        handle = add(layer, None)
        results(fast, layer, leaf)
        if handle is not None:
            handle.remove()
    assert magpy.cache_info(fast).misses == 2
