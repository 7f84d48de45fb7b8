"""Views that custom functions return are eager mode's views; inside a graph they are compiled."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.graph_operators.custom_functions import REASON
from magpy_like.graph_operators.node_metadata import AS_IS
from magpy_like.torch_compat import pytree
from tests.compiler.programs import Reversed


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return -g


class Clipped(torch.autograd.Function):
    """Its backward pass is not linear: it must run once, for the sum of all gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, g):
        return g.t().clamp(-5, 5)


class RowAndDouble(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[0], x * 2

    @staticmethod
    def backward(ctx, g, h):
        return h * 2 - torch.stack([g, g * 0])


class DoubledView(torch.autograd.Function):
    """Returns a view of a tensor of its own."""

    @staticmethod
    def forward(ctx, x):
        return (x * 2).t()

    @staticmethod
    def backward(ctx, g):
        return g.t() * 2


FUNCTIONS = (Reversed, Same, Clipped, RowAndDouble, DoubledView)


def after_a_branch(function, x):
    if x.sum() > 0:
        base = x * 2
    else:
        base = x * 3
    return function.apply(base), base * 2


def before_a_branch(function, x):
    base = x * 2
    view = function.apply(base)
    view = view[0] if type(view) is tuple else view
    if x.sum() > 0:
        other = view * 2
    else:
        other = view * 3
    return other, base


def of_a_written_base(function, x):
    base = x * 2
    base.add_(1)
    return function.apply(base), base


def repeated(function, x):
    for _ in range(3):
        x = function.apply(x * 2)
        x = x[1] if type(x) is tuple else x
    return x


def first(function, x):
    result = function.apply(x)
    return result[0] if type(result) is tuple else result


def without_gradients(function, x):
    base = x * 2
    with torch.no_grad():
        view = function.apply(base)
    return view, base * 3


PROGRAMS = {
    "of an argument": lambda function, x: function.apply(x),
    "of an intermediate": lambda function, x: function.apply(x * 2),
    "beside its base": lambda function, x: (lambda b: (function.apply(b), b))(x * 2),
    "of a view": lambda function, x: function.apply(x[:, 1:]),
    "views of the view": lambda function, x: (lambda v: (v[0], v.unbind(0)[-1]))(
        first(function, x * 2)
    ),
    "returned and used": lambda function, x: (lambda v: (v, v * 3, (v * v).sum()))(
        first(function, x * 2)
    ),
    **{
        f.__name__: f
        for f in (after_a_branch, before_a_branch, of_a_written_base, repeated, without_gradients)
    },
}


def attempt(action):
    try:
        return action()
    except RuntimeError as error:
        return str(error).partition(", which is output 0 of")[0]


def observe(function, write, *sizes, grad=True):
    """What a caller sees of the results and of gradients, after a write to a result or the base."""
    x = torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes).requires_grad_(grad)
    results = function(x)
    results = pytree.tree_leaves(results)
    seen = [(r._is_view(), r._base is x, r.shape, r.stride(), r._version) for r in results]
    for result in results:
        if result._is_view() and result.requires_grad:
            seen.append(type(result.grad_fn).__name__)
    seen.append(attempt(lambda: write(results)))

    def gradients():
        total = sum((r * r).sum() * k for k, r in enumerate(results, 1) if r.requires_grad)
        return torch.autograd.grad(total, x)[0].tolist()

    seen += [r.detach().tolist() for r in results] + [r._version for r in results]
    seen += [attempt(gradients) if any(r.requires_grad for r in results) else None]
    return seen


WRITES = {
    "no write": lambda results: None,
    "of the view": lambda results: results[0].add_(1).tolist(),
    "of a detached result": lambda results: results[-1].detach().mul_(2).tolist(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_views_of_custom_functions_are_those_of_eager_mode(program, grad, write):
    for function in FUNCTIONS:
        if program is repeated and function in (Clipped, DoubledView):
            sizes = ((3, 3),) * 3
        else:
            sizes = ((2, 3), (2, 3), (2, 3), (2, 4), (2, 5))
        call = lambda x, function=function: program(function, x)
        fast = magpy.compile(call)
        for each in sizes:
            expected = observe(call, write, *each, grad=grad)
            assert observe(fast, write, *each, grad=grad) == expected


def test_write_to_the_base_after_the_call_is_refused_as_in_eager_mode():
    def program(x):
        base = x[:, None] * torch.ones(3)
        view = Reversed.apply(base)
        print(end="")
        base.detach().mul_(2)
        return x + view

    fast = magpy.compile(program)
    for run in (program, fast, fast, fast):
        with pytest.raises(RuntimeError, match="base or another view of its base has been modif"):
            run(torch.ones(3, requires_grad=True))


def graph_of(program):
    (graph,) = magpy.explain(program, torch.ones(2, 3, requires_grad=True)).graphs
    return {node.meta[AS_IS] for node in graph.graph.nodes if AS_IS in node.meta}


@pytest.mark.cpu  # under a default device, custom functions run as they are
@pytest.mark.parametrize("function", [Reversed, Same, Clipped])
def test_function_whose_view_stays_inside_is_compiled_with_its_graph(function):
    weight = torch.ones(3, 2)

    def program(x):
        view = function.apply(x * 2)
        return torch.relu(view.reshape(2, 3) @ weight), view.sum()

    assert graph_of(program) == set()
    assert graph_of(lambda x: function.apply(x * 2)) == {REASON}


@pytest.mark.cpu  # under a default device, custom functions run as they are
def test_function_that_returns_new_memory_is_compiled_with_its_graph():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    assert graph_of(lambda x: Doubled.apply(x + 1)) == set()


def test_function_whose_view_crosses_an_uncompiled_operator_runs_uncompiled_too():
    def program(x):
        inner = Reversed.apply(x * 2)
        outer = Same.apply(x * 3)
        return outer, inner * 2

    def used_before(x):
        inner = Reversed.apply(x * 2)
        return Same.apply(inner.sin()), inner * 2

    for each in (program, used_before):
        (graph,) = magpy.explain(each, torch.ones(2, 3, requires_grad=True)).graphs
        assert sum(AS_IS in node.meta for node in graph.graph.nodes) == 2
        fast = magpy.compile(each)
        for _ in range(3):
            write = WRITES["of a detached result"]
            assert observe(fast, write, 2, 3) == observe(each, write, 2, 3)
