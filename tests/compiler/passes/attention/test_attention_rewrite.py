"""Attention written in primitive operators, in many spellings, becomes the library function."""

import math
import operator

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from magpy_like.compiler import passes
from magpy_like.compiler.passes.attention.filled_attention import FILLED_ATTENTION
from tests.compare import assert_same

INF = math.inf


def qkv(length=6, keys=7, dim=8, shape=(2, 3), dtype=torch.float32, grad=False):
    sizes = [(*shape, length, dim), (*shape, keys, dim), (*shape, keys, dim)]
    return [torch.randn(s, dtype=dtype, requires_grad=grad) for s in sizes]


def count_fused(gm):
    attention = F.scaled_dot_product_attention, FILLED_ATTENTION
    return sum(node.target in attention for node in gm.graph.nodes)


def clones(inputs):
    return [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]


def compare(gm, function, inputs, tolerance=1e-5):
    compiled_inputs, eager_inputs = clones(inputs), clones(inputs)
    actual, expected = gm(*compiled_inputs), function(*eager_inputs)
    # Scores are rounded in a different order.
    assert_same((actual, compiled_inputs), (expected, eager_inputs), rtol=tolerance, atol=tolerance)
    if expected.requires_grad:
        cotangent = torch.randn_like(expected)
        actual.backward(cotangent)
        expected.backward(cotangent)
        for a, e in zip(compiled_inputs, eager_inputs):
            assert_same(a.grad, e.grad, rtol=1e-4, atol=1e-5)


def check(function, *inputs, fires=True, tolerance=1e-5):
    """Rewrites the traced graph of ``function``; compares values and gradients with eager."""
    gm = passes.run_captured(torch.fx.symbolic_trace(function), inputs)
    assert count_fused(gm) == fires
    compare(gm, function, inputs, tolerance)
    return gm


SPELLINGS = {
    "operators": lambda q, k, v: ((q @ k.transpose(-2, -1)) / math.sqrt(8)).softmax(-1) @ v,
    "functions": lambda q, k, v: torch.matmul(
        F.softmax(torch.matmul(q, torch.transpose(k, 2, 3)) * 8**-0.5, dim=-1), v
    ),
    "no scale": lambda q, k, v: torch.softmax(q @ k.mT, dim=3) @ v,
    "scaled query": lambda q, k, v: torch.softmax((q * 0.3) @ k.mT, -1) @ v,
    "permute": lambda q, k, v: (q.matmul(k.permute(0, 1, 3, 2)).div(2.0)).softmax(dim=-1).matmul(v),
    "dropout off": lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.1, training=False) @ v,
    "dropout zero": lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), p=0.0) @ v,
    "float32 softmax": lambda q, k, v: F.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v,
    "contiguous": lambda q, k, v: (q @ k.mT).softmax(-1).contiguous() @ v,
    "in place": lambda q, k, v: (q @ k.mT).mul(0.5).softmax(-1).matmul(v),
    "negative scale": lambda q, k, v: ((q @ k.mT) * -0.5).softmax(-1) @ v,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_the_library_function(spelling, grad):
    check(SPELLINGS[spelling], *qkv(grad=grad))


def test_bmm_of_three_dimensions_is_rewritten():
    def function(q, k, v):
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)

    check(function, *qkv(shape=(5,), grad=True))


def test_transposed_keys_are_rewritten():
    def function(q, k, v):
        return (q @ k).softmax(-1) @ v

    q, k, v = qkv()
    check(function, q, k.mT.contiguous(), v)


def test_layout_of_the_result_equals_eager():
    def function(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def merged(q, k, v):
        return function(q, k, v).transpose(1, 2).reshape(2, 6, 24)

    check(function, *qkv())  # assert_same compares strides
    gm = check(merged, *qkv())
    assert torch.Tensor.contiguous not in [node.target for node in gm.graph.nodes]


def test_aten_graph_is_rewritten():
    inputs = qkv()
    function = SPELLINGS["operators"]
    gm = make_fx(function, pre_dispatch=True)(*inputs)
    gm = passes.run_captured(gm, inputs)
    assert count_fused(gm) == 1
    compare(gm, function, inputs)


def with_unused_readers(q, k, v):
    probabilities = (q @ k.mT).softmax(-1)
    F.dropout(probabilities, 0.0, False)  # returns its argument; the result is unused
    probabilities.to(torch.float32).type(torch.float32)
    return probabilities @ v


def test_unused_readers_are_ignored():
    check(with_unused_readers, *qkv(grad=True))


def with_random_reader(q, k, v):
    probabilities = (q @ k.mT).softmax(-1)
    F.dropout(probabilities, 0.5, True)
    return probabilities @ v


def test_reader_that_draws_random_numbers_prevents_the_rewrite():
    gm = check(with_random_reader, *qkv(), fires=False)
    assert any(node.target is F.dropout for node in gm.graph.nodes)


@pytest.mark.parametrize("shape", [(1, 3, 6, 7), (6, 7), (2, 1, 6, 7)])
def test_position_bias_is_added_to_the_mask(shape):
    def biased(q, k, v, bias, mask):
        return (((q @ k.mT) * 0.4 + bias) + mask).softmax(-1) @ v

    bias = torch.randn(shape)
    mask = torch.where(torch.rand(2, 1, 6, 7) > 0.3, 0.0, torch.finfo(torch.float32).min)
    mask[0, 0, 2] = torch.finfo(torch.float32).min  # a row of which nothing is seen
    check(biased, *qkv(), bias, mask)
    check(biased, *qkv(), bias, torch.where(mask < 0, -INF, mask))
    check(biased, *qkv(), bias.clone().requires_grad_(), mask, fires=False)
    check(biased, *qkv(), bias, mask.bool().logical_not(), fires=False)  # added as numbers
    check(biased, *qkv(grad=True), bias, mask, fires=False)


def test_two_layers_are_both_rewritten():
    def function(q, k, v):
        once = (q @ k.mT).softmax(-1) @ v
        return (once @ k.mT).softmax(-1) @ v

    gm = passes.run_captured(torch.fx.symbolic_trace(function), inputs := qkv())
    assert count_fused(gm) == 2
    compare(gm, function, inputs)


# --- masks -------------------------------------------------------------------------------------

CAUSAL = torch.ones(6, 7).tril().bool()
MASKED_ROW = CAUSAL.clone()
MASKED_ROW[2] = False  # one query without any visible key

FILLS = {
    "fill -inf": lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -INF).softmax(-1) @ v,
    "fill lowest": lambda q, k, v, m: (
        (q @ k.mT * 0.4).masked_fill(m.logical_not(), torch.finfo(torch.float32).min).softmax(-1)
        @ v
    ),
    "fill -1e9": lambda q, k, v, m: (q @ k.mT / 3).masked_fill(m == 0, -1e9).softmax(-1) @ v,
    "in place": lambda q, k, v, m: (q @ k.mT).masked_fill_(~m, -INF).softmax(-1) @ v,
    "where": lambda q, k, v, m: torch.where(m, q @ k.mT, -INF).softmax(-1) @ v,
    "where, mask first": lambda q, k, v, m: torch.where(~m, -1e10, q @ k.mT).softmax(-1) @ v,
    "where, wrapped number": lambda q, k, v, m: (
        torch.where(m, q @ k.mT, torch.full([], -1e20, device=q.device)).softmax(-1) @ v
    ),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mask", [CAUSAL, MASKED_ROW, MASKED_ROW[None, None].expand(2, 1, -1, -1)])
@pytest.mark.parametrize("spelling", FILLS)
def test_filled_masks_are_rewritten(spelling, mask, grad):
    """Includes a row without visible keys: NaN or the mean of the values, as in eager."""
    check(FILLS[spelling], *qkv(grad=grad), mask, fires=mask.device.type == "cpu")


def assign(*locations, value):
    def change(q, k, v, grad):
        for location in locations:
            {"q": q, "k": k, "v": v, "grad": grad}[location[0]][location[1:]] = value

    return change


def overflow(q, k, v, grad):
    q[0] = 1e20
    k[0, :, 5] = 1e30


NONFINITE = {
    "NaN key": assign(("k", 0, 0, 5), value=math.nan),
    "infinite key": assign(("k", 0, 0, 5), value=INF),
    "NaN key, hidden from all queries": assign(("k", 0, 0, 6), value=math.nan),
    "NaN query": assign(("q", 0, 0, 3), value=math.nan),
    "NaN value": assign(("v", 0, 0, 5), value=math.nan),
    "overflow": overflow,
    "only visible score is -inf": assign(("k", 0, 0, 0), value=-INF),
    "infinite gradient": assign(("grad", 0, 0, 2), value=INF),
    "NaN gradient": assign(("grad", 0, 0, 2), value=math.nan),
}


def rewrite_through_dynamo(function, found):
    """Compiles ``function`` to its rewritten graph, which is appended to ``found``."""

    def backend(gm, inputs):
        found.append(passes.run_captured(gm, inputs))
        return gm.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def constant_triangle(q, k, v, mask):
    later = torch.ones(7, 7, dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT).masked_fill(later, -INF).softmax(-1) @ v


def fill_infinite(q, k, v, mask):
    return (q @ k.mT).masked_fill(~mask, -INF).softmax(-1) @ v


def fill_lowest(q, k, v, mask):
    return (q @ k.mT).masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1) @ v


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [fill_infinite, fill_lowest, constant_triangle])
@pytest.mark.parametrize("name", NONFINITE)
def test_filled_mask_hides_nonfinite_values_as_in_eager(name, function, grad):
    """The library adds its mask, which does not hide NaN, for example."""
    q, k, v = qkv(length=7)
    q, cotangent = q.abs(), torch.randn(q.shape)
    NONFINITE[name](q, k, v, cotangent)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    mask[:, 6] = False
    compiled_inputs, eager_inputs = (
        clones([x.requires_grad_(grad) for x in (q, k, v)]) for _ in range(2)
    )
    found = []
    call = rewrite_through_dynamo(function, found)
    actual, expected = call(*compiled_inputs, mask), function(*eager_inputs, mask)
    assert count_fused(found[0]) == (q.device.type == "cpu")
    assert_same(actual, expected, rtol=1e-4, atol=1e-5)
    if grad:
        actual.backward(cotangent)
        expected.backward(cotangent)
        for a, e in zip(compiled_inputs, eager_inputs):
            assert_same(a.grad, e.grad, rtol=1e-4, atol=1e-5)


def test_scores_below_the_fill_value_equal_eager():
    q, k, v = qkv(length=7)
    function = FILLS["fill -1e9"]
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    check(function, q.abs() * 1e5, -k.abs() * 1e5, v, mask, fires=q.device.type == "cpu")


@pytest.mark.cpu  # on a GPU, the check for NaN would synchronize
def test_constant_triangle_becomes_the_causal_flag():
    found = []
    rewrite_through_dynamo(constant_triangle, found)(*qkv(length=7), CAUSAL)
    (node,) = found[0].graph.find_nodes(op="call_function", target=FILLED_ATTENTION)
    assert node.args[3:5] == (None, None)


def test_fills_under_autocast_are_kept():
    def function(q, k, v, m):
        return (q @ k.mT).masked_fill(~m, -INF).softmax(-1, dtype=torch.float32) @ v

    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        check(function, *qkv(), CAUSAL, fires=False)


@pytest.mark.parametrize("fill", [-INF, -1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize(
    "mask", [CAUSAL, MASKED_ROW, MASKED_ROW.expand(2, 3, -1, -1), MASKED_ROW[:1]]
)
@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, m: ((q @ k.mT) / 2.5 + m).softmax(-1) @ v,
        lambda q, k, v, m: (m + q @ k.mT).softmax(-1) @ v,
    ],
    ids=["after", "before"],
)
def test_added_masks_are_rewritten(function, mask, fill):
    # On a GPU scores are in units of log(2): added to -1e4, they lose other digits than in eager.
    tolerance = 5e-3 if fill == -1e4 and mask.device.type == "cuda" else 1e-5
    added = torch.zeros(mask.shape).masked_fill(~mask, fill)
    check(function, *qkv(), added, tolerance=tolerance)


def test_added_mask_with_gradients_is_kept():
    """With finfo.min added to all scores of a row, the library's backward pass is wrong."""
    mask = torch.zeros(6, 7).masked_fill(~MASKED_ROW, torch.finfo(torch.float32).min)
    function = lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v
    check(function, *qkv(grad=True), mask, fires=False)


def test_added_bias_is_rewritten():
    check(lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, *qkv(), torch.randn(2, 1, 6, 7))


def test_in_place_addition_to_scores_is_rewritten():
    def function(q, k, v, m):
        scores = q @ k.mT
        scores += m
        return scores.softmax(-1) @ v

    gm = torch.fx.symbolic_trace(function)
    assert operator.iadd in [node.target for node in gm.graph.nodes] or gm
    check(function, *qkv(), torch.randn(6, 7))


# --- graphs that are kept ------------------------------------------------------------------------

SIMILAR_GRAPHS = {
    "another dimension": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "probabilities returned": lambda q, k, v: (p := (q @ k.mT).softmax(-1)) @ v + p.sum(),
    "scores with another reader": lambda q, k, v: (s := q @ k.mT).softmax(-1) @ v + s.sum(),
    "values on the left": lambda q, k, v: v.mT @ (q @ k.mT).softmax(-1).mT,
    "another function": lambda q, k, v: (q @ k.mT).sigmoid() @ v,
    "tensor scale": lambda q, k, v: ((q @ k.mT) * v.sum()).softmax(-1) @ v,
    "moderate fill value": lambda q, k, v: (
        (q @ k.mT).masked_fill(k.sum(-1)[:, :, None] > 0, -2.0).softmax(-1) @ v
    ),
    "floor division": lambda q, k, v: torch.div(q @ k.mT, 2, rounding_mode="floor").softmax(-1) @ v,
    "negated": lambda q, k, v: (-(q @ k.mT)).softmax(-1) @ v,
    "double softmax": lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v,
    "other values": lambda q, k, v: (q @ k.mT).softmax(-1) @ v[..., :4],
    "keys of one head for all": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
}


@pytest.mark.parametrize("name", SIMILAR_GRAPHS)
def test_graphs_similar_to_attention_are_kept(name):
    check(SIMILAR_GRAPHS[name], *qkv(), fires=False)


def test_scores_added_to_themselves_are_kept():
    def function(q, k, v):
        scores = q @ q.mT
        return (scores + scores).softmax(-1) @ v

    check(function, *qkv(keys=6), fires=False)


def test_active_dropout_is_kept():
    def function(q, k, v):
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    gm = passes.run_captured(torch.fx.symbolic_trace(function), qkv())
    assert not count_fused(gm)


def test_mask_with_gradients_is_kept():
    mask = torch.randn(6, 7, requires_grad=True)
    check(lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, *qkv(), mask, fires=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_kept(dtype):
    gm = torch.fx.symbolic_trace(SPELLINGS["no scale"])
    assert not count_fused(passes.run_captured(gm, qkv(dtype=dtype)))


def test_keys_mutated_between_the_products_are_kept():
    def function(q, k, v):
        scores = (q @ k.mT).softmax(-1)
        k.mul_(0)
        return scores @ v

    check(function, *qkv(), fires=False)


def test_mutation_before_attention_survives_the_rewrite():
    def function(q, k, v):
        v.mul_(2)
        return (q @ k.mT).softmax(-1) @ v

    check(function, *qkv())


def test_empty_sequences_are_kept():
    check(SPELLINGS["no scale"], *qkv(keys=0), fires=False)


@pytest.mark.cpu  # like the operator
@pytest.mark.parametrize("hidden", [0.0, math.inf])
def test_filled_attention_is_twice_differentiable(hidden):
    """Unlike the library's gradient, and the operator's fast gradient."""

    def operator_(q, k, v, keep):
        bias = torch.where(keep, 0.0, -math.inf)
        return FILLED_ATTENTION(q, k, v, keep, bias, -math.inf, 0.5)[0]

    def formula(q, k, v, keep):
        return (q @ k.mT * 0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v

    keep = torch.ones(6, 7, dtype=torch.bool).tril()
    found = []
    for call in (operator_, formula):
        torch.manual_seed(0)
        q, k, v = qkv()
        k[:, :, 6] += hidden
        leaves = [t.requires_grad_() for t in (q, k, v)]
        *_, first = torch.autograd.grad(call(*leaves, keep).pow(2).sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), v))
    torch.testing.assert_close(*found)


def test_filled_attention_of_empty_batch():
    q, k, v = (t[:0] for t in qkv())
    keep = torch.ones(6, 7, dtype=torch.bool)
    out, sums = FILLED_ATTENTION(q, k, v, keep, torch.zeros(6, 7), -math.inf, 0.5)
    assert (out.shape, sums.shape) == ((0, 3, 6, 8), (0, 3, 6))
