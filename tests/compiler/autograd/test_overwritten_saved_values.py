"""Parts of a graph that write to memory that other parts may have saved for the backward pass."""

import operator

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

import magpy_like as magpy
from magpy_like.compiler.autograd.overwritten_saved_values import may_overwrite_saved_tensors
from magpy_like.graph_operators.control_operators import for_loop, has_parts
from tests.compare import assert_same


def overwrites(program, *sizes):
    inputs = [torch.ones(*size, requires_grad=True) * 1 for size in sizes]
    (graph,) = magpy.explain(program, *inputs).graphs
    assert has_parts(graph), "the program must not be one part"
    return may_overwrite_saved_tensors(graph)


def written_after_a_branch(a, b):
    c, unused = a + b, a.sin()
    if (b > 0).any():
        unused = a = a.add_(1)
    return a * b + c, unused


def written_through_a_view(a, b):
    c, unused = a + b, a.sin()
    first = a.view(-1)
    if (b > 0).any():
        unused = first[:2].zero_()
    return a * b + c, unused


def used_after_the_write(a, b):
    c = a.clone().relu_()
    if (c > b).any():
        c = c * b
    return c.sin()


@pytest.mark.parametrize("program", [written_after_a_branch, written_through_a_view])
def test_writes_to_memory_saved_by_another_part_are_predicted(program):
    assert overwrites(program, (3,), (3,))


def test_writes_before_another_part_saves_are_harmless():
    assert not overwrites(used_after_the_write, (3,), (3,))


def test_writes_within_one_part_are_harmless():
    """For example, a write to a running average without gradients after its use."""

    def program(a, average):
        near = a * average
        with torch.no_grad():
            average.mul_(0.9).add_(a.mean(0), alpha=0.1)
        return near.sin()

    inputs = torch.ones(3, 4, requires_grad=True) * 1, torch.ones(4)
    (graph,) = magpy.explain(program, *inputs).graphs
    assert not has_parts(graph) and not may_overwrite_saved_tensors(graph)
    _, average = graph.graph.find_nodes(op="placeholder")
    assert may_overwrite_saved_tensors(graph, [average]), "an earlier part may have saved it"


def saves_and_writes(i, a, b):
    a.sin()
    return (a.add_(b),)


def writes_to_the_previous_iterations_result(i, a, b):
    a.add_(1)
    return (b.exp(),)


def writes_through_a_swap(i, a, b):
    a.t().add_(1)
    return (torch.transpose(b.exp(), 0, 1),)


def writes_to_its_new_tensor(i, a, b):
    return (functional.relu(functional.linear(a, b), inplace=True),)


def counts(i, a, b):
    return (a.add_(1),)


def is_overwritten_by_iterations_of(body):
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    c = graph.call_function(torch.mul, (b, 2))
    loop = graph.call_function(for_loop, (graph.get_attr("body"), (0, 3, 1), (a,), (), (c,)))
    graph.output((graph.call_function(operator.getitem, (loop, 0)),))
    root = nn.Module()
    root.body = fx.symbolic_trace(body)
    return may_overwrite_saved_tensors(fx.GraphModule(root, graph))


@pytest.mark.parametrize(
    "body", [saves_and_writes, writes_to_the_previous_iterations_result, writes_through_a_swap]
)
def test_iterations_may_overwrite_memory_saved_by_other_iterations(body):
    assert is_overwritten_by_iterations_of(body)


@pytest.mark.parametrize("body", [writes_to_its_new_tensor, counts])
def test_iterations_that_write_to_unsaved_memory_are_harmless(body):
    assert not is_overwritten_by_iterations_of(body)


def gradients(program, values):
    leaves = [torch.tensor(value, requires_grad=True) for value in values]
    result = program(*(leaf * 1 for leaf in leaves))
    result[0].sum().backward()
    return result[0], [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("backend", ["magpy", "aot_eager"])
@pytest.mark.parametrize("program", [written_after_a_branch, written_through_a_view])
def test_gradients_that_need_no_overwritten_memory_equal_eager(program, backend):
    fast = magpy.compile(program, backend=backend)
    for scale in (1.0, 1.0, 2.0, -1.0, 1.0):
        values = [[0.5, 1.5, -1.0], [scale, 3.0 * scale, scale]]
        assert_same(gradients(fast, values), gradients(program, values))
    assert magpy.cache_info(fast).hits


@pytest.mark.parametrize("backend", ["magpy", "aot_eager"])
def test_gradients_that_need_overwritten_memory_raise_as_in_eager(backend):
    def program(a, b):
        saved = a.sin()
        if (b > 0).any():
            a.add_(1)
        return saved * b, a

    fast = magpy.compile(program, backend=backend)
    for run in (program, fast, fast, fast):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients(run, [[0.5, 1.5], [1.0, 2.0]])
