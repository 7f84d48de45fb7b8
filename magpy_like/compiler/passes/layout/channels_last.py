"""Channels-last layout for convolutions, and for the operators between them.

An image is converted to channels-last at the first convolution where that pays (``layout_costs``),
and every operator after it lays its result out as in eager mode for such an argument (PyTorch 2,
section 4.4: layout). The exception is indexing, which padding and upsampling decompose to: its
results stay channels-last, where eager's index operator would permute the dimensions.

Symbolic sizes are replaced by their hints, without guards: any layout is valid for any sizes. So
an operator that allocates its result runs on fake tensors of the hinted sizes, and its result gets
the dimension order computed there: *measured*, ResNet-18's first call took a tenth less than on
fake tensors of symbolic sizes. Only results that must keep their layout, and views, are checked for
all sizes.

With gradients, the joint graph is laid out before it is partitioned, and a convolution's backward
reads the same image as the convolution.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.graph_queries import (
    aten,
    have_same_sizes,
    insert,
    is_pure,
    is_view,
    tensor,
    value,
)
from magpy_like.compiler.passes.layout.dimension_orders import dim_order, is_channels_last
from magpy_like.compiler.passes.layout.layout_costs import LayoutCosts, gradients
from magpy_like.graph_operators.node_metadata import LAYOUT_COPY
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensorMode, disable_fake_tensor_cache

_BY_STRIDES = {
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
}
_BY_SIZES = {aten.view.default, aten._unsafe_view.default, aten.view.dtype}
_BY_INDEX = {aten.index.Tensor, aten._unsafe_index.Tensor}


def use_channels_last(gm: GraphModule) -> bool:
    """Convert images to channels-last for convolutions, in place; True if the graph changed.

    Results of the graph keep their strides.
    """
    convolves = gm.graph.find_nodes(op="call_function", target=aten.convolution.default)
    if not convolves or _has_aliased_results(gm):
        return False
    with _resolve_by_hints(gm):
        return _convert_graph(gm)


def avoid_duplicate_saves(forward: GraphModule, backward: GraphModule, count: int) -> None:
    """Save no channels-last copy of a tensor that is an argument or saved as well.

    The backward pass copies it again: the original is alive in any case. Rewrites both graphs in
    place. The first ``count`` results of ``forward`` are the program's; the others are saved
    tensors, with the names of the backward graph's inputs.
    """
    output = forward.graph.output_node()
    results = list(output.args[0])
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    available = [*forward.graph.find_nodes(op="placeholder"), *results[count:]]
    written = Aliases(forward.graph).written
    found = {_skip_detach(node): node for node in available if isinstance(node, Node)}
    for index, node in enumerate(results[count:], count):
        if not isinstance(node, Node) or not node.meta.get(LAYOUT_COPY) or node.name not in inputs:
            continue
        source = found.get(_skip_detach(node.args[0]))
        if source is not None and source not in written:
            results[index], saved = source, inputs[node.name]
            saved.meta["val"] = value(source)
            user = next(iter(saved.users))
            new = insert(backward.graph, aten.clone.default, saved, like=user, **node.kwargs)
            saved.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    output.args = (tuple(results),)


def _skip_detach(node: Node) -> Node:
    """The node whose tensor a chain of ``detach`` returns."""
    while node.target is aten.detach.default:
        node = node.args[0]
    return node


@contextlib.contextmanager
def _resolve_by_hints(gm: GraphModule) -> Iterator[None]:
    """Resolve comparisons of symbolic sizes by their hints, without guards and without caching the
    fake results."""
    leaves = pytree.tree_leaves([value(node) for node in gm.graph.nodes])
    found = (
        [leaf.fake_mode for leaf in leaves if _is_fake(leaf)] if _has_symbolic_sizes(leaves) else []
    )
    modes = [mode for mode in found if mode.shape_env is not None]  # constants may have another
    if modes:
        with modes[0].shape_env.suppress_guards(), disable_fake_tensor_cache(modes[0]):
            yield
    else:
        yield


def _convert_graph(gm: GraphModule) -> bool:
    changed: dict[Node, Any] = {}  # node -> its fake value in the original layout
    converted = False
    costs = LayoutCosts(gm.graph)
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.convolution.default:
            if costs.favour_traced_layout(node):
                _restore_image(node, changed)
            else:
                converted |= _convert_arguments(node, costs)
        moved = [a for a in node.all_input_nodes if a in changed]
        if (moved or _follows_new_layout(node)) and not _propagate_layout(node, changed):
            for source in moved:
                node.replace_input_with(source, _restore_layout(source, changed[source], node))
    return converted


def _has_symbolic_sizes(tree: Any) -> bool:
    """True if a tensor or number in ``tree`` has a symbolic size."""
    return any(
        isinstance(size, torch.SymInt)
        for leaf in pytree.tree_leaves(tree)
        for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))
    )


def _has_aliased_results(gm: GraphModule) -> bool:
    """True if two results share memory: each would be copied back to its strides separately."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    aliases = Aliases(gm.graph)
    holders: dict[Node, Node] = {}  # root -> the first result with its memory
    for node in output.all_input_nodes:
        if tensor(node) is None:
            continue
        for root in aliases.roots[node]:
            first = holders.setdefault(root, node)
            if first is not node and not _are_results_of_one_call(first, node):
                return True
    return False


def _are_results_of_one_call(first: Node, second: Node) -> bool:
    """True for two items of the result of one operator that returns new tensors."""
    both = first.target is operator.getitem and second.target is operator.getitem
    return both and first.args[0] is second.args[0] and not is_view(first.all_input_nodes[0])


def _convert_arguments(node: Node, costs: LayoutCosts) -> bool:
    """Insert channels-last copies of a convolution's image and weight, where they pay.

    Returns True if one was inserted.
    """
    image, weight = node.args[:2]
    readers = (*gradients(node), node)
    converts_image = costs.favour_channels_last(node)
    if converts_image:
        _replace_argument(readers, image, _copy(image, node, torch.channels_last))
    converts_weight = costs.favour_channels_last_weight(node)
    if converts_weight:
        _replace_argument(readers, weight, _copy(weight, node, torch.channels_last))
    return converts_image or converts_weight


def _copy(image: Node, user: Node, form: torch.memory_format) -> Node:
    new = insert(user.graph, aten.clone.default, image, like=user, memory_format=form)
    new.meta[LAYOUT_COPY] = True
    return new


def _replace_argument(readers: Iterable[Node], old: Node, new: Node) -> None:
    for reader in readers:
        reader.replace_input_with(old, new)


def _restore_image(node: Node, changed: dict[Node, Any]) -> None:
    """Give a convolution its image in the layout it was traced with."""
    image = node.args[0]
    if image in changed:
        new = _restore_layout(image, changed[image], node)
        _replace_argument((*gradients(node), node), image, new)


def _follows_new_layout(node: Node) -> bool:
    """True for a convolution of a channels-last image that was traced with another layout."""
    if node.target is not aten.convolution.default:
        return False
    x, y = tensor(node.args[0]), tensor(node)
    return (
        x is not None
        and y is not None
        and y.dim() == 4
        and is_channels_last(x)
        and not is_channels_last(y)
    )


def _propagate_layout(node: Node, changed: dict[Node, Any]) -> bool:
    """Compute the node's fake value from the new layouts of its arguments.

    False if the node requires their original layouts: it is not pure, or depends on strides.
    """
    before = value(node)
    if node.target is operator.getitem:
        after = value(node.args[0])[node.args[1]]
    elif not is_pure(node) or node.target in _BY_STRIDES:
        return False
    elif _has_symbolic_sizes(before) and not is_view(node):
        if (known := _propagate_hinted_layout(node, before)) is None:
            return False
        after = known
    else:
        args, kwargs = pytree.tree_map_only(Node, value, (node.args, node.kwargs))
        mode = next(v.fake_mode for v in pytree.tree_leaves((args, kwargs)) if _is_fake(v))
        try:
            with mode:
                after = _run_fake(node, args, kwargs)
        except (RuntimeError, ValueError):  # a view that this layout does not allow
            return False
        if _has_symbolic_sizes((before, after)) and not _holds_for_all_sizes(node, before, after):
            return False
    if _strides(after) != _strides(before):
        changed[node] = before
    node.meta["val"] = after
    return True


def _run_fake(node: Node, args: Any, kwargs: Any) -> Any:
    """The fake result of the node's operator, in the layout that it will have."""
    result = node.target(*args, **kwargs)
    if node.target in _BY_INDEX and _are_images(args[0], result):
        return result.contiguous(memory_format=torch.channels_last)
    return result


class _NoHintError(Exception):
    """A size is data-dependent and has no hint."""


def _propagate_hinted_layout(node: Node, before: Any) -> Any:
    """The node's symbolic value in the dimension order computed for the hinted sizes.

    None if the result has gaps, so that it has no dimension order.
    """
    symbolic = *pytree.tree_map_only(Node, value, (node.args, node.kwargs)), before
    try:
        with FakeTensorMode():  # without a shape environment: no guards
            args, kwargs, old = pytree.tree_map(_to_hints, symbolic)
            new = _run_fake(node, args, kwargs)
    except (_NoHintError, RuntimeError, ValueError):
        return None
    leaves, structure = pytree.tree_flatten(before)
    found = []
    for leaf, a, b in zip(leaves, pytree.tree_leaves(old), pytree.tree_leaves(new), strict=True):
        if isinstance(leaf, torch.Tensor) and (a.shape, a.stride()) != (b.shape, b.stride()):
            order = dim_order(b)
            if a.shape != b.shape or order is None:
                return None
            leaf = _with_dim_order(leaf, order)
        found.append(leaf)
    return pytree.tree_unflatten(found, structure)


def _to_hints(leaf: Any) -> Any:
    """A tensor of the hinted sizes and strides; of a symbolic number its hint.

    Raises:
        _NoHintError: a size is data-dependent.
    """
    if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if (hint := leaf.node.hint) is None:
            raise _NoHintError
        return hint
    if not isinstance(leaf, torch.Tensor):
        return leaf
    sizes = [_to_hints(size) for size in leaf.shape]
    strides = [_to_hints(step) for step in leaf.stride()]
    return torch.empty_strided(sizes, strides, dtype=leaf.dtype, device=leaf.device)


def _with_dim_order(tensor: Any, order: Sequence[int]) -> torch.Tensor:
    """A tensor like this one, dense in the given dimension order, outermost first."""
    strides: list[Any] = [1] * tensor.dim()
    for inner, outer in itertools.pairwise(order[::-1]):
        strides[outer] = strides[inner] * tensor.shape[inner]
    with tensor.fake_mode:
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)


def _holds_for_all_sizes(node: Node, before: Any, after: Any) -> bool:
    """True if a layout computed for the hints is valid for all sizes.

    A view of other sizes may not exist for all; and a value with gaps could not be restored.
    """
    pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor)]
    return node.target not in _BY_SIZES and all(
        have_same_sizes(a.shape, b.shape) and dim_order(a) is not None for a, b in tensors
    )


def _are_images(image: torch.Tensor, taken: torch.Tensor) -> bool:
    """True for indexing of a channels-last image with a four-dimensional result.

    The result stays channels-last; eager's would have its dimensions in the order of the indices.
    """
    return image.dim() == taken.dim() == 4 and is_channels_last(image)


def _restore_layout(node: Node, before: Any, user: Node) -> Node:
    """A copy of the node's value in the layout it was traced with, for ``user``."""
    if user.op == "output":
        user = node.next  # copied at the end, both would take memory until then
    order = dim_order(before)
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


def _is_fake(leaf: Any) -> bool:
    return hasattr(leaf, "fake_mode")


def _strides(tree: Any) -> list[Any]:
    return [t.stride() for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
