"""Facts for CUDA graphs of graphs that are lowered for a GPU: obstacles, lendable results."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from magpy_like.compiler.codegen.capture_obstacles import find_obstacles, graph_facts
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts, source_lines
from magpy_like.compiler.scheduling.memory_planning import plan_memory
from magpy_like.compiler.scheduling.scheduler import Scheduler

pytestmark = pytest.mark.cpu

aten = torch.ops.aten


def facts_of(gm, kind="inference", saved=()):
    lines = source_lines(gm)
    graph = Graph(gm).run()
    graph.saved = set(saved)
    steps = plan_memory(graph, Scheduler(graph).run())
    obstacles = find_obstacles(graph, steps)
    return graph_facts(graph, steps, obstacles, kind, lines).located(lines)


def graph_of(function):
    """The graph of ``function`` for an 8 × 8 CUDA tensor; sizes may depend on data."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(8, 8, device="cuda")
        return make_fx(lambda x: tuple(pytree.tree_leaves(function(x))))(x)


def facts(function, **more):
    return facts_of(graph_of(function), **more)


def on_devices(function, *devices, size=(8, 8)):
    """The graph of ``function`` for tensors on these devices."""
    with FakeTensorMode():
        tensors = [torch.empty(size, device=device) for device in devices]
        return make_fx(lambda *args: (function(*args),))(*tensors)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).relu().sum(0),
        lambda x: x @ x + 1,
        lambda x: torch.softmax(x, -1).cumsum(0),
        lambda x: x.index_put((x.argmax(0),), x),
        lambda x: x.sort().values,
        lambda x: torch.rand_like(x) + torch.randn(8, 8, device=x.device),
        lambda x: aten.convolution(
            x.view(1, 1, 8, 8), x.view(1, 1, 8, 8), None, [1, 1], [0, 0], [1, 1], False,
            [0, 0], 1,
        ),
    ],
    ids=["kernel", "product", "scan", "scatter", "sort", "random", "convolution"],
)  # fmt: skip
def test_graphs_that_only_launch_work_have_no_obstacle(function):
    assert facts(function) == GraphFacts(0, None, (), False)


@pytest.mark.parametrize(
    ("function", "obstacle"),
    [
        (aten.nonzero.default, "aten.nonzero.default waits for the GPU"),
        (aten._unique2.default, "aten._unique2.default waits for the GPU"),
        (lambda x: aten.multinomial.default(x, 2), "aten.multinomial.default waits for the GPU"),
        (
            lambda x: aten._to_copy.default(x, device="cpu") + 1,
            "aten._to_copy.default uses a tensor",
        ),
        (
            lambda x: x + aten._to_copy.default(torch.rand(8), device="cuda"),
            "aten.rand.default uses a tensor",
        ),
        (
            lambda x: x * aten._local_scalar_dense.default(x.sum()),
            "_dense.default waits for the GPU",
        ),
    ],
    ids=["nonzero", "unique", "multinomial", "to the CPU", "from it", "number"],
)
def test_an_operator_that_waits_or_computes_on_the_cpu_is_an_obstacle(function, obstacle):
    found = facts(function)
    assert found.gpu == 0 and obstacle in (found.obstacle or "")


def test_a_custom_operator_is_an_obstacle():
    @torch.library.custom_op("capture_obstacles::copied", mutates_args=())
    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    copied.register_fake(torch.empty_like)
    found = facts(lambda x: copied(x * 2) + 1)
    assert found.obstacle == "capture_obstacles.copied.default is a custom operator"


def test_an_operator_on_an_argument_on_the_cpu_is_an_obstacle():
    found = facts_of(on_devices(lambda x, y: x * 2 + y, "cuda", "cpu", size=()))
    assert (
        found.gpu == 0 and found.obstacle == "aten.add.Tensor uses a tensor that is not on the GPU"
    )


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="fake tensors need both, or none")
def test_several_gpus_are_an_obstacle():
    found = facts_of(on_devices(lambda x, y: x * 2 + y.to(x.device), "cuda:0", "cuda:1"))
    assert found.obstacle == "it uses several GPUs"


def test_a_graph_without_a_gpu_has_none():
    assert facts_of(on_devices(lambda x: x * 2, "cpu")).gpu is None


def test_the_gpu_is_that_of_the_tensors():
    number = (torch.cuda.device_count() or 4) - 1  # fake tensors need it, or no GPU
    assert facts_of(on_devices(lambda x: x * 2, f"cuda:{number}")).gpu == number


def test_results_that_autograd_or_the_optimizer_receives_can_be_lent():
    def three(x):
        return x * 2, x + 1, x.sum(0)

    assert facts(three, kind="inference", saved=[1]).lendable == ()
    assert facts(three, kind="forward", saved=[2, 1]).lendable == (1, 2)
    assert facts(three, kind="backward").lendable == (0, 1, 2)


def with_lines(gm):
    """A graph whose nodes are from lines 0, 1, 2 … of a program."""
    for number, node in enumerate(gm.graph.nodes):
        node.stack_trace = f'File "model.py", line {number}, in forward'
    return gm


def test_an_obstacle_names_the_line_of_the_program():
    gm = with_lines(graph_of(lambda x: aten.nonzero.default(x * 2) + 1))
    (number,) = (k for k, n in enumerate(gm.graph.nodes) if n.target is aten.nonzero.default)
    found = facts_of(gm)
    assert found.obstacle == f"aten.nonzero.default waits for the GPU (model.py:{number})"


def test_a_kernel_on_the_cpu_names_its_operators_and_the_line_of_the_first():
    gm = with_lines(
        graph_of(lambda x: x + aten._to_copy.default(torch.full((8,), 2.0) * 3, device="cuda"))
    )
    number = [n.target for n in gm.graph.nodes].index(aten.full.default)
    assert facts_of(gm).obstacle == (
        f"full: aten.full.default, mul: aten.mul.Tensor on the CPU (model.py:{number})"
    )


def test_an_obstacle_of_a_program_without_lines_names_the_operator_only():
    assert facts(aten.nonzero.default).obstacle == "aten.nonzero.default waits for the GPU"
