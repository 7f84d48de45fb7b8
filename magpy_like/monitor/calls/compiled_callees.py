"""Compiled functions and modules inside a compiled region: they are part of the caller's record.

A wrapper around a compiled function would hide the reads of the function. A call of the wrapper is
therefore a call of the wrapped function, and other methods of a wrapper class are followed like
code of the program.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording  # which asks for a GPU

_ATTRIBUTES: dict[types.CodeType | type, str] = {}
"""The attribute that holds the wrapped object, by the code or the class of the wrapper."""
CODE: set[types.CodeType] = set()
"""The code of the methods of wrapper classes."""


def register_wrapper(wrapper: Any, attribute: str) -> None:
    """Register a wrapper function, or a class of wrapper modules, and its attribute."""
    if is_instance(wrapper, types.FunctionType):
        _ATTRIBUTES[wrapper.__code__] = attribute
        return
    _ATTRIBUTES[wrapper] = attribute
    methods = (getattr(method, "fget", method) for method in vars(wrapper).values())
    CODE.update(method.__code__ for method in methods if is_instance(method, types.FunctionType))


def is_wrapper(function: Any) -> bool:
    """True for a registered wrapper function, or an instance of a registered class."""
    return _attribute(function) is not None


def unwrap(function: Any) -> Any:
    """The wrapped function; ``function`` itself if it is not a wrapper."""
    attribute = _attribute(function)
    return function if attribute is None else vars(function)[attribute]


def read_wrapped(rec: Recording, function: Any) -> Any:
    """As ``unwrap``, for a callee of the program: the read of the attribute is recorded."""
    attribute, node = _attribute(function), rec.variables.node(function)
    if attribute is None or node is None:
        return function
    rec.reads.record(node, Relation(RelationKind.ATTRIBUTE, attribute), unwrap(function))
    return unwrap(function)


def _attribute(function: Any) -> str | None:
    kind = type(function)
    return _ATTRIBUTES.get(function.__code__ if kind is types.FunctionType else kind)


# ``torch.compiler.disable`` wraps a function. Once Dynamo has been used, the methods of torch's
# optimizers are such wrappers.
register_wrapper(torch.compiler.disable(lambda: None), "_torchdynamo_orig_callable")
