"""Records with equal operator graphs share the compiled graph."""

import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, one, tensor


def _halved(x):
    while x.sum().item() > 1:
        with open("/dev/null", "w") as log:
            log.write("iteration")
        x = x.abs() / 2
    return x


def test_loop_entered_at_two_instructions_has_one_graph():
    twins = Twins(lambda: _halved)
    for value in (3.0, 40.0, 3.0, 40.0):
        twins.call(one(value))
    info = magpy.cache_info(twins.compiled)
    assert info.graphs < info.records
    graphs = magpy.explain(twins.compiled, tensor(40.0)).graphs
    assert len({id(graph) for graph in graphs}) == len(graphs)


def count_graphs(program, *inputs, backend="eager"):
    """The number of graphs after these calls."""
    compiled = magpy.compile(program, backend=backend, dynamic=False)
    for args in inputs:
        expected, actual = program(*args), compiled(*args)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert magpy.cache_info(compiled).misses == len(inputs)
    return magpy.cache_info(compiled).graphs


@pytest.mark.parametrize(
    ("a", "b", "graphs"),
    [
        ((1,), (1, 2), 1),
        ((1,), (1.0,), 2),
        ((0.0,), (-0.0,), 2),
        ((float("nan"),), (float("nan"), 1), 1),
        ((True,), (1,), 2),
        ((2,), (3,), 2),
    ],
)
def test_graphs_are_equal_if_all_constants_are(a, b, graphs):
    def program(x, *numbers):
        return x * numbers[0]

    x = tensor(1.0, -2.0)
    assert count_graphs(program, (x, *a), (x, *b)) == graphs


def test_graphs_with_different_operators_differ():
    def program(x, y, mode):
        if mode == "a" or mode == "b":
            return x - y
        return y - x if mode == "c" else x.add(y)

    x, y = tensor(1.0, 2.0), tensor(3.0, 5.0)
    # y - x and x - y are the same graph with its inputs exchanged.
    assert count_graphs(program, *((x, y, mode) for mode in "abcd")) == 2


def test_backend_that_inspects_inputs_compiles_once_per_input_form():
    compiled_for = []

    def backend(graph, inputs):
        compiled_for.append([tuple(t.shape) for t in inputs])
        return graph.forward

    def program(x, mode):
        return x.abs() + len(mode)

    flat, other = torch.ones(4), torch.ones(6)
    inputs = ((flat, [0]), (flat, (0,)), (other, [0]), (other, (0,)))
    assert count_graphs(program, *inputs, backend=backend) == 1
    assert compiled_for == [[(4,)], [(6,)]]


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_special_sizes_yield_no_further_operator_graph(backend):
    """A backend compiles a graph again for the sizes 0 and 1; it remains one operator graph."""

    def program(x):
        n = int(x.sum())
        with open("/dev/null", "w") as log:
            log.write("counted")
        return torch.arange(n) * 2 + n

    compiled = magpy.compile(program, backend=backend)
    for value in (4.0, 3.0, 1.0, 0.0, 5.0, 2.0, 1.0):
        assert torch.equal(compiled(tensor(value)), program(tensor(value)))
    report = magpy.explain(compiled, tensor(4.0))
    assert magpy.cache_info(compiled).graphs == len(report.graphs) == 2


def test_backend_compiles_again_under_other_modes():
    calls = []

    def backend(graph, inputs):
        calls.append(torch.is_grad_enabled())
        return graph.forward

    def program(x):
        return x.abs()

    compiled = magpy.compile(program, backend=backend)
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            compiled(torch.ones(2))
    assert calls == [True, False]


def test_graphs_with_different_parameters_differ_for_a_backend_that_inspects_inputs():
    class Chosen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))

        def forward(self, x, which):
            return self.parts[which](x)

    torch.manual_seed(0)
    model, x = Chosen(), torch.ones(1, 2)

    seen = []

    def seeing(graph, inputs):
        seen.append([id(value) for value in inputs])
        return graph.forward

    compiled = magpy.compile(model, backend=seeing, dynamic=False)
    for which in (0, 1, 0, 1):
        assert torch.equal(compiled(x, which), model(x, which))
    assert magpy.cache_info(compiled).graphs == 1
    assert len(seen) == 2 and seen[0] != seen[1]


def test_example_inputs_have_requires_grad_as_before_the_programs_writes():
    weight, seen = torch.ones(3, requires_grad=True), []

    def requires_grad(values):
        return [value.requires_grad for value in values if isinstance(value, torch.Tensor)]

    def backend(graph, inputs):
        example_requires_grad = requires_grad(inputs)

        def run(*args):
            seen.append(example_requires_grad == requires_grad(args))
            return graph.forward(*args)

        return run

    def program(x):
        x.mul_(weight)
        return x + 1

    fast = magpy.compile(program, backend=backend)
    for rows in (2, 2, 3, 4):
        fast(torch.ones(rows, 3))
    assert magpy.cache_info(fast).hits == 2
    assert seen == [True, True], "with static and with dynamic sizes"
