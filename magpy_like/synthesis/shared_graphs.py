"""One operator graph for all records of a program whose operator graphs are the same.

A loop that a split cuts is entered at two places: before its first round, and behind a round. What
is recorded from both is one graph, which is compiled once. Where sizes tell records apart, as 1
tells from others, a backend compiles the one graph for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.operator_graph.graph_nodes import NUMBER
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_interop.current_gpu import current_gpu


class CompiledGraph:
    """An operator graph and what a backend made of it, which may fail where no operator does."""

    def __init__(
        self, graph: fx.GraphModule, run: Callable[..., Any], may_fail: bool = False
    ) -> None:
        self.graph, self.run, self.may_fail = graph, run, may_fail


Key = tuple[Any, ...]


class SharedGraphs:
    """The compiled graphs of one program, as long as a record has them."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakValueDictionary[Key, fx.GraphModule]
        self._graphs = weakref.WeakValueDictionary()
        self._known: weakref.WeakValueDictionary[Key, CompiledGraph] = weakref.WeakValueDictionary()

    def compiled(
        self,
        graph: fx.GraphModule,
        inputs: Key | None,
        compile_graph: Callable[[], CompiledGraph],
    ) -> CompiledGraph:
        """What was made of an equal graph for such inputs, or else of this one.

        ``inputs`` is what the backend may rely on beside the graph; None: nobody knows.
        """
        key = _description(graph)
        if key is None:
            return compile_graph()
        # The key names objects by their ids; the graph holds them as long as the entries live.
        found = None if inputs is None else self._known.get((key, inputs))
        if found is None:
            found = compile_graph()
            found.graph = self._graphs.setdefault(key, graph)
            if inputs is not None:
                self._known[key, inputs] = found
        return found


class _NoDescription(Exception):
    """Something in a graph cannot be compared."""


def _description(graph: fx.GraphModule) -> Key | None:
    """Equal for graphs that compute the same; None for one that cannot be compared."""
    numbers: dict[fx.Node, int] = {}
    rows = []
    try:
        for node in graph.graph.nodes:
            numbers[node] = len(numbers)
            rows.append(
                (
                    node.op,
                    _target(graph, node),
                    bool(node.meta.get(NUMBER)),
                    _argument(node.args, numbers),
                    _argument(node.kwargs, numbers),
                )
            )
    except _NoDescription:
        return None
    return tuple(rows)


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
        return kind, repr(value)  # tells 0.0 from -0.0, and finds one NaN equal to another
    if value is None or kind in _COMPARABLE:
        return kind, value
    raise _NoDescription


_COMPARABLE = {
    bool, int, str, bytes, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
}  # fmt: skip


def compile_assumptions(inputs: Sequence[Any]) -> Key | None:
    """What a backend sees when it compiles a graph for these inputs; None if sizes may vary.

    Parameters are told apart by identity, other tensors by their form and by the memory they share.
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
            memory.setdefault(t.untyped_storage()._cdata, len(memory)),
        )
        for t in tensors
    ]
    return *forms, *(look() for look in _MODES)


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
"""Torch's modes under which a graph is compiled."""
