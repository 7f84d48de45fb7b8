"""Pure native calls with lifted numbers as arguments: the mock repeats them.

The calls have no effects, so they can be repeated on other numbers and text. A result that is a
number, text, or a tuple of these is lifted; a bool or ``None`` becomes a guard on the result, not
on the numbers.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import Annotation, RelationKind, ValueRead
from magpy_like.monitor.calls.read_calls import inputs_of
from magpy_like.monitor.symbolic.expressions import is_array_number, is_liftable, is_number
from magpy_like.native.instance_checks import is_instance


class ResultTypeChanged(TypeError):
    """A function returned another type for other numbers."""


@dataclass(frozen=True, eq=False)
class LiftedCall:
    """A call as a function of its lifted arguments.

    ``args`` and ``kwargs`` have ``LIFTED`` in place of lifted arguments, in the call's order.
    ``kind`` is the required type of the result; None if the arguments' types determine it.
    """

    operation: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kind: type | None = None

    @property
    def __name__(self) -> str:
        return f"repeated_{getattr(self.operation, '__name__', 'operation')}"

    def __call__(self, *numbers: Any) -> Any:
        """
        Raises:
            ResultTypeChanged: the result has another type than before.
        """
        args, kwargs = self.arguments(numbers)
        result = self.operation(*args, **kwargs)
        if self.kind is not None and type(result) is not self.kind:
            raise ResultTypeChanged(f"{self.__name__} returns a {type(result).__name__}")
        return result

    def arguments(self, numbers: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments, with these numbers in the places of the lifted ones."""
        remaining = iter(numbers)
        args = tuple([_filled(arg, remaining) for arg in self.args])
        return args, {name: _filled(arg, remaining) for name, arg in self.kwargs.items()}


@dataclass(frozen=True, eq=False)
class RaisingNumpyFunction:
    """A NumPy function that raises instead of warning: a warning names a line of the program, so
    only the program can issue it."""

    operation: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return str(self.operation.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        settings = np.geterr()
        with np.errstate(**{error: _STRICT[action] for error, action in settings.items()}):
            return self.operation(*args, **kwargs)


_STRICT: dict[str, Any] = dict.fromkeys(("warn", "call", "print", "log"), "raise") | {
    "ignore": "ignore", "raise": "raise",
}  # fmt: skip
"""The handling of a floating-point error, by the program's setting."""

LIFTED = object()
"""Placeholder of a lifted argument."""


class SizeForm(tuple[Any, ...]):
    """The form of a ``torch.Size``, which itself holds integers only."""


def _filled(form: Any, numbers: Iterator[Any]) -> Any:
    if form is LIFTED:
        return next(numbers)
    if type(form) is SizeForm:
        return torch.Size([_filled(part, numbers) for part in form])
    if type(form) is list or type(form) is tuple:
        return type(form)([_filled(part, numbers) for part in form])
    if type(form) is dict:
        return {key: _filled(part, numbers) for key, part in form.items()}
    return form


Function = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and its lifted arguments."""


def as_lifted_call(
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    lifted: Callable[[Any], bool],
) -> Function | None:
    """A call as a function of its lifted arguments.

    None if no argument is lifted, or the call may do more than compute with numbers, text and
    containers of these. ``lifted`` is true for lifted values.
    """
    if not _only_computes(annotation, operation):
        return None
    if operation in (max, min) and len(args) == 1 and type(args[0]) in (list, tuple) and args[0]:
        kwargs = {name: value for name, value in kwargs.items() if name != "default"}
    for position, value in inputs_of(args, kwargs):
        found: list[Any] = []
        if not _collect(value, lifted, found):
            return None
        if found and annotation.input(position).value_read is not ValueRead.ALL:
            return None
    in_one = kwargs or not all(map(_is_leaf, args))  # a selection is guarded
    if operation in _COMPARE and in_one and len({type(leaf) for leaf in _leaves_of(args)}) > 1:
        return None
    return lifted_call(operation, args, kwargs, lifted)


def lifted_call(
    operation: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    lifted: Callable[[Any], bool],
    *,
    constants: bool = False,
) -> Function | None:
    """As ``as_lifted_call``, for an operation that is known to be pure.

    ``constants``: the arguments may be other objects, too, the same at every call.
    """
    found: list[Any] = []
    if not _collect([*args, *kwargs.values()], lifted, found, constants) or not found:
        return None
    if not constants and not kwargs and all(map(_is_leaf, args)) and has_determined_type(operation):
        return operation, args
    if is_instance(operation, NUMPY_FUNCTIONS):
        operation = RaisingNumpyFunction(operation)
    forms = tuple(_form(arg, lifted) for arg in args)
    keywords = {name: _form(arg, lifted) for name, arg in kwargs.items()}
    return LiftedCall(operation, forms, keywords), tuple(found)


def with_result_type(operation: Callable[..., Any], numbers: tuple[Any, ...], result: Any) -> Any:
    """``operation``, restricted to results of the type of ``result``."""
    if has_determined_type(operation):
        return operation
    if is_instance(operation, LiftedCall):
        return replace(operation, kind=type(result))
    return LiftedCall(operation, (LIFTED,) * len(numbers), {}, type(result))


def _only_computes(annotation: Annotation, operation: Any) -> bool:
    if not annotation.pure_closure or annotation.state_read or annotation.global_state:
        return False
    relation = annotation.output.relation
    if not (relation is None or relation.kind is RelationKind.ARGUMENT or operation is sorted):
        return False
    if not is_instance(operation, _NATIVE) or (
        annotation.as_op_node and not is_python_function(operation)
    ):
        return False
    if is_instance(operation, type) and issubclass(operation, tuple):
        return False  # such as torch.Size: it keeps its elements
    if is_instance(operation, NUMPY_FUNCTIONS):
        return True  # it may change arrays, but no number
    inputs = (annotation.default_input, *annotation.inputs.values())
    return not any(properties.in_place for properties in inputs)


NUMPY_FUNCTIONS = (np.ufunc, type(np.sum))
_NATIVE = (
    *NUMPY_FUNCTIONS,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type,
)
_OF_PYTHON = ("builtins", "_operator", "math")


def is_python_function(operation: Any) -> bool:
    """True for functions of ``builtins``, ``operator`` and ``math``."""
    owner = getattr(operation, "__objclass__", operation)
    return getattr(owner, "__module__", "") in _OF_PYTHON


def has_determined_type(operation: Any) -> bool:
    """True if the types of the arguments determine the type of the result. Powers are an
    exception."""
    if is_instance(operation, LiftedCall):
        operation = operation.operation
    if getattr(operation, "__name__", "") in ("__pow__", "__rpow__", "getitem"):
        return False
    return is_python_function(operation)


_COMPARE = (max, min, sorted)
"""Functions that return some of their arguments."""


def _leaves_of(value: Any) -> Iterator[Any]:
    if _is_leaf(value):
        yield value
    else:
        for part in value.values() if is_instance(value, Mapping) else value:
            yield from _leaves_of(part)


def _is_leaf(value: Any) -> bool:
    return type(value) in _LEAVES or is_array_number(value)


_LEAVES = frozenset({int, float, bool, complex, str, bytes, range, type(None)})


def _collect(
    value: Any, lifted: Callable[[Any], bool], found: list[Any], constants: bool = False
) -> bool:
    """True if a value consists of leaves only, or of ``constants`` too; appends the lifted ones to
    ``found``."""
    if _is_leaf(value):
        if is_liftable(value) and lifted(value):
            found.append(value)
        return True
    if type(value) in (list, deque) and lifted(value):
        found.append(value)
        return True
    if type(value) in (list, tuple) or (constants and type(value) is torch.Size):
        return all(_collect(part, lifted, found, constants) for part in value)
    if type(value) is dict:
        plain = all(_is_leaf(key) for key in value)
        return plain and all(_collect(part, lifted, found, constants) for part in value.values())
    return constants


def _form(value: Any, lifted: Callable[[Any], bool]) -> Any:
    if _is_leaf(value):
        return LIFTED if is_liftable(value) and lifted(value) else value
    if type(value) in (list, deque) and lifted(value):
        return LIFTED
    if type(value) is dict:
        return {key: _form(part, lifted) for key, part in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)([_form(part, lifted) for part in value])
    if type(value) is torch.Size:
        return SizeForm([_form(part, lifted) for part in value])
    return value


def is_number_sequence(operation: Callable[..., Any], result: Any) -> bool:
    """True if a result is a tuple or list of the same number and types of numbers at every call."""
    several = type(result) in (tuple, list) and bool(result) and all(map(is_number, result))
    return several and has_determined_type(operation)


GUARDED_RESULTS = frozenset({bool, np.bool_, type(None), str, bytes, type(NotImplemented)})
"""Types of results that become guards: compared by value, and equal for many numbers."""
