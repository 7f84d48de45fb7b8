"""Deferred weight gradients: one product for a weight that all iterations of a loop share."""

import functools
import operator

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from magpy_like.compiler import compile_fx
from magpy_like.compiler.autograd import deferred_weight_gradients
from magpy_like.compiler.graph_partition import compile_in_parts
from magpy_like.graph_operators.control_operators import for_loop
from magpy_like.graph_operators.node_metadata import NUMBER
from tests.compare import assert_same
from tests.compiler.programs import seeded

SIZE, BATCH = 24, 2  # three rows take a quarter of the gradient's memory


class Linear(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(F.linear(h, weight) + x),)


class Product(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(h @ weight * 0.5 + x @ other),)


class ThreeDimensional(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(F.linear(h.view(1, 2, -1), weight.view(4, -1, SIZE).flatten(0, 1))[0]),)


class Twice(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(h @ weight + x @ weight * 0.1),)


class NoProduct(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(h @ weight + weight.mean(0)),)


class LowPrecision(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh((h.bfloat16() @ weight.bfloat16()).float() + x),)


BODIES = [Linear, Product, ThreeDimensional, Twice, NoProduct, LowPrecision]


class Identity(nn.Module):
    def forward(self, h):
        return (h,)


def body_in_two_parts(change):
    """A body that computes its weight first, with a branch between that and the product."""
    graph = fx.Graph()
    index, h, x, weight, other = map(graph.placeholder, ("index", "h", "x", "weight", "other"))
    root = nn.Module()
    root.branch = fx.symbolic_trace(Identity())
    changed = change(graph, weight)
    test = graph.call_function(torch.gt, (graph.call_method("sum", (x,)), 0))
    branch = graph.get_attr("branch")
    branch_result = graph.call_function(torch.ops.higher_order.cond, (test, branch, branch, (h,)))
    h = graph.call_function(operator.getitem, (branch_result, 0))
    graph.output((graph.call_method("tanh", (graph.call_function(F.linear, (h, changed)),)),))
    return fx.GraphModule(root, graph)


def loop_graph(body):
    """A graph with a ``for_loop`` over ``body``; its last input is the trip count."""
    graph = fx.Graph()
    h, x, weight, other, trip_count = map(
        graph.placeholder, ("h", "x", "weight", "other", "trip_count")
    )
    trip_count.meta[NUMBER] = True
    root = nn.Module()
    root.body = body if isinstance(body, fx.GraphModule) else fx.symbolic_trace(body())
    repeated = (graph.get_attr("body"), (0, trip_count, 1), (h,), (), (x, weight, other))
    found = graph.call_function(for_loop, repeated)
    graph.output((graph.call_function(operator.getitem, (found, 0)),))
    return fx.GraphModule(root, graph)


def eager_loop(body):
    def run(h, x, weight, other, trip_count):
        for index in range(trip_count):
            (h,) = body()(index, h, x, weight, other)
        return (h,)

    return run


def inputs(batch=BATCH):
    h, x = seeded(batch, SIZE, seed=1), seeded(batch, SIZE, seed=2)
    weights = [(seeded(SIZE, SIZE, seed=s) * 0.3).requires_grad_() for s in (3, 4)]
    return h.requires_grad_(), x, *weights


@functools.cache
def compiled(body):
    return compile_fx(loop_graph(body), [*inputs(), 3], options={"strict": True})


def gradients(run, arguments, trip_count, **kwargs):
    (result,) = run(*arguments, trip_count)
    result.square().sum().backward(**kwargs)
    return result, [g.grad for g in arguments]


@pytest.fixture
def product_rows(monkeypatch):
    """The numbers of rows of the products that combine several iterations."""
    rows, multiply = [], deferred_weight_gradients._DeferredSum._multiply

    def counting(self):
        rows.append(self._used)
        multiply(self)

    monkeypatch.setattr(deferred_weight_gradients._DeferredSum, "_multiply", counting)
    return rows


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_gradients_equal_eager(body):
    run = compiled(body)
    for trip_count in (3, 1, 7):
        tolerance = {"rtol": 2e-2, "atol": 1e-2} if body is LowPrecision else {}
        actual = gradients(run, inputs(), trip_count)
        assert_same(actual, gradients(eager_loop(body), inputs(), trip_count), **tolerance)


def test_iterations_share_one_product(product_rows, monkeypatch):
    monkeypatch.setattr(deferred_weight_gradients, "_max_deferred_rows", lambda m, n: 100)
    run = compiled(Linear)
    gradients(run, inputs(), 5)
    assert product_rows == [5 * BATCH]


def test_deferred_rows_take_at_most_a_quarter_of_the_gradients_memory(product_rows):
    run = compiled(Linear)
    gradients(run, inputs(), 4)
    assert sum(product_rows) == 4 * BATCH
    assert max(product_rows) * 2 * SIZE <= SIZE * SIZE / 4


def test_first_iteration_of_another_form_joins_the_same_sum(product_rows, monkeypatch):
    monkeypatch.setattr(deferred_weight_gradients, "_max_deferred_rows", lambda m, n: 100)
    found = []
    for run in (compiled(Linear), eager_loop(Linear)):
        h, *others = inputs()
        (result,) = run(h.detach(), *others, 5)
        result.square().sum().backward()
        found.append([t.grad for t in others])
    assert_same(*found)
    assert product_rows == [5 * BATCH]


def test_iteration_with_many_rows_is_not_deferred(product_rows):
    arguments = inputs(batch=16)
    run = compile_fx(loop_graph(Linear), [*arguments, 3], options={"strict": True})
    actual = gradients(run, arguments, 3)
    assert_same(actual, gradients(eager_loop(Linear), inputs(batch=16), 3))
    assert not product_rows


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_calls_keep_separate_factors(order):
    found = []
    for run in (compiled(Linear), eager_loop(Linear)):
        arguments = [inputs(), inputs()]
        arguments[1][2].data.mul_(0.5)
        results = [
            run(*g, trip_count)[0].square().sum() for g, trip_count in zip(arguments, (4, 6))
        ]
        for i in order:
            results[i].backward()
        found.append([[t.grad for t in g] for g in arguments])
    assert_same(*found)


def test_second_backward_pass_starts_from_empty_sums():
    found = []
    for run in (compiled(Linear), eager_loop(Linear)):
        arguments = inputs()
        (result,) = run(*arguments, 5)
        loss = result.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([t.grad for t in arguments])
    assert_same(*found)


def test_factors_of_a_failed_backward_pass_are_discarded():
    found = []
    for run in (compiled(Linear), eager_loop(Linear)):
        arguments = inputs()

        def fail(gradient):
            raise ValueError("once")

        h = arguments[0] * 1
        (result,) = run(h, *arguments[1:], 5)
        loss = result.square().sum()
        hook = h.register_hook(fail)
        with pytest.raises(ValueError, match="once"):
            loss.backward(retain_graph=True)
        for leaf in arguments:
            leaf.grad = None
        hook.remove()
        loss.backward()
        found.append([t.grad for t in arguments])
    assert_same(*found)


def test_gradients_of_some_inputs_equal_eager():
    found = []
    for run in (compiled(Product), eager_loop(Product)):
        arguments = inputs()
        (result,) = run(*arguments, 5)
        loss = result.square().sum()
        selected = [(arguments[0],), (arguments[3],), (arguments[2], arguments[0])]
        found.append([torch.autograd.grad(loss, a, retain_graph=True) for a in selected])
    assert_same(*found)


def test_computed_weight_and_weight_passed_twice_equal_eager():
    run, found = compiled(Product), []
    for call in (run, eager_loop(Product)):
        h, x, weight, _ = inputs()
        (result,) = call(h, x, weight * 2, weight * 2, 5)
        result.sum().backward()
        h, x, other, _ = inputs()
        (result,) = call(h, x, other, other, 5)
        result.sum().backward()
        found.append((weight.grad, other.grad, h.grad))
    assert_same(*found)


def test_no_factors_are_kept_under_no_grad(product_rows):
    run = compiled(Linear)
    with torch.no_grad():
        assert_same(run(*inputs(), 5), tuple(t.detach() for t in eager_loop(Linear)(*inputs(), 5)))
    assert_same(gradients(run, inputs(), 5), gradients(eager_loop(Linear), inputs(), 5))
    assert product_rows


def test_backend_without_auxiliary_inputs_equals_eager():
    run = compile_in_parts(loop_graph(Linear), lambda graph, arguments: graph.forward)
    assert_same(gradients(run, inputs(), 5), gradients(eager_loop(Linear), inputs(), 5))


class MutatesInput(nn.Module):
    def forward(self, index, h, x, weight, other):
        x.add_(1)
        return (torch.tanh(h @ weight + x),)


def test_iterations_that_mutate_a_tensor_equal_eager():
    found = [
        gradients(run, inputs(), 4) for run in (compiled(MutatesInput), eager_loop(MutatesInput))
    ]
    assert_same(*found)


def dropped(graph, weight):
    return graph.call_function(F.dropout, (weight, 0.5))


def test_weight_computed_in_each_iteration_has_each_gradient():
    def eager(h, x, weight, other, trip_count):
        for _ in range(trip_count):
            h = torch.tanh(F.linear(h, F.dropout(weight, 0.5)))
        return (h,)

    found = []
    run = compile_in_parts(
        loop_graph(body_in_two_parts(dropped)),
        functools.partial(compile_fx, options={"strict": True}),
    )
    for call in (run, eager):
        torch.manual_seed(0)
        found.append(gradients(call, inputs(), 5))
    assert_same(*found)


def test_varying_batch_sizes_equal_eager():
    varying = [True, True, False, False, True]
    run = compile_in_parts(
        loop_graph(Product), functools.partial(compile_fx, options={"strict": True}), varying
    )
    for batch in (2, 3, 1, 2, 3):
        expected = gradients(eager_loop(Product), inputs(batch), 4)
        assert_same(gradients(run, inputs(batch), 4), expected)


def test_gradients_with_create_graph_equal_eager():
    found = []
    for run in (compiled(Linear), eager_loop(Linear)):
        arguments = inputs()
        (result,) = run(*arguments, 4)
        selected = [t for t in arguments[::2]]
        gradients = torch.autograd.grad(result.square().sum(), selected, create_graph=True)
        found.append([g.detach() for g in gradients])
    assert_same(*found)


class UntilSmall(nn.Module):
    def forward(self, h, x, weight, other):
        return h.square().sum() > 1


class WithoutIndex(nn.Module):
    def forward(self, h, x, weight, other):
        return (torch.tanh(h @ weight * 0.2),)


def test_while_loop_defers_products(product_rows):
    graph = fx.Graph()
    h, *others = map(graph.placeholder, ("h", "x", "weight", "other"))
    root = nn.Module()
    root.condition, root.body = fx.symbolic_trace(UntilSmall()), fx.symbolic_trace(WithoutIndex())
    parts = graph.get_attr("condition"), graph.get_attr("body")
    loop = torch.ops.higher_order.while_loop
    found = graph.call_function(loop, (*parts, (h,), tuple(others)))
    graph.output((graph.call_function(operator.getitem, (found, 0)),))
    run = compile_fx(fx.GraphModule(root, graph), list(inputs()), options={"strict": True})

    def eager(h, *others):
        while UntilSmall()(h, *others):
            (h,) = WithoutIndex()(h, *others)
        return (h,)

    both = []
    for call in (run, eager):
        arguments = inputs()
        (result,) = call(*arguments)
        result.sum().backward()
        both.append((result, [t.grad for t in arguments]))
    assert_same(*both)
    assert product_rows
