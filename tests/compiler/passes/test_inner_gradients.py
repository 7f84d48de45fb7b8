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
