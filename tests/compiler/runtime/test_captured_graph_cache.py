"""The cache of captured graphs: a compiled graph is not traced again if its trace must be equal."""

import contextlib
import importlib
import subprocess
import sys

import pytest
import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from magpy_like.compiler import compile_fx
from magpy_like.graph_operators.node_metadata import NUMBER
from tests.compare import assert_same

module = importlib.import_module("magpy_like.compiler.compile_fx")
X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode disables the cache."""


@pytest.fixture(autouse=True)
def traced(tmp_path, monkeypatch):
    """An empty cache, and the list of graphs that were traced instead of found in it."""
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    seen = []
    trace = module.aot_compile

    def counted(gm, *args, **kwargs):
        seen.append(gm)
        return trace(gm, *args, **kwargs)

    monkeypatch.setattr(module, "aot_compile", counted)
    return seen


def run(function, *args, grad=False):
    """Compiles ``function`` and compares results, aliasing and mutated arguments with eager."""
    gm = function if isinstance(function, fx.GraphModule) else fx.symbolic_trace(function)
    with contextlib.nullcontext() if grad else torch.no_grad():
        fast = compile_fx(gm, args, options={"strict": True})
        seen = []
        for call in (fast, gm):
            copies = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
            if len({a.untyped_storage()._cdata for a in args}) < len(args):
                copies = [copies[0] for _ in args]
            result = call(*copies)
            # A flat sequence may be a list or a tuple: only captures distinguish them.
            seen.append((tuple(result) if isinstance(result, list) else result, copies))
    assert_same(*seen)


def test_inference_graph_is_traced_once(traced):
    for values in (X + 1, X - 3):
        run(lambda x, y: ((x @ y.t()).softmax(-1) * 2, x.t() + 1), values, X)
    assert len(traced) == 1


def test_cached_graph_mutates_arguments_and_returns_structures(traced):
    for _ in range(2):
        run(lambda x: (x.add_(1), (x * 2, x.exp())), X)
        run(lambda x, y: (y.mul_(x), (y.sum(0), (x * 2,)))[1], X, X - 1)
    assert len(traced) == 3, "a result that is an argument needs a wrapper"


def test_graph_with_views_of_arguments_is_traced_once(traced):
    for _ in range(2):
        run(lambda x: (x.t(), x * 2), X)
    assert len(traced) == 1


def test_graph_whose_subscripts_are_not_known_to_be_views_is_another(traced):
    gm = fx.symbolic_trace(lambda x: (lambda b: (b[x.size(0) - 2], b[0]))(x * 2))
    run(gm, X)
    for node in gm.graph.nodes:
        if node.name in ("size", "sub"):
            node.meta[NUMBER] = True
    run(gm, X)
    assert len(traced) == 2


def test_graph_with_trailing_views_of_arguments_is_traced_once(traced):
    for _ in range(2):
        run(lambda x, y: (y * 2, (x.unbind(0)[1], x), y + 1), X, X + 1, grad=True)
    assert len(traced) == 1


DIFFERENT = {
    "number": ((lambda x: x * 2.0, X), (lambda x: x * 3.0, X)),
    "sign of zero": ((lambda x: x + 0.0, X), (lambda x: x + -0.0, X)),
    "method": ((lambda x: x.sin(), X), (lambda x: x.cos(), X)),
    "function": ((lambda x: torch.sin(x), X), (lambda x: torch.cos(x), X)),
    "order": ((lambda x, y: x - y, X, X + 1), (lambda x, y: y - x, X, X + 1)),
    "dtype": ((lambda x: x * 2, X), (lambda x: x * 2, X.double())),
    "size": ((lambda x: x.sum(0), X), (lambda x: x.sum(0), X[:2].clone())),
    "layout": ((lambda x: x * 2, X), (lambda x: x * 2, X.t().contiguous().t())),
    "memory": (
        (lambda x, y: (x.add_(1), y * 2)[1], X, X + 0),
        (lambda x, y: (x.add_(1), y * 2)[1], *[X.clone()] * 2),
    ),
    "structure": ((lambda x: (x * 2, x + 1), X), (lambda x: (x * 2, (x + 1,)), X)),
    "rounding mode": (
        (lambda x: torch.div(x, 5, rounding_mode="floor"), X - 6),
        (lambda x: torch.div(x, 5, rounding_mode="trunc"), X - 6),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_graphs_have_different_keys(name, traced):
    for function, *args in DIFFERENT[name]:
        run(function, *args)
    assert len(traced) == 2


def test_graph_with_gradients_is_traced_again(traced):
    for _ in range(2):
        x = X.clone().requires_grad_()
        result = compile_fx(fx.symbolic_trace(lambda x: x.sin() * 2), [x])(x)
        result.sum().backward()
        torch.testing.assert_close(x.grad, 2 * X.cos())
    assert len(traced) == 2
    run(lambda x: x.sin() * 2, X.clone().requires_grad_())
    assert len(traced) == 3, "the graph without gradients differs"


def test_torch_modes_are_part_of_the_key(traced):
    function, y = (lambda x, y: x @ y), X.t() + 1
    run(function, X, y)
    with torch.autocast(X.device.type, torch.bfloat16):
        run(function, X, y)
        run(function, X, y)
    with torch.inference_mode():
        run(function, X, y)
    run(function, X, y)
    assert len(traced) == 4


def test_autocast_dtype_of_the_graph_is_part_of_the_key(traced):
    device = X.device.type
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    entered = graph.call_function(_enter_autocast, (device, None, True, None))
    product = graph.call_function(torch.matmul, (x, y))
    graph.call_function(_exit_autocast, (entered,))
    graph.output(product)
    before = torch.get_autocast_dtype(device)
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype(device, dtype)
            run(fx.GraphModule({}, graph), X, X.t() + 1)
    finally:
        torch.set_autocast_dtype(device, before)
    assert len(traced) == 2


def test_graph_with_a_buffer_is_traced_again(traced):
    for values in ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]):
        owner = torch.nn.Module()
        owner.register_buffer("weight", torch.tensor(values, device=X.device))
        graph = fx.Graph()
        x, weight = graph.placeholder("x"), graph.get_attr("weight")
        graph.output(graph.call_function(torch.mul, (x, weight)))
        run(fx.GraphModule(owner, graph), X)
    assert len(traced) == 2


def double(x):
    return x * 2


def test_graph_with_a_function_of_the_program_is_traced_again(traced):
    graph = fx.Graph()
    graph.output(graph.call_function(double, (graph.placeholder("x"),)))
    for _ in range(2):
        run(fx.GraphModule({}, graph), X)
    assert len(traced) == 2


def test_graph_with_varying_sizes_is_traced_again(traced):
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(lambda x: x * x.shape[0], backend=compile_fx, dynamic=True)(X)
    assert len(traced) == 2


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[::-1]])
def test_damaged_entries_are_replaced(tmp_path, traced, damage):
    run(lambda x: x * 2 + 1, X)
    found = list(tmp_path.rglob("*.bin"))
    assert len(found) == (3 if X.device.type == "cpu" else 2)  # one names the C++ compiler
    for entry in found:
        entry.write_bytes(damage(entry.read_bytes()))
    for _ in range(2):
        run(lambda x: x * 2 + 1, X)
    assert len(traced) == 2


@pytest.mark.full
def test_concurrent_processes_share_the_cache(tmp_path):
    program = (
        "import torch, magpy_like as magpy\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()\n"
        "x = torch.randn(4, 8)\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(magpy.compile(model)(x), model(x))\n"
    )
    for _ in range(2):
        started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
        assert [process.wait() for process in started] == [0] * 4
