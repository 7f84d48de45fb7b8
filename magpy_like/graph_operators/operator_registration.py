"""Operators of ``torch.ops.magpy_like``: one step each for passes, AOTAutograd and autograd."""

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
    fake: Callable[..., Any],
    tags: Sequence[torch.Tag] = (),
) -> Any:
    """Register an operator; return its overload.

    Args:
        schema: begins with the operator's name, without a namespace.
        function: computes the operator, on all devices.
        fake: returns results with the right sizes, strides, dtype and device for fake tensors.
        tags: of the overload, such as ``torch.Tag.nondeterministic_seeded``.
    """
    name, _ = schema.split("(", 1)
    _library.define(schema, tags=tags)
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"magpy_like::{name}", fake, lib=_library)
    return getattr(torch.ops.magpy_like, name).default


def define_backward(
    operator: Any, backward: Callable[..., Any], save: Callable[[Any, Any, Any], None]
) -> None:
    """Register ``backward(ctx, *gradients)`` for ``operator``.

    ``save(ctx, inputs, output)`` saves tensors for it.
    """
    torch.library.register_autograd(operator, backward, setup_context=save, lib=_library)


@contextlib.contextmanager
def autograd_enabled() -> Iterator[None]:
    """Enable autograd inside an operator's function, for which the dispatcher has excluded it."""
    key = DispatchKey.AutogradFunctionality
    with ExcludeDispatchKey(key, False), torch.enable_grad():
        yield
