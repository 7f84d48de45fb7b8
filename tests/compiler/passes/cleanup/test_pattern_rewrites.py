"""Every pattern of the table: graphs that it rewrites, graphs that it must not, and the values."""

import pytest
import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from magpy_like.compiler import passes
from magpy_like.compiler.passes.cleanup import pattern_rewrites
from tests.compare import assert_same
from tests.compiler.passes.pass_checks import aten_graph, operator_names, optimised_graph
from tests.compiler.programs import compiled, kernels

EAGER_BATCH_NORMS = [torch.ops.aten.native_batch_norm, torch.ops.aten.cudnn_batch_norm]
A, B, BIAS = torch.randn(6, 5), torch.randn(5, 4), torch.randn(4)


# --- matrix products ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [lambda a, b, c: a @ b + c, lambda a, b, c: c + a @ b],
)
@pytest.mark.parametrize("bias", [BIAS, torch.randn(6, 4), torch.randn(6, 1)])
def test_separate_sum_is_merged_into_the_product(function, bias):
    assert operator_names(optimised_graph(function, A, B, bias)) == ["addmm"]


def test_separate_sum_is_merged_into_a_batched_product():
    a, b, c = torch.randn(3, 6, 5), torch.randn(3, 5, 4), torch.randn(3, 6, 4)
    assert operator_names(optimised_graph(lambda a, b, c: torch.bmm(a, b) + c, a, b, c)) == [
        "baddbmm"
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: (a @ b + c).relu(),  # the kernel of relu adds at no cost
        lambda a, b, c: (a @ b + c).view(3, 8).softmax(-1),
        lambda a, b, c: torch.add(a @ b, c, alpha=2),
        lambda a, b, c: (p := a @ b) + c - p,  # the product has a second reader
        lambda a, b, c: a @ b + 1,
        lambda a, b, c: (a @ b)[None] + torch.stack([c, c])[:, None],  # a larger result
        lambda a, b, c: a @ b + c.double(),  # another dtype
        lambda a, b, c: a[:1] @ b + torch.stack([c, c]),  # more rows than the product has
        lambda a, b, c: a @ b + torch.stack([c, c])[:, None],  # more dimensions
    ],
    ids=range(9),
)
def test_other_sums_are_not_merged_into_the_product(function):
    found = operator_names(optimised_graph(function, A, B, BIAS))
    assert "mm" in found
    assert "addmm" not in found


@pytest.mark.cpu  # a GPU does not support integer matrix products
def test_integer_products_are_not_rewritten():
    a = torch.arange(6).reshape(2, 3)
    found = operator_names(optimised_graph(lambda a: a @ a.t() + a[:, :2], a))
    assert "mm" in found
    assert "addmm" not in found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_operators_are_not_rewritten(dtype):
    a, b, c = A.to(dtype), B.to(dtype), BIAS.to(dtype)
    assert "addmm" not in operator_names(optimised_graph(lambda a, b, c: a @ b + c, a, b, c))
    assert "rsqrt" not in operator_names(optimised_graph(lambda a: 1 / a.abs().sqrt(), a))


def test_vector_of_addmm_is_added_by_the_reader_kernel():
    gm = optimised_graph(lambda a, b, c: F.gelu(torch.addmm(c, a, b)), A, B, BIAS)
    assert operator_names(gm) == ["mm", "add", "gelu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: torch.addmm(c, a, b),  # no kernel reads it
        lambda a, b, c: torch.addmm(c, a, b, beta=2).relu(),
        lambda a, b, c: torch.addmm(c.expand(6, 4), a, b).relu(),  # a matrix
        lambda a, b, c: torch.addmm(c.bfloat16(), a.bfloat16(), b.bfloat16()).relu(),
    ],
    ids=range(4),
)
def test_other_addmm_calls_are_not_rewritten(function):
    assert "addmm" in operator_names(optimised_graph(function, A, B, BIAS))


# --- square roots ------------------------------------------------------------------------------

ROOTS = torch.tensor([[4.0, 0.0, -1.0, float("inf")], [float("nan"), 1e-30, 1e30, 2.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 1 / x.sqrt(),
        lambda x: x.sqrt().reciprocal(),
        lambda x: torch.ones(2, 4) / x.sqrt(),
    ],
    ids=range(3),
)
def test_reciprocal_of_square_root_becomes_rsqrt(function):
    assert operator_names(optimised_graph(function, ROOTS)) == ["rsqrt"]


def test_division_by_broadcast_square_root_becomes_one_rsqrt_per_row():
    x = torch.cat([ROOTS, ROOTS.neg()]).t().contiguous()
    y = torch.tensor([[4.0], [0.0], [float("inf")], [-1.0]])
    assert operator_names(optimised_graph(lambda x, y: x / y.sqrt(), x, y)) == ["rsqrt", "mul"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.sqrt(),  # no fewer divisions
        lambda x: (r := x.sqrt()).reciprocal() + r,  # the root is needed anyway
        lambda x: (1 / x).sqrt(),
    ],
    ids=range(3),
)
def test_other_square_roots_are_not_rewritten(function):
    found = operator_names(optimised_graph(function, ROOTS))
    assert "sqrt" in found
    assert "rsqrt" not in found


# --- convolution and batch norm ----------------------------------------------------------------


class ConvNorm(torch.nn.Module):
    def __init__(self, *, bias=True, affine=True, conv=torch.nn.Conv2d, eps=1e-5, **options):
        super().__init__()
        self.conv = conv(3, 6, 3, bias=bias, **options)
        self.norm = torch.nn.BatchNorm2d(6, affine=affine, eps=eps)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        if affine:
            torch.nn.init.normal_(self.norm.weight)
            torch.nn.init.normal_(self.norm.bias)


def conv_norm_graph(module, x, *, function=None, held=False):
    """An inference graph of ``norm(conv(x))``; its weights are inputs, or attributes if held."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {k: v.detach() for k, v in state.items() if k != "norm.num_batches_tracked"}

    def run(x, state):
        get, conv = state.get, module.conv
        y = torch.convolution(
            x,
            get("conv.weight"),
            get("conv.bias"),
            conv.stride,
            conv.padding,
            conv.dilation,
            isinstance(conv, torch.nn.ConvTranspose2d),
            (0, 0),
            conv.groups,
        )
        mean, variance = get("norm.running_mean"), get("norm.running_var")
        weight, bias = get("norm.weight"), get("norm.bias")
        norm = F.batch_norm(y, mean, variance, weight, bias, False, 0.1, module.norm.eps)
        return norm if function is None else function(y, norm)

    # Batch norm is decomposed, as by AOTAutograd.
    table = get_decompositions([torch.ops.aten._native_batch_norm_legit_no_training])
    gm = make_fx(
        lambda x, *values: run(x, dict(zip(state, values))),
        tracing_mode="fake",
        decomposition_table={**table, **get_decompositions(EAGER_BATCH_NORMS)},
    )(x, *state.values())
    if held:
        holders = [n for n in gm.graph.nodes if n.op == "placeholder"][1:]
        for number, (node, tensor) in enumerate(zip(holders, state.values())):
            gm.register_buffer(f"w{number}", tensor)
            with gm.graph.inserting_before(node):
                new = gm.graph.get_attr(f"w{number}")
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
        gm.recompile()
    return gm, state, run


def arithmetic(gm):
    """The elementwise operators on tensors as large as the convolution's result."""
    return [
        node.target._opname
        for node in gm.graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and node.meta["val"].dim() == 4
        and node.meta["val"].shape[0] == 2
        and node.target._opname != "convolution"
    ]


X = torch.randn(2, 3, 16, 16)


@pytest.mark.cpu  # on a GPU biases are added after a convolution
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
def test_batch_norm_is_folded_into_convolution_weights(bias, affine, groups):
    module = ConvNorm(bias=bias, affine=affine, groups=groups)
    gm, state, run = conv_norm_graph(module, X)
    assert arithmetic(gm)
    gm = passes.run(gm, inference=True)
    assert not arithmetic(gm)
    assert_same(gm(X, *state.values()), run(X, state), atol=1e-5, rtol=1e-5)


def test_weights_changed_between_calls_are_used():
    """Mutated through ``.data``, which bypasses version counters."""
    gm, state, run = conv_norm_graph(ConvNorm(), X)
    gm = passes.run(gm, inference=True)
    gm(X, *state.values())
    for value in state.values():
        value.data.mul_(1.5)
    assert_same(gm(X, *state.values()), run(X, state), atol=1e-5, rtol=1e-5)


@pytest.mark.cpu  # as above
def test_compiled_model_folds_batch_norm_between_convolutions():
    """Through capture and AOTAutograd, with optimizer steps between the calls."""
    first = ConvNorm()
    model = torch.nn.Sequential(first.conv, first.norm, torch.nn.Conv2d(6, 4, 1)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with torch.no_grad():
        result = model[:1](X)
        assert all(int(k.size(k.ranges)) < result.numel() for k in kernels(model, X))
    fast = compiled(model)
    for _ in range(2):
        with torch.no_grad():
            assert_same(fast(X), model(X), atol=1e-5, rtol=1e-5)
        model(X).square().mean().backward()
        optimizer.step()


def test_weights_held_by_the_graph_are_read_at_every_call():
    gm, state, run = conv_norm_graph(ConvNorm(), X, held=True)
    gm = passes.run(gm, inference=True)
    gm(X)
    for value in state.values():
        value.data.mul_(1.5)
    assert_same(gm(X), run(X, state), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "x", "function"),
    [
        (ConvNorm(conv=torch.nn.ConvTranspose2d), X, None),  # its weights are transposed
        (ConvNorm(), X, lambda conv, norm: norm + conv),  # the convolution has a second reader
        (ConvNorm(), X, lambda conv, norm: norm.relu()),  # the kernel of relu scales at no cost
        (ConvNorm(), X[:, :, :3, :3], None),  # more weights than outputs
        (
            ConvNorm().to(torch.bfloat16),
            X.bfloat16(),
            None,
        ),  # the product is rounded before the scaling
        (ConvNorm(), X, lambda conv, norm: conv * conv.mean(1, keepdim=True)),  # not per channel
        (ConvNorm(), X, lambda conv, norm: torch.ones(6, 1, 1) - conv),
    ],
    ids=["transposed", "read twice", "relu", "small", "bfloat16", "by pixel", "subtracted"],
)
def test_other_arithmetic_is_not_folded(module, x, function):
    gm, state, run = conv_norm_graph(module, x, function=function)
    gm = passes.run(gm, inference=True)
    assert arithmetic(gm)
    assert_same(gm(x, *state.values()), run(x, state))


@pytest.mark.parametrize("scale", [1e30, float("inf"), 0.0])
def test_unbounded_scale_is_not_folded_into_weights(scale):
    """It may overflow the weights, or bring an overflowing product back into range."""
    x = torch.full((2, 1, 8, 8), 1e30 if scale == 0 else 1e-35)
    w = torch.full((4, 1, 1, 1), 1e10)
    w[1] = 0
    s = torch.full((4, 1, 1), scale)
    gm = optimised_graph(lambda x, w, s: F.conv2d(x, w) * s, x, w, s)
    assert operator_names(gm) == ["convolution", "mul"]


@pytest.mark.parametrize(
    "scaled",
    [
        lambda y, root, g, s: y * (1 / root) * g * s,
        lambda y, root, g, s: y * (g / root) * s,
        lambda y, root, g, s: y * ((1 / root) * g * s),
        lambda y, root, g, s: y * ((1 / root) * (g * s)),
        lambda y, root, g, s: y * ((g * s) / root),
        lambda y, root, g, s: y * s * (1 / root) * g,
        lambda y, root, g, s: y * s * ((1 / root) * g),
        lambda y, root, g, s: (y * s + g) * (1 / root) * g,
    ],
    ids=range(8),
)
def test_scale_combined_with_normalisation_is_not_folded(scaled):
    x, w = torch.full((2, 1, 8, 8), 1e-35), torch.full((4, 1, 1, 1), 1e10)
    v, g, s = torch.rand(4, 1, 1) + 1, torch.rand(4, 1, 1), torch.full((4, 1, 1), 3e38)

    def program(x, w, v, g, s):
        return scaled(F.conv2d(x, w), (v + 1e-5).sqrt(), g, s)

    torch.testing.assert_close(compiled(program)(x, w, v, g, s), program(x, w, v, g, s))


@pytest.mark.cpu  # as above
@pytest.mark.parametrize(
    "scale",
    [
        lambda v, g: (v + 1e-5).rsqrt() * g,
        lambda v, g: g / (v + 1e-5).sqrt(),
        lambda v, g: 1 / torch.sqrt(v + 1e-5),
        lambda v, g: g * (1 / (v + 1e-5).sqrt()),
    ],
    ids=range(4),
)
def test_frozen_batch_norm_in_any_spelling_is_folded(scale):
    v, g = torch.rand(4), torch.randn(4)
    w = torch.randn(4, 3, 1, 1)
    gm = aten_graph(lambda x, w, v, g: F.conv2d(x, w) * scale(v, g).reshape(1, 4, 1, 1), X, w, v, g)
    gm = passes.run(gm, inference=True)
    assert not arithmetic(gm)
    assert_same(
        gm(X, w, v, g), F.conv2d(X, w) * scale(v, g).reshape(1, 4, 1, 1), atol=1e-5, rtol=1e-5
    )


def test_batch_norm_is_not_folded_with_gradients():
    gm, _, _ = conv_norm_graph(ConvNorm(), X)
    assert arithmetic(passes.run(gm, inference=False))


def test_every_rule_of_the_table_is_tested_here():
    rules = {rule.__name__ for row in pattern_rewrites.TABLE.values() for rule in row}
    assert rules == {
        "add_of_product",
        "sum_out_of_addmm",
        "reciprocal_of_root",
        "division_by_root",
        "channel_arithmetic_into_convolution",
    }
