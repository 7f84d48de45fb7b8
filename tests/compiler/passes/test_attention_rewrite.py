"""Hand-written attention becomes the library's, in its many spellings, and never a wrong value."""

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


def fused(gm):
    attention = F.scaled_dot_product_attention, FILLED_ATTENTION
    return sum(node.target in attention for node in gm.graph.nodes)


def clones(inputs):
    return [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]


def compare(gm, function, inputs, tolerance=1e-5):
    ours, eager = clones(inputs), clones(inputs)
    actual, expected = gm(*ours), function(*eager)
    # Scores are rounded in another order.
    assert_same((actual, ours), (expected, eager), rtol=tolerance, atol=tolerance)
    if expected.requires_grad:
        cotangent = torch.randn_like(expected)
        actual.backward(cotangent)
        expected.backward(cotangent)
        for a, e in zip(ours, eager):
            assert_same(a.grad, e.grad, rtol=1e-4, atol=1e-5)


def check(function, *inputs, fires=True, tolerance=1e-5):
    """Rewrites ``function`` as captured from Python; compares values and gradients."""
    gm = passes.run_captured(torch.fx.symbolic_trace(function), inputs)
    assert fused(gm) == fires
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
def test_every_spelling_is_the_librarys(spelling, grad):
    check(SPELLINGS[spelling], *qkv(grad=grad))


def test_three_dimensions_through_bmm():
    def function(q, k, v):
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)

    check(function, *qkv(shape=(5,), grad=True))


def test_keys_that_arrive_transposed():
    def function(q, k, v):
        return (q @ k).softmax(-1) @ v

    q, k, v = qkv()
    check(function, q, k.mT.contiguous(), v)


def test_the_layout_is_eagers():
    def function(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def merged(q, k, v):
        return function(q, k, v).transpose(1, 2).reshape(2, 6, 24)

    check(function, *qkv())  # assert_same compares strides
    gm = check(merged, *qkv())
    assert torch.Tensor.contiguous not in [node.target for node in gm.graph.nodes]


def test_the_graph_may_be_aten():
    inputs = qkv()
    function = SPELLINGS["operators"]
    gm = make_fx(function, pre_dispatch=True)(*inputs)
    gm = passes.run_captured(gm, inputs)
    assert fused(gm) == 1
    compare(gm, function, inputs)


def idle_readers(q, k, v):
    probabilities = (q @ k.mT).softmax(-1)
    F.dropout(probabilities, 0.0, False)  # given back as it is, and so read by nobody
    probabilities.to(torch.float32).type(torch.float32)
    return probabilities @ v


def test_readers_that_nobody_reads_do_not_count():
    check(idle_readers, *qkv(grad=True))


def drawing_reader(q, k, v):
    probabilities = (q @ k.mT).softmax(-1)
    F.dropout(probabilities, 0.5, True)
    return probabilities @ v


def test_a_reader_that_draws_random_numbers_does():
    gm = check(drawing_reader, *qkv(), fires=False)
    assert any(node.target is F.dropout for node in gm.graph.nodes)


@pytest.mark.parametrize("shape", [(1, 3, 6, 7), (6, 7), (2, 1, 6, 7)])
def test_a_position_bias_before_a_mask_is_added_to_it(shape):
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


def test_two_layers_are_two():
    def function(q, k, v):
        once = (q @ k.mT).softmax(-1) @ v
        return (once @ k.mT).softmax(-1) @ v

    gm = passes.run_captured(torch.fx.symbolic_trace(function), inputs := qkv())
    assert fused(gm) == 2
    compare(gm, function, inputs)


# --- masks -------------------------------------------------------------------------------------

CAUSAL = torch.ones(6, 7).tril().bool()
ROWS = CAUSAL.clone()
ROWS[2] = False  # one query that may see nothing

MASKED = {
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
@pytest.mark.parametrize("mask", [CAUSAL, ROWS, ROWS[None, None].expand(2, 1, -1, -1)])
@pytest.mark.parametrize("spelling", MASKED)
def test_filled_masks(spelling, mask, grad):
    """Also with a row that sees nothing: NaN or the mean of the values, as in eager."""
    check(MASKED[spelling], *qkv(grad=grad), mask, fires=mask.device.type == "cpu")


def set_(*places, value):
    def change(q, k, v, grad):
        for place in places:
            {"q": q, "k": k, "v": v, "grad": grad}[place[0]][place[1:]] = value

    return change


def overflow(q, k, v, grad):
    q[0] = 1e20
    k[0, :, 5] = 1e30


NOT_FINITE = {
    "NaN key": set_(("k", 0, 0, 5), value=math.nan),
    "infinite key": set_(("k", 0, 0, 5), value=INF),
    "NaN key, seen by nobody": set_(("k", 0, 0, 6), value=math.nan),
    "NaN query": set_(("q", 0, 0, 3), value=math.nan),
    "NaN value": set_(("v", 0, 0, 5), value=math.nan),
    "overflow": overflow,
    "all that one sees is -inf": set_(("k", 0, 0, 0), value=-INF),
    "infinite gradient": set_(("grad", 0, 0, 2), value=INF),
    "NaN gradient": set_(("grad", 0, 0, 2), value=math.nan),
}


def through_dynamo(function, found):
    """``function`` by its rewritten graph, which is added to ``found``."""

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
@pytest.mark.parametrize("name", NOT_FINITE)
def test_a_fill_hides_what_is_not_finite(name, function, grad):
    """The library adds its mask: to NaN, say, and then to no avail."""
    q, k, v = qkv(length=7)
    q, cotangent = q.abs(), torch.randn(q.shape)
    NOT_FINITE[name](q, k, v, cotangent)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    mask[:, 6] = False
    ours, eager = (clones([x.requires_grad_(grad) for x in (q, k, v)]) for _ in range(2))
    found = []
    call = through_dynamo(function, found)
    actual, expected = call(*ours, mask), function(*eager, mask)
    assert fused(found[0]) == (q.device.type == "cpu")
    assert_same(actual, expected, rtol=1e-4, atol=1e-5)
    if grad:
        actual.backward(cotangent)
        expected.backward(cotangent)
        for a, e in zip(ours, eager):
            assert_same(a.grad, e.grad, rtol=1e-4, atol=1e-5)


def test_scores_lower_than_what_is_filled_in_do_not_hide_it():
    q, k, v = qkv(length=7)
    function = MASKED["fill -1e9"]
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    check(function, q.abs() * 1e5, -k.abs() * 1e5, v, mask, fires=q.device.type == "cpu")


@pytest.mark.cpu  # on a GPU to look for NaN would be to wait
def test_a_constant_triangle_is_filled_by_the_librarys_flag():
    found = []
    through_dynamo(constant_triangle, found)(*qkv(length=7), CAUSAL)
    (node,) = found[0].graph.find_nodes(op="call_function", target=FILLED_ATTENTION)
    assert node.args[3:5] == (None, None)


def test_autocast_leaves_fills_where_they_are():
    def function(q, k, v, m):
        return (q @ k.mT).masked_fill(~m, -INF).softmax(-1, dtype=torch.float32) @ v

    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        check(function, *qkv(), CAUSAL, fires=False)


@pytest.mark.parametrize("fill", [-INF, -1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("mask", [CAUSAL, ROWS, ROWS.expand(2, 3, -1, -1), ROWS[:1]])
@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, m: ((q @ k.mT) / 2.5 + m).softmax(-1) @ v,
        lambda q, k, v, m: (m + q @ k.mT).softmax(-1) @ v,
    ],
    ids=["after", "before"],
)
def test_added_masks(function, mask, fill):
    # On a GPU scores are in units of log(2): next to -1e4, digits are lost elsewhere than in eager.
    tolerance = 5e-3 if fill == -1e4 and mask.device.type == "cuda" else 1e-5
    added = torch.zeros(mask.shape).masked_fill(~mask, fill)
    check(function, *qkv(), added, tolerance=tolerance)


def test_an_added_mask_stays_where_gradients_are_wanted():
    """Adding finfo.min to all scores of a row, the library's backward gives wrong gradients."""
    mask = torch.zeros(6, 7).masked_fill(~ROWS, torch.finfo(torch.float32).min)
    function = lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v
    check(function, *qkv(grad=True), mask, fires=False)


def test_an_added_bias_of_any_value():
    check(lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, *qkv(), torch.randn(2, 1, 6, 7))


def test_scores_may_be_added_to_in_place():
    def function(q, k, v, m):
        scores = q @ k.mT
        scores += m
        return scores.softmax(-1) @ v

    gm = torch.fx.symbolic_trace(function)
    assert operator.iadd in [node.target for node in gm.graph.nodes] or gm
    check(function, *qkv(), torch.randn(6, 7))


# --- what must stay ----------------------------------------------------------------------------

OTHERS = {
    "another dimension": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "probabilities returned": lambda q, k, v: (p := (q @ k.mT).softmax(-1)) @ v + p.sum(),
    "scores read again": lambda q, k, v: (s := q @ k.mT).softmax(-1) @ v + s.sum(),
    "values on the left": lambda q, k, v: v.mT @ (q @ k.mT).softmax(-1).mT,
    "another function": lambda q, k, v: (q @ k.mT).sigmoid() @ v,
    "a tensor for scale": lambda q, k, v: ((q @ k.mT) * v.sum()).softmax(-1) @ v,
    "a mild fill": lambda q, k, v: (
        (q @ k.mT).masked_fill(k.sum(-1)[:, :, None] > 0, -2.0).softmax(-1) @ v
    ),
    "a floor division": lambda q, k, v: (
        torch.div(q @ k.mT, 2, rounding_mode="floor").softmax(-1) @ v
    ),
    "negated": lambda q, k, v: (-(q @ k.mT)).softmax(-1) @ v,
    "double softmax": lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v,
    "other values": lambda q, k, v: (q @ k.mT).softmax(-1) @ v[..., :4],
    "one head's keys for all": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_attention_stays(name):
    check(OTHERS[name], *qkv(), fires=False)


def test_scores_that_are_their_own_mask_stay():
    def function(q, k, v):
        scores = q @ q.mT
        return (scores + scores).softmax(-1) @ v

    check(function, *qkv(keys=6), fires=False)


def test_dropout_that_is_on_stays():
    def function(q, k, v):
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    gm = passes.run_captured(torch.fx.symbolic_trace(function), qkv())
    assert not fused(gm)


def test_a_mask_that_learns_stays():
    mask = torch.randn(6, 7, requires_grad=True)
    check(lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, *qkv(), mask, fires=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays(dtype):
    gm = torch.fx.symbolic_trace(SPELLINGS["no scale"])
    assert not fused(passes.run_captured(gm, qkv(dtype=dtype)))


def test_keys_written_between_the_products_stay_where_they_are_read():
    def function(q, k, v):
        scores = (q @ k.mT).softmax(-1)
        k.mul_(0)
        return scores @ v

    check(function, *qkv(), fires=False)


def test_a_write_nobody_reads_survives_the_rewrite():
    def function(q, k, v):
        v.mul_(2)
        return (q @ k.mT).softmax(-1) @ v

    check(function, *qkv())


def test_empty_sequences_stay():
    check(SPELLINGS["no scale"], *qkv(keys=0), fires=False)


@pytest.mark.cpu  # as the operator is
@pytest.mark.parametrize("hidden", [0.0, math.inf])
def test_a_fill_may_be_differentiated_twice(hidden):
    """The library's gradient may not, nor the operator's that may do without it."""

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
        given = [t.requires_grad_() for t in (q, k, v)]
        *_, first = torch.autograd.grad(call(*given, keep).pow(2).sum(), given, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), v))
    torch.testing.assert_close(*found)


def test_a_fill_of_nothing():
    q, k, v = (t[:0] for t in qkv())
    keep = torch.ones(6, 7, dtype=torch.bool)
    out, sums = FILLED_ATTENTION(q, k, v, keep, torch.zeros(6, 7), -math.inf, 0.5)
    assert (out.shape, sums.shape) == ((0, 3, 6, 8), (0, 3, 6))
