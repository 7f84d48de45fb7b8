"""The current GPU, the meaning of ``cuda`` without a number.

The result of a call with ``device="cuda"`` depends on the current GPU. Torch's cache of results on
fake tensors (``FakeTensorMode``) does not distinguish such calls: traced again under another GPU,
they would return fake tensors on the first one. So graphs with such calls are traced with an empty
cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import forget_fake_results

_TENSOR_TYPE = type(torch.FloatTensor)


def current_gpu() -> int:
    """The number of this thread's current GPU; 0 if CUDA is not initialised."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def may_use_current_gpu(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if the result of a call may be on the current GPU and there are several GPUs.

    ``target`` is a function or the name of a tensor's method.
    """
    names_cuda = _name(target).split(".")[0] == "cuda"
    names_cuda = names_cuda or any(map(_is_current, (target, *args, *kwargs.values())))
    return names_cuda and torch.cuda.device_count() > 1  # last, since it queries the driver


def _is_current(value: Any) -> bool:
    """True for ``"cuda"``, a string or a device, and classes like ``torch.cuda.FloatTensor``."""
    kind = type(value)  # not `isinstance`, which may run code of the program
    if kind is torch.device:
        return bool(value.type == "cuda" and value.index is None)
    if kind is str:
        return bool(value == "cuda" or value.startswith("torch.cuda."))
    return kind is _TENSOR_TYPE and bool(getattr(value, "is_cuda", False))


def _name(target: Any) -> str:
    named = target if type(target) is str else getattr(target, "__name__", "")
    return named if type(named) is str else ""


def has_current_gpu_calls(gm: fx.GraphModule) -> bool:
    """True if a graph, or a graph inside it, has calls that may use the current GPU."""
    graphs = (module.graph for module in gm.modules() if isinstance(module, fx.GraphModule))
    return any(
        node.op.startswith("call") and may_use_current_gpu(node.target, node.args, node.kwargs)
        for graph in graphs
        for node in graph.nodes
    )


@contextlib.contextmanager
def tracing_without_cache() -> Iterator[None]:
    """Trace with an empty cache of fake results, while no other thread traces."""
    with TRACING_LOCK:
        forget_fake_results()
        yield
