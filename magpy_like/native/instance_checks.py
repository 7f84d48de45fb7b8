"""``is_instance``: an ``isinstance`` that runs no code of the program.

Python's own reads ``__class__`` of an object that is not an instance, which a property or a
``__getattribute__`` may compute, with effects, or wrongly: a proxy may claim to be a dictionary.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from magpy_like.native import lookup_in_type

if TYPE_CHECKING:
    from builtins import isinstance as is_instance
else:
    from magpy_like.native import is_of as is_instance


def answers_in_python(value: Any) -> bool:
    """True if reading an attribute of a value may run Python code of its class."""
    methods = (lookup_in_type(type(value), name) for name in ("__getattribute__", "__getattr__"))
    return any(is_instance(method, FunctionType) for method in methods)
