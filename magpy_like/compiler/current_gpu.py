"""The current GPU, which ``cuda`` means without a number, by its number.

Torch keeps what it once found out about a call on tensors without data, and does not tell calls
apart by the current GPU: traced again under another one, a call that leaves it to that would be on
the first one still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

_TENSOR_TYPE = type(torch.FloatTensor)


def current_gpu() -> int:
    """The number of this thread's current GPU; 0 where nobody has asked for one yet."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def is_for_current_gpu(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of ``target``, a function or a tensor's method by its name, may leave it to
    the current GPU where its result is."""
    given = [*((None, value) for value in args), *kwargs.items()]
    return (
        any(_is_current(target, name, value) for name, value in given)
        or _says_only_cuda(target, args, kwargs)
        or is_for_current_gpu_by_type(target, args, kwargs)
    )


def is_for_current_gpu_by_type(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether it does so by a type of tensors such as ``torch.cuda.FloatTensor``, which has no
    number."""
    return any(
        value.startswith("torch.cuda.")
        if isinstance(value, str)
        else isinstance(value, _TENSOR_TYPE) and bool(getattr(value, "is_cuda", False))
        for value in (target, *args, *kwargs.values())
    )


def name_current_gpu(gm: fx.GraphModule) -> None:
    """Give calls that leave their device to the current GPU that one's number, in place."""
    current = torch.device("cuda", current_gpu())
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        changed = False
        for node in module.graph.nodes:
            if node.op.startswith("call") and is_for_current_gpu(
                node.target, node.args, node.kwargs
            ):
                node.args, node.kwargs = _named(node.target, node.args, node.kwargs, current)
                changed = True
        if changed:
            module.recompile()


def _named(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], current: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with ``current`` where they leave it to that."""
    nobody = _says_only_cuda(target, args, kwargs)
    args = tuple(current if _is_current(target, None, value) else value for value in args)
    kwargs = {k: current if _is_current(target, k, v) else v for k, v in kwargs.items()}
    if nobody and len(args) > 1:
        args = (args[0], current, *args[2:])
    elif nobody:
        kwargs["device"] = current
    return args, kwargs


def _is_current(target: Any, name: str | None, value: Any) -> bool:
    """Whether an argument, of this name or by position, is the current GPU. By position ``"cuda"``
    is a kind of device to some functions, such as those that switch autocast on."""
    if isinstance(value, torch.device):
        return value.type == "cuda" and value.index is None
    is_device = name == "device" or _is_method(target, "to") or _is_method(target, "cuda")
    return is_device and isinstance(value, str) and value == "cuda"


def _says_only_cuda(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    told = (*args[1:2], kwargs.get("device"))
    return _is_method(target, "cuda") and not any(value is not None for value in told)


def _is_method(target: Any, name: str) -> bool:
    return target is getattr(torch.Tensor, name) or (isinstance(target, str) and target == name)
