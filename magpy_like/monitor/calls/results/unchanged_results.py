"""Results of Python functions that only the program receives.

An instruction that runs a Python function pushes its result, or native code reads the result:
``a[i]`` pushes what ``__getitem__`` returns, and reads what the ``__index__`` of ``i`` returns.
"""

from __future__ import annotations

import functools
import gc
import itertools
import opcode
import types
from collections import deque
from typing import Any

from magpy_like.bytecode.instruction_facts import CALLS, current_offset
from magpy_like.bytecode.stack_entry_kinds import stack_kinds
from magpy_like.monitor.call_operands import call_operands
from magpy_like.monitor.calls.python_operators import BINARY
from magpy_like.monitor.calls.special_methods import operator_methods
from magpy_like.native import frame_operands, lookup_in_type
from magpy_like.native.instance_checks import is_instance

_RUNS_ONE_FUNCTION = {
    *CALLS, "CALL_FUNCTION_EX", "LOAD_ATTR", "LOAD_METHOD", "UNARY_NEGATIVE", "UNARY_POSITIVE",
    "UNARY_INVERT", "BEFORE_WITH", "RETURN_VALUE",
}  # fmt: skip
"""Instructions that push the result of the Python function that they run, if any."""
_ADVANCES = {"FOR_ITER": 1, "SEND": 2}
"""Instructions that take one element from an iterator, and its depth on the operand stack."""
_ITERATES = {
    "GET_ITER", "GET_YIELD_FROM_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND",
}  # fmt: skip
"""Instructions that move the elements of an iterable."""
_MOVES_ELEMENTS = (zip, enumerate, itertools.chain, itertools.islice)
"""Iterators that pass on the elements of others, without reading them."""
_CALLS_FUNCTION = (map, itertools.starmap, itertools.accumulate)
"""Iterators whose elements are results of a function. If it is Python code, only the function reads
the elements of their sources."""
_TAKES_ELEMENTS = (list, tuple, deque, iter, map, *_MOVES_ELEMENTS)
"""Native functions that move the elements of an iterable, or begin to."""


def is_pushed(frame: types.FrameType, caller: types.FrameType, operands: tuple[Any, ...]) -> bool:
    """True if the current instruction of ``caller`` pushes the result of ``frame``, which it runs.

    No native call by ``caller`` is active; ``operands`` are the operands of the instruction.
    """
    offset, code = current_offset(caller), caller.f_code
    name = opcode.opname[code.co_code[offset]]
    if name in _RUNS_ONE_FUNCTION:
        return True
    if name in _ADVANCES:
        kinds = stack_kinds(code).get(offset, ())
        # The monitor need not have reported this instruction.
        return bool(kinds) and _yields(frame_operands(caller, len(kinds))[-_ADVANCES[name]], frame)
    if name == "BINARY_SUBSCR" and len(operands) > 1:
        container = operands[-2]
        if is_instance(container, type) and _is_method(frame, container, "__class_getitem__"):
            return True
        return _is_method(frame, type(container), "__getitem__", "__missing__")
    if name == "BINARY_OP" and len(operands) > 1:
        names = operator_methods(BINARY[code.co_code[offset + 1]].__name__)
        return any(_is_method(frame, type(operand), *names) for operand in operands[-2:])
    return False


def is_moved(frame: types.FrameType, caller: types.FrameType, operands: tuple[Any, ...]) -> bool:
    """True if the current instruction of ``caller`` only moves the elements of the container or
    iterator that ``frame`` has returned to native code."""
    offset, code = current_offset(caller), caller.f_code
    name, argument = opcode.opname[code.co_code[offset]], code.co_code[offset + 1]
    if name in _ITERATES and operands:
        return _iterates(operands[-1], frame)
    if name == "LOAD_ATTR" or name == "LOAD_METHOD":
        return True
    if name not in CALLS or len(operands) < argument + 2:
        return False
    called = call_operands(name, argument, operands)
    function, args = called.function, called.args
    if function is getattr or is_instance(function, functools._lru_cache_wrapper):
        return True
    if any(function is known for known in _TAKES_ELEMENTS):
        return any(_iterates(arg, frame) for arg in args)
    if args and function is next:
        return _yields(args[0], frame)
    if args and function is functools.reduce:
        return _is_function(args[0], frame)
    if is_instance(function, types.BuiltinMethodType):
        return _yields(function.__self__, frame)  # such as `generator.send`
    return is_instance(function, type) and _is_method(frame, function, "__new__")


def _iterates(iterable: Any, frame: types.FrameType) -> bool:
    """True if a frame begins the iteration over ``iterable``, or takes an element."""
    return _is_method(frame, type(iterable), "__iter__") or _yields(iterable, frame)


def _yields(iterator: Any, frame: types.FrameType) -> bool:
    """True if what a frame returns becomes an element of ``iterator``, or a part of one."""
    kind = type(iterator)
    if kind is types.GeneratorType:
        return iterator.gi_frame is frame
    if kind in _CALLS_FUNCTION:
        parts = gc.get_referents(iterator)
        functions = [p for p in parts if is_instance(p, types.FunctionType | types.MethodType)]
        if any(_is_function(function, frame) for function in functions):
            return True
        return bool(functions) and any(_yields(part, frame) for part in parts)
    if kind in _MOVES_ELEMENTS:
        return any(_yields(part, frame) for part in gc.get_referents(iterator))
    if kind is tuple:  # the sources of a `zip`
        return any(_yields(part, frame) for part in iterator)
    return _is_method(frame, kind, "__next__")


def _is_method(frame: types.FrameType, cls: type, *names: str) -> bool:
    """True if a frame runs a method that is found in a class by one of these names."""
    return any(_is_function(lookup_in_type(cls, name), frame) for name in names)


def _is_function(function: Any, frame: types.FrameType) -> bool:
    if is_instance(function, types.MethodType | classmethod | staticmethod):
        function = function.__func__
    return is_instance(function, types.FunctionType) and function.__code__ is frame.f_code
