"""Which instruction waits for a Python function, and what it does with what that returns.

A frame can be suspended in a call, but just as well in an attribute, an operator, a subscript, a
loop or a `with`, where Python looks up a special method. Each instruction has one function in
`_WAITS`; it recognises the callee among what the instruction may call, so that a function called
from native code in between (`map`, `sorted`, an import) is never mistaken for one that is not.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import Any

from magpy_like.bytecode.instruction_stream import (
    Instruction,
    entry_offset,
    instruction_list,
    instructions,
)
from magpy_like.monitor.calls import compiled_callees
from magpy_like.monitor.calls.polyfills import polyfill
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import active
from magpy_like.split_reasons import SplitReason
from magpy_like.splitting.frame_state import (
    FrameState,
    PendingInstruction,
    ResultUse,
    is_resumable,
    pushes_two,
)

Suspended = tuple[
    tuple[Any, ...], PendingInstruction
]  # what stays on the operand stack, and what is awaited


def suspend(states: Sequence[FrameState]) -> list[FrameState] | str:
    """The chain of open frames, innermost first, with every outer one waiting for the next.

    `states` hold the operand stacks from before the instruction that each frame is in, the
    innermost with `handled_exception` set to `sys.exception()`. Returns the reason when one of the
    frames could not be run on.
    """
    chain: list[FrameState] = []
    handled_exception = states[0].handled_exception
    for state in states:
        state = replace(state, handled_exception=handled_exception)
        if reason := is_resumable(state):
            return reason
        if chain and state.pending is None:
            found = _wait(state, chain[-1])
            if is_instance(found, str):
                return found
            state = found
        chain.append(state)
        handled_exception = state.exception_at_entry
    return chain


def _wait(state: FrameState, callee: FrameState) -> FrameState | str:
    instruction = state.instruction
    waits = _WAITS.get(instruction.name)
    found = waits(state, instruction, callee) if waits else None
    if found is None:
        return (
            f"{instruction.name} at {state.where} does not simply continue with what "
            f"{callee.code.co_qualname} returns: native code lies between them"
        )
    stack, pending = found
    return replace(state, stack=stack, pending=pending)


# Calls.


def _call(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, operands = _split(state.stack, instruction.arg + 2)
    unbound = operands[0] is NULL
    positional = operands[2:] if unbound else operands[1:]
    names = _keyword_names(state.code, instruction)
    cut = len(positional) - len(names)
    keywords = dict(zip(names, positional[cut:], strict=True))
    return _called(below, operands[unbound], positional[:cut], keywords, callee)


def _keyword_names(code: CodeType, call: Instruction) -> tuple[str, ...]:
    entry = instructions(code)[entry_offset(code, call.offset)]
    return code.co_consts[entry.arg] if entry.name == "KW_NAMES" else ()


def _call_function_ex(
    state: FrameState, instruction: Instruction, callee: FrameState
) -> Suspended | None:
    below, operands = _split(state.stack, 3 + (instruction.arg & 1))
    args, keywords = operands[2], operands[3] if instruction.arg & 1 else {}
    if type(args) not in (tuple, list) or type(keywords) is not dict:
        return None  # the instruction itself iterates
    return _called(below, operands[1], tuple(args), keywords, callee)


def _called(
    below: tuple[Any, ...],
    function: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    callee: FrameState,
) -> Suspended | None:
    while True:
        function = compiled_callees.unwrap(function)
        if function is callee.function:
            return below, PendingInstruction(ResultUse.PUSH)
        kind = type(function)
        if kind is MethodType:
            args = (function.__self__, *args)
            function = function.__func__
        elif kind is functools.partial:
            args, keywords = (*function.args, *args), function.keywords | keywords
            function = function.func
        elif kind in (staticmethod, classmethod):
            return None
        elif (
            is_instance(function, type)
            and lookup_in_type(kind, "__call__") is _TYPE_CALL
            and polyfill(function, args, keywords) is None
        ):
            complete = _constructed(function, args, keywords, callee)
            return complete and (below, PendingInstruction(ResultUse.PUSH, complete))
        else:
            stands_in = polyfill(function, args, keywords)
            if stands_in is not None and stands_in.__code__ is callee.code:
                return below, PendingInstruction(ResultUse.PUSH)
            found = lookup_in_type(kind, "__call__")
            if type(found) is not FunctionType:
                return None
            function, args = found, (function, *args)


_TYPE_CALL = lookup_in_type(type, "__call__")


def _constructed(
    cls: type, args: tuple[Any, ...], keywords: dict[str, Any], callee: FrameState
) -> Callable[[Any], Any] | None:
    new = lookup_in_type(cls, "__new__")
    if is_instance(new, staticmethod) and new.__func__ is callee.function:
        return functools.partial(_initialise, cls, args, keywords)
    instance = _unchanged_self(callee)
    if is_instance(instance, cls) and _calls(instance, "__init__", callee):
        return functools.partial(_initialised, instance)
    return None


def _unchanged_self(callee: FrameState) -> Any:
    """The first argument of a frame that never rebinds it."""
    code, first = callee.code, callee.locals[0] if callee.code.co_argcount else NULL
    if any(i.arg == 0 and i.name in _REBINDS for i in instruction_list(code)):
        return NULL
    if code.co_varnames[:1] and code.co_varnames[0] in code.co_cellvars:
        return NULL  # an inner function may rebind it
    return first


_REBINDS = frozenset(("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))


def _initialised(instance: Any, result: Any) -> Any:
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return instance


def _initialise(cls: type, args: tuple[Any, ...], keywords: dict[str, Any], made: Any) -> Any:
    if is_instance(made, cls):
        _initialised(made, type(made).__init__(made, *args, **keywords))
    return made


# Special methods.


def _split(stack: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return stack[: len(stack) - count], stack[len(stack) - count :]


def _calls(value: Any, name: str, callee: FrameState) -> bool:
    return lookup_in_type(type(value), name) is callee.function


def _special(
    name: str,
    operands: int,
    of: int = 0,
    then: ResultUse = ResultUse.PUSH,
    complete: Callable[[Any], Any] | None = None,
) -> Callable[[FrameState, Instruction, FrameState], Suspended | None]:
    """The instruction calls method `name` of operand number `of`."""

    def waits(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
        below, values = _split(state.stack, operands)
        return (
            (below, PendingInstruction(then, complete))
            if _calls(values[of], name, callee)
            else None
        )

    return waits


def _intrinsic(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    if instruction.arg != _INTRINSIC_UNARY_POSITIVE:
        return None
    return _special("__pos__", 1)(state, instruction, callee)


_INTRINSIC_UNARY_POSITIVE = 5  # Python 3.12


def _attribute(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (value,) = _split(state.stack, 1)
    names = state.code.co_names
    name = names[instruction.arg >> 1 if _SHIFTED_NAMES else instruction.arg]
    pending = PendingInstruction(
        ResultUse.PUSH_UNBOUND if pushes_two(instruction) else ResultUse.PUSH
    )
    if _calls(value, "__getattr__", callee):
        return below, pending
    if lookup_in_type(type(value), "__getattr__") is not NULL:
        # It is asked next, should the callee raise AttributeError.
        found = lookup_in_type(type(value), name)
        if not is_instance(found, property) or found.fget is not callee.function:
            return None
        return below, replace(pending, complete=functools.partial(get_attribute, value, name))
    if _calls(value, "__getattribute__", callee):
        return below, pending
    return (below, pending) if _gets(lookup_in_type(type(value), name), callee) else None


def get_attribute(value: Any, name: str, getter: Callable[[], Any]) -> Any:
    """What reading an attribute gives whose getter is half-way through: ``getter`` is its rest."""
    try:
        return getter()
    except AttributeError:
        pass
    run = getattr(active, "run", None)
    if run is not None:
        detail = f"the getter of {name} fails after a split, and __getattr__ takes its place"
        run.give_up(SplitReason.EXCEPTION_STATE, detail)
    return lookup_in_type(type(value), "__getattr__")(value, name)


_SHIFTED_NAMES = sys.version_info >= (3, 12)  # the lowest bit of LOAD_ATTR asks for a method


def _gets(descriptor: Any, callee: FrameState) -> bool:
    if is_instance(descriptor, property):
        return descriptor.fget is callee.function
    return descriptor is not NULL and _calls(descriptor, "__get__", callee)


def _changed_attribute(special: str, accessor: str, descriptor_method: str, operands: int) -> Any:
    def waits(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
        below, values = _split(state.stack, operands)
        held_by = type(values[-1])
        found = lookup_in_type(held_by, state.code.co_names[instruction.arg])
        known = _calls(values[-1], special, callee)
        if is_instance(found, property):
            known = known or getattr(found, accessor) is callee.function
        elif found is not NULL:
            known = known or _calls(found, descriptor_method, callee)
        return (below, PendingInstruction(ResultUse.DROP)) if known else None

    return waits


def _truth(result: Any) -> bool:
    if not is_instance(result, bool):
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def _not(result: Any) -> bool:
    return not _truth(result)


def _test(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (value,) = _split(state.stack, 1)
    if not _calls(value, "__bool__", callee):
        return None
    if instruction.name.endswith("_OR_POP"):
        return state.stack, PendingInstruction(ResultUse.TEST_AND_KEEP, _truth)
    return below, PendingInstruction(ResultUse.TEST, _truth)


def _contains(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (_, container) = _split(state.stack, 2)
    complete = _lacks if instruction.arg else bool
    return (
        (below, PendingInstruction(ResultUse.PUSH, complete))
        if _calls(container, "__contains__", callee)
        else None
    )


def _lacks(found: Any) -> bool:
    return not found


def _iterator(result: Any) -> Any:
    if lookup_in_type(type(result), "__next__") is NULL:
        raise TypeError(f"iter() returned non-iterator of type '{type(result).__name__}'")
    return result


def _next(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
    found = _calls(state.stack[-1], "__next__", callee)
    return (state.stack, PendingInstruction(ResultUse.ITERATE)) if found else None


def _enter(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
    below, (manager,) = _split(state.stack, 1)
    leave = lookup_in_type(type(manager), "__exit__")
    if not _calls(manager, "__enter__", callee) or type(leave) is not FunctionType:
        return None
    return (*below, MethodType(leave, manager)), PendingInstruction(ResultUse.PUSH)


def _leave(state: FrameState, _: Instruction, callee: FrameState) -> Suspended | None:
    # [exit, place, handled before, exception]: all stay
    leave = state.stack[-4]
    if getattr(leave, "__func__", leave) is not callee.function:
        return None
    return state.stack, PendingInstruction(ResultUse.PUSH)


# Operators: the other operand is asked when the first one does not know.

_BINARY = (
    ("add", "+"),
    ("and", "&"),
    ("floordiv", "//"),
    ("lshift", "<<"),
    ("matmul", "@"),
    ("mul", "*"),
    ("mod", "%"),
    ("or", "|"),
    ("pow", "** or pow()"),
    ("rshift", ">>"),
    ("sub", "-"),
    ("truediv", "/"),
    ("xor", "^"),
)  # in the order of the argument of BINARY_OP; the in-place ones follow
_SEQUENCES = (str, bytes, bytearray, list, tuple, deque, array)

_COMPARE = (
    ("lt", "gt", "<"),
    ("le", "ge", "<="),
    ("eq", "eq", "=="),
    ("ne", "ne", "!="),
    ("gt", "lt", ">"),
    ("ge", "le", ">="),
)

Candidate = tuple[Any, str, Any]  # (asked, method, argument)


def _binary(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (left, right) = _split(state.stack, 2)
    inplace = instruction.arg >= len(_BINARY)
    name, symbol = _BINARY[instruction.arg % len(_BINARY)]
    if name in ("add", "mul") and is_instance(left, _SEQUENCES) | is_instance(right, _SEQUENCES):
        return None  # those are joined or repeated by other rules when the methods give up
    forward, reflected = f"__{name}__", f"__r{name}__"
    candidates: list[Candidate] = [(left, forward, right)]
    if type(left) is not type(right):
        mirrored = (right, reflected, left)
        overrides = issubclass(type(right), type(left)) and lookup_in_type(
            type(right), reflected
        ) is not lookup_in_type(type(left), reflected)
        candidates.insert(0 if overrides else 1, mirrored)
    if inplace:
        candidates.insert(0, (left, f"__i{name}__", right))
        symbol = "**=" if name == "pow" else f"{symbol}="
    message = (
        f"unsupported operand type(s) for {symbol}: "
        f"'{type(left).__name__}' and '{type(right).__name__}'"
    )
    return _asked(below, candidates, functools.partial(_unsupported, message), callee)


def _compare(state: FrameState, instruction: Instruction, callee: FrameState) -> Suspended | None:
    below, (left, right) = _split(state.stack, 2)
    name, mirror, symbol = _COMPARE[instruction.arg >> (4 if sys.version_info >= (3, 12) else 0)]
    candidates: list[Candidate] = [
        (left, f"__{name}__", right),
        (right, f"__{mirror}__", left),
    ]
    if type(left) is not type(right) and issubclass(type(right), type(left)):
        candidates.reverse()
    if symbol in ("==", "!="):
        last = functools.partial(_same, left, right, symbol == "==")
    else:
        last = functools.partial(
            _unsupported,
            f"'{symbol}' not supported between instances of "
            f"'{type(left).__name__}' and '{type(right).__name__}'",
        )
    return _asked(below, candidates, last, callee)


def _asked(
    below: tuple[Any, ...],
    candidates: list[Candidate],
    last: Callable[[], Any],
    callee: FrameState,
) -> Suspended | None:
    for number, (value, method, argument) in enumerate(candidates):
        if not _calls(value, method, callee):
            continue
        # `a == b` of one type asks the same function twice: tell the two by their first argument.
        again = [c for c in candidates if _calls(c[0], c[1], callee)]
        if len(again) > 1 and (value is argument or _unchanged_self(callee) is NULL):
            return None
        if len(again) > 1 and _unchanged_self(callee) is not value:
            continue
        rest = candidates[number + 1 :]
        return below, PendingInstruction(ResultUse.PUSH, functools.partial(_known, rest, last))
    return None


def _known(rest: list[Candidate], last: Callable[[], Any], result: Any) -> Any:
    """What an operator gives: the first answer that is not NotImplemented."""
    for value, method, argument in rest:
        if result is not NotImplemented:
            return result
        found = lookup_in_type(type(value), method)
        if found is not NULL:
            bind = getattr(found, "__get__", None)
            result = bind(value, type(value))(argument) if bind else found(argument)
    return last() if result is NotImplemented else result


def _unsupported(message: str) -> Any:
    raise TypeError(message)


def _same(left: Any, right: Any, equal: bool) -> bool:
    return (left is right) is equal


_WAITS: dict[str, Callable[[FrameState, Instruction, FrameState], Suspended | None]] = {
    "CALL": _call,
    "CALL_FUNCTION_EX": _call_function_ex,
    "LOAD_ATTR": _attribute,
    "LOAD_METHOD": _attribute,
    "STORE_ATTR": _changed_attribute("__setattr__", "fset", "__set__", 2),
    "DELETE_ATTR": _changed_attribute("__delattr__", "fdel", "__delete__", 1),
    "BINARY_SUBSCR": _special("__getitem__", 2),
    "BINARY_SLICE": _special("__getitem__", 3),
    "STORE_SUBSCR": _special("__setitem__", 3, of=1, then=ResultUse.DROP),
    "STORE_SLICE": _special("__setitem__", 4, of=1, then=ResultUse.DROP),
    "DELETE_SUBSCR": _special("__delitem__", 2, then=ResultUse.DROP),
    "UNARY_NEGATIVE": _special("__neg__", 1),
    "UNARY_POSITIVE": _special("__pos__", 1),
    "CALL_INTRINSIC_1": _intrinsic,
    "UNARY_INVERT": _special("__invert__", 1),
    "UNARY_NOT": _special("__bool__", 1, complete=_not),
    "GET_ITER": _special("__iter__", 1, complete=_iterator),
    "FOR_ITER": _next,
    "CONTAINS_OP": _contains,
    "BEFORE_WITH": _enter,
    "WITH_EXCEPT_START": _leave,
    "BINARY_OP": _binary,
    "COMPARE_OP": _compare,
    **dict.fromkeys(
        (
            "POP_JUMP_IF_TRUE",
            "POP_JUMP_IF_FALSE",
            "POP_JUMP_FORWARD_IF_TRUE",
            "POP_JUMP_FORWARD_IF_FALSE",
            "POP_JUMP_BACKWARD_IF_TRUE",
            "POP_JUMP_BACKWARD_IF_FALSE",
            "JUMP_IF_TRUE_OR_POP",
            "JUMP_IF_FALSE_OR_POP",
        ),
        _test,
    ),
}
