"""Graphs without symbols of their own, whose numbers and sizes are known only when they run."""

import operator

import pytest
import torch
from torch import fx

from magpy_like.compiler.compile_fx import compile_fx
from tests.compiler.programs import seeded

X, WEIGHT = seeded(4, 6), seeded(4, 6, seed=1)
#: Of the numbers above two there are two, four, none, one and three: eager broadcasts the one.
NUMBERS = [torch.tensor(n) for n in ([1, 3, 0, 6], [9, 9, 9, 9], [0, 2, 1, -1], [5, 1, 1, 1],
                                     [3, 3, 3, 1])]  # fmt: skip
PROGRAMS = {
    "a slice that ends where a tensor says": lambda x, n: x[:, : n.max()].exp(),
    "a slice that starts where a tensor says": lambda x, n: x[:, n.min() - 4 :].exp(),
    "a slice that is a view": lambda x, n: x[: n[3]],
    "two slices, joined": lambda x, n: torch.cat([x[:, : n.max()], x[:, n.max() :]], 1).exp(),
    "a mask": lambda x, n: x[n > 2] * 2,
    "a mask, and a size that it may not have": lambda x, n: x[n > 2] + WEIGHT[:2],
    "the size of a mask": lambda x, n: x * x[n > 2].size(0),
    "an item": lambda x, n: x * n.max().item(),
    "an element from the end": lambda x, n: x[n > 2].select(0, -2).exp(),
    "repetitions": lambda x, n: torch.repeat_interleave(x, n.abs(), 0) * 2,
}


def _outcome(function, x, n):
    """The result and the gradient, or the kind of exception."""
    x = x.clone().requires_grad_()
    try:
        result = function(x, n)
    except Exception as error:
        return type(error)
    (result,) = result if isinstance(result, (tuple, list)) else (result,)
    (result * torch.linspace(1, 2, result.numel()).view_as(result)).sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_has_eagers_result_and_gradient(name):
    call = compile_fx(fx.symbolic_trace(PROGRAMS[name]), [X.clone().requires_grad_(), NUMBERS[0]])
    for n in NUMBERS:
        actual, expected = _outcome(call, X, n), _outcome(PROGRAMS[name], X, n)
        if isinstance(expected, type):
            assert actual is expected
        else:
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_none_of_it_runs_through_aten_as_a_whole(name):
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
def test_views_share_memory_where_another_tensor_tells_their_size(program):
    def views(x, n):
        rows, count = program(x, n)
        return rows, rows.view(count, 6), rows.reshape(count, 2, 3), rows.reshape(count, 6, 1)

    call = compile_fx(fx.symbolic_trace(views), [X, NUMBERS[0]], options={"strict": True})
    for n in NUMBERS:
        results = call(X, n)
        torch.testing.assert_close(results, views(X, n))
        assert len({r.untyped_storage().data_ptr() for r in results}) == 1


def test_a_graph_that_was_given_keeps_its_subscripts():
    graph = fx.symbolic_trace(PROGRAMS["a slice that ends where a tensor says"])
    compile_fx(graph, [X, NUMBERS[0]])
    assert operator.getitem in {node.target for node in graph.graph.nodes}


#: What looks elements up in tensors that may turn out to have none. Eager then raises.
LOOKED_UP = {
    "an index": lambda x, n: x[n > 2][n[1:2] * 0].exp(),
    "a negative index": lambda x, n: x[n > 2][n[1:2] * 0 - 1].exp(),
    "gather": lambda x, n: torch.gather(x[n > 2], 0, n[:, None] * 0).exp(),
    "index_select": lambda x, n: torch.index_select(x[n > 2], 0, n * 0).exp(),
    "embedding": lambda x, n: torch.nn.functional.embedding(n * 0, x[n > 2]).exp(),
    "masked_scatter": lambda x, n: x.masked_scatter((n > 8)[:, None], x[n > 2]).exp(),
}
#: The same for what writes into them.
WRITTEN = {
    "scatter": lambda x, n: x[n > 2].scatter(0, n[:1, None] * 0, 2.0),
    "scatter_add": lambda x, n: x[n > 2].scatter_add(0, n[:1, None] * 0, WEIGHT),
    "index_put": lambda x, n: x[n > 2].index_put((n[:1] * 0,), WEIGHT[0]),
    "index_add": lambda x, n: x[n > 2].index_add(0, n[:1] * 0, WEIGHT[:1]),
    "index_copy": lambda x, n: x[n > 2].index_copy(0, n[:1] * 0, WEIGHT[:1]),
}


@pytest.mark.cpu  # a GPU that was asked for such an element answers nothing any more
@pytest.mark.parametrize("name", [*LOOKED_UP, *WRITTEN])
def test_an_index_into_no_elements_raises(name):
    program = (LOOKED_UP | WRITTEN)[name]
    graph = fx.symbolic_trace(program)
    call = compile_fx(graph, [X, NUMBERS[0]], options={"strict": name in LOOKED_UP})
    for n in NUMBERS:
        try:
            expected = program(X, n)
        except (IndexError, RuntimeError):  # of no elements, some operators raise another one
            assert not (n > 2).any()
            with pytest.raises((IndexError, RuntimeError)):
                call(X, n)
        else:
            torch.testing.assert_close(call(X, n), expected)


def test_a_reflection_of_too_few_elements_raises():
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
@pytest.mark.parametrize("how", [{"scale_factor": 2}, {"scale_factor": 0.4}, {"size": (4, 3)}])
def test_an_image_without_pixels_is_not_resized(mode, how):
    def resized(x, n):
        return torch.nn.functional.interpolate(x[n > 2][None, None], mode=mode, **how) * 2

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
def test_elements_that_no_mask_chooses_have_a_gradient_of_zeros(count):
    pairs = fx.symbolic_trace(lambda x: torch.combinations(x, 2).exp())  # of one element: none
    x = torch.linspace(1, 2, count).requires_grad_()
    call = compile_fx(pairs, [x], options={"strict": True})
    actual, expected = (torch.autograd.grad(f(x).sum(), x) for f in (call, pairs))
    torch.testing.assert_close(actual, expected)
