"""Backward passes on several GPUs, each of which has a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from magpy_like.torch_compat.cuda import current_raw_stream


def gpus_of(graph: fx.GraphModule) -> set[int]:
    """The GPUs that an ATen graph has tensors on."""
    values = (node.meta.get("val") for node in graph.graph.nodes)
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return {t.device.index or 0 for t in tensors if t.device.type == "cuda"}


def on_default_streams(
    call: Callable[..., Any], eager: Callable[..., Any], gpus: set[int]
) -> Callable[..., Any]:
    """``call`` where gradients are off, or all ``gpus`` on their default streams; else ``eager``.

    Autograd runs a node on the streams of its forward pass, but for one GPU only: on others the
    backward pass would be on the default stream, and not wait for what it reads. In eager mode each
    operator has a node.
    """

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_is_on_another_stream, gpus)):
            return eager(*args)
        return call(*args)

    return run


def _is_on_another_stream(gpu: int) -> bool:
    return bool(current_raw_stream(gpu) != 0)
