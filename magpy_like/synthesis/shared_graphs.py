"""Operator graphs shared between records of a program, so that equal graphs are compiled once.

A loop with a split is entered at two positions, before its first iteration and after an iteration.
The records of both have equal graphs. Where records differ in sizes that are specialized, such as
1, the backend compiles the graph for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import (
    INPUT_UNCHANGED,
    INPUT_WRITES,
    NUMBER,
    PROFILER_REGIONS,
    RESULT_VERSIONS,
)
from magpy_like.graph_operators.node_origins import ProfilerRegion, enclosing_regions
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_interop.current_gpu import current_gpu


class CompiledGraph:
    """An operator graph and its compiled callable.

    ``may_fail``: the callable may raise although none of the operators does.
    ``is_compiled``: False if a backend should have compiled it and it runs operator by operator.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        run: Callable[..., Any],
        may_fail: bool = False,
        is_compiled: bool = True,
    ) -> None:
        self.graph, self.run, self.may_fail = graph, run, may_fail
        self.is_compiled = is_compiled


Key = tuple[Any, ...]


class SharedGraphs:
    """The compiled graphs of one program, as long as a record refers to them."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakValueDictionary[Key, fx.GraphModule]
        self._graphs = weakref.WeakValueDictionary()
        self._compiled: weakref.WeakValueDictionary[Key, CompiledGraph] = (
            weakref.WeakValueDictionary()
        )

    def compiled(
        self,
        graph: fx.GraphModule,
        inputs: Key | None,
        compile_graph: Callable[[], CompiledGraph],
    ) -> CompiledGraph:
        """The compiled graph of an equal graph for equal inputs, or else of this one.

        ``inputs`` are the backend's further assumptions: see :func:`compile_assumptions`.
        """
        key = _description(graph)
        if key is None:
            return compile_graph()
        # The key names objects by their ids; the graph holds them as long as the entries live.
        compiled = None if inputs is None else self._compiled.get((key, inputs))
        if compiled is None:
            compiled = compile_graph()
            compiled.graph = self._graphs.setdefault(key, graph)
            if inputs is not None:
                self._compiled[key, inputs] = compiled
        return compiled


class _NoDescription(Exception):
    """A graph contains a value that cannot be compared."""


def _description(graph: fx.GraphModule) -> Key | None:
    """A key that is equal for equal graphs; None for a graph that cannot be compared."""
    numbers: dict[fx.Node, int] = {}
    regions: dict[ProfilerRegion, int] = {}
    rows = []
    try:
        for node in graph.graph.nodes:
            numbers[node] = len(numbers)
            rows.append(
                (
                    node.op,
                    _target(graph, node),
                    bool(node.meta.get(NUMBER)),
                    node.meta.get(INPUT_WRITES),
                    node.meta.get(INPUT_UNCHANGED),
                    node.meta.get(RESULT_VERSIONS),
                    _regions(node.meta.get(PROFILER_REGIONS, ()), regions),
                    _regions(enclosing_regions(node), regions),
                    _argument(node.args, numbers),
                    _argument(node.kwargs, numbers),
                )
            )
    except _NoDescription:
        return None
    return tuple(rows)


def _regions(entered: Iterable[ProfilerRegion], known: dict[ProfilerRegion, int]) -> Key:
    """A key for regions of the program; ``known`` numbers those of the graph."""
    return tuple((known.setdefault(r, len(known)), r.name, r.args) for r in entered)


def _target(graph: fx.GraphModule, node: fx.Node) -> Any:
    if node.op == "get_attr":
        return id(getattr(graph, str(node.target)))
    if node.op == "call_function":
        return id(node.target)
    return str(node.target) if node.op == "call_method" else None


def _argument(value: Any, numbers: dict[fx.Node, int]) -> Any:
    kind = type(value)
    if kind is fx.Node:
        return kind, numbers[value]
    if is_instance(value, tuple | list):
        return kind, *(_argument(item, numbers) for item in value)
    if is_instance(value, dict):
        return kind, *((name, _argument(item, numbers)) for name, item in value.items())
    if kind is slice:
        return kind, *(_argument(part, numbers) for part in (value.start, value.stop, value.step))
    if kind in (float, complex):
        return kind, repr(value)  # distinguishes 0.0 from -0.0, and equates NaNs
    if value is None or kind in _COMPARABLE:
        return kind, value
    raise _NoDescription


_COMPARABLE = {
    bool, int, str, bytes, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
}  # fmt: skip


def compile_assumptions(inputs: Sequence[Any]) -> Key | None:
    """A key for everything a backend may rely on besides the graph; None if sizes may vary.

    Parameters are compared by identity, other tensors by metadata and by the memory they share.
    """
    tensors = [value for value in inputs if is_instance(value, torch.Tensor)]
    if len(tensors) < len(inputs) or not all(map(_is_plain, tensors)):
        return None
    memory: dict[int, int] = {}
    forms = [
        (
            id(t) if is_instance(t, torch.nn.Parameter) else None,
            tuple(t.shape),
            t.stride(),
            t.storage_offset(),
            t.dtype,
            t.device,
            t.requires_grad,
            t.is_leaf,
            memory.setdefault(t.untyped_storage()._cdata, len(memory)),
        )
        for t in tensors
    ]
    return *forms, *(read() for read in _MODES)


def _is_plain(tensor: torch.Tensor) -> bool:
    fixed = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return fixed and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


_MODES: tuple[Callable[[], Any], ...] = (
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
    current_gpu,
    *(
        (lambda kind=kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)))
        for kind in ("cpu", "cuda")
    ),
)
"""Reads of torch's modes under which a graph is compiled."""
