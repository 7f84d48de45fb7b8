"""One rule per kind of instruction: what it reads and writes (MagPy, section 5.3).

``annotations/opcodes.yaml`` says which instruction is told to which rule. A rule runs before its
instruction and gets the operand stack, bottom first. It may return a token, ``(finish, payload)``;
``finish(run, payload, result)`` is called when the instruction has put its result on the stack.
"""

from __future__ import annotations

import dis
import importlib
import opcode
import operator
import sys
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml

from magpy_like.annotation import RelationKind, ValueRead, lookup
from magpy_like.annotation.location import annotations_dir
from magpy_like.monitor import (
    addresses,
    attributes,
    autograd_nodes,
    calls,
    classes,
    draws,
    formats,
    locks,
    loops,
    native_calls,
    operators,
    reads,
    specials,
)
from magpy_like.monitor.arguments import holds_tensor, is_followed
from magpy_like.monitor.containers import (
    CONTAINERS,
    elements,
    goes_own_ways,
    is_told_by_identity,
)
from magpy_like.monitor.expressions import is_number_or_truth
from magpy_like.monitor.foretold import foretell_branch
from magpy_like.monitor.gathered import ENDS, Gathered, Growing
from magpy_like.monitor.iterators import foreseen, take  # noqa: F401 (a rule)
from magpy_like.monitor.number_rules import give_back
from magpy_like.monitor.polyfills import polyfill, spread
from magpy_like.monitor.repeated_calls import instead
from magpy_like.monitor.split import Split, unknown
from magpy_like.native import NULL, frame_set_operand, lookup_in_type
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.values import is_of_python, is_plain

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., None], Any] | None

_NEW_LOAD_ATTR = sys.version_info >= (3, 12)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that is about to run: MagPy's ExecutionState (section 5.1)."""

    frame: types.FrameType
    opcode: int
    oparg: int
    offset: int
    stack: tuple[Any, ...]

    @property
    def code(self) -> types.CodeType:
        return self.frame.f_code

    @property
    def name(self) -> str:
        """The entry of ``co_names`` that the instruction refers to."""
        arg = self.oparg
        op = opcode.opname[self.opcode]
        if op == "LOAD_GLOBAL" or (op == "LOAD_ATTR" and _NEW_LOAD_ATTR):
            arg >>= 1
        elif op == "LOAD_SUPER_ATTR":
            arg >>= 2
        return self.code.co_names[arg]


def read_argument(run: MonitorRun, step: Step) -> Token:
    """A local is loaded: the first look at an argument of the compiled function."""
    run.read_root_local(step.frame, step.oparg)
    return None


def read_global(run: MonitorRun, step: Step) -> Token:
    """``LOAD_GLOBAL``: the module's name, or where it has none, the built-in one."""
    frame = step.frame
    names = frame.f_globals
    _read_name(run, step.name, names, frame.f_builtins)
    relation = Relation(RelationKind.GLOBAL, step.name)
    found = names.get(step.name)
    if not is_number_or_truth(found):
        return None
    return run.lift_read(step, run.recording.node(names), relation, found)


def _read_name(run: MonitorRun, name: str, names: dict[str, Any], builtins: dict[str, Any]) -> None:
    known = (id(names), name)
    if known in run.globals_read and not is_number_or_truth(names.get(name)):
        return
    run.globals_read.add(known)
    rec = run.recording
    node = rec.constant(names)
    relation = Relation(RelationKind.GLOBAL, name)
    if name in names:
        rec.meet(node, relation, names[name])
    elif relation not in node.written:
        rec.absent(node, relation)
        if name in builtins:
            rec.meet(rec.constant(builtins), relation, builtins[name])


def read_name(run: MonitorRun, step: Step) -> Token:
    """In a class body: the namespace in the making first, which is the region's own."""
    frame = step.frame
    if step.name not in frame.f_locals:
        _read_name(run, step.name, frame.f_globals, frame.f_builtins)
    return None


def write_global(run: MonitorRun, step: Step) -> Token:
    """``STORE_GLOBAL``, and ``STORE_NAME`` in a module."""
    rec = run.recording
    node = rec.constant(step.frame.f_globals)
    rec.store(node, Relation(RelationKind.GLOBAL, step.name), step.stack[-1])
    return None


def delete_global(run: MonitorRun, step: Step) -> Token:
    """``DELETE_GLOBAL``."""
    rec = run.recording
    node = rec.constant(step.frame.f_globals)
    rec.remove(node, Relation(RelationKind.GLOBAL, step.name))
    return None


def read_cell(run: MonitorRun, step: Step) -> Token:
    """A closure variable is loaded."""
    cell = run.cell(step.frame, step.oparg)
    node = run.recording.node(cell)
    if cell is not None and node is not None:
        relation = Relation(RelationKind.CELL)
        try:
            found = cell.cell_contents
        except ValueError:
            run.recording.absent(node, relation)
            return None
        run.recording.meet(node, relation, found)
        return run.lift_read(step, node, relation, found)
    return None


def write_cell(run: MonitorRun, step: Step) -> Token:
    """A closure variable is stored or deleted."""
    cell = run.cell(step.frame, step.oparg)
    node = run.recording.node(cell) if cell is not None else None
    if node is not None:
        relation = Relation(RelationKind.CELL)
        if opcode.opname[step.opcode] == "DELETE_DEREF":
            run.recording.remove(node, relation)
        else:
            run.recording.store(node, relation, step.stack[-1])
    return None


def read_attribute(run: MonitorRun, step: Step) -> Token:
    """``value.name``, unless native code that needs no guard computes it."""
    value = step.stack[-1]
    name = step.name
    if isinstance(value, torch.Tensor):
        return run.read_tensor_attribute(value, name)
    if autograd_nodes.is_node(run.recording, value):
        autograd_nodes.read_attribute(run, value, name)
        return None
    if type(value) not in run.simple_types:
        attributes.read_attribute(run.recording, value, name)
        descriptor = attributes.native_property(value, name)
        if descriptor is not None:
            annotation = lookup(descriptor)
            if annotation is not None:
                return native_calls.native(run, annotation, descriptor, (value,), {})
            if run.recording.node(value) is not None:
                read = f"{type(value).__qualname__}.{name}"
                raise unknown(value, f"reads {read}, native code without an annotation")
        return _lift_attribute(run, step, value, name)
    return None


def _lift_attribute(run: MonitorRun, step: Step, value: Any, name: str) -> Token:
    if isinstance(lookup_in_type(type(value), "__getattribute__"), types.FunctionType):
        return None  # it is Python code that has read, or will read
    node, relation, found = attributes.number_at(run.recording, value, name)
    return run.lift_read(step, node, relation, found)


def read_super_attribute(run: MonitorRun, step: Step) -> Token:
    """``super().name`` in one instruction (Python 3.12)."""
    function, cls, receiver = step.stack[-3:]
    if function is not super:
        return calls.call(run, function, (cls, receiver), {})
    bound_to_class = isinstance(receiver, type) and issubclass(receiver, cls)
    of = receiver if bound_to_class else type(receiver)
    classes.read_super(run.recording, cls, of, step.name)
    return None


def write_attribute(run: MonitorRun, step: Step) -> Token:
    """``target.name = value``."""
    value, target = step.stack[-2:]
    return store_attribute(run, target, step.name, value)


def store_attribute(run: MonitorRun, target: Any, name: str, value: Any) -> Token:
    """``target.name = value`` by the default rules; a ``__setattr__`` in Python is followed."""
    if isinstance(target, torch.Tensor):
        return run.write_tensor_attribute(target, name, value)
    place = attributes.place_of_store(run.recording, target, name, "__setattr__")
    if place is not None:
        run.recording.store(*place, value)
    return None


def delete_attribute(run: MonitorRun, step: Step) -> Token:
    """``del target.name``."""
    target = step.stack[-1]
    if isinstance(target, torch.Tensor):
        raise Split(f"deletes the attribute {step.name} of a tensor")
    place = attributes.place_of_store(run.recording, target, step.name, "__delattr__")
    if place is not None and attributes.look_at_place(run.recording, target, place):
        run.recording.remove(*place)
    return None


def read_item(run: MonitorRun, step: Step) -> Token:
    """``source[key]``."""
    source, key = step.stack[-2:]
    if isinstance(source, dict):
        _ask_which(run, step, 1)
    return get_item(run, source, key, step)


def get_item(run: MonitorRun, source: Any, key: Any, step: Step | None = None) -> Token:
    """``source[key]``, by an instruction or on the way of another operation."""
    rec = run.recording
    if isinstance(source, torch.Tensor):
        return operators.operate(run, operator.getitem, (source, draws.as_index(run, key)))
    given = rec.operators.lists.get(id(source))
    if isinstance(given, Gathered) and given.is_whole() and type(key) is int and key in ENDS:
        given.know(rec.operators, key)
        return None
    if type(source) is np.ndarray and draws.has_element(source, key):
        if (derived := draws.derives(run, operator.getitem, (source, key), {})) is not None:
            return derived
    if not is_plain(key):
        rec.visit(key, ValueRead.ALL)
        rec.compare(key)
        if isinstance(key, torch.Tensor) and not isinstance(
            lookup_in_type(type(source), "__getitem__"), types.FunctionType
        ):
            if not isinstance(source, dict):
                raise Split("uses a tensor as an index into a Python container")
            for other in dict.keys(source):  # tensors are found by their identity
                rec.compare(other)
    if isinstance(source, type):
        return None
    source = rec.proxied(source)
    if isinstance(source, CONTAINERS):
        if type(source) not in CONTAINERS:
            getter = classes.read_class(rec, type(source), "__getitem__")
            if isinstance(getter, types.FunctionType):
                return None
        if isinstance(key, slice):
            run.lend(source)
        reads.read_item(rec, source, key)
        node = rec.node(source)
        if node is None or step is None:
            return None
        found_by = is_plain(key) or is_told_by_identity(key)
        if isinstance(source, dict) and found_by and dict.__contains__(source, key):
            found = dict.__getitem__(source, key)
            return run.lift_read(step, node, Relation(RelationKind.KEY, rec.key(key)), found)
        if isinstance(source, list | tuple) and type(key) is int:
            at = key if key >= 0 else key + len(source)
            if 0 <= at < len(source):
                return run.lift_read(step, node, Relation(RelationKind.ITEM, at), source[at])
    elif type(source) not in run.simple_types:
        classes.read_class(rec, type(source), "__getitem__")
        if rec.node(source) is not None and not isinstance(
            lookup_in_type(type(source), "__getitem__"), types.FunctionType
        ):
            rec.visit(source, ValueRead.ALL)
    return None


def write_item(run: MonitorRun, step: Step) -> Token:
    """``target[key] = value``."""
    value, target, key = step.stack[-3:]
    return set_item(run, target, key, value)


def set_item(run: MonitorRun, target: Any, key: Any, value: Any) -> Token:
    """``target[key] = value``, by an instruction or on the way of another operation."""
    rec = run.recording
    if isinstance(target, torch.Tensor):
        token = operators.operate(run, operator.setitem, (target, draws.as_index(run, key), value))
        return None if token is None else (finish_without_result, token)
    rec.compare(key)
    setter = classes.read_class(rec, type(target), "__setitem__")
    if isinstance(key, slice) and not isinstance(setter, types.FunctionType):
        run.lend(value)
        reads.iterate(rec, value)  # its elements are what is stored
    node = rec.node(target)
    if isinstance(setter, types.FunctionType):
        return None
    if isinstance(target, list) and isinstance(key, slice):
        reads.iterate(rec, value)
    elif not isinstance(target, CONTAINERS):
        # An array of NumPy's keeps what it takes as bytes.
        run.lifted.settle(value)
        rec.visit(value, ValueRead.ALL)
    if node is None:
        return None
    if isinstance(target, dict):
        rec.store(node, Relation(RelationKind.KEY, rec.key_in(node, key)), value)
    elif isinstance(target, list) and isinstance(key, int) and not node.rewritten:
        size = len(target)
        rec.look_at_length(node)
        rec.store(node, Relation(RelationKind.ITEM, key % size if size else key), value)
    else:
        rec.rewrite(node)
    return None


def finish_without_result(run: MonitorRun, token: Any, top: Any) -> None:
    """The instruction leaves nothing on the stack: what lies there now is not its result."""
    finish, payload = token
    finish(run, payload, None)


def delete_item(run: MonitorRun, step: Step) -> Token:
    """``del target[key]``."""
    target, key = step.stack[-2:]
    rec = run.recording
    if isinstance(target, torch.Tensor):
        raise Split("deletes an item of a tensor")
    rec.compare(key)
    remover = classes.read_class(rec, type(target), "__delitem__")
    node = rec.node(target)
    if isinstance(remover, types.FunctionType) or node is None:
        return None
    if isinstance(target, dict):
        reads.read_item(rec, target, key)
        rec.remove(node, Relation(RelationKind.KEY, rec.key_in(node, key)))
    else:
        rec.rewrite(node)
    return None


def read_slice(run: MonitorRun, step: Step) -> Token:
    """``source[start:stop]`` in one instruction (Python 3.12)."""
    source, start, stop = step.stack[-3:]
    return get_item(run, source, slice(start, stop))


def write_slice(run: MonitorRun, step: Step) -> Token:
    """``target[start:stop] = value`` in one instruction (Python 3.12)."""
    value, target, start, stop = step.stack[-4:]
    return set_item(run, target, slice(start, stop), value)


def binary(run: MonitorRun, step: Step) -> Token:
    """``left + right`` and the like, in place or not."""
    operation = operators.BINARY[step.oparg]
    if operation in operators.FORMATS and (text := formats.by_percent(run, step)):
        return text
    return operators.operate(run, operation, step.stack[-2:])


def compare(run: MonitorRun, step: Step) -> Token:
    """``left < right`` and the like."""
    index = step.oparg >> 4 if sys.version_info >= (3, 12) else step.oparg
    return operators.operate(run, operators.OPERATORS[dis.cmp_op[index]], step.stack[-2:])


def unary(run: MonitorRun, step: Step) -> Token:
    """``-value``, ``+value`` and ``~value``."""
    return operators.operate(run, operators.UNARY[opcode.opname[step.opcode]], step.stack[-1:])


def contains(run: MonitorRun, step: Step) -> Token:
    """``item in container``."""
    item, container = step.stack[-2:]
    _ask_which(run, step, 2)
    rec = run.recording
    if isinstance(container, torch.Tensor):
        raise Split("looks for a value in a tensor")
    tester = classes.read_class(rec, type(container), "__contains__")
    if isinstance(tester, types.FunctionType):
        return None
    specials.look_for_all(rec, container)
    if not is_plain(item):
        rec.visit(item, ValueRead.ALL)
        rec.compare((item, container))
    elif type(item) is float and item != item:
        # NaN is equal to no other, and yet found where it is itself.
        others = elements(container) if isinstance(container, CONTAINERS) else ()
        rec.tell_apart(item, *(other for other in others if type(other) is float))
    if isinstance(item, torch.Tensor) and isinstance(container, list | tuple | deque):
        if any(isinstance(e, torch.Tensor) for e in container if e is not item):
            raise Split("compares a tensor with the elements of a container")
    reads.look_for(rec, container, item)
    return None


def _ask_which(run: MonitorRun, step: Step, *depths: int) -> None:
    """What comes next depends on which objects these operands are, should they be tensors."""
    if run.branching is not None:
        run.branching.at_identity(run, step, depths)


def identity(run: MonitorRun, step: Step) -> Token:
    """``left is right``."""
    _ask_which(run, step, 2, 1)
    operators.identify(run.recording, *step.stack[-2:])
    return None


def _branch(run: MonitorRun, step: Step, tensor: torch.Tensor) -> Token:
    """Both ways become one operator, or else which one it goes is foretold."""
    try:
        if run.branching is not None:
            run.branching.at_branch(run, step)
            return None
    except Split as obstacle:
        if run.side is not None:
            raise
        try:
            foretell_branch(run, tensor)
        except Split:
            raise obstacle from None
    else:
        foretell_branch(run, tensor)
    return finish_without_result, native_calls.tensor_operation((tensor,))


def truth(run: MonitorRun, step: Step) -> Token:
    """A jump, or ``not``: what is looked at is whether the value is true."""
    value = step.stack[-1]
    rec = run.recording
    if isinstance(value, torch.Tensor):
        if rec.constants.hold(value):
            return finish_without_result, native_calls.tensor_operation((value,))
        return _branch(run, step, value)
    if isinstance(value, CONTAINERS):
        rec.look_at_truth(value)
        specials.look_for_all(rec, value)
    elif type(value) not in run.simple_types:
        for name in ("__bool__", "__len__"):
            classes.read_class(rec, type(value), name)
        node = rec.node(value)
        if node is not None and not is_of_python(type(value)):
            rec.visit(value, ValueRead.ALL)
    return None


def iterate(run: MonitorRun, step: Step) -> Token:
    """``iter(value)`` at the head of a loop, an unpacking or a ``yield from``."""
    rec = run.recording
    value = step.stack[-1]
    if isinstance(value, torch.Tensor) and loops.begins(run, step, iter, (value,), {}):
        return None
    if opcode.opname[step.opcode] == "GET_ITER" and (
        foreseen(rec, value) is not None or draws.gives_numbers(run, value)
    ):
        run.watch_iterators()
        return None
    if not is_plain(value) and not isinstance(value, torch.Tensor):
        if type(value) not in run.simple_types:
            getter = classes.read_class(rec, type(value), "__iter__")
            if isinstance(getter, types.FunctionType):
                return None
        run.lend(value)
        reads.iterate(rec, value)
    return None


def unpack(run: MonitorRun, step: Step) -> Token:
    """Numbers among the elements are lifted if they vary; otherwise all elements are looked at."""
    rec = run.recording
    source = step.stack[-1]
    node = rec.node(source)
    if node is None or type(source) not in (tuple, list) or node.changed:
        return iterate(run, step)
    relations = [Relation(RelationKind.ITEM, i) for i in range(len(source))]
    if len(source) != step.oparg or not any(run.varies(node, r) for r in relations):
        return iterate(run, step)
    rec.look_at_length(node)
    for relation, item in zip(relations, source, strict=True):
        rec.meet(node, relation, item)
    return _finish_unpack, (step.frame, node, relations, tuple(source))


def _finish_unpack(run: MonitorRun, unpacked: Any, top: Any) -> None:
    frame, node, relations, items = unpacked
    for i, (relation, item) in enumerate(zip(relations, items, strict=True)):
        number = run.lift_element(node, relation, item)
        if number is not None:
            frame_set_operand(frame, i + 1, number)


def _put_into(run: MonitorRun, target: Any) -> None:
    node = run.recording.node(target)
    if node is not None:
        run.recording.rewrite(node)


def add_element(run: MonitorRun, step: Step) -> Token:
    """A comprehension adds to the list or set that it makes."""
    value, target = step.stack[-1], step.stack[-step.oparg - 1]
    if opcode.opname[step.opcode] == "SET_ADD":
        run.recording.compare(value)
        _put_into(run, target)
    elif not isinstance(run.recording.operators.lists.get(id(target)), Growing):
        native_calls.change(run.recording, list.append, target, (target, value), {})
    return None


def add_entry(run: MonitorRun, step: Step) -> Token:
    """A comprehension adds to the dictionary that it makes."""
    run.recording.compare(step.stack[-2])
    _put_into(run, step.stack[-step.oparg - 2])
    return None


def extend(run: MonitorRun, step: Step) -> Token:
    """``[*a, *b]`` and the like: all of an iterable goes into the container in the making."""
    if opcode.opname[step.opcode] != "LIST_EXTEND":
        run.recording.compare(step.stack[-1])
    _put_into(run, step.stack[-step.oparg - 1])
    return iterate(run, step)


def build_set(run: MonitorRun, step: Step) -> Token:
    """``{a, b}``: the members are hashed and compared."""
    for member in step.stack[len(step.stack) - step.oparg :]:
        run.recording.compare(member)
    return None


def build_map(run: MonitorRun, step: Step) -> Token:
    """``{key: value}``: the keys are hashed and compared."""
    for key in step.stack[len(step.stack) - 2 * step.oparg :: 2]:
        run.recording.compare(key)
    return None


def format_value(run: MonitorRun, step: Step) -> Token:
    """A field of an f-string."""
    value = step.stack[-2 if step.oparg & 4 else -1]
    if not is_plain(value):
        if (text := formats.field(run, step)) is not None:
            return text
        if holds_tensor(value):
            raise Split("formats a tensor as text")
        if step.oparg < _ASCII and addresses.is_shown_by_address(value):
            return addresses.told(run, str, value)
        run.recording.visit(value, ValueRead.ALL)
        specials.look_for_all(run.recording, value)
        return addresses.finish_text, None
    return None


_ASCII = 3
"""From here on a field has other text than ``str`` and ``repr`` make, or a specification."""


def length(run: MonitorRun, step: Step) -> Token:
    """``len`` of the subject of a ``match``."""
    run.recording.visit(step.stack[-1], ValueRead.LENGTH)
    return None


def look_at_type(run: MonitorRun, step: Step) -> Token:
    """Whether the subject of a ``match`` is a mapping or a sequence."""
    run.recording.visit(step.stack[-1], ValueRead.TYPE)
    return None


def match_keys(run: MonitorRun, step: Step) -> Token:
    """``case {key: …}``."""
    subject, keys = step.stack[-2:]
    getter = classes.read_class(run.recording, type(subject), "get")
    if not isinstance(getter, types.FunctionType):
        for key in keys:
            reads.read_item(run.recording, subject, key)
    return None


def match_class(run: MonitorRun, step: Step) -> Token:
    """``case Class(positional, keyword=…)``."""
    subject, cls, keywords = step.stack[-3:]
    if isinstance(subject, cls):
        if step.oparg:
            attributes.read_attribute(run.recording, cls, "__match_args__")
        positional = getattr(cls, "__match_args__", ())[: step.oparg]
        for name in (*positional, *keywords):
            attributes.read_attribute(run.recording, subject, name)
    return None


def enter_context(run: MonitorRun, step: Step) -> Token:
    """``with manager``: both methods are found before anything runs."""
    manager = step.stack[-1]
    rec = run.recording
    if locks.takes_quietly(rec, manager, step.code):
        return None
    for name in ("__enter__", "__exit__"):
        method = classes.read_class(rec, type(manager), name)
        if method is not NULL and not isinstance(method, types.FunctionType):
            annotation = lookup(method)
            if annotation is None or not annotation.pure_closure:
                raise Split(f"enters a {type(manager).__qualname__}, a native context manager")
    return None


def call(run: MonitorRun, step: Step) -> Token:
    """``function(*args, **kwargs)`` with each argument on the stack."""
    count = step.oparg
    stack = step.stack
    first = stack[-count - 2]
    if first is NULL:
        function, args = stack[-count - 1], stack[len(stack) - count :]
    else:
        function, args = first, stack[len(stack) - count - 1 :]
    if count == 1 and (function is id or function is hash):
        _ask_which(run, step, 1)
    if run.lifted and any(function is told for told in native_calls.TELLS_OBJECTS):
        give_back(run, step, count)
    names = run.keyword_names(step)
    kwargs: dict[str, Any] = {}
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        args = args[:split]
    if (function is format or function is str.format) and not kwargs:
        args = formats.arguments(run, step, function, tuple(args))
    loop = any(function is head for head in loops.HEADS)
    if loop and loops.begins(run, step, function, args, kwargs):
        return None
    depth = count + (1 if first is NULL else 2)
    other = polyfill(function, tuple(args), kwargs)
    if other is not None:
        calls.rely_on(run.recording, function)
        frame_set_operand(step.frame, depth, other)
        return None
    return _call(run, step, depth, function, args, kwargs)


def _call(
    run: MonitorRun,
    step: Step,
    depth: int,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token:
    """A call of the function at this depth of the stack."""
    run.called_instead = None
    token = calls.call(run, function, args, kwargs)
    if run.called_instead is not None:
        frame_set_operand(step.frame, depth, instead(run.called_instead))
    return token


def call_spread(run: MonitorRun, step: Step) -> Token:
    """``function(*args, **kwargs)`` with a tuple and a dictionary on the stack."""
    stack = step.stack
    depth = 3 if step.oparg & 1 else 2
    function, args, kwargs = stack[-3:] if depth == 3 else (*stack[-2:], {})
    plain = isinstance(args, tuple | list) and isinstance(kwargs, dict)
    if not plain or goes_own_ways(args):
        # The instruction itself will go through the iterable; a function in between sees the rest.
        run.lend(args)
        run.lend(kwargs)
        reads.iterate(run.recording, args)
        run.recording.visit(kwargs, ValueRead.ELEMENTS)
        if not is_followed(function):
            frame_set_operand(step.frame, depth, spread(function))
        return None
    other = polyfill(function, tuple(args), kwargs)
    if other is not None:
        calls.rely_on(run.recording, function)
        frame_set_operand(step.frame, depth, other)
        return None
    for given in (args, kwargs):
        run.lend(given)
        run.recording.visit(given, ValueRead.ELEMENTS)
        specials.look_for_class(run.recording, type(given))
    return _call(run, step, depth, function, tuple(args), dict(kwargs))


def make_function(run: MonitorRun, step: Step) -> Token:
    """A ``def`` or ``lambda`` inside the region."""
    return _adopt_function, None


def _adopt_function(run: MonitorRun, _: None, result: Any) -> None:
    run.recording.bear(result)


def import_module(run: MonitorRun, step: Step) -> Token:
    """An import inside a function: a look at ``sys.modules``, where a module is from its first
    import on. That one runs code which is no part of the program."""
    level = step.stack[-2]
    name = step.name
    if level:
        package = step.frame.f_globals.get("__package__") or ""
        parts = package.rsplit(".", level - 1)
        name = f"{parts[0]}.{name}" if name else parts[0]
    if name not in sys.modules:
        _import_first(run, name)
    _look_up_module(run, name)
    run.suspended += 1
    return _finish_import, None


def _look_up_module(run: MonitorRun, name: str) -> None:
    """An import finds a module, and those that it lies in, where others may have been put."""
    run.recording.constant(sys.modules)
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        reads.read_item(run.recording, sys.modules, ".".join(parts[:i]))


def _import_first(run: MonitorRun, name: str) -> None:
    run.suspended += 1
    try:
        importlib.import_module(name)
    except Exception as error:
        raise Split(f"imports {name}, which fails: {type(error).__name__}: {error}") from None
    finally:
        run.suspended -= 1
        run.account()


def _finish_import(run: MonitorRun, _: None, result: Any) -> None:
    run.suspended -= 1
    run.recording.constant(result)


def import_name(run: MonitorRun, step: Step) -> Token:
    """``from module import name``."""
    module = step.stack[-1]
    attributes.read_attribute(run.recording, module, step.name)
    return None


def moved(run: MonitorRun, step: Step) -> Token:
    """References go where the interpreter puts them: only lifted numbers are of interest."""
    return None


def unsupported(run: MonitorRun, step: Step) -> Token:
    """An instruction that only makes sense outside of a function."""
    raise Split(f"uses {opcode.opname[step.opcode].lower()} inside a function")


def asynchronous(run: MonitorRun, step: Step) -> Token:
    """``await``, ``async for`` and ``async with``."""
    raise Split("awaits")


@dataclass(frozen=True)
class Rules:
    """The table of ``opcodes.yaml`` for the running interpreter."""

    rules: dict[int, Callable[[MonitorRun, Step], Token]]
    filter: bytes


WHEN = {"always": 1, "test": 2, "pair": 3, "root": 4, "iterators": 5, "numbers": 6, "objects": 7}


def load_rules() -> Rules:
    """Read which rule each instruction of this Python version is told to."""
    with open(annotations_dir() / "opcodes.yaml") as file:
        table = yaml.safe_load(file)
    rules = {}
    interest = bytearray(256)
    for name, entry in table.items():
        if opcode.opmap.get(name, 256) < 256:  # pseudo-instructions of the compiler are above
            number = opcode.opmap[name]
            rules[number] = globals()[entry["rule"]]
            interest[number] = WHEN[entry.get("when", "always")]
    return Rules(rules, bytes(interest))
