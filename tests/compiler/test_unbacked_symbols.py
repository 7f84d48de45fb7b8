"""Graphs with data-dependent numbers and sizes (unbacked symbols), captured without symbols."""

import operator

import pytest
import torch
from torch import fx

from magpy_like.compiler.compile_fx import compile_fx
from tests.compiler.programs import seeded

X, WEIGHT = seeded(4, 6), seeded(4, 6, seed=1)
#: Two, four, no, one and three numbers exceed two; eager broadcasts the single one.
NUMBERS = [torch.tensor(n) for n in ([1, 3, 0, 6], [9, 9, 9, 9], [0, 2, 1, -1], [5, 1, 1, 1],
                                     [3, 3, 3, 1])]  # fmt: skip
PROGRAMS = {
    "slice with data-dependent end": lambda x, n: x[:, : n.max()].exp(),
    "slice with data-dependent start": lambda x, n: x[:, n.min() - 4 :].exp(),
    "slice as a view": lambda x, n: x[: n[3]],
    "two slices, concatenated": lambda x, n: torch.cat([x[:, : n.max()], x[:, n.max() :]], 1).exp(),
    "mask": lambda x, n: x[n > 2] * 2,
    "mask added to a fixed size": lambda x, n: x[n > 2] + WEIGHT[:2],
    "size of a mask": lambda x, n: x * x[n > 2].size(0),
    "item": lambda x, n: x * n.max().item(),
    "element from the end": lambda x, n: x[n > 2].select(0, -2).exp(),
    "repeat_interleave": lambda x, n: torch.repeat_interleave(x, n.abs(), 0) * 2,
}


def _outcome(function, x, n):
    """The result and the gradient, or the type of the exception."""
    x = x.clone().requires_grad_()
    try:
        result = function(x, n)
    except Exception as error:
        return type(error)
    (result,) = result if isinstance(result, (tuple, list)) else (result,)
    (result * torch.linspace(1, 2, result.numel()).view_as(result)).sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_equal_eager(name):
    call = compile_fx(fx.symbolic_trace(PROGRAMS[name]), [X.clone().requires_grad_(), NUMBERS[0]])
    for n in NUMBERS:
        actual, expected = _outcome(call, X, n), _outcome(PROGRAMS[name], X, n)
        if isinstance(expected, type):
            assert actual is expected
        else:
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_data_dependent_graphs_compile_without_fallback(name):
    graph = fx.symbolic_trace(PROGRAMS[name])
    call = compile_fx(graph, [X, NUMBERS[0]], options={"strict": True})
    for n in NUMBERS:
        try:
            expected = PROGRAMS[name](X, n)
        except Exception as error:
            with pytest.raises(type(error)):
                call(X, n)
        else:
            result = call(X, n)
            (result,) = result if isinstance(result, (tuple, list)) else (result,)
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: (x[n > 2], n.gt(2).sum().item()),
        lambda x, n: (x[n > 2].exp(), n.gt(2).sum().item()),
        lambda x, n: (torch.cat([x[n > 2], x[n > 2]]), n.gt(2).sum().item() * 2),
    ],
)
def test_views_of_data_dependent_size_share_memory(program):
    def views(x, n):
        rows, count = program(x, n)
        return rows, rows.view(count, 6), rows.reshape(count, 2, 3), rows.reshape(count, 6, 1)

    call = compile_fx(fx.symbolic_trace(views), [X, NUMBERS[0]], options={"strict": True})
    for n in NUMBERS:
        results = call(X, n)
        torch.testing.assert_close(results, views(X, n))
        assert len({r.untyped_storage().data_ptr() for r in results}) == 1


def test_captured_graph_is_not_modified():
    graph = fx.symbolic_trace(PROGRAMS["slice with data-dependent end"])
    compile_fx(graph, [X, NUMBERS[0]])
    assert operator.getitem in {node.target for node in graph.graph.nodes}


#: Reads from tensors that may be empty; eager raises then.
GATHERS = {
    "index": lambda x, n: x[n > 2][n[1:2] * 0].exp(),
    "negative index": lambda x, n: x[n > 2][n[1:2] * 0 - 1].exp(),
    "gather": lambda x, n: torch.gather(x[n > 2], 0, n[:, None] * 0).exp(),
    "index_select": lambda x, n: torch.index_select(x[n > 2], 0, n * 0).exp(),
    "embedding": lambda x, n: torch.nn.functional.embedding(n * 0, x[n > 2]).exp(),
    "masked_scatter": lambda x, n: x.masked_scatter((n > 8)[:, None], x[n > 2]).exp(),
}
#: Writes to tensors that may be empty.
SCATTERS = {
    "scatter": lambda x, n: x[n > 2].scatter(0, n[:1, None] * 0, 2.0),
    "scatter_add": lambda x, n: x[n > 2].scatter_add(0, n[:1, None] * 0, WEIGHT),
    "index_put": lambda x, n: x[n > 2].index_put((n[:1] * 0,), WEIGHT[0]),
    "index_add": lambda x, n: x[n > 2].index_add(0, n[:1] * 0, WEIGHT[:1]),
    "index_copy": lambda x, n: x[n > 2].index_copy(0, n[:1] * 0, WEIGHT[:1]),
}


@pytest.mark.cpu  # a failed check leaves a GPU unusable
@pytest.mark.parametrize("name", [*GATHERS, *SCATTERS])
def test_index_into_empty_tensor_raises(name):
    program = (GATHERS | SCATTERS)[name]
    graph = fx.symbolic_trace(program)
    call = compile_fx(graph, [X, NUMBERS[0]], options={"strict": name in GATHERS})
    for n in NUMBERS:
        try:
            expected = program(X, n)
        except (IndexError, RuntimeError):  # for empty tensors, some operators raise another type
            assert not (n > 2).any()
            with pytest.raises((IndexError, RuntimeError)):
                call(X, n)
        else:
            torch.testing.assert_close(call(X, n), expected)


def test_reflection_padding_of_too_few_elements_raises():
    def reflected(x, n):
        return torch.nn.functional.pad(x[n > 2].t(), (1, 1), "reflect").exp()

    call = compile_fx(fx.symbolic_trace(reflected), [X, NUMBERS[0]])
    for n in NUMBERS:
        if (n > 2).sum() > 1:
            torch.testing.assert_close(call(X, n), reflected(X, n))
        else:
            with pytest.raises(RuntimeError):
                call(X, n)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"scale_factor": 0.4}, {"size": (4, 3)}])
def test_resize_of_empty_image_raises(mode, options):
    def resized(x, n):
        return torch.nn.functional.interpolate(x[n > 2][None, None], mode=mode, **options) * 2

    call = compile_fx(fx.symbolic_trace(resized), [X, NUMBERS[0]])
    for n in NUMBERS:
        try:
            expected = resized(X, n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as found:
                call(X, n)
            assert str(found.value) == str(error)
        else:
            torch.testing.assert_close(call(X, n), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_unselected_elements_have_zero_gradients(count):
    pairs = fx.symbolic_trace(lambda x: torch.combinations(x, 2).exp())  # empty for one element
    x = torch.linspace(1, 2, count).requires_grad_()
    call = compile_fx(pairs, [x], options={"strict": True})
    actual, expected = (torch.autograd.grad(f(x).sum(), x) for f in (call, pairs))
    torch.testing.assert_close(actual, expected)
