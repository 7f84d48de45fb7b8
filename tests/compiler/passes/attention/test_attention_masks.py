"""Attention masks without effect are removed, causal ones become a flag, others are kept."""

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


REMOVABLE = {
    "all true": (expanded, False),
    "all zeros": (lambda x: torch.zeros(LENGTH, LENGTH, device=x.device), False),
    "triangle": (triangle, True),
    "positions": (positions, True),
}
EFFECTIVE = {
    "strict triangle": lambda x: triangle(x, -1),
    "triangle shifted by one": lambda x: triangle(x, 1),
    "from values": lambda x: x[0, 0, :, :LENGTH] > -99,
    "random": lambda x: torch.rand(LENGTH, LENGTH, device=x.device) > -1,
    "nonzero addend": lambda x: torch.full((LENGTH, LENGTH), -0.5, device=x.device).triu(),
    "mutated": lambda x: (m := expanded(x).clone(), m.logical_and_(triangle(x)))[0],
    "mutated window": lambda x: (
        m := torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device),
        m[1:].logical_and_(triangle(x)[1:]),
    )[0],
}


def attention(mask, **options):
    def function(q, k, v):
        result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q), **options)
        return result.transpose(1, 2).contiguous()

    return function


def rewrite(function, inputs):
    """The attention call in the rewritten graph of ``function``, and the graph as a function."""
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


def assert_equals_eager(call, function, inputs):
    seen = []
    for f in (call, function):
        leaves = [i.detach().clone().requires_grad_() for i in inputs]
        torch.manual_seed(0)
        result = f(*leaves)
        result.sin().sum().backward()
        seen.append((result, [g.grad for g in leaves]))
    assert_same(*seen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REMOVABLE)
def test_mask_computed_from_sizes_becomes_a_flag_or_is_removed(name):
    mask, causal = REMOVABLE[name]
    inputs = qkv()
    node, call = rewrite(attention(mask), inputs)
    assert node.kwargs["attn_mask"] is None
    assert bool(node.kwargs.get("is_causal")) == causal
    assert_equals_eager(call, attention(mask), inputs)


@pytest.mark.parametrize("name", EFFECTIVE)
def test_other_masks_are_kept(name):
    inputs = qkv()
    node, call = rewrite(attention(EFFECTIVE[name]), inputs)
    assert node.kwargs["attn_mask"] is not None
    assert_equals_eager(call, attention(EFFECTIVE[name]), inputs)


def test_mask_is_kept_if_the_layout_of_the_result_is_observable():
    """The strides of the result depend on the library's kernel."""

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=expanded(q))

    inputs = qkv()
    node, call = rewrite(function, inputs)
    assert node.kwargs["attn_mask"] is not None
    assert_equals_eager(call, function, inputs)


def test_mask_is_kept_with_dropout():
    """The random draws depend on the library's kernel."""
    function = attention(expanded, dropout_p=0.5)
    inputs = qkv()
    node, call = rewrite(function, inputs)
    assert node.kwargs["attn_mask"] is not None
    assert_equals_eager(call, function, inputs)


def test_causal_mask_with_fewer_queries_than_keys_is_kept():
    def function(q, k, v):
        mask = torch.ones(LENGTH, LENGTH + 2, dtype=torch.bool, device=q.device).tril()
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).contiguous()

    inputs = (qkv()[0], *qkv(LENGTH + 2)[1:])
    node, call = rewrite(function, inputs)
    assert node.args[3] is not None
    assert_equals_eager(call, function, inputs)


@pytest.mark.parametrize("shape", [(2, 1, LENGTH, LENGTH), (1, 2, LENGTH, LENGTH), (LENGTH, 1, 2)])
def test_mask_that_broadcasts_the_scores_is_kept(shape):
    """In eager, such a mask raises or determines the sizes of the result."""
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
