"""Operators that no backend can compile: they run uncompiled between compiled graphs."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy
from magpy_like.graph_operators.node_metadata import AS_IS
from tests.compare import assert_same


class Rounded(torch.autograd.Function):
    """Reads a tensor's value in its forward pass."""

    @staticmethod
    def forward(ctx, x):
        scale = x.abs().max().item()
        return torch.round(x / scale * 8) * scale / 8

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Positive(torch.autograd.Function):
    """Returns a data-dependent number of elements."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[x > 0] if x.sum().item() != 0 else x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x).masked_scatter(x > 0, g)


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2, (x * x.max().item(), 1)[0]

    @staticmethod
    def backward(ctx, g, h):
        return g / 2 + h


class SameOrCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x) if x[0].item() > 0 else x.clone()


class Strict(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.min().item() < -100:
            raise ValueError("too small")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class GraphCollector:
    """A backend that runs its graphs uncompiled and keeps them."""

    def __init__(self):
        self.graphs = []

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)
        return gm.forward

    def targets(self):
        return [n.target for gm in self.graphs for n in gm.graph.nodes if n.op.startswith("call")]


def compare(program, *calls, backend="magpy", grad=True):
    """Compares each call with eager mode: results, mutated arguments, gradients, random state."""
    fast = magpy.compile(program, backend=backend)
    for values in calls:
        seen = []
        for run in (fast, program):
            x = values.clone().requires_grad_(grad)
            torch.manual_seed(0)
            result = run(x)
            if grad:
                sum(
                    (r * r).sum() for r in (result if type(result) is tuple else (result,))
                ).backward()
            seen.append((result, x, x.grad, torch.get_rng_state()))
        assert_same(*seen)
    return magpy.cache_info(fast)


def inputs(count=3, size=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_graphs_around_a_function_that_reads_values_are_compiled(backend):
    program = lambda x: (Rounded.apply(x.sin() + 1) * 2).cos()
    info = compare(program, *inputs(), backend=backend)
    assert (info.hits, info.records, info.graphs) == (2, 1, 1)


def test_backend_receives_all_operators_but_the_function():
    backend = GraphCollector()
    compare(lambda x: (Rounded.apply(x.sin()) * 2).cos(), *inputs(), backend=backend)
    assert len(backend.graphs) == 2
    names = [target if isinstance(target, str) else target.__name__ for target in backend.targets()]
    assert names == ["sin", "mul", "cos"]


def test_stack_of_a_list_that_a_loop_appends_to_is_compiled_after_an_uncompiled_function():
    def program(x):
        rows = []
        for row in x:
            rows.append(row.sin())
        y = Rounded.apply(x)
        return torch.stack(rows), y

    compiled = magpy.compile(program, backend="eager")
    for rows in (5, 7):
        compiled(torch.randn(rows, 3))
    (graph,) = magpy.explain(compiled, torch.randn(8, 3)).graphs
    uncompiled = {
        node.target.__name__: AS_IS in node.meta
        for node in graph.graph.nodes
        if node.op == "call_function"
    }
    (as_is,) = (name for name, is_uncompiled in uncompiled.items() if is_uncompiled)
    assert as_is.endswith("apply") and "stack" in uncompiled


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_function_with_data_dependent_sizes(backend):
    many = inputs(12, size=14)
    assert len({int((x > 0).sum()) for x in many}) > 4
    info = compare(lambda x: Positive.apply(x.exp() - 1) * 2, *many, backend=backend)
    assert info.hits == len(many) - 1


def test_function_that_returns_a_tuple():
    def program(x):
        half, other = Halves.apply(x * 2)
        return half.exp(), other + half

    assert compare(program, *inputs()).hits == 2


def test_in_place_write_to_a_result_that_may_be_a_view():
    def program(x):
        y = x * 2
        z = SameOrCopy.apply(y)
        z.add_(1)
        return y * 3, z.exp()

    ones = torch.ones(3)
    info = compare(program, ones, -ones, ones, -ones, grad=False)
    assert info.hits == 3


def test_exception_of_the_function_propagates():
    program = lambda x: Strict.apply(x + 1).sin()
    fast = magpy.compile(program)
    for _ in range(2):
        fast(torch.ones(2))
        with pytest.raises(ValueError, match="too small"):
            fast(torch.full((2,), -200.0))
    assert_same(fast(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_as_in_eager_mode(reentrant):
    """Batch norm updates its statistics twice, dropout repeats its draws, parameters receive
    gradients."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))

        def forward(self, x):
            y = self.first(x).tanh()
            y = checkpoint(self.inner, y, use_reentrant=reentrant)
            return self.last(y.sin())

    torch.manual_seed(0)
    model, twin = Model().double(), Model().double()
    twin.load_state_dict(model.state_dict())
    backend = GraphCollector()
    for runs in (magpy.compile(model), magpy.compile(model, backend=backend)):
        for x in torch.randn(3, 5, 6, dtype=torch.float64):
            seen = []
            for module, run in ((model, runs), (twin, twin)):
                module.zero_grad()
                torch.manual_seed(1)
                result = run(x)
                result.sum().backward()
                gradients = [p.grad for p in module.parameters()]
                seen.append((result, gradients, [*module.buffers()], torch.get_rng_state()))
            assert_same(*seen)
        assert magpy.cache_info(runs).hits == 2
    assert len(backend.graphs) == 2


def test_each_size_has_its_own_record():
    def program(x):
        return (Rounded.apply(x.sin()) * x.shape[0]).cos()

    assert compare(program, *(torch.randn(n) for n in (3, 4, 5, 6, 4, 3))).hits == 2


def test_checkpointed_function_appends_to_a_new_list():
    """The backward pass appends once more."""

    def program(x):
        seen = []

        def inner(y, found):
            found.append(len(found))
            return y.sin()

        return checkpoint(inner, x, seen, use_reentrant=True).exp(), seen

    run = magpy.compile(program)
    for _ in range(3):
        pairs = [call(torch.ones(3, requires_grad=True)) for call in (run, program)]
        for result, _ in pairs:
            result.sum().backward()
        assert_same(*pairs)


def test_requires_grad_on_a_tensor_that_requires_grad_has_no_effect():
    """As transformers does with embeddings under gradient checkpointing."""

    def program(x):
        y = x.sin().requires_grad_(True).cos()
        return y.exp().requires_grad_()

    backend = GraphCollector()
    run = magpy.compile(program, backend=backend)
    for needed in (True, True, False, False):
        pairs = []
        for call in (run, program):
            x = torch.ones(3, requires_grad=needed)
            result = call(x)
            result.sum().backward()
            pairs.append((result, x.grad, result.is_leaf))
        assert_same(*pairs)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_tensor_that_an_earlier_segment_saved_and_a_later_one_detaches(backend):
    def program(x):
        y = x * x
        print(end="")  # splits the program
        x.detach_()
        return y

    fast = magpy.compile(program, backend=backend)
    for _ in range(3):
        y = fast(torch.ones(3, requires_grad=True) * 1)
        with pytest.raises(RuntimeError, match="detached in-place"):
            y.sum().backward()
