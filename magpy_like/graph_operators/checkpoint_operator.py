"""Checkpointed functions: parts of a graph whose operators run again in the backward pass.

In a captured graph such a part is one node, :func:`checkpointed` with a graph of its own. A backend
that runs the graph operator by operator then saves as much for the backward pass, and recomputes as
much, as eager mode. This project's compiler inlines the operators, marked by the keys that torch's
partitioner of forward and backward pass reads (``recompute``, ``ac_graph_id``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from magpy_like.graph_operators.checkpoint_batch_norm import Update, update_on_recompute
from magpy_like.graph_operators.control_operators import may_write
from magpy_like.graph_operators.node_metadata import (
    AS_IS,
    DIFFERENTIATED,
    LIST,
    NUMBER,
    RECOMPUTED,
    TRIGGERS_RECOMPUTATION,
    WRITES,
)
from magpy_like.torch_compat.tracing.unobserved_modules import (
    UnobservedGraphModule,
    UnobservedModule,
)

_COPIED_METADATA = (NUMBER, LIST, "val")
"""The keys that a result keeps when its operators become one node."""


class CheckpointedFunction:
    """A checkpointed function in a graph that is being captured."""

    def __init__(self, arguments: Sequence[fx.Node]) -> None:
        """``arguments`` must not change before the function runs again."""
        self.arguments = arguments


class ReentrantCheckpoint(CheckpointedFunction):
    """A function under ``use_reentrant=True``, which is one node in autograd's graph.

    ``results`` are all its results, used or not: they are the outputs of that node. Of the tensors
    that it reads besides its arguments, those in ``differentiated`` require gradients, and receive
    them in the nested backward pass.
    """

    def __init__(
        self,
        arguments: Sequence[fx.Node],
        results: Sequence[fx.Node],
        differentiated: Collection[fx.Node],
    ) -> None:
        super().__init__(arguments)
        self.results, self.differentiated = results, differentiated


def checkpointed(
    part: Callable[..., Any], argument_count: int, *operands: Any, reentrant: bool = False
) -> Any:
    """``part(*operands)`` under a checkpoint.

    The first ``argument_count`` operands are the function's arguments. The others are captured: the
    function reads them whenever it runs.
    """
    captured = operands[argument_count:]
    return torch.utils.checkpoint.checkpoint(
        lambda *args: part(*args, *captured), *operands[:argument_count], use_reentrant=reentrant
    )


class _Tied(torch.autograd.Function):
    """The identity on a result, which requires gradients if an argument does, as under a reentrant
    checkpoint."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
        return result.clone()  # a view could not be modified in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, *[None] * (len(ctx.needs_input_grad) - 1)


def _tied(result: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
    return _Tied.apply(result, *arguments)


def is_checkpoint(node: fx.Node) -> bool:
    return node.target is checkpointed


def fold_checkpoints(gm: fx.GraphModule) -> None:
    """Replace the nodes of each checkpointed function by one node, in place."""
    parts: dict[CheckpointedFunction, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if RECOMPUTED in node.meta:
            parts.setdefault(node.meta.pop(RECOMPUTED), []).append(node)
    # The last one first: the results of earlier ones are still nodes of the graph then.
    for number, (function, nodes) in reversed([*enumerate(parts.items())]):
        _fold(gm, f"checkpointed_{number}", function, nodes)
    if parts:
        gm.recompile()


def _fold(
    gm: fx.GraphModule, name: str, function: CheckpointedFunction, nodes: Sequence[fx.Node]
) -> None:
    inside = set(nodes)
    sources = dict.fromkeys(s for node in nodes for s in node.all_input_nodes if s not in inside)
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    arguments = [source for source in sources if source in function.arguments]
    if isinstance(function, ReentrantCheckpoint):
        arguments = list(function.arguments)
        results += [node for node in function.results if node not in results]
    sources = dict.fromkeys([*arguments, *sources])
    part, root = fx.Graph(), UnobservedModule()
    copies = {source: part.placeholder(f"operand_{i}") for i, source in enumerate(sources)}
    for node in nodes:
        copies[node] = _copy(gm, node, part, root, copies)
    part.output(tuple(copies[node] for node in results))
    setattr(gm, name, UnobservedGraphModule(root, part, class_name="Checkpointed"))
    with gm.graph.inserting_before(nodes[0]):
        call = gm.graph.call_function(
            checkpointed, (gm.graph.get_attr(name), len(arguments), *sources)
        )
        if isinstance(function, ReentrantCheckpoint):
            call.kwargs = {"reentrant": True}
            call.meta[DIFFERENTIATED] = [
                k for k, s in enumerate(sources) if s in function.differentiated
            ]
        for i, node in enumerate(results):
            result = gm.graph.call_function(operator.getitem, (call, i))
            result.meta |= {key: node.meta[key] for key in _COPIED_METADATA if key in node.meta}
            node.replace_all_uses_with(result, lambda user: user not in inside)
    for node in reversed(nodes):
        gm.graph.erase_node(node)


def mark_eager_checkpoints(gm: fx.GraphModule, inlines: bool) -> None:
    """Mark checkpointed functions to run as recorded, by ``as_is``, which has the reason.

    Not marked are those that can be inlined, for a backend that ``inlines`` them.
    """
    calls = [*filter(is_checkpoint, gm.graph.nodes)]
    written = {call: _written_operands(gm, call) for call in calls} if inlines else {}
    for call in calls:
        others = (operands for other, operands in written.items() if other is not call)
        if not (inlines and _can_inline(gm, call, others)):
            call.meta[AS_IS] = "is computed again in the backward pass"


def _can_inline(gm: fx.GraphModule, call: fx.Node, written: Iterable[set[fx.Node]]) -> bool:
    """True if the operators of a checkpointed function may be inlined in the graph.

    In the backward pass, it must read the same captured values, and write to no tensor from
    outside. ``written`` has the operands to which other checkpointed functions write.
    """
    part, argument_count, *operands = call.args
    captured = set(operands[argument_count:])
    if any(may_write(node) and node.args[0] in captured for node in gm.graph.nodes if node.args):
        return False
    if not all(map(captured.isdisjoint, written)):
        return False
    inside = _attribute(gm, part).graph
    if any(AS_IS in node.meta or _has_generator(node) for node in inside.nodes):
        return False
    writers = _writers(inside)
    if call.kwargs.get("reentrant"):
        return not writers and _has_one_backward_path(call, inside)
    return not writers or _are_known_updates(writers)


def _writers(inside: fx.Graph) -> list[fx.Node]:
    return [node for node in inside.nodes if WRITES in node.meta]


def _written_operands(gm: fx.GraphModule, call: fx.Node) -> set[fx.Node]:
    """The operands of a checkpointed function that are inputs of nodes which write."""
    part, _, *operands = call.args
    inside = _attribute(gm, part).graph
    sources = {source for node in _writers(inside) for source in node.all_input_nodes}
    pairs = zip(inside.find_nodes(op="placeholder"), operands, strict=True)
    return {operand for placeholder, operand in pairs if placeholder in sources}


def _has_generator(node: fx.Node) -> bool:
    """True if a node draws from a generator of the program, which a checkpoint does not restore."""
    return node.kwargs.get("generator") is not None


def _has_one_backward_path(call: fx.Node, inside: fx.Graph) -> bool:
    """True if the nested backward pass of a reentrant checkpoint makes no difference.

    There must be one result, since a second one without a gradient would receive zeros, and
    captured tensors must receive their whole gradient there.
    """
    results = inside.output_node().args[0]
    differentiated = [call.args[2 + index] for index in call.meta[DIFFERENTIATED]]
    return len(results) == 1 and all([*node.users] == [call] for node in differentiated)


def _are_known_updates(writers: Sequence[fx.Node]) -> bool:
    """True if these nodes of a function make known updates when the function runs again.

    It runs again when the gradient of its only result arrives.
    """
    results = writers[0].graph.output_node().args[0]
    if len(results) != 1 or TRIGGERS_RECOMPUTATION not in results[0].meta:
        return False
    return all(node.meta[WRITES] and (_is_batch_norm(node) or _is_count(node)) for node in writers)


def _is_batch_norm(node: fx.Node) -> bool:
    """True if a node writes to running statistics, and to nothing else."""
    if node.target is not torch.batch_norm or node.kwargs or len(node.args) != 9:
        return False
    *_, first, second, trains, momentum, epsilon, _ = node.args
    numbers = type(momentum) is float and type(epsilon) is float
    return trains is True and numbers and _is_captured(first) and _is_captured(second)


def _is_count(node: fx.Node) -> bool:
    """True if a node adds a number to a captured tensor."""
    adds = node.target == "add_" and len(node.args) == 2 and not node.kwargs
    return adds and _is_captured(node.args[0]) and type(node.args[1]) in (int, float)


def _is_captured(node: Any) -> bool:
    """True for an operand of the function that only one of its nodes reads."""
    return isinstance(node, fx.Node) and node.op == "placeholder" and len(node.users) == 1


def inline_checkpoints(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with checkpointed functions inlined, their operators marked for recomputation."""
    if not any(map(is_checkpoint, gm.graph.nodes)):
        return gm
    graph, root = fx.Graph(), UnobservedModule()
    copies: dict[fx.Node, fx.Node] = {}
    results: dict[fx.Node, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if is_checkpoint(node):
            results[node] = _inline(gm, node, len(results), graph, root, copies)
        elif node.target is operator.getitem and node.args[0] in results:
            copies[node] = results[node.args[0]][node.args[1]]
        elif node.op != "get_attr" or not all(map(is_checkpoint, node.users)):
            copies[node] = _copy(gm, node, graph, root, copies)
    return UnobservedGraphModule(root, graph, class_name=type(gm).__name__)


def _inline(
    gm: fx.GraphModule, call: fx.Node, number: int, graph: fx.Graph, root: torch.nn.Module,
    copies: dict[fx.Node, fx.Node],
) -> list[fx.Node]:  # fmt: skip
    """Copy the operators of a checkpointed function to ``graph``; return its results."""
    attribute, argument_count, *operands = call.args
    part = _attribute(gm, attribute)
    inner = dict(
        zip(part.graph.find_nodes(op="placeholder"), map(copies.get, operands), strict=True)
    )
    for node in part.graph.nodes:
        if node.op not in ("placeholder", "output"):
            inner[node] = _copy(part, node, graph, root, inner)
            # Results belong to the outer graph: whether they are saved depends on their users.
            if part.graph.output_node() not in node.users:
                inner[node].meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                inner[node].meta["ac_graph_id"] = number
    results = [inner[node] for node in part.graph.output_node().args[0]]
    writers = [node for node in part.graph.nodes if WRITES in node.meta]
    if writers:
        updates = [update for node in writers for update in _updates(graph, node, inner, number)]
        results = [graph.call_function(update_on_recompute, (results[0], updates))]
    if call.kwargs.get("reentrant"):
        arguments = tuple(map(copies.get, operands[:argument_count]))
        results = [graph.call_function(_tied, (result, *arguments)) for result in results]
    return results


def _updates(
    graph: fx.Graph, writer: fx.Node, inner: Mapping[fx.Node, fx.Node], number: int
) -> list[Update]:
    """The updates that a node makes when its checkpointed function runs again."""
    if not _is_batch_norm(writer):
        target, change = writer.args
        return [(inner[target], 1, change)]
    batch, _, _, *statistics = writer.args[:5]
    targets = [inner[node] for node in statistics]
    changes = [graph.call_function(torch.zeros_like, (target,)) for target in targets]
    detached = graph.call_method("detach", (inner[batch],))
    norm = graph.call_function(torch.batch_norm, (detached, None, None, *changes, *writer.args[5:]))
    for node in (detached, norm):
        node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": number}
    scale = 1 - writer.args[6]
    return [(target, scale, change) for target, change in zip(targets, changes, strict=True)]


def _copy(
    gm: fx.GraphModule, node: fx.Node, graph: fx.Graph, root: torch.nn.Module,
    copies: dict[fx.Node, fx.Node],
) -> fx.Node:  # fmt: skip
    """Copy a node of ``gm`` to ``graph``, and the attribute that it reads to ``root``."""
    if node.op != "get_attr":
        return graph.node_copy(node, copies.__getitem__)
    name = f"attribute_{len(graph.nodes)}"
    value = _attribute(gm, node)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        root.register_buffer(name, value)
    else:
        setattr(root, name, value)
    copy = graph.get_attr(name)
    copy.meta |= node.meta
    return copy


def _attribute(gm: fx.GraphModule, node: Any) -> Any:
    return operator.attrgetter(str(node.target))(gm)
