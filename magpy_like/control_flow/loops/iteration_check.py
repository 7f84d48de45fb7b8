"""The check that the next iteration records the same graph as an isolated one."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from magpy_like.control_flow.loops.carried_containers import (
    Path,
    check_depth,
    containers,
    differences,
    parts,
)
from magpy_like.control_flow.loops.counting_loops import bounds_of, is_one_number, step_of
from magpy_like.control_flow.loops.iteration_values import preexists
from magpy_like.control_flow.loops.loop_description import Counter
from magpy_like.control_flow.loops.loop_iteration import Iteration
from magpy_like.control_flow.loops.loop_plan import CarriedValue, PlanGrew
from magpy_like.control_flow.paths.symbolic_sizes import check_twins
from magpy_like.control_flow.paths.value_comparison import check_like, describe
from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.monitor.symbolic.lists.loop_ranges import constant_offset
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import LoopNotMergeable


def check_iteration(iteration: Iteration) -> None:
    """Find the changes of an iteration, and check that the next one records the same graph.

    Raises:
        Split: the graphs may differ.
        PlanGrew: the graphs agree if more values are carried or require gradients.
    """
    _collect_changes(iteration)
    _check_carried(iteration)


# --- changes -------------------------------------------------------------------------------------


def _collect_changes(iteration: Iteration) -> None:
    """Find the differences from the state in which the iteration began."""
    plan, end = iteration.plan, iteration.end
    if not end.is_at_head:
        raise LoopNotMergeable("an iteration does not return to the loop head")
    below = len(plan.state.stack) - plan.offsets.operands
    if plan.counter is not None:
        _check_count(iteration, plan.counter)
    if not all(map(operator.is_, end.stack[:below], iteration.begun.stack[:below])):
        raise LoopNotMergeable("an iteration changes operands below its iterator")
    final_containers: list[int] = []
    final = (*end.locals, *plan.comprehension_list(end.stack), *iteration.location_results)
    for slot in plan.live_at_head:
        if plan.counter is not None and slot == plan.counter.slot:
            continue
        if slot not in plan.live_in:
            for path, result in _final_values(iteration, final[slot], ()):
                iteration.final_values.append(CarriedValue(slot, path, NULL, result=result))
        elif not _carry_changes(iteration, slot, final[slot]):
            continue
        final_containers += map(id, containers(final[slot]))
    changed = {leaf.slot for leaf in plan.carried.values() if not leaf.is_list_tail}
    if changed & {appended_list.slot for appended_list in iteration.lists}:
        raise LoopNotMergeable("iterations change elements of a list that they append to")
    if len(set(final_containers)) < len(final_containers):
        raise LoopNotMergeable("an iteration leaves one container in two variables")
    if any(leaf.symbol and leaf.result is None for leaf in plan.carried.values()):
        raise LoopNotMergeable("iterations alternate in the values they carry")


def _carry_changes(iteration: Iteration, slot: int, after: Any) -> bool:
    """Extend the plan by the changes of the value in a slot; False if there are none."""
    plan, was = iteration.plan, iteration.before[slot]
    is_own = slot in plan.own_lists and after is iteration.slots[slot]
    if is_own and len(after) > len(was):
        iteration.append_list(slot, list(plan.values[slot]), after)
        after = after[: len(was)]
    found = list(differences(was, after, plan.context.recording))
    for path, result in found:
        plan.carry(slot, path, result)
    return bool(found)


def _final_values(iteration: Iteration, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The tensors and numbers of the last iteration in a value that no iteration receives.

    Raises:
        Split: the iteration has created something else there.
    """
    rec, end = iteration.plan.context.recording, iteration.end
    if is_instance(value, torch.Tensor):
        node = rec.operators.nodes.node_of(value)
        if end.created(value) or node in end.nodes or node in iteration.input_symbols:
            yield path, value
    elif is_number(value):
        if iteration.plan.context.lifted.any_lifted((value,)):
            yield path, value
    elif (inside := parts(value)) is not None and rec.variables.node(value) is None:
        check_depth(path)
        for key, item in inside.items():
            yield from _final_values(iteration, item, (*path, key))
    elif not (is_plain(value) or is_identity(value) or value is NULL):
        if rec.variables.node(value) is None:
            raise LoopNotMergeable(f"an iteration leaves {describe(value)}")


def _check_count(iteration: Iteration, counter: Counter) -> None:
    """Find the counter of a ``while`` loop, and by how much an iteration advances it.

    Raises:
        Split: it does not count towards a constant limit.
        PlanGrew: the plan has the counter or its bounds only now.
    """
    plan, operands = iteration.plan, iteration.end.stack[-2:]
    context, first = plan.context, plan.state.stack[-2:]
    found, stop = operands[counter.at], first[1 - counter.at]
    if not is_one_number(context, operands[1 - counter.at], stop):
        raise LoopNotMergeable("iterations change the bound of their counter")
    node = context.recording.operators.numbers.value_node(found, context.recording.graph.value)
    counter.is_length = counter.slot is None and bool(constant_offset(iteration.index, node))
    if counter.slot is not None or counter.is_length:
        if counter.slot is not None and iteration.end.locals[counter.slot] is not found:
            raise LoopNotMergeable("iterations compare another value than their counter")
        step = step_of(iteration.index, node)
        bounds = bounds_of(context, counter.holds, first[counter.at], stop, step)
        if step != plan.bounds[2] or int(bounds[1]) != int(plan.bounds[1]):
            plan.bounds = bounds
            raise PlanGrew
        return
    in_locals = range(plan.first_location)
    slots = [
        slot for slot in plan.live_in if slot in in_locals and iteration.end.locals[slot] is found
    ]
    known = [slot for slot in slots if (slot, ()) in plan.carried]
    if known and plan.values[known[0]] == first[counter.at] and context.lifted.any_lifted((found,)):
        counter.slot = known[0]
        del plan.carried[known[0], ()]
        raise PlanGrew


# --- agreement of iterations ---------------------------------------------------------------------


def _check_carried(iteration: Iteration) -> None:
    """Check that the carried values may start the next iteration.

    Raises:
        Split: they cannot.
        PlanGrew: other values than planned are carried or require gradients.
    """
    plan, end = iteration.plan, iteration.end
    if any(leaf.symbol is None for leaf in plan.carried.values()):
        raise PlanGrew
    counter = plan.counter
    if counter is not None and counter.slot is None and not counter.is_length:
        raise LoopNotMergeable("no variable counts the iterations")
    _drop_unread(iteration)
    for leaf in (*plan.carried.values(), *iteration.final_values):
        leaf.may_preexist = preexists(iteration, leaf.result, end)
    for appended_list in iteration.lists:
        preexist = [preexists(iteration, item, end) for item in appended_list.appended]  # check all
        appended_list.may_preexist = any(preexist)
    if any(not is_instance(item, torch.Tensor) for s in iteration.lists for item in s.appended):
        raise LoopNotMergeable("iterations append numbers to a list")
    differ = False
    for leaf in plan.carried.values():
        if is_instance(leaf.initial, torch.Tensor):
            check_like(leaf.result, leaf.initial, but="part in gradients")
            _check_sizes(iteration, leaf)
            differ |= leaf.requires_grad != leaf.result.requires_grad
            leaf.requires_grad = leaf.result.requires_grad
    if differ and plan.has_joined_gradients:
        raise LoopNotMergeable("iterations alternate in which values require gradients")
    if differ:
        plan.has_joined_gradients = True
        raise PlanGrew


def _drop_unread(iteration: Iteration) -> None:
    """Do not carry values that iterations write to objects and never read: the values from before
    the loop must receive no gradients."""
    plan = iteration.plan
    leaves = [*plan.carried.values(), *iteration.final_values]
    results = [leaf.result for leaf in leaves]
    results += [tensor for appended_list in iteration.lists for tensor in appended_list.appended]
    left = {plan.context.recording.operators.nodes.node_of(result) for result in results}
    for key, leaf in list(plan.carried.items()):
        if leaf.slot < plan.first_location or not is_instance(leaf.initial, torch.Tensor):
            continue
        if not leaf.symbol.users and leaf.symbol not in left:
            del plan.carried[key]
            iteration.final_values.append(leaf)


def _check_sizes(iteration: Iteration, leaf: CarriedValue) -> None:
    """Check the sizes of a carried tensor that vary between calls.

    Raises:
        Split: an iteration changes them.
    """
    rec = iteration.plan.context.recording
    if rec.sizes.twin is None:
        return
    node = rec.operators.nodes.node_of(leaf.result)
    before, after = leaf.symbol.meta[TWIN], node.meta.get(TWIN) if node is not None else None
    if after is None or after.dim() != before.dim():
        raise LoopNotMergeable("the sizes of a tensor that an iteration creates are unknown")
    check_twins(iteration.plan.context, before, after)
