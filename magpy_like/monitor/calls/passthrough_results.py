"""What native code hands on as it is: ``str(meter)`` gives the very text that ``__str__`` has made.

Any other native code looks at a number, or a text with one in it, that a Python function gives it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from magpy_like.bytecode.code_facts import current_opname
from magpy_like.native import NULL, lookup_in_type

_REPR = ("__repr__",)
_STR = ("__str__", *_REPR)
_FORMAT = ("__format__", *_STR)
"""The special methods, of which the first that is not a plain object's is asked."""
_CALLED: dict[Callable[..., Any], tuple[tuple[str, ...], type]] = {
    str: (_STR, str), repr: (_REPR, str), format: (_FORMAT, str),
    float: (("__float__",), float), int: (("__int__",), int),
}  # fmt: skip
"""Functions of one object that hand on what these give, if it is of this type."""
_CONVERTED = (_FORMAT, _STR, _REPR)
"""Those that a field of an f-string asks, by its conversion."""


def is_passed_through(
    code: types.CodeType, caller: types.FrameType, operands: tuple[Any, ...], value: Any
) -> bool:
    """Whether the instruction that ``caller`` is in gives ``value``, which a function of this code
    has returned, as it is; ``operands`` are those of the instruction."""
    names, receiver = _asked_for(caller, operands, type(value))
    for name in names:
        method = lookup_in_type(type(receiver), name)
        if method is not getattr(object, name, NULL):
            return isinstance(method, types.FunctionType) and method.__code__ is code
    return False


def _asked_for(
    caller: types.FrameType, operands: tuple[Any, ...], kind: type
) -> tuple[tuple[str, ...], Any]:
    instruction, argument = current_opname(caller), caller.f_code.co_code[caller.f_lasti + 1]
    if instruction == "FORMAT_VALUE" and kind is str and argument < len(_CONVERTED):
        return _CONVERTED[argument], operands[-1]
    if instruction == "CALL" and argument == 1 and len(operands) > 2 and operands[-3] is NULL:
        for function, (names, given) in _CALLED.items():
            if operands[-2] is function and kind is given:
                return names, operands[-1]
    return (), None
