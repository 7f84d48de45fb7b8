"""``is_instance``: an ``isinstance`` that runs no code of the program.

Python's own reads ``__class__`` of an object that is not an instance, which a property or a
``__getattribute__`` may compute, with effects, or wrongly: a proxy may claim to be a dictionary.

The modules that ``import magpy_like`` loads need it before the helper is compiled, and without the
helper: they then use the same check in Python.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from magpy_like import native
from magpy_like.native import helper_status


def is_instance_in_python(value: Any, classes: Any) -> bool:
    """``is_instance`` without the helper, which is faster."""
    kind = type(value)
    return kind is classes or issubclass(kind, classes)


if TYPE_CHECKING:
    from builtins import isinstance as is_instance
elif helper_status.is_loaded():
    from magpy_like.native import is_of as is_instance
else:
    is_instance = is_instance_in_python


def answers_in_python(value: Any) -> bool:
    """True if reading an attribute of a value may run Python code of its class."""
    methods = (native.lookup_in_type(type(value), n) for n in ("__getattribute__", "__getattr__"))
    return any(is_instance(method, FunctionType) for method in methods)
