"""Conversion of convolution images to channels last, without observable changes of layout."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import magpy_like as magpy
from magpy_like.compiler import passes
from magpy_like.compiler.autograd import aot
from magpy_like.compiler.passes.layout.channels_last import (
    avoid_duplicate_saves,
    use_channels_last,
)
from tests.compare import assert_same
from tests.compiler.passes.pass_checks import aten_graph, operator_names, optimised_graph
from tests.compiler.programs import compiled, same, seeded, tensors
from tests.seeding import seed

IMAGE = seeded(2, 5, 66, 70)
WEIGHT, NEXT = seeded(6, 5, 3, 3, seed=1), seeded(4, 6, 3, 3, seed=2)
POINT = seeded(6, 5, 1, 1, seed=3)
ROWS, COLUMNS = torch.tensor([1, 0]).repeat(40), torch.tensor([3, 0, 1]).repeat(30)


def block(x, w, v):
    y = F.max_pool2d(F.conv2d(x, w, padding=1).relu() + 1, 2)
    return F.conv2d(y, v)


def strides(gm, name):
    (node,) = (n for n in gm.graph.nodes if name in str(n.target))
    return node.meta["val"].stride()


def test_large_image_is_copied_once_and_its_readers_keep_the_layout():
    gm = optimised_graph(block, IMAGE, WEIGHT, NEXT)
    assert operator_names(gm).count("clone") == 2  # to channels last, and the result back
    assert strides(gm, "relu")[1] == 1
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    assert all(n.meta["val"].is_contiguous() for n in output.all_input_nodes)
    same(block, IMAGE, WEIGHT, NEXT)


@pytest.mark.parametrize(
    "take",
    [
        lambda y, i, j: y[:, :, i],
        lambda y, i, j: y[:, :, i][..., j],  # as in padding
        lambda y, i, j: y[:, :, i[:, None], j],  # as in upsampling
    ],
    ids=range(3),
)
def test_indexing_of_an_image_keeps_its_layout(take):
    def function(x, w, v, i, j):
        return F.conv2d(take(F.conv2d(x, w), i, j), v)

    inputs = IMAGE, WEIGHT, NEXT, ROWS, COLUMNS
    gm = optimised_graph(function, *inputs)
    assert operator_names(gm).count("clone") == 2  # to channels last, and the result back
    for node in gm.graph.nodes:
        if "index" in str(node.target) or "convolution" in str(node.target):
            assert node.meta["val"].stride(1) == 1
    same(function, *inputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("image", "weight"),
    [
        (IMAGE[:, :, :20, :20].contiguous(), WEIGHT),  # small
        (IMAGE, POINT),  # single pixels
        (IMAGE.double(), WEIGHT.double()),
        (IMAGE.contiguous(memory_format=torch.channels_last), WEIGHT),  # channels last already
        (IMAGE[:, :, :, 0].contiguous(), WEIGHT[..., 0].contiguous()),  # one dimension
    ],
    ids=range(5),
)
def test_other_convolutions_keep_their_layout(image, weight):
    convolve = F.conv2d if image.dim() == 4 else F.conv1d
    gm = optimised_graph(convolve, image, weight)
    assert "clone" not in operator_names(gm)
    same(convolve, image, weight)


def test_convolution_with_more_weights_than_pixels_keeps_its_layout():
    def function(x, w, v):
        y = F.max_pool2d(F.conv2d(x, w, padding=1), 16)
        return F.conv2d(y, v), F.conv2d(y, v[:1])

    many = seeded(64, 6, 3, 3)
    gm = optimised_graph(function, IMAGE, WEIGHT, many)
    first, last, few = (n for n in gm.graph.nodes if "convolution" in str(n.target))
    assert [n.args[0].meta["val"].stride(1) == 1 for n in (first, last, few)] == [True, False, True]
    same(function, IMAGE, WEIGHT, many, rtol=1e-4, atol=1e-4)


def test_varying_sizes_become_channels_last_without_guards():
    gm = aten_graph(block, IMAGE, WEIGHT, NEXT, sizes="symbolic")
    (image, *_) = (n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder")
    guards = list(image.fake_mode.shape_env.guards)
    gm = passes.run(gm, inference=True)
    assert operator_names(gm).count("clone") == 2  # to channels last, and the result back
    assert strides(gm, "relu")[1] == 1
    assert image.fake_mode.shape_env.guards == guards
    for inputs in (IMAGE, IMAGE[:1, :, :, :40].contiguous()):
        actual, expected = gm(inputs, WEIGHT, NEXT), block(inputs, WEIGHT, NEXT)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_layout_pass_runs_operators_on_concrete_sizes(monkeypatch):
    gm = aten_graph(block, IMAGE, WEIGHT, NEXT, sizes="symbolic")
    ran = set()
    real = FakeTensorMode.dispatch

    def dispatch(mode, func, types, args=(), kwargs=None):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if any(type(size) is not int for a in tensors for size in a.shape):
            ran.add(func._opname)
        return real(mode, func, types, args, kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    assert use_channels_last(gm)
    assert strides(gm, "relu")[1] == 1
    assert "clone" in ran and ran.isdisjoint({"relu", "add", "convolution"})


def test_varying_sizes_with_a_constant_become_channels_last():
    gm = aten_graph(block, IMAGE, WEIGHT, NEXT, sizes="symbolic")
    gm.ones = torch.ones(3)
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        gm.graph.get_attr("ones").meta["val"] = FakeTensorMode().from_tensor(gm.ones)
    assert use_channels_last(gm)
    assert strides(gm, "relu")[1] == 1


@pytest.mark.parametrize(
    "reader",
    [
        lambda y: (y.relu(), y[:, 1:]),
        lambda y: y.view(y.shape[0], -1).sum(1),
        lambda y: y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, 3),
        lambda y: F.conv2d(torch.cat(y.chunk(2, 1)[::-1], 1), NEXT),
        lambda y: F.conv2d(F.pad(F.interpolate(y, scale_factor=2.0), [1] * 4, "reflect"), NEXT),
        lambda y: y.as_strided((3, 4), (7, 2), 1),
        lambda y: y + torch.rand_like(y),
    ],
    ids=range(7),
)
def test_images_of_any_size_equal_eager(reader):
    weight = torch.nn.Parameter(WEIGHT)  # with fixed sizes

    def function(x):
        return reader(F.conv2d(x, weight))

    fast = compiled(function, dynamic=True)
    for image in (IMAGE, seeded(3, 5, 7, 9)):
        with torch.no_grad():
            seed(0)
            actual = tensors(fast(image))
            seed(0)
            expected = tensors(function(image))
        for a, b in zip(actual, expected, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def normalised(y):
    return F.batch_norm(y, y.mean((0, 2, 3)).detach(), y.var((0, 2, 3)).detach())


READERS = [
    lambda y: y.flatten(1),
    lambda y: y.view(2, -1).sum(1),
    lambda y: y.permute(0, 2, 3, 1),
    lambda y: y.permute(0, 2, 3, 1).reshape(2, -1, 3),
    lambda y: y.as_strided((3, 4), (7, 2), 1),
    lambda y: y.permute(0, 2, 3, 1).as_strided((3, 4), (7, 2), 1),
    lambda y: (y, y[:, 1:], y.view(-1)[::2]),
    lambda y: y[:, 1:, ::2],
    lambda y: (y, y),
    lambda y: F.max_pool2d(y, 2, return_indices=True),
    lambda y: torch.cat([y, y.relu() * 2], 1),
    lambda y: F.interpolate(y, scale_factor=2.0, mode="bilinear"),
    lambda y: y.softmax(1).argmax(1),
    lambda y: y.mT @ y,
    lambda y: torch.empty_like(y).fill_(1),
    lambda y: y.cumsum(1),
    lambda y: (
        normalised(y).square().sum((2, 3))
    ),  # without squares, the sums would cancel to rounding errors
    lambda y: F.conv_transpose2d(y, WEIGHT, stride=2),
    lambda y: F.pixel_shuffle(y[:, :4], 2),
    lambda y: y.unfold(2, 3, 2).amax(-1),
    lambda y: F.pad(y, (3, 1, 2, 2), mode="circular"),
    lambda y: y[:, torch.tensor([2, 0])],
    lambda y: y[torch.tensor([1]), :, torch.tensor([[0], [3], [5]])],
    lambda y: y[:, torch.tensor([1, 0]), torch.tensor([3, 3])],
    lambda y: y[:, :, torch.tensor([[0], [3], [5]]), torch.tensor([7, 2])].view(2, 6, 6),
]


@pytest.mark.parametrize("reader", READERS, ids=range(len(READERS)))
def test_any_reader_of_a_convolution_equals_eager(reader):
    def function(x, w):
        return reader(F.conv2d(x, w))

    same(function, IMAGE, WEIGHT, rtol=1e-4, atol=1e-4)


def test_views_among_the_results_share_memory():
    def function(x, w):
        y = F.conv2d(x, w)
        return y, y[:, 1:]

    with torch.no_grad():
        whole, part = compiled(function)(IMAGE, WEIGHT)
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_mutated_input_keeps_its_layout():
    def function(x, w, out):
        out.copy_(F.conv2d(x, w))
        return out * 2

    same(function, IMAGE, WEIGHT, torch.zeros(2, 6, 64, 68), rtol=1e-4, atol=1e-4)


def test_random_numbers_are_drawn_in_the_traced_layout():
    def function(x, w):
        y = F.conv2d(x, w)
        return y + torch.rand_like(y)

    gm = optimised_graph(function, IMAGE, WEIGHT)
    assert strides(gm, "rand")[1] != 1


def backward(results, at):
    """The gradients of all differentiable results, with random upstream gradients."""
    parts = [y for y in tensors(results) if y.requires_grad]
    seed(1)
    return torch.autograd.grad(parts, at, [torch.randn(y.shape) for y in parts])


def assert_alike(actual, expected):
    for a, b in zip(tensors(actual), tensors(expected), strict=True):
        assert (a.stride(), a.dtype) == (b.stride(), b.dtype)
        assert (a.double() - b.double()).norm() <= 1e-5 * b.double().norm()


def with_gradients(reader):
    def function(x, w):
        y = F.conv2d(F.pad(x, [1] * 4).relu(), w)
        return reader(y), y.mean()  # at least one of the two has a gradient

    return function


@pytest.mark.parametrize("reader", READERS, ids=range(len(READERS)))
def test_gradients_of_any_reader_equal_eager(reader):
    function = with_gradients(reader)
    inputs = IMAGE.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    actual, expected = compiled(function)(*inputs), function(*inputs)
    assert_alike(actual, expected)
    assert_alike(backward(actual, inputs), backward(expected, inputs))


def test_gradients_of_images_of_any_size_equal_eager():
    function = with_gradients(lambda y: F.max_pool2d(torch.cat([y, y.relu() * 2], 1), 2))
    fast, weight = compiled(function, dynamic=True), WEIGHT.clone().requires_grad_()
    for image in (IMAGE, seeded(3, 5, 8, 9)):
        inputs = image.clone().requires_grad_(), weight
        actual, expected = fast(*inputs), function(*inputs)
        assert_alike(actual, expected)
        assert_alike(backward(actual, inputs), backward(expected, inputs))


def joint_graphs(monkeypatch):
    """Returns a list that collects the joint graphs passed to the layout pass."""
    found = []

    def lay_out(gm):
        found.append(gm)
        return use_channels_last(gm)

    monkeypatch.setattr(aot, "use_channels_last", lay_out)
    return found


def test_forward_and_backward_pass_have_the_same_layout(monkeypatch):
    found = joint_graphs(monkeypatch)
    compiled(block)(*(t.clone().requires_grad_() for t in (IMAGE, WEIGHT, NEXT)))
    (gm,) = found
    convolutions = [n for n in gm.graph.nodes if "convolution" in str(n.target)]
    assert operator_names(gm).count("convolution_backward") == 2 and len(convolutions) == 4
    for node in convolutions:
        image = node.args["backward" in str(node.target)]
        assert image.meta["val"].stride(1) == 1
    images = {n.args["backward" in str(n.target)] for n in convolutions}
    assert len(images) == 2  # one copy is used in both passes


def test_convolution_and_its_gradient_use_the_same_image(monkeypatch):
    def function(x, w, v):
        return F.conv2d(F.max_pool2d(F.conv2d(x, w, padding=1), 16), v)

    found = joint_graphs(monkeypatch)
    many = seeded(64, 6, 3, 3)
    compiled(function)(*(t.clone().requires_grad_() for t in (IMAGE, WEIGHT, many)))
    (gm,) = found
    forward, backward = (
        {n.args[at + 1]: n.args[at] for n in gm.graph.nodes if n.target is target}
        for at, target in (
            (0, torch.ops.aten.convolution.default),
            (1, torch.ops.aten.convolution_backward.default),
        )
    )
    assert forward == backward and len(forward) == 2  # by weight
    layouts = [image.meta["val"].stride(1) == 1 for image in forward.values()]
    assert layouts == [True, False]


def test_copies_of_arguments_are_not_saved():
    fast, w = compiled(lambda x, w: F.conv2d(x, w).sum()), WEIGHT.clone().requires_grad_()
    fast(IMAGE, w).backward()
    saved_tensors = []
    pack = torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved_tensors.append(t) or t, lambda t: t
    )
    with pack:
        fast(IMAGE, w)
    assert {t.untyped_storage().data_ptr() for t in saved_tensors} <= {
        t.untyped_storage().data_ptr() for t in (IMAGE, w)
    }


def test_tensors_are_not_saved_in_two_layouts(monkeypatch):
    def function(x, w, v):
        y = F.max_pool2d(F.conv2d(x, w, padding=1), 16).relu()
        return F.conv2d(y, v)

    saved = []

    def save(forward, backward, count):
        before = forward.graph.output_node().args[0][count:]
        avoid_duplicate_saves(forward, backward, count)
        saved.extend([before, forward.graph.output_node().args[0][count:]])

    monkeypatch.setattr(aot, "avoid_duplicate_saves", save)
    inputs = [t.clone().requires_grad_() for t in (IMAGE, WEIGHT, seeded(64, 6, 3, 3))]
    fast = compiled(function)
    assert_alike(backward(fast(*inputs), inputs), backward(function(*inputs), inputs))
    before, reader = ([n.target for n in nodes] for nodes in saved)
    assert before.count(torch.ops.aten.clone.default) == 2  # the image, and the result of relu
    assert torch.ops.aten.clone.default not in reader


def test_double_backward_of_channels_last_images_equals_eager():
    def function(x, w, v):
        return block(x, w, v).square().sum()

    penalties = []
    for call in (compiled(function), function):
        x, w, v = (t.clone().requires_grad_() for t in (IMAGE, WEIGHT, NEXT))
        (slope,) = torch.autograd.grad(call(x, w, v), x, create_graph=True)
        slope.norm().backward()
        penalties.append([slope.detach(), w.grad, v.grad])
    assert_alike(*penalties)


def test_views_among_results_with_gradients_share_memory():
    def function(x, w):
        y = F.conv2d(x, w)
        return y, y[:, 1:]

    whole, part = compiled(function)(IMAGE, WEIGHT.clone().requires_grad_())
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_a_result_and_its_view_share_memory_where_a_varying_number_scales_the_result():
    def function(x, w, factor):
        y = F.conv2d(x, w) * (factor * 0.5)
        return y, y.view(-1)

    fast = magpy.compile(function)
    for factor in (1.25, 2.25, 3.25, 4.25):
        expected = function(IMAGE, WEIGHT, factor)
        assert_same(fast(IMAGE, WEIGHT, factor), expected, rtol=1e-4, atol=1e-4)


def test_two_results_of_one_operator_do_not_keep_the_original_layout():
    def function(x, w):
        return F.max_pool2d(F.conv2d(x, w).relu(), 2, return_indices=True)

    gm = optimised_graph(function, IMAGE, WEIGHT)
    assert "clone" in operator_names(gm)
    assert strides(gm, "relu")[1] == 1
