"""Operators that raise: because of their tensors' metadata, or because of their data.

The guard checks metadata (sizes, dtypes, devices). Data changes from call to call, and with it
whether an index is in bounds or a matrix has an inverse. So does whether a tensor is a leaf of
autograd's graph, to which autograd admits no write.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat import pytree
from magpy_like.torch_interop.own_fake_modes import new_fake_mode
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks
from magpy_like.torch_patches import silent_fake_tensor_errors


def may_succeed(
    operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """True if an operator that has raised may succeed for other data of such tensors.

    The operator runs on fake tensors that autograd does not know. Where that fails for other
    reasons, such as a result whose size depends on data, the result is True: a caught exception
    costs little, a wrong record much.
    """
    if not any(is_instance(value, torch.Tensor) for value in pytree.tree_leaves((args, kwargs))):
        return False
    of_a_class = is_instance(
        getattr(operation, "__self__", None), type
    )  # a custom Function's apply
    if is_instance(operation, types.FunctionType) or of_a_class:
        return True  # Python code, whose effects must not happen twice
    fake = new_fake_mode()
    try:
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: fake.from_tensor(t.detach()), (args, kwargs)
        )
        with without_saved_tensor_hooks(), silent_fake_tensor_errors(), fake:
            operation(*args, **kwargs)
    except NotImplementedError:
        return True
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return type(error).__module__ != "builtins"  # torch's own: it depends on data
    except Exception:
        return True
    return True
