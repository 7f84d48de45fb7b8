"""Graphs that switch the gradient mode have eager's gradients, whatever mode they begin in."""

import operator

import pytest
import torch
from torch import fx

import magpy_like as magpy
from magpy_like.compiler.autograd.gradient_modes import find_gradient_modes
from magpy_like.torch_compat.autograd import set_grad_enabled
from tests.compare import assert_same
from tests.compiler.programs import compile_fx


def source(is_leaf):
    leaf = torch.arange(-2.0, 3.0).requires_grad_()
    return leaf, leaf if is_leaf else leaf * 1


def outcome(program, begins_enabled, is_leaf):
    """What a program returns and leaves, and the gradient of each of its tensors."""
    leaf, x = source(is_leaf)
    with torch.set_grad_enabled(begins_enabled):
        try:
            results = program(x)
        except RuntimeError as error:
            return str(error)
        mode = torch.is_grad_enabled()
    found = [mode]
    for tensor in (*results, x):
        gradient = None
        if tensor.requires_grad:
            loss = tensor.square().sum()
            (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)
        known = tensor.detach(), tensor.requires_grad, tensor.is_leaf, gradient
        found.append(known)
    return found


def write_with_gradients(x):
    with torch.enable_grad():
        x[x > 0] = 1
        return torch.stack([x, x]).t(), x


def view_with_gradients(x):
    with torch.enable_grad():
        x.mul_(2)
        return x.view(-1), x + 1


def write_in_both_modes(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            x.mul_(2)
            z = x + y
        x.mul_(3)
    return y + z, z


def view_without_gradients(x):
    with torch.no_grad():
        v = x.view(-1)
    return v, x * 2


def view_of_a_result_without_gradients(x):
    y = x * 2
    with torch.no_grad():
        v = y[1:]
    return v, y


def view_of_a_view_without_gradients(x):
    y = x * 2
    with torch.no_grad():
        v = y[1:]
    return v[1:], y


def view_without_gradients_after_a_write(x):
    x.mul_(2)
    with torch.no_grad():
        v = x[1:]
    return v, x.relu()


def detached_without_gradients(x):
    y = x * 2
    with torch.no_grad():
        v = y.detach()[1:]
    return v, y


PROGRAMS = [
    write_with_gradients, view_with_gradients, write_in_both_modes, view_without_gradients,
    view_of_a_result_without_gradients, view_of_a_view_without_gradients,
    view_without_gradients_after_a_write, detached_without_gradients,
]  # fmt: skip


@pytest.mark.parametrize("is_leaf", [False, True])
@pytest.mark.parametrize("begins_enabled", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_those_of_eager(program, begins_enabled, is_leaf):
    expected = outcome(program, begins_enabled, is_leaf)
    fast = magpy.compile(program)
    for _ in range(3):
        assert_same(outcome(fast, begins_enabled, is_leaf), expected)


def graph_of(*operations):
    """A graph of one input: a bool switches the mode, a function maps the last value."""
    graph = fx.Graph()
    last = graph.placeholder("x")
    for operation in operations:
        if isinstance(operation, bool):
            graph.call_function(set_grad_enabled, (operation,))
        elif isinstance(operation, str):
            last = graph.call_method(operation, (last,))
        else:
            last = graph.call_function(operation, (last, 2))
    graph.output((last,))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    "operations",
    [
        (True, operator.mul), (False, operator.mul), (operator.mul, True), (operator.mul, False),
        (False, operator.mul, True, operator.imul), (operator.imul, True, operator.mul, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("begins_enabled", [False, True])
def test_a_graph_leaves_the_mode_that_it_has_set(operations, begins_enabled):
    gm, (_, example) = graph_of(*operations), source(False)
    with torch.set_grad_enabled(begins_enabled):
        fast = compile_fx(gm, [example])
    assert_same(outcome(fast, begins_enabled, False), outcome(gm, begins_enabled, False))


def test_the_mode_is_restored_when_a_graph_raises():
    gm = graph_of(False, operator.mul, True, "inverse")
    with pytest.raises(RuntimeError), torch.no_grad():
        modes = find_gradient_modes(gm, [torch.ones(2, 3)])
        try:
            modes.enter(modes.graph)(torch.ones(2, 3))
        finally:
            assert not torch.is_grad_enabled()


def modes_of(*operations, begins_enabled=True):
    with torch.set_grad_enabled(begins_enabled):
        found = find_gradient_modes(graph_of(*operations), [source(False)[1]])
    nodes = found.graph.graph.nodes
    switches = [node.args[0] for node in nodes if node.target is set_grad_enabled]
    return found.entry, switches, found.last


def test_a_graph_has_the_fewest_switches():
    assert modes_of(False, operator.mul, True) == (False, [], True)
    assert modes_of(False, True, operator.mul, "exp", begins_enabled=False) == (True, [], True)
    assert modes_of("exp", True, "exp", begins_enabled=False) == (True, [False, True], True)
    assert modes_of("exp", False, "exp") == (True, [False, True], False)


def test_only_views_that_would_get_gradients_cut_a_graph():
    def is_cut(*operations):
        return find_gradient_modes(graph_of(*operations), [source(False)[1]]).is_cut

    assert is_cut("exp", False, "t")
    assert is_cut("exp", False, "t", True, "t")
    assert not is_cut("exp", False, "t", "exp")
    assert not is_cut("exp", False, "detach", "t")
    assert not is_cut("exp", False, "exp", "t")
    assert not is_cut(False, "t")
