"""Rules of instructions on lifted numbers: they compute with them or specialize them."""

from __future__ import annotations

import opcode
import operator
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import ValueRead
from magpy_like.bytecode.instruction_facts import FORMATS, formatting
from magpy_like.bytecode.tested_jumps import CONDITIONAL_JUMPS, comparison
from magpy_like.monitor import random_draws
from magpy_like.monitor.calls import python_operators
from magpy_like.monitor.calls.call_inputs import visit_input
from magpy_like.monitor.calls.lifted_calls import finish_computed
from magpy_like.monitor.symbolic.expressions import is_liftable, is_number
from magpy_like.monitor.symbolic.lifted_text import formatted, joined, sliced
from magpy_like.monitor.symbolic.lists import varying_lists
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.monitor.symbolic.numbers.pure_number_calls import Function, lifted_call
from magpy_like.monitor.symbolic.numbers.symbolic_numbers import ARITHMETIC
from magpy_like.native import frame_set_operand, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import is_plain

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step

    Token = tuple[Callable[..., Any], Any] | None


def _compute(context: Context, operation: Any, operands: tuple[Any, ...]) -> Token:
    if operation in python_operators.FORMATS and is_instance(operands[0], str | bytes):
        if (function := _repeated(context, operation, operands)) is not None:
            return finish_computed, function
        context.lifted.specialize(operands)
    if not context.lifted.any_lifted(operands):
        return None
    if (derived := random_draws.repeat_array_call(context, operation, operands, {})) is not None:
        return derived
    if operation in ARITHMETIC and all(is_number(operand) for operand in operands):
        return finish_computed, (operation, operands)
    if operation in _APPENDS and all(type(operand) is str for operand in operands):
        return finish_computed, (joined, operands)
    if any(is_instance(operand, torch.Tensor) for operand in operands):
        return None  # an input of the operator graph
    context.lifted.specialize(operands)
    return None


def _repeated(context: Context, operation: Any, operands: tuple[Any, ...]) -> Function | None:
    """An instruction on numbers, text and containers of them, as a function of the lifted ones."""
    function = lifted_call(operation, operands, {}, context.lifted.is_lifted)
    if function is not None:
        for operand in operands:
            visit_input(context.recording, operand)
    return function


_APPENDS = (operator.add, operator.iadd)


def _compute_binary(context: Context, step: Step) -> Token:
    return _compute(context, python_operators.BINARY[step.oparg], step.stack[-2:])


def _compute_unary(context: Context, step: Step) -> Token:
    return _compute(context, python_operators.UNARY[opcode.opname[step.opcode]], step.stack[-1:])


def _compare(context: Context, step: Step) -> Token:
    compared = python_operators.OPERATORS[comparison(step.oparg)]
    if context.branching is not None and context.branching.at_comparison(context, step, compared):
        return None
    operands = step.stack[-2:]
    if _becomes_branch(context, step, compared, operands):
        return None
    return _require_truth(context, compared, operands)


def _becomes_branch(
    context: Context, step: Step, operation: Any, operands: tuple[Any, ...]
) -> bool:
    """True if an isolated run branches on numbers of the graph, by an operator from now on."""
    if (
        context.isolation.branch_run is None
        or context.branching is None
        or not context.lifted.guards.differs_between_iterations(operation, operands)
    ):
        return False
    return context.branching.at_graph_condition(context, step, operation, operands)


def _contains(context: Context, step: Step) -> Token:
    item, container = step.stack[-2:]
    if getattr(type(container), "__contains__", None) is dict.__contains__:
        context.lifted.specialize((item, tuple(dict.keys(container))))  # its values are not read
        return None
    return _require_truth(context, operator.contains, (container, item))


def _identify(context: Context, step: Step) -> Token:
    left, right = step.stack[-2:]
    if is_liftable(left) and is_liftable(right):
        restore_originals(context, step, 2)  # before a number turns out to split the program
        context.lifted.specialize((left, right))
    return None


def restore_originals(context: Context, step: Step, count: int) -> None:
    """Replace the topmost operands by the objects that their lifted numbers replace: the program
    compares identities. Such numbers are specialized."""
    for depth, value in enumerate(step.stack[: -count - 1 : -1], start=1):
        original = context.lifted.external.original(value)
        if original is not value:
            context.recording.inspections.rely_on_identity(value, original)
            frame_set_operand(step.frame, depth, original)


def _branch(context: Context, step: Step) -> Token:
    value = step.stack[-1]
    if not is_liftable(value) or _becomes_branch(context, step, operator.truth, (value,)):
        return None
    return _require_truth(context, operator.truth, (value,))


def _require_truth(context: Context, operation: Any, operands: tuple[Any, ...]) -> Token:
    tensors = any(is_instance(operand, torch.Tensor) for operand in operands)
    if any(is_instance(operand, np.ndarray) for operand in operands):
        return random_draws.repeat_array_call(context, operation, operands, {})
    if tensors or not context.lifted.identities.holds_lifted(operands):
        return None
    function = None
    by_sizes = context.lifted.identities.twins_of(operands) is not None and range not in map(
        type, operands
    )
    if not (by_sizes or all(map(is_liftable, operands))):
        function = _repeated(context, operation, operands)
    if function is None:
        context.lifted.guards.require_truth(operation, operands)
    else:
        context.lifted.guards.require_result(*function, operation(*operands))
    return None


def _specialize(*depths: int) -> Callable[[Context, Step], Token]:
    """The rule that specializes the operands at these depths (1: the topmost)."""

    def specialize(context: Context, step: Step) -> Token:
        context.lifted.specialize([step.stack[-depth] for depth in depths])
        return None

    return specialize


def _index(container: int, *keys: int) -> Callable[[Context, Step], Token]:
    """The rule that specializes the keys at these depths, unless the container is a tensor."""

    def specialize(context: Context, step: Step) -> Token:
        if not is_instance(step.stack[-container], torch.Tensor):
            context.lifted.specialize([step.stack[-depth] for depth in keys])
        return None

    return specialize


def _read_item(context: Context, step: Step) -> Token:
    """Read a part of a lifted text, or an item at a lifted key: a number of a list or tuple varies
    with the key."""
    container, key = step.stack[-2:]
    if _is_lifted_text(context, container):
        return _read_text(context, container, key)
    rows = context.recording.operators.lists.get(id(container))
    if is_instance(rows, GraphList) or (rows is not None and type(key) is int):
        return None  # the read's own rule computes the element of any iteration
    if type(container) is np.ndarray and random_draws.is_element_index(container, key):
        derived = random_draws.repeat_array_call(context, operator.getitem, (container, key), {})
        if derived is not None:
            return derived
    found = _item(container, key) if context.lifted.any_lifted((key,)) else None
    if not is_number(found):
        return _index(2, 1)(context, step)
    node = context.recording.variables.node(container)
    if node is not None and context.lifted.is_computable_before_graph(key) and not node.changed:
        context.recording.inspections.visit(container, ValueRead.TYPE)
        return _finish_item, (node, key)
    token = varying_lists.read_item(context, container, key)
    if token is not None or (node is not None and node.changed):
        return token or _index(2, 1)(context, step)
    function = _repeated(context, operator.getitem, (container, key))
    return (finish_computed, function) if function else _index(2, 1)(context, step)


def _read_slice(context: Context, step: Step) -> Token:
    """``source[start:stop]`` in one instruction."""
    source, start, stop = step.stack[-3:]
    if _is_lifted_text(context, source):
        return _read_text(context, source, slice(start, stop))
    return _index(3, 2, 1)(context, step)


def _is_lifted_text(context: Context, value: Any) -> bool:
    return type(value) is str and context.lifted.is_lifted(value)


def _read_text(context: Context, text: str, key: Any) -> Token:
    """``text[key]`` of a lifted text: a part varies with the whole."""
    if type(key) is slice:
        bounds = key.start, key.stop, key.step
        if all(map(is_plain, bounds)):
            return finish_computed, (sliced, (text, *bounds))
    elif is_plain(key):
        return finish_computed, (operator.getitem, (text, key))
    context.lifted.specialize([text, key])
    return None


def _write_item(context: Context, step: Step) -> Token:
    """Store an item at a lifted key."""
    value, target, key = step.stack[-3:]
    stored = varying_lists.write_item(context, target, key, value)
    return _index(2, 1)(context, step) if stored is None else stored


def _item(container: Any, key: Any) -> Any:
    """An item of a list or tuple; None if there is none, or for any other container."""
    if type(container) not in (list, tuple) or type(key) is not int:
        return None
    return container[key] if -len(container) <= key < len(container) else None


def _finish_item(context: Context, payload: tuple[ShadowNode, Any], result: Any) -> Any:
    return context.lifted.arithmetic.read_item(*payload, result)


def _format(context: Context, step: Step) -> Token:
    field = formatting(opcode.opname[step.opcode], step.oparg)
    assert field is not None
    value, specification = step.stack[-2:] if field.is_specified else (step.stack[-1], "")
    operands = (value, field.conversion, specification)
    if is_plain(value) and context.lifted.any_lifted(operands):
        return finish_computed, (formatted, operands)
    context.lifted.specialize([value, specification])
    return None


def _join(context: Context, step: Step) -> Token:
    operands = step.stack[len(step.stack) - step.oparg :]
    return (finish_computed, (joined, operands)) if context.lifted.any_lifted(operands) else None


def _iterate(context: Context, step: Step) -> Token:
    if type(step.stack[-1]) is str:
        context.lifted.specialize(step.stack[-1])
    return None


def _make_set(context: Context, step: Step) -> Token:
    context.lifted.specialize(list(step.stack[len(step.stack) - step.oparg :]))
    return None


def _make_dict(context: Context, step: Step) -> Token:
    context.lifted.specialize(list(step.stack[len(step.stack) - 2 * step.oparg :: 2]))
    return None


def _attribute(context: Context, step: Step) -> Token:
    value = step.stack[-1]
    if is_liftable(value) and not _is_called(step, value):
        context.lifted.specialize(value)
    return None


def _is_called(step: Step, value: Any) -> bool:
    """True if an instruction looks up a method of a number or text, which is called next."""
    finds = opcode.opname[step.opcode] == "LOAD_METHOD" or (
        sys.version_info >= (3, 12) and step.oparg & 1
    )
    return bool(finds) and is_instance(lookup_in_type(type(value), step.name), _METHODS)


_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def _store_attribute(context: Context, step: Step) -> Token:
    if is_plain(step.stack[-1]):  # a fraction is a plain value with attributes
        context.lifted.specialize(step.stack[-2])
    return None


_ITERATIONS = ("GET_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "GET_LEN", "LIST_EXTEND", "SET_UPDATE")


def _lifted_number_rules() -> dict[int, Callable[[Context, Step], Token]]:
    """By opcode, the rules of instructions that do not only move lifted numbers."""
    table: dict[str, Callable[[Context, Step], Token]] = {
        "BINARY_OP": _compute_binary,
        "UNARY_POSITIVE": _compute_unary,
        "UNARY_NEGATIVE": _compute_unary,
        "UNARY_INVERT": _compute_unary,
        "COMPARE_OP": _compare,
        "CONTAINS_OP": _contains,
        "IS_OP": _identify,
        "UNARY_NOT": _branch,
        "TO_BOOL": _branch,
        "BINARY_SUBSCR": _read_item,
        "STORE_SUBSCR": _write_item,
        "DELETE_SUBSCR": _index(2, 1),
        "BINARY_SLICE": _read_slice,
        "STORE_SLICE": _index(3, 2, 1),
        **dict.fromkeys(FORMATS, _format),
        "BUILD_STRING": _join,
        "MATCH_KEYS": _specialize(1),
        "MATCH_CLASS": _specialize(3),
        "BUILD_SET": _make_set,
        "BUILD_MAP": _make_dict,
        "SET_ADD": _specialize(1),
        "MAP_ADD": _specialize(2),
        "LOAD_ATTR": _attribute,
        "LOAD_METHOD": _attribute,
        "STORE_ATTR": _store_attribute,
    }
    for name in _ITERATIONS:
        table[name] = _iterate
    for name in CONDITIONAL_JUMPS:
        table[name] = _branch
    return {
        opcode.opmap[name]: rule
        for name, rule in table.items()
        if opcode.opmap.get(name, 256) < 256
    }


LIFTED_NUMBER_RULES = _lifted_number_rules()
