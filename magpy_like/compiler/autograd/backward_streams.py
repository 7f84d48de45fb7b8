"""Backward passes on several GPUs and their CUDA streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from magpy_like.torch_compat.cuda import current_raw_stream


def gpus_of(graph: fx.GraphModule) -> set[int]:
    """The indices of the GPUs that an ATen graph has tensors on."""
    values = (node.meta.get("val") for node in graph.graph.nodes)
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return {t.device.index or 0 for t in tensors if t.device.type == "cuda"}


def on_default_streams(
    call: Callable[..., Any], eager: Callable[..., Any], gpus: set[int]
) -> Callable[..., Any]:
    """``call`` where gradients are off, or all ``gpus`` use their default streams; else ``eager``.

    Autograd runs a node on the stream of its forward pass, but for one GPU only: on the others the
    compiled backward pass would use the default stream, and not wait for its inputs. In eager mode
    each operator has a node of its own.
    """

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_is_on_another_stream, gpus)):
            return eager(*args)
        return call(*args)

    return run


def _is_on_another_stream(gpu: int) -> bool:
    return bool(current_raw_stream(gpu) != 0)
