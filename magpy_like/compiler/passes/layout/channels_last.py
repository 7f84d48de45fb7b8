"""Channels last for convolutions over large images, and for what lies between them.

oneDNN convolves images whose channels are contiguous where they are; any others it copies into
blocks and back. *Measured* on one core with AVX-512, 3 x 3 convolutions of float32: 1.6 times as
fast at 256 x 256 and 128 x 128 pixels, alike for single pixels. So a large image becomes channels
last where it enters a convolution, and every operator that follows lays its result out as it does
in eager mode for such an argument (PyTorch 2, section 4.4: layout). Only padded and enlarged ones,
which elements are taken out of others for by index, keep their channels last where eager's index
operator would mix the dimensions.

What is won is by the pixel, and what is lost by the weight: for such images the library takes
longer to bring the weights, which come as they are at each call, into its own order. *Measured*,
for weights of one batch's size over that of images in and out: 1.2 to 2.1 times as fast at a tenth,
1.0 at 0.7 and at 1.5, 0.78 at 6, 0.55 at 12 and 24. So the image is laid out as before
where a convolution has many more weights than pixels: the last layers of most networks.

Sizes that vary are asked what they are in the example, and nothing is guarded: any layout will do
for any sizes. So an operator that makes memory of its own runs on tensors of the example's sizes,
and its result takes the order of dimensions that it has there: *measured*, ResNet-18's first call
took a tenth less than on fake tensors of sizes that vary. Only what must lie as before, and a view,
has to be known to lie so, whatever the sizes are.

With gradients, the graph of both passes is laid out before it is parted, and a convolution's
gradients get the image that it got. The library then holds three more copies of the weights for a
while, which takes more memory than eager mode (*measured*, ResNet-18: 3 %) unless there are half as
many as pixels at most. *Measured*, steps of training on two cores of two processors with AVX-512:
ResNet-18 0.99 and MonoDepth 1.12 times as fast; before that limit, ResNet-18 1.01, TridentNet 1.04,
U-Net 1.10, MonoDepth 1.11 to 1.13 and DenseNet-121 1.15 to 1.6.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.graph_queries import (
    Aliases,
    aten,
    have_same_sizes,
    insert,
    is_known_equal,
    is_pure,
    is_view,
    tensor,
    value,
)
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.fake_tensors import FakeTensorMode, disable_fake_tensor_cache

SMALLEST = 64 * 64  # pixels
MOST_WEIGHTS = 2  # per element of the images in and out
MOST_TRAINED = 0.5  # of weights that have gradients
_BY_STRIDES = {
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
}
_BY_SIZES = {aten.view.default, aten._unsafe_view.default, aten.view.dtype}
_LAID_OUT = "laid_out"  # the copies that are made here
_BY_INDEX = {aten.index.Tensor, aten._unsafe_index.Tensor}


def use_channels_last(gm: GraphModule) -> bool:
    """Lay images out for convolutions; whether anything changed. Outputs keep their strides."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    convolves = gm.graph.find_nodes(op="call_function", target=aten.convolution.default)
    if not convolves or _shares_outputs(gm):
        return False
    with _as_in_example(gm):
        return _lay_out_all(gm)


def avoid_duplicate_saves(forward: GraphModule, backward: GraphModule, count: int) -> None:
    """Have the backward pass copy again what has been laid out, where that is saved, too, or an
    argument: it is there in any case, and copies would be held beside it.

    ``count`` results of ``forward`` are its own; those behind them are saved, by their names.
    """
    output = forward.graph.output_node()
    results = list(output.args[0])
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    there = [*forward.graph.find_nodes(op="placeholder"), *results[count:]]
    written = Aliases(forward.graph).written
    found = {_itself(node): node for node in there if isinstance(node, Node)}
    for place, node in enumerate(results[count:], count):
        if not isinstance(node, Node) or not node.meta.get(_LAID_OUT) or node.name not in inputs:
            continue
        source = found.get(_itself(node.args[0]))
        if source is not None and source not in written:
            results[place], saved = source, inputs[node.name]
            saved.meta["val"] = value(source)
            user = next(iter(saved.users))
            new = insert(backward.graph, aten.clone.default, saved, like=user, **node.kwargs)
            saved.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    output.args = (tuple(results),)


def _itself(node: Node) -> Node:
    """What a node is, whatever it is called."""
    while node.target is aten.detach.default:
        node = node.args[0]
    return node


@contextlib.contextmanager
def _as_in_example(gm: GraphModule) -> Iterator[None]:
    """Have sizes that vary answer for the example, and nobody else remember the answers."""
    leaves = pytree.tree_leaves([value(node) for node in gm.graph.nodes])
    found = [leaf.fake_mode for leaf in leaves if _is_fake(leaf)] if _varies(leaves) else []
    modes = [mode for mode in found if mode.shape_env is not None]  # constants may have a mode else
    if modes:
        with modes[0].shape_env.suppress_guards(), disable_fake_tensor_cache(modes[0]):
            yield
    else:
        yield


def _lay_out_all(gm: GraphModule) -> bool:
    changed: dict[Node, Any] = {}  # node -> its value before
    entered = False
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.convolution.default:
            if not _has_few_weights(node):
                _leave(node, changed)
            else:
                entered |= _enter(node)
        moved = [a for a in node.all_input_nodes if a in changed]
        if (moved or _has_entered(node)) and not _lay_out(node, changed):
            for source in moved:
                node.replace_input_with(source, _as_before(source, changed[source], node))
    return entered


def _hint(size: Any) -> int | None:
    """What a size is in the example; None where only a run tells."""
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        return hint if isinstance(hint, int) else None
    return int(size)


def _hints(tensor: torch.Tensor) -> list[int] | None:
    """What all its sizes are in the example, if that is known."""
    found = [hint for size in tensor.shape if (hint := _hint(size)) is not None]
    return found if len(found) == tensor.dim() else None


def _varies(tree: Any) -> bool:
    """Has a tensor in ``tree`` a size that is not fixed?"""
    return any(
        isinstance(size, torch.SymInt)
        for leaf in pytree.tree_leaves(tree)
        for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))
    )


def _shares_outputs(gm: GraphModule) -> bool:
    """Do two results share memory? Each by itself would be copied back to its strides."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    results = [t for node in output.all_input_nodes if (t := tensor(node)) is not None]
    return len({t.untyped_storage()._cdata for t in results}) < len(results)


def _enter(node: Node) -> bool:
    """Give a convolution its image with channels last, where that pays."""
    image, weight = node.args[:2]
    x, w = tensor(image), tensor(weight)
    if (
        x is None
        or w is None
        or x.dim() != 4
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or (sizes := _hints(x)) is None
        or _hints(w) is None
        or math.prod(sizes[2:]) < SMALLEST
        or w.shape[2] * w.shape[3] == 1
        or not x.is_contiguous()
        or _is_channels_last(x)
    ):
        return False
    _give_image(node, _copy(image, node, torch.channels_last))
    return True


def _copy(image: Node, user: Node, form: torch.memory_format) -> Node:
    new = insert(user.graph, aten.clone.default, image, like=user, memory_format=form)
    new.meta[_LAID_OUT] = True
    return new


def _give_image(node: Node, new: Node) -> None:
    """Have a convolution and its gradients take another image."""
    for user in (*_gradients(node), node):
        user.replace_input_with(node.args[0], new)


def _gradients(node: Node) -> list[Node]:
    """What computes the gradients of a convolution, if the graph has both passes."""
    image, weight = node.args[:2]
    return [
        user
        for user in image.users
        if user.target is aten.convolution_backward.default and user.args[1:3] == (image, weight)
    ]


def _has_few_weights(node: Node) -> bool:
    """Is there more to win at the images than is lost at the weights?"""
    parts = [tensor(part) for part in (node.args[1], node.args[0], node)]
    sizes = [found for part in parts if part is not None and (found := _hints(part)) is not None]
    if len(sizes) < len(parts):
        return False
    weights, image, result = (math.prod(found) for found in sizes)
    return weights <= (MOST_TRAINED if _gradients(node) else MOST_WEIGHTS) * (image + result)


def _leave(node: Node, changed: dict[Node, Any]) -> None:
    """Give a convolution its image as it was traced, if that has become another one."""
    image = node.args[0]
    if image in changed:
        _give_image(node, _as_before(image, changed[image], node))


def _has_entered(node: Node) -> bool:
    """Is this a convolution whose result follows another layout than it was traced with?"""
    if node.target is not aten.convolution.default:
        return False
    x, y = tensor(node.args[0]), tensor(node)
    return (
        x is not None
        and y is not None
        and y.dim() == 4
        and _is_channels_last(x)
        and not _is_channels_last(y)
    )


def _lay_out(node: Node, changed: dict[Node, Any]) -> bool:
    """Compute the node's value anew from its arguments' layouts. False where it depends on how
    they were laid out before: what is not a function of values only, or asks for certain strides.
    """
    before = value(node)
    if node.target is operator.getitem:
        after = value(node.args[0])[node.args[1]]
    elif not is_pure(node) or node.target in _BY_STRIDES:
        return False
    elif _varies(before) and not is_view(node):
        if (known := _of_example(node, before)) is None:
            return False
        after = known
    else:
        args, kwargs = pytree.tree_map_only(Node, value, (node.args, node.kwargs))
        mode = next(v.fake_mode for v in pytree.tree_leaves((args, kwargs)) if _is_fake(v))
        try:
            with mode:
                after = _computed(node, args, kwargs)
        except (RuntimeError, ValueError):  # a view that there is not in this layout
            return False
        if _varies((before, after)) and not _may_vary(node, before, after):
            return False
    if _strides(after) != _strides(before):
        changed[node] = before
    node.meta["val"] = after
    return True


def _computed(node: Node, args: Any, kwargs: Any) -> Any:
    """The fake result of the node's operator, laid out as it will be."""
    result = node.target(*args, **kwargs)
    if node.target in _BY_INDEX and _are_images(args[0], result):
        return result.contiguous(memory_format=torch.channels_last)
    return result


class _NoExampleError(Exception):
    """Only a run tells a size."""


def _of_example(node: Node, before: Any) -> Any:
    """The node's value as the example's is laid out; None where that has no order of dimensions."""
    given = *pytree.tree_map_only(Node, value, (node.args, node.kwargs)), before
    try:
        with FakeTensorMode():  # of no shape environment: nobody's sizes are guarded in it
            args, kwargs, old = pytree.tree_map(_example, given)
            new = _computed(node, args, kwargs)
    except (_NoExampleError, RuntimeError, ValueError):
        return None
    leaves, structure = pytree.tree_flatten(before)
    found = []
    for leaf, a, b in zip(leaves, pytree.tree_leaves(old), pytree.tree_leaves(new), strict=True):
        if isinstance(leaf, torch.Tensor) and (a.shape, a.stride()) != (b.shape, b.stride()):
            order = _order(b)
            if a.shape != b.shape or order is None:
                return None
            leaf = _in_order(leaf, order)
        found.append(leaf)
    return pytree.tree_unflatten(found, structure)


def _example(leaf: Any) -> Any:
    """A tensor or number as it is in the example, its sizes fixed."""
    if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if (hint := leaf.node.hint) is None:
            raise _NoExampleError
        return hint
    if not isinstance(leaf, torch.Tensor):
        return leaf
    sizes = [_example(size) for size in leaf.shape]
    strides = [_example(step) for step in leaf.stride()]
    return torch.empty_strided(sizes, strides, dtype=leaf.dtype, device=leaf.device)


def _in_order(tensor: Any, order: Sequence[int]) -> torch.Tensor:
    """A tensor like this one that fills its memory in the order of dimensions given."""
    strides: list[Any] = [1] * tensor.dim()
    for inner, outer in itertools.pairwise(order[::-1]):
        strides[outer] = strides[inner] * tensor.shape[inner]
    with tensor.fake_mode:
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)


def _may_vary(node: Node, before: Any, after: Any) -> bool:
    """Is what holds for the example known to hold for any sizes? Whether there is a view of other
    sizes is not; and what lies in no order of dimensions could not be laid out as before."""
    pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor)]
    return node.target not in _BY_SIZES and all(
        have_same_sizes(a.shape, b.shape) and _order(a) is not None for a, b in tensors
    )


def _are_images(image: torch.Tensor, taken: torch.Tensor) -> bool:
    """Do both have four dimensions, the first its channels last? Then its neighbours stay together
    in what is taken out of it; eager's dimensions would come in the order of the indices."""
    return image.dim() == taken.dim() == 4 and _is_channels_last(image)


def _is_channels_last(image: torch.Tensor) -> bool:
    """Torch before 2.13 says no where sizes vary, and strides are products of them."""
    if image.is_contiguous(memory_format=torch.channels_last):
        return True
    return image.dim() == 4 and _order(image) == [0, 2, 3, 1]


def _as_before(node: Node, before: Any, user: Node) -> Node:
    """The node's value in the layout it was traced with, for a user of it."""
    if user.op == "output":
        user = node.next  # till the end both would take memory
    order = _order(before)
    if order is None:
        with before.fake_mode:
            memory = insert(
                node.graph, aten.empty_strided.default, before.shape, before.stride(), like=user,
                dtype=before.dtype, device=before.device,
            )  # fmt: skip
            return insert(node.graph, aten.copy.default, memory, node, like=user)
    in_rows = order == list(range(len(order)))

    def permuted(source: Node, dims: Sequence[int]) -> Node:
        if in_rows:
            return source
        return insert(node.graph, aten.permute.default, source, list(dims), like=user)

    rows = _copy(permuted(node, order), user, torch.contiguous_format)
    return permuted(rows, [order.index(d) for d in range(len(order))])


def _order(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions of a tensor whose elements fill its memory, outer ones first; else None."""
    if any(_hint(step) is None for step in tensor.stride()):
        return None
    order = sorted(range(tensor.dim()), key=lambda d: -(_hint(tensor.stride(d)) or 0))
    step: Any = 1
    for d in reversed(order):
        if not is_known_equal(tensor.stride(d), step):
            return None
        step = step * tensor.shape[d]
    return order


def _is_fake(leaf: Any) -> bool:
    return hasattr(leaf, "fake_mode")


def _strides(tree: Any) -> list[Any]:
    return [t.stride() for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
