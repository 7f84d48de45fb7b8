"""Strides of results equal eager's, also where torch's decompositions differ from its kernels."""

import random
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import magpy_like as magpy
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compiler.codegen.triton.fake_gpu import traced
from tests.compiler.programs import same, seeded, tensors

PERMUTED = [
    ((4, 3), (1, 0)),
    ((3, 4, 5), (0, 2, 1)),
    ((2, 3, 4, 5), (0, 3, 1, 2)),
    ((2, 3, 4, 5), (0, 2, 1, 3)),
    ((2, 3, 4, 5), (1, 0, 2, 3)),
    ((2, 3, 4, 5, 6), (0, 4, 1, 2, 3)),
    ((2, 3, 4, 5, 6), (0, 2, 1, 3, 4)),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("shape", "order"), PERMUTED)
def test_batch_norm_of_permuted_dimensions_equals_eager(shape, order, training):
    width = shape[order[1]]

    def program(x, mean, var):
        return F.batch_norm(x.permute(order), mean, var, training=training).permute(order)

    same(program, seeded(*shape), torch.zeros(width), torch.ones(width), rtol=1e-4, atol=1e-5)


def test_batch_norm_layout_with_varying_sizes_equals_eager():
    def program(x):
        return F.batch_norm(x.transpose(1, 2), None, None, training=True).transpose(1, 2)

    same(program, seeded(3, 4, 5), dynamic=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.roll((1, 1), (2, 3)),
        lambda x: x.roll(2, 1),
        lambda x: x.roll(2),
        lambda x: x.roll((1, 5), (1, 2)),
        lambda x: x.transpose(0, 2).roll(1, 1),
        lambda x: F.channel_shuffle(x, 2),
        pytest.param(
            lambda x: F.channel_shuffle(x.transpose(2, 3), 2),
            marks=pytest.mark.cpu,  # eager raises on a GPU
        ),
    ],
)
def test_roll_and_shuffle_keep_channels_last(program, layout):
    same(program, seeded(3, 4, 5, 6).to(memory_format=layout))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("base", [2, 1, 2.5])
def test_power_with_a_scalar_base_is_row_major(base, layout):
    same(lambda x: base ** x.transpose(0, 1), seeded(3, 4, 5, 6).to(memory_format=layout))


@pytest.mark.parametrize("operator", [torch.logical_and, torch.logical_or, torch.logical_xor])
@pytest.mark.parametrize("shape", [(33,), (3, 1), (3, 33), ()])
def test_logical_operators_of_broadcast_and_transposed_arguments_equal_eager(operator, shape):
    one, other = seeded(*shape), seeded(33, 3).t()
    same(operator, one.round(), other.round())
    same(operator, other.round(), one.round().int())


@pytest.mark.parametrize(
    "program",
    [
        lambda x, i, j: x[i.t()],
        lambda x, i, j: x[:, i.t(), j.t()],
        lambda x, i, j: x[i.t(), :, j.t()],
        lambda x, i, j: x[:, i[:, 0], j.t()],
        lambda x, i, j: x.transpose(0, 2)[:, i.t()],
        lambda x, i, j: x[(*torch.stack((i, j, i), -1).permute(2, 1, 0),)].transpose(0, 1),
    ],
)
def test_indexing_results_follow_the_layout_of_transposed_indices(program):
    i = torch.arange(6).reshape(2, 3) % 3
    same(program, seeded(3, 4, 5), i, i.flip(0))


def traced_strides(program, *args):
    """The strides of a program's results according to the traced graph; compiles no kernel."""
    strides = []

    def stage(graph, **kwargs):
        results = graph.graph.output_node().args[0]
        strides.extend(node.meta["val"].stride() for node in results)
        stage._boxed_call = True
        return stage

    with (
        torch.no_grad(),
        mock.patch.object(captured_graph_cache, "key", lambda *args: None),
        mock.patch.dict(compile_fx.__globals__, compile_aten=stage),
    ):
        compile_fx(fx.symbolic_trace(program), args, options={"strict": True})
    return strides


def permuted(shape, order):
    """A tensor whose dimensions are in the given order in memory."""
    back = [order.index(d) for d in range(len(order))]
    return torch.ones([shape[d] for d in order]).permute(back)


ELEMENTWISE = {
    "copysign": torch.copysign,
    "floor_divide": torch.floor_divide,
    "div, rounded": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "heaviside": torch.heaviside,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "addcmul": lambda a, b: torch.addcmul(a, a.contiguous(), b),
    "addcdiv": lambda a, b: torch.addcdiv(a, a.contiguous(), b),
    "dropout's gradient": lambda a, b: torch.ops.aten.native_dropout_backward(a, b > 0, 2.0),
    "normal": torch.normal,
    "where": lambda a, b: torch.where(a > 0, b, a),
    "atan2": torch.atan2,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_layouts_of_transposed_and_broadcast_arguments_equal_eager(name):
    def program(a, b):
        return ELEMENTWISE[name](a, b)

    generator = random.Random(name)
    for _ in range(2):
        shape = generator.sample((2, 3, 4, 5), 3)
        one, other = (permuted(shape, generator.sample(range(3), 3)) for _ in range(2))
        other = other[generator.choice([0, slice(0, 1), (slice(None), slice(0, 1))])]
        for args in ((one, other), (other, one), (one.transpose(0, 2), other.mT)):
            try:
                expected = program(*args)
            except RuntimeError:  # incompatible shapes
                continue
            assert traced_strides(program, *args) == [expected.stride()]


@pytest.mark.parametrize(("shape", "order"), PERMUTED)
def test_dropout_gradient_on_a_gpu_is_row_major_or_channels_last(shape, order):
    """The GPU kernel chooses the memory format of the result by that of the gradient only."""

    def program(gradient, other):
        mask = other.permute([order.index(d) for d in range(len(order))]) > 0
        return torch.ops.aten.native_dropout_backward(gradient.permute(order), mask, 2.0)

    graph = traced(program, shape, [shape[order[order[d]]] for d in range(len(shape))])
    result = graph.graph.output_node().args[0][0].meta["val"]
    gradient = torch.empty(shape, device="cpu").permute(order)
    channels_last_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))
    is_channels_last = channels_last_format is not None and gradient.is_contiguous(
        memory_format=channels_last_format
    )
    contiguous = torch.contiguous_format
    assert (
        result.stride()
        == gradient.contiguous(
            memory_format=channels_last_format if is_channels_last else contiguous
        ).stride()
    )


@pytest.mark.parametrize("shape", [(2, 0), (5, 0, 5)])
def test_nonzero_static_of_empty_tensor_on_a_gpu_is_column_major(shape):
    graph = traced(lambda x: torch.nonzero_static(x, size=3), shape)
    result = graph.graph.output_node().args[0][0].meta["val"]
    assert result.stride() == (1, 3)


ROW_MAJOR = {
    "maxima of lines": lambda x: F.max_pool1d(x, 2, 1),
    "averages of lines": lambda x: F.avg_pool1d(x, 2, 1),
    "lines, enlarged": lambda x: F.interpolate(x, scale_factor=2.0),
    "lines, enlarged exactly": lambda x: F.interpolate(x, size=7, mode="nearest-exact"),
    "lines, interpolated": lambda x: F.interpolate(x, size=7, mode="linear"),
    "images, enlarged": lambda x: F.interpolate(x[None], scale_factor=2.0),
    "one_hot": lambda x: F.one_hot(x.long(), 3),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "losses": lambda x: F.nll_loss(x[..., None], x[:, 0, :, None].long(), reduction="none"),
    "binary losses": lambda x: F.binary_cross_entropy(x, x.contiguous(), reduction="none"),
    "elements": lambda x: x[x.long()],
    "elements of one row": lambda x: x.take(x.long()),
    "elements of rows": lambda x: x[:, x.long()],
    "elements of two dimensions": lambda x: x[x.long()[0], x.long()[0]],
    "elements apart": lambda x: x[x.long()[0], :, x.long()[0]],
    "sums": lambda x: x.sum(1, keepdim=True),
    "variances": lambda x: torch.var_mean(x, 0, keepdim=True)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", ROW_MAJOR)
@pytest.mark.parametrize("order", [(2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_layouts_of_results_of_transposed_arguments_equal_eager(name, order):
    x = permuted((2, 3, 4), order)
    assert traced_strides(ROW_MAJOR[name], x) == [t.stride() for t in tensors(ROW_MAJOR[name](x))]


def test_max_pool1d_with_gradients_keeps_the_layout():
    def program(x):
        return F.max_pool1d(x.transpose(1, 2), 2, 1)

    same(program, seeded(2, 5, 3).requires_grad_())


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.copysign(x.mT[0], x[0, 0, :1]),
        lambda x: torch.copysign(x.permute(2, 0, 1), x[0, 0, :1]),
        lambda x: torch.floor_divide(x.mT, x[0, :1, :1]),
    ],
)
def test_elementwise_layouts_with_varying_sizes_equal_eager(program):
    same(program, seeded(6, 4, 5), dynamic=True)


def test_values_after_layout_changes_equal_eager():
    def program(x, y):
        return torch.copysign(x, y), F.one_hot(y.long(), 5), F.max_pool1d(x, 2, 1), x[y.long()]

    same(program, seeded(4, 5, 3).transpose(1, 2), permuted((4, 3, 1), (1, 2, 0)))


@pytest.mark.parametrize("dim", [0, 1, -1, -3])
@pytest.mark.parametrize("unique", [torch.unique, torch.unique_consecutive])
def test_unique_along_a_dimension_equals_eager(unique, dim):
    def program(x):
        return unique(x, return_inverse=True, return_counts=True, dim=dim)

    x = torch.arange(3).repeat_interleave(2).reshape(6, 1, 1) + torch.tensor([[1, 2, 2, 1]])
    x = x.to(torch.get_default_device())
    fast = magpy.compile(program, fullgraph=True, options={"strict": True})
    for results in (fast(x), fast(x)):
        for actual, expected in zip(results, program(x), strict=True):
            assert actual.stride() == expected.stride()
            torch.testing.assert_close(actual, expected)
    assert magpy.cache_info(fast).hits == 1


COMPLEX_PRODUCTS = {
    "addcmul": lambda z: torch.addcmul(z, z, z, value=2),
    "addcmul in place": lambda z: z.clone().addcmul_(z, z, value=2),
    "addcmul with a complex factor": lambda z: torch.addcmul(z, z, z, value=2j),
    "addcmul of a row": lambda z: torch.addcmul(z[None], z, z[:, None], value=2),
    "addcdiv": lambda z: torch.addcdiv(z, z, z + 1, value=2),
    "addr": lambda z: torch.addr(torch.zeros_like(z[:, None] * z), z, z, beta=2, alpha=3),
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("product", COMPLEX_PRODUCTS.values(), ids=list(COMPLEX_PRODUCTS))
def test_infinite_complex_products_have_the_parts_of_eager(product, dtype):
    inf, nan = float("inf"), float("nan")
    z = torch.tensor([complex(inf, 1), complex(1, -inf), 2 + 3j, complex(nan, 1)], dtype=dtype)
    same(lambda z: torch.view_as_real(product(z)), z)
