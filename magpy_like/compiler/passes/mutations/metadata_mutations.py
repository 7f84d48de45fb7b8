"""Metadata mutations of arguments: ``x.unsqueeze_(0)``, ``torch.sum(a, out=x)``.

AOTAutograd sets an argument's new sizes and strides after the call. If the argument was written to
as well, they are those of the computed value, which may not fit the argument's memory; and a value
written to ``out=`` it broadcasts to the old sizes. Mutations that restore the sizes and strides it
does not see: it takes the gradient of the mutated tensor for the argument's, without the uses
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.graph_queries import have_same_sizes, is_in_order
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.operators import OpOverload, operator_tags

Call = Callable[..., Any]

_DRAWS = torch.Tag.nondeterministic_seeded
_MUTATING_OPERATORS = frozenset(
    (
        "setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
        "irshift", "isub", "itruediv", "ixor",
    )
)  # fmt: skip
_DIMENSION_CHANGES = frozenset(
    ("squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")
)


def replace_metadata_mutations(gm: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Leave metadata mutations to eager where AOTAutograd's functional form would differ.

    Those that restore an argument are replaced, in place, by views of it; calls with ``out=`` by
    ones that check the sizes when they are traced.

    Raises:
        Unsupported: an argument's metadata is mutated, and a tensor is written to; or a gradient
            would pass a mutation under ``no_grad``, which autograd does not record, or one of an
            argument other than a known change of dimensions, such as ``detach_``.
    """
    written = [node for node in gm.graph.nodes if is_mutating(node)]
    reshaped = [node for node in written if _is_inplace_view(node)]
    if len(written) > len(reshaped) and any(_argument(n) is not None for n in reshaped):
        raise Unsupported(
            "a graph", "it resizes or transposes an argument in place, and writes to a tensor"
        )
    if reshaped and any(isinstance(x, Tensor) and x.requires_grad for x in example_inputs):
        _check_gradients(gm, reshaped, example_inputs)
    for argument, changes in _find_restored_arguments(gm, example_inputs).items():
        _replace_by_views(gm, argument, changes)
    for node in written:
        if node.op == "call_function" and _takes_results(node.kwargs.get("out")):
            draws = _DRAWS in _tags(node)
            node.target = _with_checked_draws(node.target) if draws else _with_checked_out(node)
            gm.recompile()


def _check_gradients(
    gm: GraphModule, reshaped: Sequence[Node], example_inputs: Sequence[Any]
) -> None:
    """Raises Unsupported if AOTAutograd would compute another gradient of a reshaped tensor."""
    examples = zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False)
    trained = {node for node, example in examples if getattr(example, "requires_grad", False)}
    records, recorded = True, {*trained}
    for node in gm.graph.nodes:
        if node.target is set_grad_enabled:
            records = node.args[0]
        elif records:
            recorded.add(node)
        if node not in reshaped:
            continue
        changed = _changed(node)
        unrecorded = not records and changed in recorded
        if unrecorded or (changed in trained and not _is_known_change(node)):
            raise Unsupported("a graph", f"its gradients pass `{_name(node)}`")


def is_mutating(node: Node) -> bool:
    """True for calls that write to an argument, by their name or an ``out=`` argument."""
    if not node.op.startswith("call"):
        return False
    name = _name(node)
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name.strip("_") in _MUTATING_OPERATORS or "out" in node.kwargs


def may_change_metadata(node: Node) -> bool:
    """True if a node that writes to a tensor may change its sizes, strides or storage, judged by
    the operator's name: so may unknown functions.

    Calls with ``out=`` do not: see :func:`replace_metadata_mutations`."""
    known = isinstance(node.target, OpOverload) or _name(node).strip("_") in _MUTATING_OPERATORS
    return _is_inplace_view(node) or not (known or _tags(node))


def _is_inplace_view(node: Node) -> bool:
    return torch.Tag.inplace_view in _tags(node)


def find_returned_object(node: Node) -> Node:
    """The node whose tensor this one returns: in-place methods return the tensor they write to."""
    while True:
        out = node.kwargs.get("out")
        if node.op == "call_function" and isinstance(out, Node):
            node = out
        elif node.op == "call_method" and is_mutating(node) and isinstance(node.args[0], Node):
            node = node.args[0]
        else:
            return node


def _name(node: Node) -> str:
    target = node.target
    packet = target.overloadpacket if isinstance(target, OpOverload) else target
    return str(getattr(packet, "__name__", packet))


def _tags(node: Node) -> set[Any]:
    return operator_tags(node.target)


def _changed(node: Node) -> Node:
    """The node that makes the tensor to which an in-place call applies."""
    while is_mutating(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _argument(node: Node) -> Node | None:
    """The input or attribute of the graph to which an in-place call applies; None for another
    tensor."""
    changed = _changed(node)
    return changed if changed.op in ("placeholder", "get_attr") else None


def _find_restored_arguments(
    gm: GraphModule, example_inputs: Sequence[Any]
) -> dict[Node, list[Node]]:
    """The inputs of a graph whose dimensions it changes in place and restores, with the changes."""
    changes: dict[Node, list[Node]] = {}
    for node in gm.graph.nodes:
        if is_mutating(node) and _is_inplace_view(node) and (argument := _argument(node)):
            changes.setdefault(argument, []).append(node)
    examples = zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False)
    return {
        node: changes[node]
        for node, example in examples
        if node in changes and _are_restoring(changes[node], example)
    }


def leave_detached_views_to_eager(call: Call, gm: GraphModule, eager: Call) -> Call:
    """``call``, or ``eager`` where an argument of ``detach_`` is a view: eager mode raises then,
    and AOTAutograd, for which ``detach_`` of a tensor without a gradient is nothing, does not."""
    detached = [node for node in gm.graph.nodes if is_mutating(node) and _name(node) == "detach_"]
    arguments = {_argument(node) for node in detached}
    placeholders = enumerate(gm.graph.find_nodes(op="placeholder"))
    indices = [k for k, node in placeholders if node in arguments]
    if not indices:
        return call

    def run(*args: Any) -> Any:
        return (eager if any(args[k]._is_view() for k in indices) else call)(*args)

    return run


def _are_restoring(changes: Sequence[Node], example: Any) -> bool:
    """True if the calls end with the sizes and strides of ``example``, to which they apply.

    ``detach_`` may be among them: it changes nothing in a tensor that requires no gradient.
    """
    if not any(map(_is_known_change, changes)):
        return False
    changed = example.detach()
    for node in changes:
        if not _is_known_change(node) and _name(node) != "detach_":
            return False
        changed = getattr(changed, _name(node)[:-1])(*node.args[1:], **node.kwargs)
    return all(
        have_same_sizes(*pair)
        for pair in ((changed.shape, example.shape), (changed.stride(), example.stride()))
    )


def _is_known_change(node: Node) -> bool:
    """True for a change of dimensions by numbers that the graph has as constants."""
    arguments = (*node.args[1:], *node.kwargs.values())
    return _name(node) in _DIMENSION_CHANGES and not any(isinstance(a, Node) for a in arguments)


def _replace_by_views(gm: GraphModule, argument: Node, changes: Sequence[Node]) -> None:
    """Replace the in-place changes of an argument by views, and the last, which restores it, by the
    argument itself."""
    graph, current = gm.graph, argument
    for node in list(graph.nodes):
        node.replace_input_with(argument, current)
        if node not in changes:
            continue
        if node is changes[-1]:
            current = argument
        else:
            with graph.inserting_before(node):
                arguments = (current, *node.args[1:])
                current = graph.call_method(_name(node)[:-1], arguments, node.kwargs)
            current.meta = dict(node.meta)
        node.replace_all_uses_with(current)
        graph.erase_node(node)
    gm.recompile()


def _takes_results(out: Any) -> bool:
    """True if an ``out=`` argument is a tensor or several."""
    if isinstance(out, tuple | list):
        return bool(out) and all(isinstance(target, Node) for target in out)
    return isinstance(out, Node)


def _with_checked_draws(function: Any) -> Any:
    """``function``, which draws random numbers; raises Unsupported if its ``out=`` tensor is not
    row-major, or has another size than its result or another type than its parameters.

    Eager draws into the memory of the tensor, in an order and a type that depend on it.
    """

    def checked(*args: Any, out: Any, **kwargs: Any) -> Any:
        shape, parameters = out.shape, [a for a in args if isinstance(a, Tensor)]
        if not is_in_order(out):
            raise Unsupported("a graph", "it draws random numbers into a tensor with other strides")
        if any(a.is_floating_point() and a.dtype != out.dtype for a in parameters):
            raise Unsupported("a graph", "it draws random numbers into a tensor of another type")
        result = function(*args, out=out, **kwargs)
        if out.shape != shape:
            raise Unsupported("a graph", "an `out=` tensor has another size than the result")
        return result

    return checked


#: Operators that compute in the type of their ``out=`` tensor, and take it as ``dtype``, too.
_IN_TYPE_OF_OUT = frozenset(
    (
        "cumprod", "cumsum", "linalg_vector_norm", "mean", "nanmean", "nansum", "prod", "sum",
    )
)  # fmt: skip


def _with_checked_out(node: Node) -> Any:
    """The function that a node calls; raises Unsupported if an ``out=`` tensor has another size
    than its result, or another type in which eager may compute it.

    The results are copied, so that the functional graph keeps the layouts of the tensors.
    """
    function: Any = node.target
    takes_type = _name(node) in _IN_TYPE_OF_OUT
    by_element = torch.Tag.pointwise in _tags(node)

    def checked(*args: Any, out: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        is_one = isinstance(out, Tensor)
        results, outs = ((result,), (out,)) if is_one else (result, out)
        for value, target in zip(results, outs, strict=True):
            if value.shape != target.shape:
                raise Unsupported("a graph", "an `out=` tensor has another size than the result")
        if is_one and (result.dtype, result.device) == (out.dtype, out.device):
            return out.copy_(result)
        if is_one and result.dtype != out.dtype and not by_element:
            if takes_type:
                return out.copy_(function(*args, **{**kwargs, "dtype": out.dtype}))
            if result.is_floating_point() or result.is_complex():
                raise Unsupported("a graph", "an `out=` tensor has another type than the result")
        # Some operators compute in the type of `out`: another new tensor receives the result.
        new = [torch.empty_like(target) for target in outs]
        returned = function(*args, out=new[0] if is_one else type(out)(new), **kwargs)
        for value, target in zip(new, outs, strict=True):
            target.copy_(value)
        if returned is None:
            return None
        return out if is_one else type(returned)(outs)

    return checked
