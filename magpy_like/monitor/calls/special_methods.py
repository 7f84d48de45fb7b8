"""Special methods that native code looks up in the classes of its arguments.

``len``, ``str`` and ``sorted`` find them in the class of an object; the monitor only sees the
function that runs. The guard checks the look-up: a method that Python prefers, such as a
``__str__`` to a ``__repr__``, must still be absent.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.containers import CONTAINERS, elements
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

_GROUPS = (
    ("__repr__", "__str__", "__format__", "__bytes__", "__fspath__"),
    ("__bool__", "__len__", "__int__", "__index__", "__float__", "__complex__", "__trunc__",
     "__round__", "__floor__", "__ceil__"),
    ("__iter__", "__next__", "__getitem__", "__len__", "__contains__", "__reversed__",
     "__length_hint__", "__missing__", "keys"),
    ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
)  # fmt: skip
"""Groups of special methods of which one can replace another."""

_ARITHMETIC = (
    "add", "and", "divmod", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift",
    "sub", "truediv", "xor",
)  # fmt: skip
_ALTERNATIVES: dict[str, tuple[str, ...]] = {
    **{f"__{way}{name}__": (f"__{name}__", f"__r{name}__", f"__i{name}__")
       for name in _ARITHMETIC for way in ("", "r", "i")},
    **{name: (name,) for name in ("__abs__", "__neg__", "__pos__", "__invert__", "__call__",
       "__enter__", "__exit__", "__get__", "__set__", "__delete__", "__getattr__",
       "__getattribute__", "__setattr__", "__delattr__", "__setitem__", "__delitem__", "__new__",
       "__init__", "__instancecheck__", "__subclasscheck__", "__prepare__", "__dir__", "__del__")},
}  # fmt: skip
for _group in _GROUPS:
    for _name in _group:
        _ALTERNATIVES[_name] = (*_ALTERNATIVES.get(_name, ()), *_group)

_REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "eq"}
"""The reflected comparison, which Python tries if one returns ``NotImplemented``."""


@functools.cache
def operator_methods(function: str) -> tuple[str, ...]:
    """The special methods that Python may look up for a function of ``operator`` or ``builtins``,
    such as ``__iadd__``, ``__add__`` and ``__radd__`` for ``iadd``."""
    name = function.strip("_")
    if name in _REFLECTED:
        return tuple(dict.fromkeys((f"__{name}__", f"__{_REFLECTED[name]}__")))
    plain = name if name in _ARITHMETIC else name.removeprefix("i")
    if plain not in _ARITHMETIC:
        return (f"__{name}__",)
    return tuple(dict.fromkeys((f"__{name}__", f"__{plain}__", f"__r{plain}__")))


CLASS_CHECKS = {callable, isinstance, issubclass}
_OF_TORCH = ("__torch_function__", "__array__")
_SPECIAL_NAMES = tuple(dict.fromkeys((*_ALTERNATIVES, *_OF_TORCH)))


def enter_special_method(rec: Recording, receiver: Any, function: types.FunctionType) -> None:
    """Record the look-ups of a special method that begins, if ``function`` is one.

    ``receiver`` is its first argument.
    """
    cls = type(receiver)
    known = rec.classes.special_names.get(cls)
    if known is None:
        known = rec.classes.special_names[cls] = _special_functions(cls)
    for name in known.get(function, ()):
        for other in _ALTERNATIVES[name]:
            class_lookup.read_class(rec, cls, other)


def _special_functions(cls: type) -> dict[types.FunctionType, list[str]]:
    """The special names of the functions in a mutable class, by function."""
    found: dict[types.FunctionType, list[str]] = {}
    if cls.__flags__ & HEAP_TYPE and not issubclass(cls, torch.Tensor):
        for name in _ALTERNATIVES:
            method = lookup_in_type(cls, name)
            if is_instance(method, types.FunctionType):
                found.setdefault(method, []).append(name)
    return found


def read_special_methods(rec: Recording, value: Any) -> None:
    """Record that native code may look up any special method of an object and its elements, at
    any depth."""
    seen, waiting = set(), [value]
    while waiting:
        value = waiting.pop()
        read_special_methods_of_class(rec, type(value))
        if is_instance(value, CONTAINERS) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(element for element in elements(value) if not is_plain(element))


def read_special_methods_of_class(rec: Recording, cls: type) -> None:
    """As ``read_special_methods``, for all instances of a class."""
    if cls.__flags__ & HEAP_TYPE and cls not in rec.classes.inspected:
        rec.classes.inspected.add(cls)
        if not issubclass(cls, torch.Tensor):  # the guard checks tensor classes as a whole
            for name in _SPECIAL_NAMES:
                class_lookup.read_class(rec, cls, name)


def read_compared_special_methods(rec: Recording) -> None:
    """As ``read_special_methods``, for the objects that native code has compared or hashed."""
    for node_id in rec.inspections.compared:
        read_special_methods_of_class(rec, rec.refs.get_node_by_id(node_id).type)


def read_class_checks(rec: Recording, operation: Any, args: tuple[Any, ...]) -> None:
    """Record the look-ups of ``callable``, ``isinstance`` and ``issubclass``, and the bases of the
    tested class."""
    if operation is callable and args:
        class_lookup.read_class(rec, type(args[0]), "__call__")
    elif operation in (isinstance, issubclass) and len(args) == 2:
        tested = type(args[0]) if operation is isinstance else args[0]
        if is_instance(tested, type):
            class_lookup.read_mro(rec, tested)
        for cls in args[1] if type(args[1]) is tuple else args[1:]:
            class_lookup.read_class(
                rec, type(cls), f"__{'instance' if operation is isinstance else 'subclass'}check__"
            )


# --- those of tensors -----------------------------------------------------------------------------

_OF_TENSORS = {
    name: lookup_in_type(torch.Tensor, name) for name in dir(torch.Tensor) if name.startswith("__")
}
"""Torch's own special methods of tensors, as they are when this package is imported."""


def check_tensor_operator(operation: Any, args: tuple[Any, ...]) -> None:
    """Check that an operator or conversion of Python's has torch's meaning for its tensors.

    Raises:
        Split: a class of tensors implements it, such as one that the program has patched.
    """
    if getattr(operation, "__module__", None) not in ("builtins", "_operator"):
        return
    for value in args:
        if is_instance(value, torch.Tensor):
            for name in operator_methods(operation.__name__):
                own = name in _OF_TENSORS
                if own and lookup_in_type(type(value), name) is not _OF_TENSORS[name]:
                    kind = type(value).__qualname__
                    cause = f"calls {kind}.{name}, which is not torch's own"
                    raise Split(SplitReason.TENSOR_OPERATOR, cause)
