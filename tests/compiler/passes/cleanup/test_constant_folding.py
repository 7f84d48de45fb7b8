"""Constant folding: values that depend on no input are computed once at compile time."""

import math

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from magpy_like.compiler import passes
from magpy_like.compiler.passes.cleanup import constant_folding
from magpy_like.compiler.passes.cleanup.uniform_tensors import uniform_value
from tests.compiler.passes.pass_checks import aten_graph, operator_names, optimised_graph

X = torch.randn(8)


def test_equal_elements_become_full():
    gm = optimised_graph(lambda x: x * (torch.ones(8) * 3 + 1), X)
    assert operator_names(gm) == ["full", "mul"]


def test_tensors_that_are_filled_by_numbers_are_folded():
    def masked(x):
        mask = x.new_zeros(8)
        for k, part in enumerate((slice(0, 3), slice(3, 5), slice(5, None))):
            mask[part] = k
        return x + mask

    gm = optimised_graph(masked, X)
    assert operator_names(gm) == ["add"]
    torch.testing.assert_close(gm(X), masked(X), rtol=0, atol=0)


def test_small_values_below_a_large_constant_are_folded():
    """A mask of windows: each pair of places is too much to keep, the places are not."""
    n = math.isqrt(constant_folding.MAX_CONSTANT_BYTES)

    def masked(x):
        places = x.new_zeros(n)
        places[n // 2 :] = 1
        places[-3:] = 2
        return x + (places[:, None] - places[None, :])

    x = torch.randn(n, n)
    gm = optimised_graph(masked, x)
    assert operator_names(gm).count("sub") == 1
    assert not {"copy", "slice_scatter", "lift_fresh_copy", "full"} & set(operator_names(gm))
    assert max(b.numel() for b in gm.buffers()) == n
    torch.testing.assert_close(gm(x), masked(x), rtol=0, atol=0)


def test_a_number_of_another_device_is_no_operand():
    """The form of ``x[1:] = 3`` on a GPU: the number is a tensor on the CPU."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    held = graph.get_attr("held")
    literal = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (held,))
    graph.output((graph.call_function(torch.ops.aten.copy.default, (x, literal)),))
    gm = fx.GraphModule({"held": torch.tensor(3.7, device="cpu")}, graph)
    with FakeTensorMode() as mode:
        values = torch.empty(8, device="cuda"), mode.from_tensor(gm.held)
        x.meta["val"], held.meta["val"], literal.meta["val"] = values[0], values[1], values[1]
        list(graph.nodes)[-2].meta["val"] = torch.empty(8, device="cuda")
    assert constant_folding.fold_constants(gm) and constant_folding.fold_constants(gm)
    ((result,),) = graph.output_node().args
    assert result.target is not torch.ops.aten.copy.default
    assert uniform_value(result) == pytest.approx(3.7)


def test_sign_of_zero_is_preserved():
    gm = optimised_graph(lambda x: torch.copysign(x, torch.zeros(8) * -1), X)
    assert "neg" not in operator_names(gm)


def test_small_constant_becomes_a_buffer_of_the_graph():
    gm = optimised_graph(lambda x: x[torch.arange(8).flip(0) % 3], X)
    assert operator_names(gm) == ["index"]
    assert [b.tolist() for b in gm.buffers()] == [[1, 0, 2, 1, 0, 2, 1, 0]]


def test_arange_alone_is_not_folded():
    assert operator_names(optimised_graph(lambda x: x * torch.arange(8), X)) == ["arange", "mul"]


def test_large_constant_is_not_folded():
    n = constant_folding.MAX_CONSTANT_BYTES
    gm = optimised_graph(lambda x: x + torch.arange(n) * 2, torch.randn(n))
    assert "arange" in operator_names(gm)
    assert not list(gm.buffers())


def test_random_tensors_are_not_folded():
    assert "rand" in operator_names(optimised_graph(lambda x: x + torch.rand(8) * 2, X))


def test_returned_constant_is_a_new_tensor_at_every_call():
    gm = optimised_graph(lambda x: (x + 1, torch.arange(8) * 2), X)
    first = gm(X)[1]
    first.zero_()
    assert gm(X)[1].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_returned_view_of_a_constant_is_a_new_tensor_at_every_call():
    gm = optimised_graph(lambda x: (x + 1, (torch.arange(8) * 2).view(2, 4)), X)
    gm(X)[1].zero_()
    assert gm(X)[1].flatten().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_mutated_tensor_is_not_folded():
    def function(x):
        total = torch.zeros(8) + 1
        total.add_(x)
        return total * 2

    optimised_graph(function, X, functional=False)


def test_error_in_a_constant_is_raised_at_run_time():
    gm = aten_graph(lambda x: x + 1, X)
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with gm.graph.inserting_before(node):
        table = gm.graph.call_function(torch.ops.aten.arange.default, (8,))
        nine = gm.graph.call_function(torch.ops.aten.full.default, ([1], 9))
        bad = gm.graph.call_function(torch.ops.aten.index_select.default, (table, 0, nine))
    for made, size in ((table, 8), (nine, 1), (bad, 1)):
        made.meta["val"] = torch.empty(size, dtype=torch.int64)
    node.args = (node.args[0], bad)
    passes.run(gm, inference=True)
    try:
        gm(X)
    except (IndexError, RuntimeError) as error:
        assert "index" in str(error)
    else:
        raise AssertionError("no error was raised")


def graph_with_table():
    """``x + table * 2``, where ``table`` is an attribute of the graph's module."""
    graph = torch.fx.Graph()
    x, table = graph.placeholder("x"), graph.get_attr("table")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (table, 2))
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (x, doubled)))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4)
    return torch.fx.GraphModule({"table": torch.arange(4.0)}, graph)


def test_attribute_of_the_graph_is_read_at_every_call():
    gm = passes.run(graph_with_table(), inference=True)
    x = torch.zeros(4)
    before = gm(x).clone()
    gm.table.data.mul_(10)
    assert torch.equal(gm(x), before * 10)
