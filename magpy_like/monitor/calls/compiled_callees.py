"""What was compiled is a part of what calls it, and recorded with it.

A function or module that stands for a compiled one would hide what that reads: a call is one of
what it stands for, and the rest of a module's class is followed like the program's own code.
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
"""Where what stands for compiled things has them, by the code of a function or the class."""
CODE: set[types.CodeType] = set()
"""The methods of such classes."""


def register_wrapper(wrapper: Any, attribute: str) -> None:
    """``wrapper`` is such a function, or the class of such modules."""
    if is_instance(wrapper, types.FunctionType):
        _ATTRIBUTES[wrapper.__code__] = attribute
        return
    _ATTRIBUTES[wrapper] = attribute
    methods = (getattr(method, "fget", method) for method in vars(wrapper).values())
    CODE.update(method.__code__ for method in methods if is_instance(method, types.FunctionType))


def unwrap(function: Any) -> Any:
    """What a call of ``function`` is one of."""
    attribute = _attribute(function)
    return function if attribute is None else vars(function)[attribute]


def read_wrapped(rec: Recording, function: Any) -> Any:
    """The same, which the program is about to call."""
    attribute, node = _attribute(function), rec.node(function)
    if attribute is None or node is None:
        return function
    rec.record_read(node, Relation(RelationKind.ATTRIBUTE, attribute), unwrap(function))
    return unwrap(function)


def _attribute(function: Any) -> str | None:
    kind = type(function)
    return _ATTRIBUTES.get(function.__code__ if kind is types.FunctionType else kind)


# What torch's other tracer is to leave alone is a function around the program's own. Once that
# tracer has been used, torch's optimizers are such functions.
register_wrapper(torch.compiler.disable(lambda: None), "_torchdynamo_orig_callable")
