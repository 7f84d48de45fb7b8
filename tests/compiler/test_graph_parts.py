"""Graphs with ``cond`` and ``while_loop`` through the compiler, part by part."""

import operator

import pytest
import torch
from torch import fx, nn

from magpy_like.compiler import compile_fx
from magpy_like.compiler.graph_parts import compile_in_parts
from magpy_like.graph_operators.control_operators import for_loop
from magpy_like.graph_operators.node_metadata import NUMBER
from tests.compare import assert_same
from tests.compiler.programs import seeded

ops = torch.ops.higher_order


class Double(nn.Module):
    def forward(self, x, weight):
        return (torch.sin(x * 2) + 1,)


class Weighted(nn.Module):
    def forward(self, x, weight):
        return (x * weight,)


class Hand(nn.Module):
    def forward(self, x, weight):
        return (x,)


class Positive(nn.Module):
    def forward(self, x, weight):
        return x.sum() > 1


class Branch(nn.Module):
    """``cond`` between operators, as capture records it."""

    def __init__(self, other):
        super().__init__()
        self.first, self.second = fx.symbolic_trace(Double()), fx.symbolic_trace(other)

    def build(self):
        graph = fx.Graph()
        x, weight = graph.placeholder("x"), graph.placeholder("weight")
        y = graph.call_function(torch.tanh, (x,))
        test = graph.call_function(torch.gt, (graph.call_method("sum", (y,)), 0))
        sides = graph.get_attr("first"), graph.get_attr("second")
        found = graph.call_function(ops.cond, (test, *sides, (y, weight)))
        z = graph.call_function(operator.getitem, (found, 0))
        graph.output((graph.call_function(torch.mul, (z, 3.0)), z))
        return fx.GraphModule(self, graph)

    def forward(self, x, weight):
        y = torch.tanh(x)
        z = torch.sin(y * 2) + 1 if y.sum() > 0 else self.second(y, weight)[0]
        return z * 3.0, z


def inputs(sign):
    x = (seeded(64).abs() * sign).requires_grad_()
    return x, torch.full((64,), 1.5, requires_grad=True)


@pytest.mark.parametrize("other", [Weighted, Hand], ids=lambda other: other.__name__)
def test_sides_of_a_branch_are_compiled_and_take_their_own_gradients(other):
    eager = Branch(other())
    compiled = compile_fx(eager.build(), inputs(1), options={"strict": True})
    for sign in (1, -1, 1):
        found = []
        for run in (compiled, eager):
            given = inputs(sign)
            result = run(*given)
            result[0].sum().backward()
            found.append((result, [leaf.grad for leaf in given]))
        assert_same(*found)


def test_a_part_is_compiled_once_for_each_form_of_what_a_branch_gives():
    compiled = []

    def backend(graph, given):
        compiled.append([tuple(value.shape) for value in given])
        return graph.forward

    run = compile_in_parts(Branch(Weighted()).build(), backend)
    for sign in (1, -1, 1, -1):
        run(*inputs(sign))
    assert len(compiled) == 4, "before the branch, two sides, behind it"


def test_while_loop_repeats_its_body():
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    root = nn.Module()
    root.condition = fx.symbolic_trace(Positive())
    root.body = fx.symbolic_trace(Weighted())
    parts = graph.get_attr("condition"), graph.get_attr("body")
    found = graph.call_function(ops.while_loop, (*parts, (x,), (weight,)))
    graph.output((graph.call_function(torch.neg, (found,)),))
    first = graph.find_nodes(op="call_function", target=torch.neg)[0]
    with graph.inserting_before(first):
        item = graph.call_function(operator.getitem, (found, 0))
    first.args = (item,)
    weight = torch.full((8,), 0.5)
    run = compile_fx(fx.GraphModule(root, graph), (torch.ones(8), weight), options={"strict": True})
    for start in (1.0, 16.0, -1.0):
        x = torch.full((8,), start)
        (result,) = run(x, weight)
        while x.sum() > 1:
            x = x * weight
        assert_same(result, -x)


def of_rounds(body, first):
    """A graph that makes zeros of a size it is given, and multiplies from round to round."""
    graph = fx.Graph()
    x, count, rounds = (graph.placeholder(name) for name in ("x", "count", "rounds"))
    count.meta[NUMBER] = rounds.meta[NUMBER] = True
    parts = [graph.call_method("new_zeros", (x, count, 2)) for _ in range(2)]
    parts = [graph.call_function(torch.sub, (graph.call_method("cos", (p,)), 0.5)) for p in parts]
    root = nn.Module()
    root.body = fx.symbolic_trace(body)
    found = graph.call_function(
        for_loop, (graph.get_attr("body"), (0, rounds, 1), (first(graph, parts),), (), (x,))
    )
    graph.output((graph.call_function(operator.getitem, (found, 0)), *parts))
    return fx.GraphModule(root, graph)


class Step(nn.Module):
    def forward(self, index, x, weight):
        return (x * weight.sum() + 1,)


class Grown(nn.Module):
    def forward(self, index, x, weight):
        return (torch.cat([x, x[:1] * weight.sum()]),)


class AsDouble(nn.Module):
    def forward(self, index, x, weight):
        return ((x * weight.sum()).double(),)


@pytest.mark.parametrize("body", [Step, Grown, AsDouble], ids=lambda body: body.__name__)
def test_rounds_of_other_forms_are_as_in_eager(body):
    run = compile_fx(
        of_rounds(body(), lambda graph, parts: parts[0]),
        [torch.randn(3), 4, 3],
        options={"strict": True},
    )
    for count, rounds in ((4, 3), (4, 5), (2, 3), (7, 1), (4, 3)):
        weight = torch.linspace(0.1, 1.0, 3)
        result, *parts = run(weight, count, rounds)
        expected = torch.ones(count, 2) - 0.5
        assert_same(parts, [expected, expected.clone()])
        for index in range(rounds):
            (expected,) = body()(index, expected, weight)
        assert_same(result, expected)


def test_what_makes_tensors_of_given_sizes_does_not_part_operators():
    compiled = []

    def backend(graph, given):
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    run = compile_in_parts(
        of_rounds(Step(), lambda graph, parts: parts[0]), backend, [False, True, True]
    )
    run(torch.randn(3), 4, 3)
    assert len(compiled) == 2, "before the loop, its body"


def test_a_tensor_is_not_made_before_what_it_is_made_after():
    graph = fx.Graph()
    x, count = graph.placeholder("x"), graph.placeholder("count")
    count.meta[NUMBER] = True
    y = graph.call_method("double", (graph.call_method("add_", (x, 1)),))
    zeros = graph.call_method("new_zeros", (y, count))
    graph.output((graph.call_method("add", (zeros, y)), zeros))
    run = compile_in_parts(fx.GraphModule(nn.Module(), graph), lambda graph, given: graph.forward)
    x = torch.randn(4)
    total, zeros = run(x.clone(), 4)
    assert_same((total, zeros), ((x + 1).double(), torch.zeros(4, dtype=torch.float64)))
