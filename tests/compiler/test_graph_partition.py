"""Graphs with ``cond``, ``while_loop`` and ``for_loop``, compiled part by part."""

import operator

import pytest
import torch
from torch import fx, nn

from magpy_like.compiler import compile_fx
from magpy_like.compiler.graph_partition import compile_in_parts
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


class Identity(nn.Module):
    def forward(self, x, weight):
        return (x,)


class Positive(nn.Module):
    def forward(self, x, weight):
        return x.sum() > 1


class Branch(nn.Module):
    """``cond`` between operators, as in captured graphs."""

    def __init__(self, other):
        super().__init__()
        self.first, self.second = fx.symbolic_trace(Double()), fx.symbolic_trace(other)

    def build(self):
        graph = fx.Graph()
        x, weight = graph.placeholder("x"), graph.placeholder("weight")
        y = graph.call_function(torch.tanh, (x,))
        test = graph.call_function(torch.gt, (graph.call_method("sum", (y,)), 0))
        branches = graph.get_attr("first"), graph.get_attr("second")
        found = graph.call_function(ops.cond, (test, *branches, (y, weight)))
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


@pytest.mark.parametrize("other", [Weighted, Identity], ids=lambda other: other.__name__)
def test_branches_are_compiled_and_equal_eager(other):
    eager = Branch(other())
    compiled = compile_fx(eager.build(), inputs(1), options={"strict": True})
    for sign in (1, -1, 1):
        found = []
        for run in (compiled, eager):
            example_inputs = inputs(sign)
            result = run(*example_inputs)
            result[0].sum().backward()
            found.append((result, [leaf.grad for leaf in example_inputs]))
        assert_same(*found)


def test_part_is_compiled_once_per_form_of_its_inputs():
    compiled = []

    def backend(graph, example_inputs):
        compiled.append([tuple(value.shape) for value in example_inputs])
        return graph.forward

    run = compile_in_parts(Branch(Weighted()).build(), backend)
    for sign in (1, -1, 1, -1):
        run(*inputs(sign))
    assert len(compiled) == 4, "before the branch, two branches, after it"


def test_while_loop_equals_eager():
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


def loop_graph(body, first):
    """A graph that creates zeros of a size that is an input, and passes them through a loop."""
    graph = fx.Graph()
    x, count, trip_count = (graph.placeholder(name) for name in ("x", "count", "trip_count"))
    count.meta[NUMBER] = trip_count.meta[NUMBER] = True
    parts = [graph.call_method("new_zeros", (x, count, 2)) for _ in range(2)]
    parts = [graph.call_function(torch.sub, (graph.call_method("cos", (p,)), 0.5)) for p in parts]
    root = nn.Module()
    root.body = fx.symbolic_trace(body)
    found = graph.call_function(
        for_loop, (graph.get_attr("body"), (0, trip_count, 1), (first(graph, parts),), (), (x,))
    )
    graph.output((graph.call_function(operator.getitem, (found, 0)), *parts))
    return fx.GraphModule(root, graph)


class Step(nn.Module):
    def forward(self, index, x, weight):
        return (x * weight.sum() + 1,)


class Growing(nn.Module):
    def forward(self, index, x, weight):
        return (torch.cat([x, x[:1] * weight.sum()]),)


class ToDouble(nn.Module):
    def forward(self, index, x, weight):
        return ((x * weight.sum()).double(),)


@pytest.mark.parametrize("body", [Step, Growing, ToDouble], ids=lambda body: body.__name__)
def test_iterations_of_varying_form_equal_eager(body):
    run = compile_fx(
        loop_graph(body(), lambda graph, parts: parts[0]),
        [torch.randn(3), 4, 3],
        options={"strict": True},
    )
    for count, trip_count in ((4, 3), (4, 5), (2, 3), (7, 1), (4, 3)):
        weight = torch.linspace(0.1, 1.0, 3)
        result, *parts = run(weight, count, trip_count)
        expected = torch.ones(count, 2) - 0.5
        assert_same(parts, [expected, expected.clone()])
        for index in range(trip_count):
            (expected,) = body()(index, expected, weight)
        assert_same(result, expected)


def test_tensor_constructors_with_sizes_do_not_separate_parts():
    compiled = []

    def backend(graph, example_inputs):
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    run = compile_in_parts(
        loop_graph(Step(), lambda graph, parts: parts[0]), backend, [False, True, True]
    )
    run(torch.randn(3), 4, 3)
    assert len(compiled) == 2, "before the loop, its body"


def test_tensor_constructor_keeps_its_position():
    graph = fx.Graph()
    x, count = graph.placeholder("x"), graph.placeholder("count")
    count.meta[NUMBER] = True
    y = graph.call_method("double", (graph.call_method("add_", (x, 1)),))
    zeros = graph.call_method("new_zeros", (y, count))
    graph.output((graph.call_method("add", (zeros, y)), zeros))
    run = compile_in_parts(
        fx.GraphModule(nn.Module(), graph), lambda graph, example_inputs: graph.forward
    )
    x = torch.randn(4)
    total, zeros = run(x.clone(), 4)
    assert_same((total, zeros), ((x + 1).double(), torch.zeros(4, dtype=torch.float64)))
