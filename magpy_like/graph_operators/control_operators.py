"""Control flow in graphs: operators of branches and loops, their semantics in Python, predicates.

``cond`` and ``while_loop`` are those of ``torch.ops.higher_order``; ``for_loop`` and
``for_loop_with_exits`` are defined here. :mod:`magpy_like.compiler.graph_partition` compiles a
graph that contains them.

Operators that no backend compiles faithfully (a custom autograd function that reads a tensor's
value, ``checkpoint``) have ``as_is`` in their ``meta``, and run as they were recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import AS_IS, CUSTOM_WRITES, LIST, NUMBER
from magpy_like.torch_compat.operators import OpOverload

_MODES = ("_enter_", "_exit_", "_set_", "set_")
"""Prefixes of functions that switch torch's modes: they run between the parts."""


def run_cond(
    predicate: Any, true_branch: Callable[..., Any], false_branch: Callable[..., Any], operands: Any
) -> Any:
    """``cond`` in Python."""
    return (true_branch if predicate else false_branch)(*operands)


def run_while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], carried: Any, others: Any
) -> Any:
    """``while_loop`` in Python."""
    body = _begin_execution(body)
    while condition(*carried, *others):
        carried = body(*carried, *others)
    return carried


def for_loop(
    body: Callable[..., Any],
    bounds: tuple[int, int, int],
    carried: Any,
    gathered: Sequence[tuple[Sequence[Any], int]],
    others: Any,
) -> tuple[Any, ...]:
    """A loop over ``range(*bounds)`` whose iterations share one graph; there is at least one.

    Args:
        body: ``body(index, *carried, *others)`` returns the carried values of the next iteration,
            then values that are used from the last iteration only, then the elements that the
            iteration appends to lists.
        bounds: start, stop and step.
        carried: loop-carried values before the first iteration.
        gathered: per list, its elements before the loop, and the number that an iteration appends.
        others: values that no iteration changes.

    Returns the results of the last iteration without the elements, and then the lists.
    """
    body = _begin_execution(body)
    lists = [list(begin) for begin, _ in gathered]
    added = sum(count for _, count in gathered)
    results: Sequence[Any] = ()
    for index in range(*bounds):
        results = body(index, *carried, *others)
        carried = results[: len(carried)]
        position = len(results) - added
        for elements, (_, count) in zip(lists, gathered, strict=True):
            elements.extend(results[position : position + count])
            position += count
    return (*results[: len(results) - added], *lists)


def for_loop_with_exits(
    bounds: tuple[int, int, int],
    exits: Sequence[tuple[bool | None, Sequence[int], int]],
    carried: Any,
    gathered: Sequence[tuple[Sequence[Any], int]],
    body: Callable[..., Any],
    *parts: Any,
) -> tuple[Any, ...]:
    """A ``for_loop`` that an iteration may leave early (``break``, ``return``).

    Args:
        exits: per loop exit, the truth value of its condition that leaves the loop, the number of
            elements that the iteration has appended to each list before it, and the index in
            ``body``'s results at which the arguments of its graph begin. The last one is the exit
            after the last iteration, and has no condition.
        body: returns the conditions of the exits, the carried values of the next iteration, the
            arguments of the exits' graphs, and the elements.
        parts: a graph for each exit, and last ``others``, which the graphs take after their
            arguments.

    Returns the results of the graph of the exit taken, then the length of each list, and then the
    lists.
    """
    body = _begin_execution(body)
    *exit_graphs, others = parts
    lists = [list(begin) for begin, _ in gathered]
    first = len(exits) - 1
    results: Sequence[Any] = ()
    early_exit = None
    for index in range(*bounds):
        results = body(index, *carried, *others)
        early_exit = next((i for i in range(first) if bool(results[i]) is exits[i][0]), None)
        position = len(results) - sum(count for _, count in gathered)
        counts = [count for _, count in gathered] if early_exit is None else exits[early_exit][1]
        for elements, (_, count), added in zip(lists, gathered, counts, strict=True):
            elements.extend(results[position : position + added])
            position += count
        if early_exit is not None:
            break
        carried = results[first : first + len(carried)]
    exit = first if early_exit is None else early_exit
    begin = exits[exit][2]
    end = exits[exit + 1][2] if exit < first else len(results) - sum(n for _, n in gathered)
    return (*exit_graphs[exit](*results[begin:end], *others), *map(len, lists), *lists)


_CALLS = ("call_function", "call_method")

CONTROL: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.cond: run_cond,
    torch.ops.higher_order.while_loop: run_while_loop,
    for_loop: for_loop,
    for_loop_with_exits: for_loop_with_exits,
}

BODY_ARGUMENTS = {torch.ops.higher_order.while_loop: 1, for_loop: 0, for_loop_with_exits: 4}
"""Index of the argument of a loop that is the graph of its iterations."""
RANGE_LOOPS = (for_loop, for_loop_with_exits)


def has_parts(gm: fx.GraphModule) -> bool:
    """True if a graph has branches, loops or operators that run as they were recorded."""
    return any(
        node.target in CONTROL or AS_IS in node.meta for node in gm.graph.nodes if node.op in _CALLS
    )


def body_of(node: fx.Node) -> Any:
    """The graph that a loop repeats; None for other nodes."""
    return node.args[BODY_ARGUMENTS[node.target]] if node.target in BODY_ARGUMENTS else None


def is_between_parts(node: fx.Node) -> bool:
    """True if a node belongs to no part of the graph: Python runs it."""
    if node.op in ("placeholder", "output") or AS_IS in node.meta:
        return True
    takes = node.all_input_nodes
    if is_python_value(node) or any(is_python_value(source) for source in takes):
        return True
    if node.op != "call_function":
        return False
    if node.target in CONTROL or name_of(node).startswith(_MODES):
        return True
    if node.target is not operator.getitem or not takes:
        return False
    return takes[0].target in CONTROL or _is_eager_result(takes[0])


def _is_eager_result(node: fx.Node) -> bool:
    """True for an operator that runs as it was recorded, and for an item of its result."""
    if AS_IS in node.meta:
        return True
    return node.target is operator.getitem and any(map(_is_eager_result, node.all_input_nodes[:1]))


def is_python_value(node: fx.Node) -> bool:
    """True if a node's result is a number or a list; a backend would make it a constant."""
    return bool(node.meta.get(NUMBER) or node.meta.get(LIST))


def _begin_execution(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body for one execution of its loop: a compiled one may keep state meanwhile."""
    begin_execution = getattr(body, "begin_execution", None)
    return body if begin_execution is None else begin_execution()


def is_control(node: fx.Node) -> bool:
    """True for a branch or a loop."""
    return node.target in CONTROL


def may_write(node: fx.Node) -> bool:
    """True if a node's operator changes its arguments, judged by its schema, or its name and
    ``out``; of a custom function, by what the program told autograd."""
    if CUSTOM_WRITES in node.meta:
        return True
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    name = name_of(node)
    in_place = name.endswith("_") and not name.endswith("__")
    in_place |= name.startswith("__i") or name.strip("_") == "setitem"
    in_place |= getattr(node.target, "__module__", "") == "_operator" and name.startswith("i")
    return in_place or node.kwargs.get("out") is not None or bool(node.kwargs.get("inplace"))


def custom_writes(node: fx.Node) -> list[fx.Node]:
    """The arguments that a custom function writes to; none for other nodes."""
    written = (node.args[k] for k in node.meta.get(CUSTOM_WRITES, ()))
    return [each for each in written if isinstance(each, fx.Node)]


def name_of(node: fx.Node) -> str:
    """The name of the method or function that a node calls, or the empty string."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
