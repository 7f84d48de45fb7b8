"""``container[key]``, read, stored and deleted.

An access to a built-in container reads or changes one location of it. The monitor follows a method
in Python; any other object is read, or rewritten, as a whole.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind, ValueRead
from magpy_like.monitor import random_draws
from magpy_like.monitor.calls import python_operators, read_calls
from magpy_like.monitor.instructions.step import Step, Token, finish_without_result
from magpy_like.monitor.instructions.truth_tests import merge_identity_test
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.containers import CONTAINERS, NATIVE_TYPES, is_compared_by_identity
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.expressions import GraphNumber
from magpy_like.monitor.symbolic.lists import loop_windows, unbound_tensors, varying_lists
from magpy_like.monitor.symbolic.lists.graph_lists import ENDS, CarriedList, GraphList
from magpy_like.monitor.symbolic.lists.loop_ranges import constant_offset
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def read_item(context: Context, step: Step) -> Token:
    """``source[key]``."""
    source, key = step.stack[-2:]
    if is_instance(source, dict):
        merge_identity_test(context, step, 1)
    return get_item(context, source, key, step)


def get_item(context: Context, source: Any, key: Any, step: Step | None = None) -> Token:
    """Record the reads of ``source[key]``, by an instruction or as part of another operation."""
    rec = context.recording
    if is_instance(source, torch.Tensor):
        token = python_operators.operate(
            context, operator.getitem, (source, random_draws.tensor_index(context, key))
        )
        loop_windows.record_narrow(context, token)
        return token
    graph_list = rec.operators.lists.get(id(source))
    if is_instance(graph_list, CarriedList) and type(key) is int:
        is_first = graph_list.read_element(key, _follows_index(context, graph_list, key))
        return (_finish_first, graph_list.begin[key]) if is_first else None
    if is_instance(graph_list, GraphList):
        token = _get_from_list(context, graph_list, key)
        if token is not NotImplemented:
            return token
    if type(source) is np.ndarray and random_draws.is_element_index(source, key):
        if (
            derived := random_draws.repeat_array_call(context, operator.getitem, (source, key), {})
        ) is not None:
            return derived
    _inspect_key(context, source, key)
    if is_instance(source, type):
        read_calls.read_item_methods(rec, source)
        return None
    source = rec.inspections.unwrap_proxy(source)
    if is_instance(source, CONTAINERS):
        return _get_from_container(context, source, key, step)
    if type(source) not in NATIVE_TYPES:
        class_lookup.read_class(rec, type(source), "__getitem__")
        if rec.variables.node(source) is not None and not is_instance(
            lookup_in_type(type(source), "__getitem__"), types.FunctionType
        ):
            rec.inspections.visit(source, ValueRead.ALL)
    return None


def _inspect_key(context: Context, source: Any, key: Any) -> None:
    """Record that native code hashes or compares a key.

    Raises:
        Split: a tensor is the index of a sequence.
    """
    rec = context.recording
    if is_plain(key):
        return
    rec.inspections.visit(key, ValueRead.ALL)
    rec.inspections.record_comparison(key)
    if is_instance(key, torch.Tensor) and not is_instance(
        lookup_in_type(type(source), "__getitem__"), types.FunctionType
    ):
        if not is_instance(source, dict):
            raise Split(
                SplitReason.TENSOR_VALUE_READ, "uses a tensor as an index of a Python container"
            )
        for other in dict.keys(source):  # tensors are compared by identity
            rec.inspections.record_comparison(other)


def _get_from_container(context: Context, source: Any, key: Any, step: Step | None) -> Token:
    """Record a read of an element of a built-in container or an instance of a subclass."""
    rec = context.recording
    if type(source) not in CONTAINERS:
        getter = class_lookup.read_class(rec, type(source), "__getitem__")
        if is_instance(getter, types.FunctionType):
            return None
    if is_instance(key, slice):
        varying_reads.substitute(context, source)
    token = varying_lists.read_item(context, source, key)
    if token is not None:
        return token
    read_calls.read_item(rec, source, key)
    node = rec.variables.node(source)
    if node is None or step is None:
        return None
    found_by = is_plain(key) or is_compared_by_identity(key)
    if is_instance(source, dict) and found_by and dict.__contains__(source, key):
        found = dict.__getitem__(source, key)
        return varying_reads.lift_read(
            context, step, node, Relation(RelationKind.KEY, rec.variables.key(key)), found
        )
    if is_instance(source, list | tuple) and type(key) is int:
        index = key if key >= 0 else key + len(source)
        if 0 <= index < len(source):
            return varying_reads.lift_read(
                context, step, node, Relation(RelationKind.ITEM, index), source[index]
            )
    return None


def _get_from_list(context: Context, graph_list: GraphList, key: Any) -> Any:
    """Read an element of a list on the graph; NotImplemented if the list becomes a constant."""
    operators = context.recording.operators
    if (
        graph_list.is_unchanged()
        and type(key) is int
        and (token := loop_windows.read_indexed_element(context, graph_list, key))
    ):
        return token
    context.lifted.specialize(key)
    if graph_list.is_unchanged() and type(key) is int and key in ENDS:
        is_end_new = graph_list.elements_are_new and graph_list.is_never_empty
        if is_end_new and graph_list.holds_only_tensors():
            if graph_list.has_data_dependent_length:
                return _finish_element, (graph_list, key)
            graph_list.know(operators, key)
            return None
    if type(key) is slice and (token := unbound_tensors.slice_list(context, graph_list, key)):
        return token
    operators.inspect_list(graph_list.value)
    return NotImplemented


def _follows_index(context: Context, graph_list: CarriedList, key: int) -> bool:
    """True if a key exceeds the iteration's index by a constant; any other key is specialized.

    Raises:
        Split: the key varies between iterations.
    """
    number, index = context.lifted.expression(key), context.lifted.expression(graph_list.index)
    if is_instance(number, GraphNumber) and is_instance(index, GraphNumber) and key >= 0:
        if constant_offset(index.node, number.node) is not None:
            return True
    context.lifted.specialize((key,))
    return False


def _finish_first(context: Context, first: Any, item: Any) -> Any:
    """Replace an element that existed before the iterations that append to its list."""
    return first


def _finish_element(
    context: Context, payload: tuple[GraphList, int], item: torch.Tensor
) -> torch.Tensor:
    """Replace an element of a list with a data-dependent length."""
    graph_list, position = payload
    found = graph_list.element(context.recording, position)
    context.account()
    return found


def write_item(context: Context, step: Step) -> Token:
    """``target[key] = value``."""
    value, target, key = step.stack[-3:]
    return set_item(context, target, key, value)


def set_item(context: Context, target: Any, key: Any, value: Any) -> Token:
    """Record ``target[key] = value``, by an instruction or as part of another operation."""
    rec = context.recording
    if is_instance(target, torch.Tensor):
        token = python_operators.operate(
            context, operator.setitem, (target, random_draws.tensor_index(context, key), value)
        )
        return None if token is None else (finish_without_result, token)
    rec.inspections.record_hash(key)
    setter = class_lookup.read_class(rec, type(target), "__setitem__")
    if is_instance(key, slice) and not is_instance(setter, types.FunctionType):
        varying_reads.substitute(context, value)
        read_calls.iterate(rec, value)  # its elements are stored
    node = rec.variables.node(target)
    if is_instance(setter, types.FunctionType):
        return None
    if is_instance(target, list) and is_instance(key, slice):
        read_calls.iterate(rec, value)
    elif not is_instance(target, CONTAINERS):
        # A NumPy array stores the value's bytes.
        context.lifted.specialize(value)
        rec.inspections.visit(value, ValueRead.ALL)
    if node is None:
        return None
    if is_instance(target, dict):
        rec.mutations.store(
            node, Relation(RelationKind.KEY, rec.inspections.key_in(node, key)), value
        )
    elif is_instance(target, list) and is_instance(key, int) and not node.rewritten:
        size = len(target)
        rec.inspections.inspect_length(node)
        rec.mutations.store(node, Relation(RelationKind.ITEM, key % size if size else key), value)
    else:
        rec.mutations.rewrite(node)
    return None


def delete_item(context: Context, step: Step) -> Token:
    """``del target[key]``."""
    target, key = step.stack[-2:]
    rec = context.recording
    if is_instance(target, torch.Tensor):
        raise Split(SplitReason.UNSUPPORTED_INSTRUCTION, "deletes an item of a tensor")
    rec.inspections.record_hash(key)
    remover = class_lookup.read_class(rec, type(target), "__delitem__")
    node = rec.variables.node(target)
    if is_instance(remover, types.FunctionType) or node is None:
        return None
    if is_instance(target, dict):
        read_calls.read_item(rec, target, key)
        rec.mutations.remove(node, Relation(RelationKind.KEY, rec.inspections.key_in(node, key)))
    else:
        rec.mutations.rewrite(node)
    return None


def read_slice(context: Context, step: Step) -> Token:
    """``source[start:stop]`` in one instruction (Python 3.12)."""
    source, start, stop = step.stack[-3:]
    return get_item(context, source, slice(start, stop))


def write_slice(context: Context, step: Step) -> Token:
    """``target[start:stop] = value`` in one instruction (Python 3.12)."""
    value, target, start, stop = step.stack[-4:]
    return set_item(context, target, slice(start, stop), value)
