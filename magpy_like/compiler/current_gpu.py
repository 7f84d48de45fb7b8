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
from torch.fx.node import map_aggregate

_TENSOR_TYPE = type(torch.FloatTensor)


def current_gpu() -> int:
    """The number of this thread's current GPU; 0 where nobody has asked for one yet."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def is_for_current_gpu(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may leave it to the current GPU where its result is."""
    given = (*args, *kwargs.values())
    return (
        operation is torch.Tensor.cuda or any(map(_is_current, given))
    ) or is_for_current_gpu_by_type(operation, args, kwargs)


def is_for_current_gpu_by_type(
    operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether it does so by a type of tensors such as ``torch.cuda.FloatTensor``, which has no
    number."""
    return any(
        value.startswith("torch.cuda.")
        if isinstance(value, str)
        else isinstance(value, _TENSOR_TYPE) and bool(getattr(value, "is_cuda", False))
        for value in (operation, *args, *kwargs.values())
    )


def _is_current(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda" and value.index is None
    return isinstance(value, str) and value == "cuda"


def name_current_gpu(gm: fx.GraphModule) -> None:
    """Give calls that leave their device to the current GPU that one's number, in place."""
    current = torch.device("cuda", current_gpu())

    def named(value: Any) -> Any:
        return current if _is_current(value) else value

    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        changed = False
        for node in module.graph.nodes:
            args, kwargs = map_aggregate(node.args, named), map_aggregate(node.kwargs, named)
            moves = node.op == "call_method" and node.target == "cuda"
            if moves or node.target is torch.Tensor.cuda:
                args, kwargs = _with_device(args, kwargs, current)
            if node.op != "output" and (args, kwargs) != (node.args, node.kwargs):
                node.args, node.kwargs, changed = args, kwargs, True
        if changed:
            module.recompile()


def _with_device(args: Any, kwargs: Any, current: torch.device) -> tuple[Any, Any]:
    """The arguments of a ``Tensor.cuda``, which is told no device, or None, for the current GPU."""
    tensor, *others = args
    if not others:
        device = kwargs.get("device")
        return args, {**kwargs, "device": current if device is None else device}
    return (tensor, current if others[0] is None else others[0], *others[1:]), kwargs
