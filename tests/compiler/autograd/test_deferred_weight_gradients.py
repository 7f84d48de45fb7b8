"""Gradients of weights that rounds of a loop share: one product of all rounds' rows."""

import functools
import operator

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from magpy_like.compiler import compile_fx
from magpy_like.compiler.autograd import deferred_weight_gradients
from magpy_like.compiler.graph_parts import compile_in_parts
from magpy_like.graph_operators.control_operators import for_loop
from magpy_like.graph_operators.node_metadata import NUMBER
from tests.compare import assert_same
from tests.compiler.programs import seeded

SIZE, BATCH = 24, 2  # a quarter of the gradient's memory are three rows


class Linear(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(F.linear(h, weight) + x),)


class Product(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(h @ weight * 0.5 + x @ other),)


class OfThreeDimensions(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(F.linear(h.view(1, 2, -1), weight.view(4, -1, SIZE).flatten(0, 1))[0]),)


class Twice(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(h @ weight + x @ weight * 0.1),)


class NoProduct(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh(h @ weight + weight.mean(0)),)


class InHalf(nn.Module):
    def forward(self, index, h, x, weight, other):
        return (torch.tanh((h.bfloat16() @ weight.bfloat16()).float() + x),)


BODIES = [Linear, Product, OfThreeDimensions, Twice, NoProduct, InHalf]


class Same(nn.Module):
    def forward(self, h):
        return (h,)


def in_two_parts(change):
    """A body that computes its weight first, and has a branch between that and its product."""
    graph = fx.Graph()
    index, h, x, weight, other = map(graph.placeholder, ("index", "h", "x", "weight", "other"))
    root = nn.Module()
    root.side = fx.symbolic_trace(Same())
    changed = change(graph, weight)
    test = graph.call_function(torch.gt, (graph.call_method("sum", (x,)), 0))
    side = graph.get_attr("side")
    taken = graph.call_function(torch.ops.higher_order.cond, (test, side, side, (h,)))
    h = graph.call_function(operator.getitem, (taken, 0))
    graph.output((graph.call_method("tanh", (graph.call_function(F.linear, (h, changed)),)),))
    return fx.GraphModule(root, graph)


def looped(body):
    """A graph that repeats ``body`` as often as it is told."""
    graph = fx.Graph()
    h, x, weight, other, rounds = map(graph.placeholder, ("h", "x", "weight", "other", "rounds"))
    rounds.meta[NUMBER] = True
    root = nn.Module()
    root.body = body if isinstance(body, fx.GraphModule) else fx.symbolic_trace(body())
    repeated = (graph.get_attr("body"), (0, rounds, 1), (h,), (), (x, weight, other))
    found = graph.call_function(for_loop, repeated)
    graph.output((graph.call_function(operator.getitem, (found, 0)),))
    return fx.GraphModule(root, graph)


def in_eager(body):
    def run(h, x, weight, other, rounds):
        for index in range(rounds):
            (h,) = body()(index, h, x, weight, other)
        return (h,)

    return run


def inputs(batch=BATCH):
    h, x = seeded(batch, SIZE, seed=1), seeded(batch, SIZE, seed=2)
    weights = [(seeded(SIZE, SIZE, seed=s) * 0.3).requires_grad_() for s in (3, 4)]
    return h.requires_grad_(), x, *weights


@functools.cache
def compiled(body):
    return compile_fx(looped(body), [*inputs(), 3], options={"strict": True})


def gradients(run, given, rounds, **kwargs):
    (result,) = run(*given, rounds)
    result.square().sum().backward(**kwargs)
    return result, [g.grad for g in given]


@pytest.fixture
def multiplied(monkeypatch):
    """How many rows each product of several rounds has had."""
    rows, multiply = [], deferred_weight_gradients._DeferredSum._multiply

    def counting(self):
        rows.append(self._used)
        multiply(self)

    monkeypatch.setattr(deferred_weight_gradients._DeferredSum, "_multiply", counting)
    return rows


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_gradients_are_as_in_eager(body):
    run = compiled(body)
    for rounds in (3, 1, 7):
        tolerance = {"rtol": 2e-2, "atol": 1e-2} if body is InHalf else {}
        actual = gradients(run, inputs(), rounds)
        assert_same(actual, gradients(in_eager(body), inputs(), rounds), **tolerance)


def test_rounds_leave_their_products_to_one(multiplied, monkeypatch):
    monkeypatch.setattr(deferred_weight_gradients, "_max_deferred_rows", lambda m, n: 100)
    run = compiled(Linear)
    gradients(run, inputs(), 5)
    assert multiplied == [5 * BATCH]


def test_rows_take_no_more_than_a_quarter_of_the_gradients_memory(multiplied):
    run = compiled(Linear)
    gradients(run, inputs(), 4)
    assert sum(multiplied) == 4 * BATCH
    assert max(multiplied) * 2 * SIZE <= SIZE * SIZE / 4


def test_a_first_round_of_another_form_leaves_its_products_to_the_same_sum(multiplied, monkeypatch):
    monkeypatch.setattr(deferred_weight_gradients, "_max_deferred_rows", lambda m, n: 100)
    found = []
    for run in (compiled(Linear), in_eager(Linear)):
        h, *others = inputs()
        (result,) = run(h.detach(), *others, 5)
        result.square().sum().backward()
        found.append([t.grad for t in others])
    assert_same(*found)
    assert multiplied == [5 * BATCH]


def test_a_round_of_many_rows_multiplies_them_itself(multiplied):
    given = inputs(batch=16)
    run = compile_fx(looped(Linear), [*given, 3], options={"strict": True})
    actual = gradients(run, given, 3)
    assert_same(actual, gradients(in_eager(Linear), inputs(batch=16), 3))
    assert not multiplied


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_calls_keep_what_they_have_left_apart(order):
    found = []
    for run in (compiled(Linear), in_eager(Linear)):
        given = [inputs(), inputs()]
        given[1][2].data.mul_(0.5)
        results = [run(*g, rounds)[0].square().sum() for g, rounds in zip(given, (4, 6))]
        for i in order:
            results[i].backward()
        found.append([[t.grad for t in g] for g in given])
    assert_same(*found)


def test_a_second_backward_pass_begins_anew():
    found = []
    for run in (compiled(Linear), in_eager(Linear)):
        given = inputs()
        (result,) = run(*given, 5)
        loss = result.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([t.grad for t in given])
    assert_same(*found)


def test_what_a_failed_backward_pass_has_left_is_no_part_of_the_next():
    found = []
    for run in (compiled(Linear), in_eager(Linear)):
        given = inputs()

        def fail(gradient):
            raise ValueError("once")

        h = given[0] * 1
        (result,) = run(h, *given[1:], 5)
        loss = result.square().sum()
        hook = h.register_hook(fail)
        with pytest.raises(ValueError, match="once"):
            loss.backward(retain_graph=True)
        for leaf in given:
            leaf.grad = None
        hook.remove()
        loss.backward()
        found.append([t.grad for t in given])
    assert_same(*found)


def test_gradients_of_some_inputs_only():
    found = []
    for run in (compiled(Product), in_eager(Product)):
        given = inputs()
        (result,) = run(*given, 5)
        loss = result.square().sum()
        asked = [(given[0],), (given[3],), (given[2], given[0])]
        found.append([torch.autograd.grad(loss, a, retain_graph=True) for a in asked])
    assert_same(*found)


def test_a_weight_that_is_computed_and_one_that_is_two_inputs():
    run, found = compiled(Product), []
    for call in (run, in_eager(Product)):
        h, x, weight, _ = inputs()
        (result,) = call(h, x, weight * 2, weight * 2, 5)
        result.sum().backward()
        h, x, other, _ = inputs()
        (result,) = call(h, x, other, other, 5)
        result.sum().backward()
        found.append((weight.grad, other.grad, h.grad))
    assert_same(*found)


def test_without_gradients_nothing_is_left(multiplied):
    run = compiled(Linear)
    with torch.no_grad():
        assert_same(run(*inputs(), 5), tuple(t.detach() for t in in_eager(Linear)(*inputs(), 5)))
    assert_same(gradients(run, inputs(), 5), gradients(in_eager(Linear), inputs(), 5))
    assert multiplied


def test_a_backend_that_knows_no_taps_gives_gradients_as_ever():
    run = compile_in_parts(looped(Linear), lambda graph, given: graph.forward)
    assert_same(gradients(run, inputs(), 5), gradients(in_eager(Linear), inputs(), 5))


class Written(nn.Module):
    def forward(self, index, h, x, weight, other):
        x.add_(1)
        return (torch.tanh(h @ weight + x),)


def test_rounds_that_write_to_a_tensor():
    found = [gradients(run, inputs(), 4) for run in (compiled(Written), in_eager(Written))]
    assert_same(*found)


def dropped(graph, weight):
    return graph.call_function(F.dropout, (weight, 0.5))


def test_a_weight_that_each_round_makes_has_a_gradient_of_each():
    def eager(h, x, weight, other, rounds):
        for _ in range(rounds):
            h = torch.tanh(F.linear(h, F.dropout(weight, 0.5)))
        return (h,)

    found = []
    run = compile_in_parts(
        looped(in_two_parts(dropped)), functools.partial(compile_fx, options={"strict": True})
    )
    for call in (run, eager):
        torch.manual_seed(0)
        found.append(gradients(call, inputs(), 5))
    assert_same(*found)


def test_batches_of_other_sizes():
    varying = [True, True, False, False, True]
    run = compile_in_parts(
        looped(Product), functools.partial(compile_fx, options={"strict": True}), varying
    )
    for batch in (2, 3, 1, 2, 3):
        expected = gradients(in_eager(Product), inputs(batch), 4)
        assert_same(gradients(run, inputs(batch), 4), expected)


def test_gradients_that_could_be_differentiated_again():
    found = []
    for run in (compiled(Linear), in_eager(Linear)):
        given = inputs()
        (result,) = run(*given, 4)
        asked = [t for t in given[::2]]
        gradients = torch.autograd.grad(result.square().sum(), asked, create_graph=True)
        found.append([g.detach() for g in gradients])
    assert_same(*found)


class UntilSmall(nn.Module):
    def forward(self, h, x, weight, other):
        return h.square().sum() > 1


class WithoutIndex(nn.Module):
    def forward(self, h, x, weight, other):
        return (torch.tanh(h @ weight * 0.2),)


def test_rounds_until_something_holds(multiplied):
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
        given = inputs()
        (result,) = call(*given)
        result.sum().backward()
        both.append((result, [t.grad for t in given]))
    assert_same(*both)
    assert multiplied
