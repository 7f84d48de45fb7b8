"""Autograd nodes of the program's operators: reads of the autograd graph, and gradient hooks.

A compiled graph has one autograd node, and none for its operators. So an operator whose node the
program reads, or whose result's gradient it hooks, runs as it is. The mock registers the hooks
again when all objects they refer to exist: a backward pass calls them, outside of the record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from magpy_like.graph_operators.control_operators import is_control, may_write
from magpy_like.graph_operators.node_metadata import AS_IS
from magpy_like.monitor.replayed_effects import Hook, autograd_state
from magpy_like.monitor.torch_state import tensor_metadata
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import storage_of, tensor_version
from magpy_like.split_points import AUTOGRAD, Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any]

_REASON = "creates a tensor whose autograd node the program reads"

GRADIENT_HOOKS = {torch.Tensor.register_hook, torch.Tensor.retain_grad}
"""Methods that register an action on a tensor's gradient in the backward pass."""
_OF_NODES = {"register_hook", "register_prehook"}


def read_node(context: Context, tensor: torch.Tensor) -> Token:
    """Record a read of ``tensor.grad_fn``, which is not None.

    Raises:
        Split: the tensor is not the result of an operator on the graph.
    """
    rec = context.recording
    _note_external_read(rec, tensor)
    if (
        context.isolation.branch_run is not None
        or rec.running.depth
        or rec.variables.node(tensor) is not None
    ):
        raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
    _exclude_from_backends(rec, tensor)
    return _finish_node, tensor


def _note_external_read(rec: Recording, tensor: torch.Tensor) -> None:
    """Note a read of an external tensor's node: the previous segment may have created it."""
    rec.autograd.reads_external |= (
        rec.variables.node(tensor) is not None and tensor.grad_fn is not None
    )


_CREATE_GRAPH = {torch.Tensor.backward: 3, torch.autograd.backward: 3, torch.autograd.grad: 4}
"""Positions of the argument ``create_graph``."""


def split_at_double_backward(
    rec: Recording, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Gradients of gradients need eager mode's autograd graph: a backend's node has none.

    Raises:
        Split: a backward pass runs with ``create_graph``.
    """
    position = _CREATE_GRAPH.get(operation)
    if position is None:
        return
    asked = args[position] if len(args) > position else kwargs.get("create_graph", False)
    if asked is False or asked is None:
        return
    tensors = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
    for tensor in tensors if is_instance(tensors, list | tuple) else (tensors,):
        if is_instance(tensor, torch.Tensor):
            _note_external_read(rec, tensor)
    if operation is not torch.autograd.grad:
        raise split_at_autograd_graph(rec)


def _finish_node(context: Context, tensor: torch.Tensor, node: Any) -> None:
    rec = context.recording
    if id(node) not in rec.autograd.nodes:
        made = rec.operators.nodes.add_grad_fn(rec.graph.value(tensor))
        rec.autograd.nodes[id(node)] = node, made


def is_node(rec: Recording, value: Any) -> bool:
    """True if a value is an autograd node, and the program has reached nodes of its operators."""
    return bool(rec.autograd.nodes) and issubclass(type(value), torch.autograd.graph.Node)


def read_attribute(context: Context, node: Any, name: str) -> None:
    """Record a read of an attribute of an autograd node.

    Raises:
        Split: the attribute may depend on more than the operators, or the node was not read from a
            tensor.
    """
    rec = context.recording
    if id(node) not in rec.autograd.nodes or name not in (*_OF_NODES, "name", "next_functions"):
        raise split_at_autograd_graph(rec)
    if name != "next_functions":
        return
    # For an external tensor that is no leaf, this returns an external node.
    inputs = {made: rec.refs.get_node_by_id(i).variable for made, i in _tensors(rec)}
    _, made = rec.autograd.nodes[id(node)]
    for maker in _creators(made.all_input_nodes[0]):
        for source in maker.all_input_nodes:
            if is_instance(tensor := inputs.get(source), torch.Tensor) and tensor.requires_grad:
                if tensor.grad_fn is not None:
                    raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
                tensor_metadata.guard_metadata(context, operator.attrgetter("grad_fn"), tensor)
                rec.inspections.record_comparison(tensor)


def _tensors(rec: Recording) -> list[tuple[fx.Node, int]]:
    return [(made, i) for made, i in rec.operators.nodes.inputs if is_instance(i, int)]


def call_node_method(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token:
    """Record a call of a native method of a node, the first of ``args``.

    Raises:
        Split: it does more than register a hook.
    """
    node, name = args[0], operation.__name__
    if id(node) in context.recording.autograd.nodes and not kwargs:
        if name in _OF_NODES and len(args) == 2:
            return _register(context, node, name, args[1:])
        if name == "name":
            return _finish_name, None
    raise split_at_autograd_graph(context.recording)


def split_at_autograd_graph(rec: Recording) -> Split:
    """The split for a use of the autograd graph that only eager mode supports."""
    rec.graph.runs_as_is = f"an operator {_REASON}"
    return Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)


def _finish_name(context: Context, _: None, result: Any) -> None:
    """Record nothing: the result is a text."""


def register_hook(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token:
    """Record a call of one of :data:`GRADIENT_HOOKS`.

    Raises:
        Split: the tensor is of unknown origin or depends on a branch, or the call has an unusual
            form.
    """
    rec, tensor = context.recording, args[0]
    if kwargs or context.isolation.branch_run is not None or not is_instance(tensor, torch.Tensor):
        raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
    rec.inspections.check_no_alias(tensor, "hooks the gradient of")
    _note_external_read(rec, tensor)
    if rec.variables.node(tensor) is None and tensor.grad_fn is not None:
        _exclude_from_backends(rec, tensor)
    return _register(context, tensor, operation.__name__, args[1:])


def _register(context: Context, owner: Any, name: str, args: tuple[Any, ...]) -> Token:
    rec = context.recording
    if rec.running.depth or context.isolation.branch_run is not None:
        raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
    hook = Hook(owner, name, args, autograd_state(owner))
    return context.suspension.until(_finish_registration, hook)


def _finish_registration(context: Context, hook: Hook, handle: Any) -> None:
    """Record a registered hook; ``handle`` removes it, and is None for ``retain_grad``."""
    context.account()
    context.recording.effects.hooks.append(hook._replace(handle=handle))


def remove_hook(context: Context, handle: Any) -> Token | None:
    """Record a call of ``handle.remove()``; None if it needs no record.

    Raises:
        Split: the handle is external: only weak references lead to its hooks.
    """
    rec = context.recording
    if is_handle(rec, handle):
        return _register(context, handle, "remove", ())
    if is_instance(handle, RemovableHandle) and rec.variables.node(handle) is not None:
        hooks = handle.hooks_dict_ref()
        if (
            hooks is not None
            and rec.variables.node(hooks) is None
            and not rec.variables.is_new_object(hooks)
        ):
            raise Split(SplitReason.AUTOGRAD_GRAPH, "removes an external hook")
    return None


def is_handle(rec: Recording, value: Any) -> bool:
    """True if a value is the handle of a hook in the record."""
    return any(hook.handle is value for hook in rec.effects.hooks) and is_instance(
        value, RemovableHandle
    )


def check_handle_attribute(rec: Recording, handle: Any, name: str) -> None:
    """Check a read of an attribute of a value that may be a handle.

    Raises:
        Split: it inspects a handle that the mock has to create.
    """
    if name not in ("remove", "__enter__", "__exit__") and is_handle(rec, handle):
        raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)


# --- operators that run as they are ---------------------------------------------------------------


def _exclude_from_backends(rec: Recording, tensor: torch.Tensor) -> None:
    """Exclude the operators that define a tensor's autograd node from compilation."""
    node = rec.operators.nodes.node_of(tensor)
    if node is None:
        raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
    makers = [part for maker in _creators(node) for part in _with_producers(maker)]
    written = storage_of(tensor) in rec.writes.written_memory
    whole = written and (tensor._is_view() or len(_creators(node)) - 1 != tensor_version(tensor))
    if whole or any(map(is_control, makers)) or _is_used_between(node, makers):
        rec.graph.runs_as_is = f"an operator {_REASON}"
    for maker in makers:
        maker.meta[AS_IS] = _REASON
    rec.graph.operators_as_is.append(_REASON)


def _creators(node: fx.Node) -> list[fx.Node]:
    """The operator that created a tensor, and those that wrote to it since, in order."""
    writers = [u for u in node.users if u.args and u.args[0] is node and may_write(u)]
    return [node, *writers]


def _is_used_between(node: fx.Node, makers: list[fx.Node]) -> bool:
    """True if an operator uses a tensor before the last write to it: a compiled part's saved values
    must not change."""
    order = {other: i for i, other in enumerate(node.graph.nodes)}
    others = (user for user in node.users if user not in makers)
    return any(order[user] < order[makers[-1]] for user in others)


def _with_producers(node: fx.Node) -> list[fx.Node]:
    """An operator, and the operator with several results of which it selects one."""
    found = [node]
    while found[-1].target is operator.getitem and found[-1].all_input_nodes:
        found.append(found[-1].all_input_nodes[0])
    return [other for other in found if other.op in ("call_function", "call_method")]
