"""Branches and loops of graphs: the operators, what they mean in Python, and what is told of them.

``cond`` and ``while_loop`` are those of ``torch.ops.higher_order``; ``for_loop`` and
``for_loop_with_exits`` are ours. How a graph that has them is compiled: :mod:`.parts`.

Operators that no backend takes as they are meant (a custom autograd function that reads a tensor's
value, ``checkpoint``) carry ``as_is`` in their ``meta``, and run as they were recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

_MODES = ("_enter_", "_exit_", "_set_", "set_")
"""How the names of functions begin that switch torch's modes: they stay between the parts."""


def run_cond(
    predicate: Any, true_side: Callable[..., Any], false_side: Callable[..., Any], operands: Any
) -> Any:
    """What ``cond`` means, in Python."""
    return (true_side if predicate else false_side)(*operands)


def run_while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], carried: Any, others: Any
) -> Any:
    """What ``while_loop`` means, in Python."""
    body = _begun(body)
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
    """A loop over ``range(*bounds)``, whose rounds share one graph; there is at least one.

    ``body(index, *carried, *others)`` gives what the next round is given for ``carried``, then
    what is wanted of the last round only, then the elements that the round adds to lists.
    ``gathered`` has a pair per list: what it begins with, and how many elements a round adds.

    Returns what the last round has given, but for the elements, and then the lists.
    """
    body = _begun(body)
    lists = [list(begin) for begin, _ in gathered]
    added = sum(count for _, count in gathered)
    given: Sequence[Any] = ()
    for index in range(*bounds):
        given = body(index, *carried, *others)
        carried = given[: len(carried)]
        at = len(given) - added
        for found, (_, count) in zip(lists, gathered, strict=True):
            found.extend(given[at : at + count])
            at += count
    return (*given[: len(given) - added], *lists)


def for_loop_with_exits(
    bounds: tuple[int, int, int],
    exits: Sequence[tuple[bool | None, Sequence[int], int]],
    carried: Any,
    gathered: Sequence[tuple[Sequence[Any], int]],
    body: Callable[..., Any],
    *parts: Any,
) -> tuple[Any, ...]:
    """The same of a loop that a round may leave before its end.

    ``parts`` are a graph for each of the ``exits``, and ``others``. ``body`` gives what the first,
    second, ... exit depends on, what the next round is given, what the graphs of the exits are
    given, and the elements. An exit is the truth that leaves there (the last one is that behind
    the last round, and has none), how many elements the round has added to each list by then, and
    where what its graph is given begins; ``others`` come behind that.

    Returns what the graph of an exit gives, then how long each list is, and then the lists.
    """
    body = _begun(body)
    *leave, others = parts
    lists = [list(begin) for begin, _ in gathered]
    first = len(exits) - 1
    given: Sequence[Any] = ()
    left = None
    for index in range(*bounds):
        given = body(index, *carried, *others)
        left = next((i for i in range(first) if bool(given[i]) is exits[i][0]), None)
        at = len(given) - sum(count for _, count in gathered)
        wanted = [count for _, count in gathered] if left is None else exits[left][1]
        for found, (_, count), added in zip(lists, gathered, wanted, strict=True):
            found.extend(given[at : at + added])
            at += count
        if left is not None:
            break
        carried = given[first : first + len(carried)]
    at = first if left is None else left
    begin = exits[at][2]
    end = exits[at + 1][2] if at < first else len(given) - sum(count for _, count in gathered)
    return (*leave[at](*given[begin:end], *others), *map(len, lists), *lists)


_CALLS = ("call_function", "call_method")

CONTROL: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.cond: run_cond,
    torch.ops.higher_order.while_loop: run_while_loop,
    for_loop: for_loop,
    for_loop_with_exits: for_loop_with_exits,
}

BODY_ARGUMENTS = {torch.ops.higher_order.while_loop: 1, for_loop: 0, for_loop_with_exits: 4}
"""Which argument of a loop is the graph of its rounds."""
RANGE_LOOPS = (for_loop, for_loop_with_exits)
NUMBER, LIST = "number", "list"
"""The keys by which ``torch.fx`` keeps about a node that it is a number, or a list of tensors."""


def has_parts(gm: fx.GraphModule) -> bool:
    """Whether a graph has branches, loops or operators that run as they are."""
    return any(
        node.target in CONTROL or "as_is" in node.meta
        for node in gm.graph.nodes
        if node.op in _CALLS
    )


def body_of(node: fx.Node) -> Any:
    """The graph that a loop repeats."""
    return node.args[BODY_ARGUMENTS[node.target]] if node.target in BODY_ARGUMENTS else None


def is_between_parts(node: fx.Node) -> bool:
    """Whether a node is none of a part's."""
    if node.op in ("placeholder", "output") or "as_is" in node.meta:
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
    return takes[0].target in CONTROL or _comes_as_is(takes[0])


def _comes_as_is(node: fx.Node) -> bool:
    """Whether a node is what an operator that runs as it is gives, or is taken out of that."""
    if "as_is" in node.meta:
        return True
    return node.target is operator.getitem and any(map(_comes_as_is, node.all_input_nodes[:1]))


def is_python_value(node: fx.Node) -> bool:
    """Whether a node is nothing that a backend takes: a number would be a constant to it."""
    return bool(node.meta.get(NUMBER) or node.meta.get(LIST))


def _begun(body: Callable[..., Any]) -> Callable[..., Any]:
    begin_execution = getattr(body, "begin_execution", None)
    return body if begin_execution is None else begin_execution()


def is_control(node: fx.Node) -> bool:
    """Whether a node is a branch or a loop."""
    return node.target in CONTROL


def may_write(node: fx.Node) -> bool:
    """Whether a node's operator changes what it is given, as far as its name tells."""
    name = name_of(node)
    in_place = name.endswith("_") and not name.endswith("__")
    in_place |= name.startswith("__i") or name.strip("_") == "setitem"
    in_place |= getattr(node.target, "__module__", "") == "_operator" and name.startswith("i")
    return in_place or node.kwargs.get("out") is not None or bool(node.kwargs.get("inplace"))


def name_of(node: fx.Node) -> str:
    """The name of the method or function that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
