"""Captured and compiled graphs carry declared metadata only."""

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy
from magpy_like.compiler import kernel_build, passes
from magpy_like.compiler.runtime import captured_graph_cache
from magpy_like.graph_operators import node_metadata
from magpy_like.graph_operators.node_metadata import DECLARED, NUMBER, TWIN, undeclared
from magpy_like.monitor.operator_graph.graph_nodes import GraphNodes
from tests.compare import assert_same

WEIGHT = torch.ones(3, requires_grad=True)


def varying_number(x, n):
    return (x * n + 1).relu()


def looped(x, n):
    rows = []
    for t in range(len(x)):
        rows.append(torch.tanh(x[t] * n))
    return torch.stack(rows)


def branched(x, n):
    return x * n if x.sum() > 0 else x - n


def read_and_written(x, n):
    x = x * n
    x[0] = x[1] + x.sum().item()
    return x


def hooked(x, n):
    y = (x * WEIGHT * n).exp()
    y.register_hook(lambda gradient: gradient * 2)
    return y


def checkpointed(x, n):
    return checkpoint(lambda y: torch.tanh(y * n).sin(), x * WEIGHT, use_reentrant=False)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 3, 3))

    def forward(self, x, n):
        image = x.reshape(1, 1, -1, 3).expand(2, 3, -1, 3)
        return self.layers(nn.functional.interpolate(image, (66, 66))) * n


PROGRAMS = [
    varying_number, looped, branched, read_and_written, hooked, checkpointed, Convolution()
]  # fmt: skip


@pytest.fixture
def found(monkeypatch):
    """The problems of all graphs, and how many graphs of which stage were checked."""
    problems, seen = [], {"captured": 0, "compiled": 0}

    def check(stage, graph_module):
        seen[stage] += 1
        for module in graph_module.modules():
            if isinstance(module, fx.GraphModule):
                problems.extend(f"{stage}: {text}" for text in undeclared(module.graph))

    finish, run, run_captured = GraphNodes.finish, passes.run, passes.run_captured

    def checked_finish(self, outputs):
        graph_module = finish(self, outputs)
        check("captured", graph_module)
        return graph_module

    def checked_run(graph_module, **kwargs):
        check("compiled", graph_module)
        result = run(graph_module, **kwargs)
        check("compiled", result)
        return result

    def checked_run_captured(graph_module, inputs):
        check("captured", graph_module)
        result = run_captured(graph_module, inputs)
        check("compiled", result)
        return result

    monkeypatch.setattr(GraphNodes, "finish", checked_finish)
    monkeypatch.setattr(passes, "run", checked_run)
    monkeypatch.setattr(passes, "run_captured", checked_run_captured)
    # Without caches of graphs: a cached one does not go through the passes.
    monkeypatch.setattr(kernel_build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)
    return problems, seen


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=lambda program: getattr(program, "__name__", "convolution")
)
def test_graphs_carry_declared_metadata_only(program, found):
    problems, seen = found
    compiled = magpy.compile(program)
    for rows, n in [(4, 2.0), (5, 2.0), (6, 3.0), (7, 4.0)]:
        x = torch.linspace(-1, 2, rows * 3).reshape(rows, 3)
        assert_same(compiled(x.clone(), n), program(x.clone(), n))
    assert not problems
    assert seen["captured"] and (seen["compiled"] or program is hooked)


def test_an_undeclared_key_is_found():
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta |= {"surprise": 1, NUMBER: "yes", "val": torch.ones(1)}
    found = list(undeclared(graph))
    assert len(found) == 2 and "surprise" in found[0] and "'number' is a str" in found[1]


def test_every_constant_of_the_module_is_declared():
    constants = {
        value for name, value in vars(node_metadata).items() if name.isupper()
        and isinstance(value, str)
    }  # fmt: skip
    assert constants == set(DECLARED) and TWIN in constants
    assert all(key.meaning.endswith(".") for key in DECLARED.values())
