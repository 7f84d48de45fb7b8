"""The current GPU, which ``cuda`` means without a number.

What a call gives that leaves its device to the current GPU depends on which one that is. Torch does
not tell such calls apart in its cache of results without data (``FakeTensorMode``): traced again
under another GPU, they would give the first one's tensors. So graphs with such calls are traced
with an empty cache.
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
    """The number of this thread's current GPU; 0 where nobody has asked for one yet."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def may_use_current_gpu(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of ``target``, a function or the name of a tensor's method, may leave it to
    the current GPU where its result is, and there are others."""
    says_cuda = _name(target).split(".")[0] == "cuda"
    says_cuda = says_cuda or any(map(_is_current, (target, *args, *kwargs.values())))
    return says_cuda and torch.cuda.device_count() > 1  # which asks the driver, so it comes last


def _is_current(value: Any) -> bool:
    """``"cuda"`` as a text or a device, and types of tensors such as torch.cuda.FloatTensor."""
    kind = type(value)  # and not `isinstance`, which may run code of the program
    if kind is torch.device:
        return bool(value.type == "cuda" and value.index is None)
    if kind is str:
        return bool(value == "cuda" or value.startswith("torch.cuda."))
    return kind is _TENSOR_TYPE and bool(getattr(value, "is_cuda", False))


def _name(target: Any) -> str:
    named = target if type(target) is str else getattr(target, "__name__", "")
    return named if type(named) is str else ""


def has_current_gpu_calls(gm: fx.GraphModule) -> bool:
    """Whether a graph, or one inside it, has such calls."""
    graphs = (module.graph for module in gm.modules() if isinstance(module, fx.GraphModule))
    return any(
        node.op.startswith("call") and may_use_current_gpu(node.target, node.args, node.kwargs)
        for graph in graphs
        for node in graph.nodes
    )


@contextlib.contextmanager
def tracing_without_cache() -> Iterator[None]:
    """Nothing is known of what calls give, and nobody else traces meanwhile."""
    with TRACING_LOCK:
        forget_fake_results()
        yield
