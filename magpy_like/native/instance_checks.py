"""An ``is_instance`` that runs no code of the program's.

Python's own asks an object that is not of the class for its ``__class__`` too, which a property or
a ``__getattribute__`` may compute, with effects, or wrongly: a proxy may claim to be a dictionary.
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
    """Whether asking for an attribute of a value may run code of its class's."""
    methods = (lookup_in_type(type(value), name) for name in ("__getattribute__", "__getattr__"))
    return any(is_instance(method, FunctionType) for method in methods)
