"""The nodes of captured graphs, and of the forward and backward graphs, know the program's line."""

import importlib
import inspect

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.compiler.runtime import captured_graph_cache
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts, source_lines
from magpy_like.graph_operators.node_metadata import source_line
from magpy_like.monitor.operator_graph.graph_nodes import LocatedGraph

pipeline = importlib.import_module("magpy_like.compiler.compile_fx")


def lines_of(graph):
    """Operator -> the text of its line in this file."""
    text = inspect.getsourcelines(inspect.getmodule(lines_of))[0]
    found = {}
    for node in graph.graph.nodes:
        if (line := source_line(node.stack_trace)) is not None:
            filename, number = line.rsplit(":", 1)
            assert filename == __file__
            name = getattr(node.target, "__name__", node.target)
            found[str(name)] = text[int(number) - 1].strip()
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        y = self.inner(x)  # layers
        y = helper(y)
        for row in y:
            if row.sum() > 0:  # branch
                y = y * 3
        z = (
            y.exp()  # first line
            + y.sin()  # second line
        )
        return z.sum().item()  # number


def helper(y):
    return y.tanh()  # inside


def test_calls_have_the_innermost_line_outside_torch():
    (graph,) = magpy.explain(Net(), torch.ones(2, 4)).graphs
    found = lines_of(graph)
    assert found["linear"] == found["relu"] == "y = self.inner(x)  # layers"
    assert found["tanh"] == "return y.tanh()  # inside"
    assert found["exp"] == "y.exp()  # first line"
    assert found["sin"] == "+ y.sin()  # second line"
    assert found["item"] == "return z.sum().item()  # number"
    assert found["gt"] == "if row.sum() > 0:  # branch"


def test_a_compiled_module_of_torch_has_torchs_lines():
    (graph,) = magpy.explain(nn.Linear(4, 4), torch.ones(2, 4)).graphs
    (node,) = graph.graph.find_nodes(op="call_function", target=nn.functional.linear)
    assert source_line(node.stack_trace).rsplit(":")[0] == inspect.getsourcefile(nn.Linear)


def test_segments_after_a_split_have_lines():
    def program(x):
        y = x * 2  # before
        print(end="")
        return y.sin()  # after

    graphs = magpy.explain(program, torch.ones(2)).graphs
    found = {name: line for graph in graphs for name, line in lines_of(graph).items()}
    assert found == {"mul": "y = x * 2  # before", "sin": "return y.sin()  # after"}


def test_a_program_without_line_numbers_has_no_lines():
    def program(x):
        return x.sin() + x.cos()

    program.__code__ = program.__code__.replace(co_linetable=b"")
    (graph,) = magpy.explain(program, torch.ones(2)).graphs
    assert set(source_lines(graph).values()) == {None}


def test_graphs_keep_no_run_alive():
    """Neither a finished graph nor that of a recording that was given up refers to the monitor."""
    (graph,) = magpy.explain(lambda x: x * 2, torch.ones(2)).graphs
    assert isinstance(graph.graph, LocatedGraph)
    assert graph.graph.locate() == ""
    assert getattr(graph.graph.locate, "__self__", None) is None


@pytest.fixture
def compiled_graphs(monkeypatch):
    """Kind -> the ATen graph that was compiled."""
    found = {}
    compile_aten = pipeline.compile_aten

    def noted(graph, *, kind, **settings):
        found[kind] = graph
        return compile_aten(graph, kind=kind, **settings)

    monkeypatch.setattr(pipeline, "compile_aten", noted)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)
    return found


def test_forward_and_backward_graphs_have_the_lines(compiled_graphs):
    def program(x):
        y = x.sigmoid()  # first
        y = torch.tanh(y * y)  # second
        return torch.cumsum(y, 0).sum()  # third

    fast = magpy.compile(program)
    for _ in range(2):
        fast(torch.ones(4, requires_grad=True)).backward()
    forward, backward = lines_of(compiled_graphs["forward"]), lines_of(compiled_graphs["backward"])
    assert forward["sigmoid.default"] == "y = x.sigmoid()  # first"
    assert forward["tanh.default"] == "y = torch.tanh(y * y)  # second"
    assert forward["cumsum.default"] == "return torch.cumsum(y, 0).sum()  # third"
    assert backward["sigmoid_backward.default"] == "y = x.sigmoid()  # first"
    assert backward["tanh_backward.default"] == "y = torch.tanh(y * y)  # second"
    assert backward["cumsum.default"] == "return torch.cumsum(y, 0).sum()  # third"


def test_inference_graphs_have_the_lines(compiled_graphs):
    def program(x):
        return torch.cumsum(x.exp(), 0)  # only

    fast = magpy.compile(program)
    for _ in range(2):
        fast(torch.ones(4))
    found = lines_of(compiled_graphs["inference"])
    assert (
        found["exp.default"] == found["cumsum.default"] == "return torch.cumsum(x.exp(), 0)  # only"
    )


@pytest.mark.parametrize("traces_anew", [True, False])
def test_a_graph_from_the_disk_cache_names_the_line_of_the_program_that_runs(
    traces_anew, tmp_path, monkeypatch
):
    """Lines are no part of the cache's keys: programs with equal graphs share an entry."""
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    if traces_anew:
        monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)
    lowered, traced = [], []
    aot_compile = pipeline.aot_compile

    def noted(*args, **kwargs):
        traced.append(args)
        return aot_compile(*args, **kwargs)

    monkeypatch.setattr(pipeline, "aot_compile", noted)

    def with_obstacle(graph, steps, obstacles, kind, lines):
        lowered.append(graph)
        index = next(k for k, name in enumerate(lines) if name.startswith("exp"))
        return GraphFacts(0, "it waits", (), False, index)

    monkeypatch.setattr(pipeline, "graph_facts", with_obstacle)

    def first(x):
        y = x * 2
        return y.exp() + 1

    def second(x):
        return (
            (x * 2)
            .exp()
            + 1
        )  # fmt: skip

    for program, row in ((first, 2), (second, 3)):
        fast = magpy.compile(program)
        for _ in range(2):
            fast(torch.ones(4))
        (report,) = magpy.explain(fast, torch.ones(4)).cuda_graphs
        line = program.__code__.co_firstlineno + row
        assert report.obstacles == (f"it waits ({__file__}:{line})",)
    assert len(lowered) == 1
    assert len(traced) == (2 if traces_anew else 1)


def test_lines_are_those_of_the_innermost_frame_of_a_stack_trace():
    trace = '  File "a b.py", line 3, in f\n    x\n  File "c.py", line 12, in g\n    y\n'
    assert source_line(trace) == "c.py:12"
    assert source_line(None) is source_line("") is source_line("elsewhere") is None


def test_nodes_without_a_stack_trace_have_no_line():
    assert source_lines(torch.fx.symbolic_trace(lambda x: x + 1)) == {
        "x": None, "add": None, "output": None
    }  # fmt: skip
