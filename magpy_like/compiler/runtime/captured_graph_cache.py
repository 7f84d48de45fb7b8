"""Captured graphs that need no tracing: the cache from a captured graph to its compiled graph.

Tracing a captured graph to ATen takes most of the time of a start with a warm cache. It can be
skipped if the compiled graph is its only outcome: inference, fixed sizes, no tensors but the
inputs, and no wrapper of AOTAutograd. Tracing then depends on the operators, the metadata of the
inputs (including shared storage) and torch's modes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.runtime import compiled_graph_cache
from magpy_like.compiler.runtime.compiled_graph_cache import CompiledGraph, NotCacheable, literal
from magpy_like.disk_cache import cache_entries
from magpy_like.graph_operators.node_metadata import NUMBER
from magpy_like.torch_compat.aot_autograd import functorch_config
from magpy_like.torch_compat.dispatch import (
    dispatch_mode_count,
    function_mode_count,
    is_any_autocast_enabled,
)
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.tracing.tracing_context import TracingContext
from magpy_like.torch_interop.current_gpu import current_gpu, has_current_gpu_calls


def key(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """The cache key of a captured graph; None for a graph that has to be traced."""
    if TracingContext.try_get() is not None or is_any_autocast_enabled():
        return None  # Dynamo waits for AOTAutograd's metadata
    if dispatch_mode_count() or function_mode_count():
        return None
    nodes: dict[fx.Node, int] = {}
    lines = []
    try:
        for node in gm.graph.nodes:
            values = literal((node.args, node.kwargs), nodes)
            lines.append((node.op, _target(node), bool(node.meta.get(NUMBER)), values))
            nodes[node] = len(nodes)
        inputs = [_input(example) for example in example_inputs]
    except NotCacheable:
        return None
    first: dict[int, int] = {}
    shared = [
        first.setdefault(example.untyped_storage()._cdata, k) if _is_tensor(example) else None
        for k, example in enumerate(example_inputs)
    ]
    modes = (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        functorch_config.get_hash(),
        # A graph may switch autocast on without naming a dtype.
        torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda"),
    )  # fmt: skip
    parts = (
        lines, inputs, shared, modes, compiled_graph_cache.flags(), compiled_graph_cache.compiler(),
        _gpu_models(example_inputs), current_gpu() if has_current_gpu_calls(gm) else None,
    )  # fmt: skip
    return cache_entries.digest("captured", *parts)


def _target(node: fx.Node) -> Any:
    if node.op in ("placeholder", "output"):
        return None
    if node.op == "call_method":
        return node.target
    if node.op != "call_function":
        raise NotCacheable(node.op)  # a tensor or module of the graph
    target: Any = node.target
    if isinstance(target, OpOverload):
        return str(target)
    home, name = getattr(target, "__module__", None) or "torch", getattr(target, "__name__", "")
    known = home.split(".")[0] in ("torch", "_operator", "builtins", "math")
    if not known or getattr(sys.modules.get(home), name, None) is not target:
        raise NotCacheable(target)
    return home, name


def _gpu_models(inputs: Sequence[Any]) -> list[str]:
    """The GPU models of the inputs: library operators choose algorithms by them."""
    devices = {t.device for t in inputs if _is_tensor(t) and t.device.type == "cuda"}
    return sorted(f"{d}: {torch.cuda.get_device_properties(d)}" for d in devices)


def _is_tensor(example: Any) -> bool:
    return isinstance(example, torch.Tensor)


def _input(example: Any) -> Any:
    if not _is_tensor(example):
        return literal(example, {})
    if (
        type(example) not in (torch.Tensor, torch.nn.Parameter)
        or example.layout is not torch.strided
    ):
        raise NotCacheable(type(example))
    more = example.is_inference(), example.is_leaf, example._is_view()
    return type(example).__name__, compiled_graph_cache.value(example), more


def put(
    name: str, compiled: str, obstacle_node: int | None, nodes: Sequence[Sequence[int]]
) -> None:
    """Record that the captured graph of key ``name`` leads to the compiled graph of key
    ``compiled``.

    Args:
        obstacle_node: the index of the captured graph's node whose line has the obstacle to CUDA
            graphs.
        nodes: per step of the launcher, the indices of the captured graph's nodes that it computes.
    """
    cache_entries.put(name, json.dumps([compiled, obstacle_node, nodes]).encode())


def get(name: str) -> CompiledGraph | None:
    """The compiled graph of a captured graph's key; None if it has to be traced.

    Its ``obstacle_node`` and the nodes of its ``steps`` are indices in the captured graph.
    """
    data = cache_entries.get(name)
    if data is None:
        return None
    compiled, obstacle_node, nodes = json.loads(data)
    found = compiled_graph_cache.get(compiled)
    if found is None:
        return None
    steps = [step._replace(nodes=of) for step, of in zip(found.steps, nodes, strict=True)]
    return replace(found, obstacle_node=obstacle_node, steps=steps)
