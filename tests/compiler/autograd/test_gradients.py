"""Gradients equal eager's."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from tests.compiler.programs import compile_fx, compiled, same_gradients


def test_layer_norm_with_affine_parameters():
    same_gradients(
        lambda x, w, b: F.layer_norm(x, (30,), w, b), torch.randn(4, 10, 30), torch.randn(30),
        torch.randn(30),
    )  # fmt: skip


def test_attention_from_primitive_operators():
    def attention(x, w):
        q, k, v = (x @ w).chunk(3, -1)
        return F.dropout((q @ k.transpose(-1, -2) / 4).softmax(-1), 0.1) @ v

    same_gradients(attention, torch.randn(2, 9, 8), torch.randn(8, 24))


def test_batch_norm_in_training():
    same_gradients(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True).relu(),
        torch.randn(4, 8, 10, 10), torch.rand(8) + 0.5, torch.randn(8),
    )  # fmt: skip


def test_embedding_and_cross_entropy():
    ids, labels = torch.randint(0, 20, (4, 5)), torch.randint(0, 7, (20,))
    same_gradients(
        lambda w, p: F.cross_entropy(F.gelu(F.embedding(ids, w) @ p).view(20, 7), labels),
        torch.randn(20, 6), torch.randn(6, 7),
    )  # fmt: skip


def test_convolution_and_pooling():
    same_gradients(
        lambda x, w: F.adaptive_avg_pool2d(F.max_pool2d(F.conv2d(x, w, padding=1).tanh(), 2), 1),
        torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3),
    )  # fmt: skip


def test_gradients_of_dilated_pooling_padding_and_resampling():
    x = torch.randn(1, 2, 9, 10)
    same_gradients(lambda x: F.max_pool2d(x, 3, stride=2, padding=1, dilation=2).sin(), x)
    same_gradients(lambda x: F.pad(x, (2, 1, -1, 3), mode="replicate").square(), x)
    same_gradients(lambda x: F.interpolate(x, (4, 21), mode="bicubic", antialias=True).sin(), x)
    same_gradients(lambda x: F.avg_pool2d(x, 9, padding=4, stride=3).exp(), x)


def test_gradients_of_scatters():
    mask = torch.rand(5, 6) > 0.5
    same_gradients(
        lambda x, s: x.masked_scatter(mask, s).tanh(), torch.randn(5, 6), torch.randn(40)
    )


def test_some_arguments_need_no_gradient():
    fixed = torch.randn(5, 5)
    same_gradients(lambda x: (x * fixed).sum(0).sigmoid() * fixed[0], torch.randn(5, 5))


def test_backward_pass_uses_the_old_value_of_a_mutated_argument():
    def function(x, w):
        return x.mul_(w) + x * w

    for f in (compiled(function), function):
        x, w = torch.full((3,), 2.0), torch.full((3,), 5.0, requires_grad=True)
        f(x, w).sum().backward()
        # 2 from the product, 10 + 2 * 5 from the second summand
        assert (x.tolist(), w.grad.tolist()) == ([10.0] * 3, [22.0] * 3)


def test_fused_attention():
    def attention(x, w):
        q, k, v = (t.view(2, 9, 2, 4).transpose(1, 2) for t in (x @ w).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 9, 8)

    same_gradients(attention, torch.randn(2, 9, 8), torch.randn(8, 24))


class _RandomGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 0.5

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand(grad.shape[0], 1, device=grad.device)


def test_random_draw_of_the_backward_pass_happens_in_it():
    def f(x):
        return _RandomGradient.apply(x.sin()).relu()

    states = []
    for call in (compiled(f), f):
        x = torch.linspace(0, 1, 20).view(4, 5).requires_grad_()
        generator = torch.random if x.device.type == "cpu" else torch.cuda
        generator.manual_seed(1)
        y = call(x)
        before = generator.get_rng_state()
        y.sum().backward()
        states.append((before, generator.get_rng_state(), x.grad))
    torch.testing.assert_close(*states)


def test_data_dependent_gradient_of_index_fill_equals_eager():
    """Of ``index_fill``: the number of distinct indices depends on their values."""
    x, indices, value = torch.randn(5, 5), torch.tensor([1, 3, 1, 3, 2]), torch.tensor(2.0)
    gradients = []
    graph = torch.fx.symbolic_trace(lambda x, v, i: x.index_fill(-1, i, v) * 3)
    for call in (compile_fx(graph, [x, value.clone().requires_grad_(), indices]), graph):
        leaf = value.clone().requires_grad_()
        result = call(x, leaf, indices)
        (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
        gradients.append(leaf.grad)
    assert gradients[0] == gradients[1] == 45


def test_graph_with_a_constant_trains():
    graph, root = fx.Graph(), torch.nn.Module()
    root.register_buffer("constant", torch.arange(3.0, device=torch.get_default_device()))
    x, mask = graph.placeholder("x"), graph.placeholder("mask")
    product = graph.call_function(torch.mul, (x, graph.get_attr("constant")))
    graph.output((graph.call_function(torch.where, (mask, product, 0.0)),))
    args = torch.ones(3, requires_grad=True), torch.tensor([True, False, True])
    call = compile_fx(fx.GraphModule(root, graph), args, options={"strict": True})
    call(*args)[0].sum().backward()
    assert args[0].grad.tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    "make_view",
    [
        lambda y: y.unfold(0, 2, 1),
        lambda y: y.as_strided((3, 2), (1, 1)),
        lambda y: y.as_strided((2, 2, 1, 2), (1, 1, 1, 1)),
        lambda y: y.expand(3, 4),
    ],
    ids=["windows", "strides", "images", "expanded"],
)
@pytest.mark.parametrize("shares_memory", [True, False])
def test_result_with_overlapping_elements_takes_a_gradient_for_each(make_view, shares_memory):
    def function(x):
        y = x * 2
        view = make_view(y)
        y.add_(x)
        return (view, y.sum()) if shares_memory else (view, x.sum())

    def gradient(call):
        leaf = torch.arange(4.0).requires_grad_()
        view, total = call(leaf)
        upstream = torch.arange(1.0, view.numel() + 1).reshape(view.shape)
        ((view * upstream).sum() + total).backward()
        return leaf.grad

    torch.testing.assert_close(gradient(compiled(function)), gradient(function))
