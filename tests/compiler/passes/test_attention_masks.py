"""Masks that say nothing, or what a flag says, are left out of attention; no others are."""

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler import passes
from tests.compare import assert_same

LENGTH = 6


def qkv(length=LENGTH):
    return tuple(torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3))


def triangle(x, diagonal=0):
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril(diagonal)


def positions(x):
    at = torch.arange(LENGTH, device=x.device)
    return at[None, None, :, None] >= at[None, None, None, :] + 0


def expanded(x):
    return (torch.arange(LENGTH, device=x.device) >= 0)[None, None, :, None].expand(
        2, 1, LENGTH, LENGTH
    )


IDLE = {
    "true everywhere": (expanded, False),
    "zeros are added": (lambda x: torch.zeros(LENGTH, LENGTH, device=x.device), False),
    "a triangle": (triangle, True),
    "positions": (positions, True),
}
TELLING = {
    "strictly earlier, the first row sees nothing": lambda x: triangle(x, -1),
    "one later": lambda x: triangle(x, 1),
    "of values": lambda x: x[0, 0, :, :LENGTH] > -99,
    "drawn": lambda x: torch.rand(LENGTH, LENGTH, device=x.device) > -1,
    "something is added": lambda x: torch.full((LENGTH, LENGTH), -0.5, device=x.device).triu(),
    "written to before": lambda x: (m := expanded(x).clone(), m.logical_and_(triangle(x)))[0],
    "a window of it is written to": lambda x: (
        m := torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device),
        m[1:].logical_and_(triangle(x)[1:]),
    )[0],
}


def attention(mask, **options):
    def function(q, k, v):
        result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q), **options)
        return result.transpose(1, 2).contiguous()

    return function


def rewritten(function, inputs):
    """The call of attention in the graph of ``function``, and the graph as a function."""
    found = []

    def backend(gm, examples):
        found.append(passes.run_captured(gm, examples))
        return found[-1].forward

    torch._dynamo.reset()
    call = torch.compile(function, backend=backend, fullgraph=True)
    call(*inputs)
    (gm,) = found
    (node,) = gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    return node, call


def compare(call, function, inputs):
    seen = []
    for f in (call, function):
        given = [i.detach().clone().requires_grad_() for i in inputs]
        torch.manual_seed(0)
        result = f(*given)
        result.sin().sum().backward()
        seen.append((result, [g.grad for g in given]))
    assert_same(*seen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", IDLE)
def test_a_mask_that_sizes_alone_make_is_a_flag_or_nothing(name):
    mask, causal = IDLE[name]
    inputs = qkv()
    node, call = rewritten(attention(mask), inputs)
    assert node.kwargs["attn_mask"] is None
    assert bool(node.kwargs.get("is_causal")) == causal
    compare(call, attention(mask), inputs)


@pytest.mark.parametrize("name", TELLING)
def test_any_other_mask_stays(name):
    inputs = qkv()
    node, call = rewritten(attention(TELLING[name]), inputs)
    assert node.kwargs["attn_mask"] is not None
    compare(call, attention(TELLING[name]), inputs)


def test_a_mask_stays_where_the_layout_of_the_result_is_seen():
    """Each of the library's kernels lays its result out in its own way."""

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=expanded(q))

    inputs = qkv()
    node, call = rewritten(function, inputs)
    assert node.kwargs["attn_mask"] is not None
    compare(call, function, inputs)


def test_a_mask_stays_where_something_is_dropped():
    """Each of the library's kernels draws in its own way."""
    function = attention(expanded, dropout_p=0.5)
    inputs = qkv()
    node, call = rewritten(function, inputs)
    assert node.kwargs["attn_mask"] is not None
    compare(call, function, inputs)


def test_a_causal_mask_of_fewer_queries_than_keys_stays():
    def function(q, k, v):
        mask = torch.ones(LENGTH, LENGTH + 2, dtype=torch.bool, device=q.device).tril()
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).contiguous()

    inputs = (qkv()[0], *qkv(LENGTH + 2)[1:])
    node, call = rewritten(function, inputs)
    assert node.args[3] is not None
    compare(call, function, inputs)


@pytest.mark.parametrize("shape", [(2, 1, LENGTH, LENGTH), (1, 2, LENGTH, LENGTH), (LENGTH, 1, 2)])
def test_a_mask_that_scores_do_not_have_the_sizes_of_stays(shape):
    """Eager raises, or takes the sizes of the result from it."""
    graph = torch.fx.Graph()
    q, k, v = map(graph.placeholder, "qkv")
    mask = graph.call_function(torch.ones, (shape,), {"dtype": torch.bool})
    attention = F.scaled_dot_product_attention
    node = graph.call_function(attention, (q, k, v), {"attn_mask": mask})
    swapped = graph.call_method("transpose", (node, 1, 2))
    graph.output(graph.call_method("contiguous", (swapped,)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    passes.run_captured(gm, [x[:1].detach() for x in qkv()])
    assert node.kwargs["attn_mask"] is mask
