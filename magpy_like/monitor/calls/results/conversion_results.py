"""Native calls that return the result of a Python function, as ``str(x)`` calls ``__str__``.

Any other native caller reads the result, so lifted numbers in it are specialized.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from magpy_like.bytecode.instruction_facts import current_opname, formatting
from magpy_like.monitor.call_operands import without_null
from magpy_like.monitor.calls.results.unchanged_results import is_moved
from magpy_like.native import NULL, lookup_in_type

_REPR = ("__repr__",)
_STR = ("__str__", *_REPR)
_FORMAT = ("__format__", *_STR)
"""Special methods in the order of the look-up; Python calls the first that is not ``object``'s."""
_CONVERTERS: dict[Callable[..., Any], tuple[tuple[str, ...], type]] = {
    str: (_STR, str), repr: (_REPR, str), format: (_FORMAT, str),
    float: (("__float__",), float), int: (("__int__",), int),
}  # fmt: skip
"""Functions of one object that return the result of a method unchanged if it has this type."""
_METHODS_OF_CONVERSION = (_FORMAT, _STR, _REPR)
"""The methods for a field of an f-string, by its conversion."""


def is_passed_through(
    frame: types.FrameType, caller: types.FrameType, operands: tuple[Any, ...], value: Any
) -> bool:
    """True if native code that the current instruction of ``caller`` runs returns ``value``
    unchanged.

    ``frame`` has returned it; ``operands`` are the operands of the instruction.
    """
    code = frame.f_code
    if type(value) not in (int, float, str) and is_moved(frame, caller, operands):
        return True
    names, receiver = _methods_called(caller, operands, type(value))
    for name in names:
        method = lookup_in_type(type(receiver), name)
        if method is not getattr(object, name, NULL):
            return isinstance(method, types.FunctionType) and method.__code__ is code
    return False


def _methods_called(
    caller: types.FrameType, operands: tuple[Any, ...], kind: type
) -> tuple[tuple[str, ...], Any]:
    instruction, argument = current_opname(caller), caller.f_code.co_code[caller.f_lasti + 1]
    field = formatting(instruction, argument) if kind is str else None
    if field and not field.is_specified and field.conversion < len(_METHODS_OF_CONVERSION):
        return _METHODS_OF_CONVERSION[field.conversion], operands[-1]
    if instruction == "CALL" and argument == 1 and len(operands) > 2:
        called = without_null(operands[-3:-1])
        for function, (names, required) in _CONVERTERS.items():
            if called is function and kind is required:
                return names, operands[-1]
    return (), None
