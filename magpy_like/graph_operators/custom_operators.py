"""This project's own operators, which other passes and autograd take for one step each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from magpy_like.torch_compat.dispatch import DispatchKey, ExcludeDispatchKey
from magpy_like.torch_patches import operator_library

_library = operator_library()


def define_operator(
    schema: str,
    function: Callable[..., Any],
    sizes: Callable[..., Any],
    tags: Sequence[torch.Tag] = (),
) -> Any:
    """The operator that ``schema`` describes and ``function`` computes.

    Args:
        schema: begins with the operator's name, without a namespace.
        sizes: gives results that are right in shape, strides, dtype and device, for fake tensors.
    """
    name, _ = schema.split("(", 1)
    _library.define(schema, tags=tags)
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"magpy_like::{name}", sizes, lib=_library)
    return getattr(torch.ops.magpy_like, name).default


def define_backward(
    operator: Any, backward: Callable[..., Any], keep: Callable[[Any, Any, Any], None]
) -> None:
    """Have autograd go backward through ``operator`` by ``backward``, for which ``keep`` saves."""
    torch.library.register_autograd(operator, backward, setup_context=keep, lib=_library)


@contextlib.contextmanager
def autograd_enabled() -> Iterator[None]:
    """Inside an operator, for which the dispatcher has switched autograd off."""
    key = DispatchKey.AutogradFunctionality
    with ExcludeDispatchKey(key, False), torch.enable_grad():
        yield
