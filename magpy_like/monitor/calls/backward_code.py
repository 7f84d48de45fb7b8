"""Dependences of a custom function's backward pass on anything but its arguments.

A compiled graph calls ``backward`` once, while it is traced, and keeps the operators. That stands
for every later call only if the code reads no variables and changes nothing outside. Its tensors
are fake tensors then: they have the sizes and element types of a call, but not its layouts, classes
and places in autograd's graph. A function whose backward pass may depend on such things runs as
it is.

The answer comes from the bytecode and is cautious: the code may use its arguments, modules, tensor
operators and functions of the same kind. The guard checks that these are still the same.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import operator
import types
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch

from magpy_like.annotation import Annotation
from magpy_like.annotation.lookup import lookup
from magpy_like.bytecode.foreign_writes import foreign_write
from magpy_like.refgraph.plain_values import is_plain, storage_of
from magpy_like.torch_compat.autograd import custom_function_of, registered_functions
from magpy_like.torch_compat.operators import OpOverloadPacket

_CHANGES = {
    "STORE_ATTR": "sets an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "sets a global variable",
    "DELETE_GLOBAL": "deletes a global variable",
    "IMPORT_NAME": "imports a module",
    "YIELD_VALUE": "is a generator",
}
_LOADS = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_PURE_BUILTINS = frozenset(
    (
        "abs", "all", "any", "bool", "divmod", "enumerate", "float", "int", "len", "list", "max",
        "min", "pow", "range", "reversed", "round", "slice", "sorted", "sum", "tuple", "zip",
        "dict", "set", "str",
        "ValueError", "TypeError", "RuntimeError", "NotImplementedError", "AssertionError",
    )
)  # fmt: skip
_SHARED_WITH_FAKE = frozenset(
    (
        "T", "H", "mT", "mH", "data", "device", "dim", "dtype", "element_size", "imag",
        "is_complex", "is_floating_point", "layout", "ndim", "ndimension", "nelement", "numel",
        "real", "shape", "size",
    )
)  # fmt: skip
"""Attributes and methods, other than operators, that a fake tensor shares with its tensor."""
_AUTOGRAD_STATE = frozenset(("is_leaf", "grad_fn", "grad", "retains_grad", "_backward_hooks"))
"""Attributes that a fake tensor does not share with its tensor."""
_OF_CONTEXT = (
    "mark_dirty", "mark_non_differentiable", "needs_input_grad", "save_for_backward",
    "saved_tensors", "set_materialize_grads",
)  # fmt: skip
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, float, int, type(None))
"""Types of attributes of modules of torch and Python that no program sets."""


class Reference(NamedTuple):
    """A function whose code was examined, the contents of a cell, or a name in a module, a class
    or a dictionary of global variables."""

    owner: Any
    name: str = ""


class Examination:
    """The references of examined code."""

    def __init__(self) -> None:
        self.references: list[Reference] = []
        self._seen: set[types.FunctionType] = set()

    def is_first(self, function: types.FunctionType) -> bool:
        """Note a function; true if it has not been examined before."""
        if function in self._seen:
            return False
        self._seen.add(function)
        self.references.append(Reference(function))
        return True


def outside_dependence(function: object, examination: Examination) -> str | None:
    """The first variable or effect outside the backward pass of a custom function, as the end of a
    sentence; None if there is none, or no class is given."""
    if not isinstance(function, type):
        return None
    return next(
        chain(_of_method(function, "backward", examination), _of_forward_pass(function)), None
    )


def _of_forward_pass(function: type) -> Iterator[str]:
    """The dependences of a forward pass on autograd's state, which differs for fake tensors; the
    monitor sees all others."""
    for name in ("forward", "setup_context"):
        method = inspect.getattr_static(function, name, None)
        code = getattr(getattr(method, "__func__", method), "__code__", None)
        for found in _AUTOGRAD_STATE.intersection(() if code is None else code.co_names):
            yield f"has a forward pass that reads `{found}` of a tensor"


def kept_dependence(
    node: object, is_external: Callable[[Any], bool], shared: Collection[int]
) -> str | None:
    """The same for an autograd node: objects that its context keeps, and variables or effects of
    the functions that a program has registered for its own operator. None for other nodes.

    Args:
        is_external: whether an object is from outside the record.
        shared: the storages of the function's arguments and results. Autograd does not notice
            writes to them through an attribute.
    """
    function = custom_function_of(node)
    if function is None:
        return None
    registered = list(registered_functions(function))
    if _is_of_torch(function) and not registered:
        return None
    for name, value in vars(node).items():
        is_own = isinstance(value, torch.Tensor) and storage_of(value) not in shared
        if not is_own and not _is_value(value, is_external):
            return f"has a {type(value).__qualname__} in `{name}` of its context"
    examination = Examination()
    return next((d for each in registered for d in _dependences(each, examination)), None)


def references_of_operator(node: object) -> list[Reference]:
    """The references of the functions registered for an operator of the program's own.

    ``node`` is the autograd node of a result.
    """
    function, examination = custom_function_of(node), Examination()
    for registered in () if function is None else registered_functions(function):
        next(_dependences(registered, examination), None)
    return examination.references


def _is_value(value: Any, is_external: Callable[[Any], bool]) -> bool:
    """True for what never changes, and for containers of the function's own."""
    if type(value) in (list, dict) and not is_external(value):
        parts = value if type(value) is list else [*value, *value.values()]
        return all(_is_value(part, is_external) for part in parts)
    if isinstance(value, tuple):
        return all(_is_value(part, is_external) for part in value)
    return is_plain(value) or isinstance(value, type)


def _of_method(cls: type, name: str, examination: Examination) -> Iterator[str]:
    """The dependences of a static method of a custom function."""
    examination.references.append(Reference(cls, name))
    method = inspect.getattr_static(cls, name, None)
    return _dependences(getattr(method, "__func__", method), examination)


def _dependences(value: Any, examination: Examination) -> Iterator[str]:
    """What a value that the code calls, or a variable of it holds, depends on."""
    value = _without_wrappers_of_torch(value)
    if isinstance(value, types.ModuleType):
        return
    if isinstance(value, types.FunctionType):
        if _is_of_torch(value):
            if lookup(value) is not None and not _is_known(value):
                yield f"calls {value.__qualname__}"
        elif examination.is_first(value):
            for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                if not is_plain(default):
                    yield f"has a {type(default).__qualname__} as a default argument"
            yield from _of_code(value.__code__, value, examination)
    elif isinstance(value, type):
        if issubclass(value, torch.autograd.Function):
            yield from _of_method(value, "forward", examination)
            yield from _of_method(value, "backward", examination)
        elif value.__name__ not in _PURE_BUILTINS and not _is_of_torch(value):
            yield f"uses the class {value.__qualname__}"
    elif not _is_known(value):
        called = getattr(value, "__qualname__", None)
        yield f"calls {called}" if called else f"reads a {type(value).__qualname__}"


def _without_wrappers_of_torch(value: Any) -> Any:
    """The function that decorators of torch, such as ``once_differentiable``, have wrapped."""
    while isinstance(value, types.FunctionType) and hasattr(value, "__wrapped__"):
        if not str(value.__globals__.get("__name__")).startswith("torch."):
            break
        value = value.__wrapped__
    return value


def _of_code(
    code: types.CodeType, function: types.FunctionType, examination: Examination
) -> Iterator[str]:
    listing = list(dis.get_instructions(code))
    if (write := foreign_write(code, listing)) is not None:
        yield write
    of_variables = set[int]()
    for number, instruction in enumerate(listing):
        name = instruction.opname
        if name in _CHANGES:
            yield _CHANGES[name]
        elif name in _ATTRIBUTES and number not in of_variables:
            yield from _of_attribute(listing, number, code)
        elif name == "STORE_DEREF" and instruction.argval in code.co_freevars:
            yield f"sets the variable {instruction.argval}"
        elif name in _LOADS:
            yield from _of_variable(listing, number, function, examination, of_variables)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant, function, examination)


def _of_attribute(
    listing: list[dis.Instruction], number: int, code: types.CodeType
) -> Iterator[str]:
    """The dependence on an attribute in which a fake tensor differs from its tensor, or that leads
    from a context to the function's class."""
    name, owner = listing[number].argval, listing[number - 1]
    variable = owner.argval[-1] if type(owner.argval) is tuple else owner.argval
    is_first = owner.opname.startswith("LOAD_FAST") and variable in code.co_varnames[:1]
    if is_first and code.co_name == "backward":
        if name not in _OF_CONTEXT and (hasattr(_Context, name) or name.startswith("_")):
            yield f"reads `{name}` of its context"
    elif name in _SHARED_WITH_FAKE or name in _OF_CONTEXT:
        return
    elif hasattr(torch.Tensor, name):
        found = lookup(getattr(torch.Tensor, name))
        if name == "contiguous" or found is None or not _is_operator(found):
            yield f"reads `{name}` of a tensor"
    elif hasattr(_Context, name) or name.startswith("_"):
        yield f"reads `{name}`"


_Context = torch.autograd.function.BackwardCFunction


def _of_variable(
    listing: list[dis.Instruction],
    number: int,
    function: types.FunctionType,
    examination: Examination,
    attributes: set[int],
) -> Iterator[str]:
    """The dependences of a variable that an instruction loads, and of the attributes of modules
    that the next instructions look up in it, whose numbers join ``attributes``."""
    variable = listing[number].argval
    if listing[number].opname == "LOAD_GLOBAL":
        missing = getattr(builtins, variable, None)
        value = function.__globals__.get(variable, missing)
        examination.references.append(Reference(function.__globals__, variable))
    else:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        if variable not in cells:
            return  # a local variable of this function
        examination.references.append(Reference(cells[variable]))
        try:
            value = cells[variable].cell_contents
        except ValueError:
            value = None
    for position, following in enumerate(listing[number + 1 :], start=number + 1):
        if following.opname not in _ATTRIBUTES:
            break
        attributes.add(position)
        if not isinstance(value, types.ModuleType):
            if isinstance(value, type) and following.argval != "apply":
                examination.references.append(Reference(value, following.argval))
                found = inspect.getattr_static(value, following.argval, None)
                if not isinstance(found, staticmethod):
                    yield f"reads {value.__qualname__}.{following.argval}"
                value = getattr(found, "__func__", value)
            elif isinstance(value, OpOverloadPacket):
                value = getattr(value, following.argval)
            elif not isinstance(value, type):
                yield f"reads `{following.argval}` of a {type(value).__qualname__}"
            break
        examination.references.append(Reference(value, following.argval))
        module, value = value, getattr(value, following.argval, None)
        if isinstance(value, _CONSTANTS) and (module is math or _is_of_torch(module)):
            return
    yield from _dependences(value, examination)


def _is_of_torch(value: Any) -> bool:
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return name == "torch" or str(name).startswith("torch.")


def _is_known(value: Any) -> bool:
    """True for native functions whose results depend on their arguments alone."""
    if not callable(value):
        return False
    module = getattr(value, "__module__", None)
    if module == "builtins":
        return value.__name__ in _PURE_BUILTINS
    if module in ("math", "_operator", operator.__name__):
        return True
    if isinstance(value, torch.library.CustomOpDef):
        return True
    found = lookup(value)
    return found is not None and (
        _is_operator(found) or (found.pure_closure and not found.state_read)
    )


def _is_operator(annotation: Annotation) -> bool:
    """True for an operator that changes no global state."""
    return annotation.as_op_node and not annotation.global_state
