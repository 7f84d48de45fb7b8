"""Checkpointed functions: parts of a graph whose operators run again in the backward pass.

In a captured graph such a part is one node, :func:`checkpointed` with a graph of its own: whatever
runs the graph operator by operator keeps as much for the backward pass, and does as much again, as
eager mode. This project's compiler takes the operators themselves, marked by the
keys that torch's partitioner of forward and backward pass goes by.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from magpy_like.graph_operators.checkpoint_statistics import Update, update_on_recompute
from magpy_like.graph_operators.control_operators import may_write

RECOMPUTED = "recomputed"
"""The key of the :class:`Function` that a node is part of."""
WRITES = "writes"
"""The key of whether a node that writes to a tensor from outside does so again in the backward
pass."""
TRIGGERS_RECOMPUTATION = "leads_back"
"""The key of a result whose gradient has the function run again, if it writes to statistics."""
DIFFERENTIATED = "learned"
"""The key of which operands of a reentrant checkpoint, by place, get gradients beside its own."""
_FORM = ("number", "list", "val")
"""What is known of a result, under other keys."""


class CheckpointedFunction:
    """A checkpointed function in a graph that is being captured."""

    def __init__(self, given: Sequence[fx.Node]) -> None:
        """``given`` are its arguments, which must not change before it runs again."""
        self.given = given


class ReentrantCheckpoint(CheckpointedFunction):
    """One under ``use_reentrant=True``, which has one node in autograd's graph.

    ``results`` are all that it returns, whoever uses them: that node has them as outputs. Of what
    it finds elsewhere, ``learned`` takes part in gradients, which get there in a backward pass of
    its own.
    """

    def __init__(
        self, given: Sequence[fx.Node], results: Sequence[fx.Node], learned: Collection[fx.Node]
    ) -> None:
        super().__init__(given)
        self.results, self.learned = results, learned


def checkpointed(
    part: Callable[..., Any], given: int, *operands: Any, reentrant: bool = False
) -> Any:
    """``part(*operands)`` under a checkpoint, of which the first ``given`` ones are arguments, and
    the others what the function finds elsewhere whenever it runs."""
    found = operands[given:]
    return torch.utils.checkpoint.checkpoint(
        lambda *args: part(*args, *found), *operands[:given], use_reentrant=reentrant
    )


class _Tied(torch.autograd.Function):
    """A result takes part in gradients if an argument does, whatever becomes of its own."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return result.clone()  # a view could not be changed in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, *[None] * (len(ctx.needs_input_grad) - 1)


def _tied(result: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    return _Tied.apply(result, *given)


def is_checkpoint(node: fx.Node) -> bool:
    return node.target is checkpointed


def fold_checkpoints(gm: fx.GraphModule) -> None:
    """Make one node of the nodes of each checkpointed function."""
    parts: dict[CheckpointedFunction, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if RECOMPUTED in node.meta:
            parts.setdefault(node.meta.pop(RECOMPUTED), []).append(node)
    # The last one first: those before it are to be found by the nodes of their results.
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
    given = [source for source in sources if source in function.given]
    if isinstance(function, ReentrantCheckpoint):
        given = list(function.given)
        results += [node for node in function.results if node not in results]
    sources = dict.fromkeys([*given, *sources])
    part, root = fx.Graph(), torch.nn.Module()
    copies = {source: part.placeholder(f"operand_{i}") for i, source in enumerate(sources)}
    for node in nodes:
        copies[node] = _copy(gm, node, part, root, copies)
    part.output(tuple(copies[node] for node in results))
    setattr(gm, name, fx.GraphModule(root, part, class_name="Checkpointed"))
    with gm.graph.inserting_before(nodes[0]):
        call = gm.graph.call_function(checkpointed, (gm.graph.get_attr(name), len(given), *sources))
        if isinstance(function, ReentrantCheckpoint):
            call.kwargs = {"reentrant": True}
            call.meta[DIFFERENTIATED] = [k for k, s in enumerate(sources) if s in function.learned]
        for i, node in enumerate(results):
            result = gm.graph.call_function(operator.getitem, (call, i))
            result.meta |= {key: node.meta[key] for key in _FORM if key in node.meta}
            node.replace_all_uses_with(result, lambda user: user not in inside)
    for node in reversed(nodes):
        gm.graph.erase_node(node)


def mark_eager_checkpoints(gm: fx.GraphModule, unfolds: bool) -> None:
    """Let checkpointed functions run as they are, but for those that a backend which ``unfolds``
    them may have."""
    calls = [*filter(is_checkpoint, gm.graph.nodes)]
    written = {call: _written(gm, call) for call in calls} if unfolds else {}
    for call in calls:
        others = (operands for other, operands in written.items() if other is not call)
        if not (unfolds and _can_unfold(gm, call, others)):
            call.meta["as_is"] = "is computed again in the backward pass"


def _can_unfold(gm: fx.GraphModule, call: fx.Node, written: Iterable[set[fx.Node]]) -> bool:
    """Whether the operators of a checkpointed function may join those around it: in the backward
    pass it finds what it has found before, and writes to nothing from outside. ``written`` is what
    other checkpointed functions write to."""
    held, given, *operands = call.args
    found = set(operands[given:])
    if any(may_write(node) and node.args[0] in found for node in gm.graph.nodes if node.args):
        return False
    if not all(map(found.isdisjoint, written)):
        return False
    inside = _attribute(gm, held).graph
    if any("as_is" in node.meta or _has_generator(node) for node in inside.nodes):
        return False
    writers = _writers(inside)
    if call.kwargs.get("reentrant"):
        return not writers and _has_one_way_back(call, inside)
    return not writers or _are_written_again(writers)


def _writers(inside: fx.Graph) -> list[fx.Node]:
    return [node for node in inside.nodes if WRITES in node.meta]


def _written(gm: fx.GraphModule, call: fx.Node) -> set[fx.Node]:
    """The operands of a checkpointed function that nodes which write to something are given."""
    held, _, *operands = call.args
    inside = _attribute(gm, held).graph
    given = {source for node in _writers(inside) for source in node.all_input_nodes}
    places = zip(inside.find_nodes(op="placeholder"), operands, strict=True)
    return {operand for place, operand in places if place in given}


def _has_generator(node: fx.Node) -> bool:
    """Whether a node draws from a generator of the program's own, of which nothing is put back."""
    return node.kwargs.get("generator") is not None


def _has_one_way_back(call: fx.Node, inside: fx.Graph) -> bool:
    """Whether it makes no difference that a reentrant checkpoint has a backward pass of its own:
    there is one result, or else zeros would arrive for another one, and what is learned gets all
    its gradient there."""
    results = inside.output_node().args[0]
    learned = [call.args[2 + place] for place in call.meta[DIFFERENTIATED]]
    return len(results) == 1 and all([*node.users] == [call] for node in learned)


def _are_written_again(writers: Sequence[fx.Node]) -> bool:
    """Whether it is known what these nodes of a function write when that runs again, which is when
    the gradient of its only result arrives."""
    results = writers[0].graph.output_node().args[0]
    if len(results) != 1 or TRIGGERS_RECOMPUTATION not in results[0].meta:
        return False
    return all(node.meta[WRITES] and (_is_batch_norm(node) or _counts(node)) for node in writers)


def _is_batch_norm(node: fx.Node) -> bool:
    """Whether a node writes to running statistics, and to nothing else."""
    if node.target is not torch.batch_norm or node.kwargs or len(node.args) != 9:
        return False
    *_, first, second, trains, momentum, epsilon, _ = node.args
    numbers = type(momentum) is float and type(epsilon) is float
    return trains is True and numbers and _is_found(first) and _is_found(second)


def _counts(node: fx.Node) -> bool:
    """Whether a node adds a number to a tensor that the function has found."""
    adds = node.target == "add_" and len(node.args) == 2 and not node.kwargs
    return adds and _is_found(node.args[0]) and type(node.args[1]) in (int, float)


def _is_found(node: Any) -> bool:
    """Whether it is an operand of the function that only one of its nodes looks at."""
    return isinstance(node, fx.Node) and node.op == "placeholder" and len(node.users) == 1


def inline_checkpoints(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with the operators of checkpointed functions, marked to be computed again."""
    if not any(map(is_checkpoint, gm.graph.nodes)):
        return gm
    graph, root = fx.Graph(), torch.nn.Module()
    copies: dict[fx.Node, fx.Node] = {}
    results: dict[fx.Node, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if is_checkpoint(node):
            results[node] = _unfold(gm, node, len(results), graph, root, copies)
        elif node.target is operator.getitem and node.args[0] in results:
            copies[node] = results[node.args[0]][node.args[1]]
        elif node.op != "get_attr" or not all(map(is_checkpoint, node.users)):
            copies[node] = _copy(gm, node, graph, root, copies)
    return fx.GraphModule(root, graph, class_name=type(gm).__name__)


def _unfold(
    gm: fx.GraphModule, call: fx.Node, number: int, graph: fx.Graph, root: torch.nn.Module,
    copies: dict[fx.Node, fx.Node],
) -> list[fx.Node]:  # fmt: skip
    """The results of a checkpointed function, whose operators join ``graph``."""
    held, given, *operands = call.args
    part = _attribute(gm, held)
    inner = dict(
        zip(part.graph.find_nodes(op="placeholder"), map(copies.get, operands), strict=True)
    )
    for node in part.graph.nodes:
        if node.op not in ("placeholder", "output"):
            inner[node] = _copy(part, node, graph, root, inner)
            # Results are the outer graph's: whether they are kept depends on who takes them.
            if part.graph.output_node() not in node.users:
                inner[node].meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                inner[node].meta["ac_graph_id"] = number
    results = [inner[node] for node in part.graph.output_node().args[0]]
    writers = [node for node in part.graph.nodes if WRITES in node.meta]
    if writers:
        updates = [update for node in writers for update in _updates(graph, node, inner, number)]
        results = [graph.call_function(update_on_recompute, (results[0], updates))]
    if call.kwargs.get("reentrant"):
        arguments = tuple(map(copies.get, operands[:given]))
        results = [graph.call_function(_tied, (result, *arguments)) for result in results]
    return results


def _updates(
    graph: fx.Graph, writer: fx.Node, inner: Mapping[fx.Node, fx.Node], number: int
) -> list[Update]:
    """What a node of a checkpointed function writes when that runs again."""
    if not _is_batch_norm(writer):
        target, change = writer.args
        return [(inner[target], 1, change)]
    given, _, _, *statistics = writer.args[:5]
    targets = [inner[node] for node in statistics]
    changes = [graph.call_function(torch.zeros_like, (target,)) for target in targets]
    detached = graph.call_method("detach", (inner[given],))
    norm = graph.call_function(torch.batch_norm, (detached, None, None, *changes, *writer.args[5:]))
    for node in (detached, norm):
        node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": number}
    scale = 1 - writer.args[6]
    return [(target, scale, change) for target, change in zip(targets, changes, strict=True)]


def _copy(
    gm: fx.GraphModule, node: fx.Node, graph: fx.Graph, root: torch.nn.Module,
    copies: dict[fx.Node, fx.Node],
) -> fx.Node:  # fmt: skip
    """A node of ``gm`` as one of ``graph``, with the attribute that it stands for in ``root``."""
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
