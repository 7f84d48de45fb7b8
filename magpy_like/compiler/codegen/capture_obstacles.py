"""Facts for CUDA graphs: whether a schedule's steps can be captured, and which results can be lent.

A captured call leaves nothing but work on the GPU. A step that waits for the GPU, computes on the
CPU, or runs code that the compiler does not know is an obstacle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.ir.loop_ir import ExternOp, strided_leaves
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts, Lines
from magpy_like.compiler.scheduling.memory_planning import Step
from magpy_like.graph_operators.node_metadata import source_line
from magpy_like.torch_compat.operators import OpOverload

_KNOWN_NAMESPACES = {"aten", "prims", "magpy_like"}

aten = torch.ops.aten
_WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WAITS = {
    aten.bincount.default, aten.histc.default, aten._ctc_loss.default, aten._ctc_loss.Tensor,
    aten._use_cudnn_ctc_loss.default, aten._cudnn_ctc_loss.default, aten._cudnn_rnn.default,
    aten._cudnn_rnn_backward.default, aten.multinomial.default, aten.record_stream.default,
    aten._linalg_check_errors.default, aten.equal.default, aten.is_nonzero.default,
}  # fmt: skip
"""Operators that wait for the GPU, or use host memory that is gone at a replay, and do not say so
by a tag or by their results."""


def find_obstacles(graph: Graph, steps: Sequence[Step]) -> list[str | None]:
    """Why a CUDA graph cannot hold each step; None for one that it can.

    A graph without a GPU is none that is captured: its steps are not looked at.
    """
    if not _gpus(graph):
        return [None] * len(steps)
    return [_step_obstacle(step, graph) for step in steps]


def graph_facts(
    graph: Graph, steps: Sequence[Step], obstacles: Sequence[str | None], kind: str, lines: Lines
) -> GraphFacts:
    """The facts of a scheduled graph.

    Args:
        obstacles: see :func:`find_obstacles`.
        kind: "forward", "backward" or "inference".
        lines: see :func:`source_lines`.
    """
    gpus = _gpus(graph)
    found = zip(obstacles, (step.work for step in steps), strict=True)
    obstacle, work = next((pair for pair in found if pair[0] is not None), (None, None))
    origins = work.origins if isinstance(work, Kernel | ExternOp) else []
    if len(gpus) > 1:
        obstacle, origins = "it uses several GPUs", []
    nodes = [_node_of(origin, graph, lines) for origin in origins]
    obstacle_node = next((index for index in nodes if index is not None), None)
    lendable: Iterable[int] = ()
    if kind == "backward":
        lendable = range(len(graph.outputs))
    elif kind == "forward":
        lendable = sorted(graph.saved)
    symbolic = any(b.size and _varies(b) for b in graph.buffers.values() if b.kind == "input")
    return GraphFacts(min(gpus, default=None), obstacle, tuple(lendable), symbolic, obstacle_node)


def _varies(buffer: Any) -> bool:
    return any(e.free_symbols for e in (*buffer.size, *buffer.stride))


def _gpus(graph: Graph) -> set[int]:
    return {b.device.index or 0 for b in graph.buffers.values() if b.device.type == "cuda"}


def _step_obstacle(step: Step, graph: Graph) -> str | None:
    if isinstance(step.work, ExternOp):
        reason = _obstacle_of(step.work, graph)
        return None if reason is None else f"{step.work.target} {reason}"
    if isinstance(step.work, Kernel):
        used = (*step.work.inputs, *step.work.outputs)
        devices = {step.work.device.type, *(graph.buffers[name].device.type for name in used)}
        if devices != {"cuda"}:
            return f"{', '.join(step.work.origins)} on the CPU"
    return None


def _node_of(origin: str, graph: Graph, lines: Lines) -> int | None:
    """Index of the ATen node that an operation comes from, or of one from the same line."""
    name, line = origin.partition(":")[0], source_line(graph.origins[origin].stack_trace)
    alike = (k for k, (_, other) in enumerate(lines.items()) if line is not None and other == line)
    return [*lines].index(name) if name in lines else next(alike, None)


def _obstacle_of(operation: ExternOp, graph: Graph) -> str | None:
    target = operation.target
    if not isinstance(target, OpOverload):
        return "is no operator of torch" if strided_leaves(operation.args) else None
    if target.namespace not in _KNOWN_NAMESPACES:
        return "is a custom operator"
    if operation.dynamic or target in _WAITS or not _WAITING_TAGS.isdisjoint(target.tags):
        return "waits for the GPU"
    if any(o is not None and not isinstance(o, str) for o in operation.outputs):
        return "reads a number from the GPU"
    buffers = [graph.buffers[name] for name in (*operation.reads, *operation.writes)]
    if any(buffer.device.type != "cuda" for buffer in buffers):
        return "uses a tensor that is not on the GPU"
    return None
