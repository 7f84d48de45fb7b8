"""The Triton printer: kernels as Triton functions, compiled and loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magpy_like.compiler.codegen.common.kernel_plan import (
    Kernel,
)
from magpy_like.compiler.codegen.common.recomputation import producers, recomputed_values
from magpy_like.compiler.codegen.triton.triton_kernel import TritonKernel
from magpy_like.compiler.codegen.triton.triton_tiling import (
    Hint,
    tile,
    updated_in_place,
)
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime import triton_launch
from magpy_like.compiler.runtime.triton_launch import CompileRequest, TritonSource
from magpy_like.compiler.stage_trace import Trace


def adapt_plan(kernel: Kernel, hint: Hint) -> None:
    """Let a looped kernel store values that it cannot recompute; runs before memory planning.

    A later phase recomputes a value per element from memory, unless that memory is updated in
    between or the value is a scan's.
    """
    if not any(n.inner for n in kernel.nodes()) or tile(kernel, hint).persistent:
        return
    updated = updated_in_place(kernel)
    producer = producers(kernel)
    for buffer, kind in kernel.forward.items():
        kept = kind != "row" or buffer not in kernel.removed
        if kept:
            continue
        recomputed = recomputed_values(buffer, producer, kernel)
        if any(v.op == "scan" or (v.op == "load" and v.args[0] in updated) for v in recomputed):
            kernel.removed.discard(buffer)
            kernel.outputs.append(buffer)


def print_function(kernel: Kernel, graph: Graph) -> TritonSource:
    """A kernel under a placeholder name, with buffers named in order of appearance.

    Kernels that compute the same on different buffers (the layers of a model) share one text.
    """
    source = TritonKernel(kernel, graph.hint, graph.buffers).print()
    order: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        return order.setdefault(match[0], f"p{len(order)}")

    text = re.sub(r"(?<![A-Za-z0-9])(?:buf|arg|const)\d+\b", rename, source.text)
    return source.renamed(kernel.name, text)


def build(
    kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace
) -> dict[str, Callable[..., Any]]:
    """Print, compile and load kernels: name -> function of addresses and sizes."""
    requests, indices = print_kernels(kernels, graph, kind, trace)
    functions = triton_launch.load_many(requests)
    return {kernel: functions[index] for kernel, index in indices.items()}


def print_kernels(
    kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace
) -> tuple[list[CompileRequest], dict[str, int]]:
    """The kernels to compile, each text once, and kernel name -> index among them."""
    found: dict[tuple[TritonSource, torch.device], list[Kernel]] = {}
    for kernel in kernels:
        source = print_function(kernel, graph)
        found.setdefault((source, kernel.device), []).append(kernel)
    requests: list[CompileRequest] = []
    for (source, device), users in found.items():
        named = source.renamed("NAME", source.text, users[0].title)
        origins = "".join(f"# {o}\n" for k in users for o in k.origins)
        trace.write("kernels", f"{kind}.py", origins + named.text)
        requests.append((named, device, [graph.hint(s) for s in users[0].size_symbols]))
    return requests, {k.name: n for n, users in enumerate(found.values()) for k in users}
