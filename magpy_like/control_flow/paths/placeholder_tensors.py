"""Placeholder tensors: fake tensors that represent any value an isolated iteration may receive."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx

from magpy_like.control_flow.paths.value_comparison import check_like
from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.monitor.context import Context
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import MonitorWeakRef
from magpy_like.split_points import LoopNotMergeable
from magpy_like.torch_compat.dispatch import disable_current_modes
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor, FakeTensorMode
from magpy_like.torch_interop.own_fake_modes import new_fake_mode


class PlaceholderTensors:
    """The placeholders of one monitor run, and their fake tensor mode."""

    def __init__(self) -> None:
        self._references: list[MonitorWeakRef] = []

    @functools.cached_property
    def fake_mode(self) -> FakeTensorMode:
        """Created on first use: most programs need none, and torch keeps the whole call stack of
        each mode."""
        return new_fake_mode()

    def any_like(
        self, context: Context, like: torch.Tensor, symbol: fx.Node, requires_grad: bool
    ) -> torch.Tensor:
        """A placeholder of the shape, strides, dtype and device of ``like``, for any tensor that
        iterations carry; its node is ``symbol``."""
        # The modes of a running isolated path must not register this allocation.
        with disable_current_modes(), self.fake_mode:
            tensor = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device,
                requires_grad=requires_grad,
            )  # fmt: skip
        return self._register(context, tensor, symbol)

    def row(self, context: Context, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """A placeholder for a row ``tensor[i]``, whose node is ``node``."""
        with self.fake_mode:
            row = torch.select(self.fake_mode.from_tensor(tensor), 0, 0)
        return self._register(context, row, node)

    def list_element(self, context: Context, graph_list: GraphList, index: Any) -> torch.Tensor:
        """See ``Branching.list_element``."""
        rec, (first, *others) = context.recording, graph_list.value
        for item in graph_list.value:
            if type(item) is not torch.Tensor:
                raise LoopNotMergeable("a list has elements that are not plain tensors")
        for other in others:
            check_like(other, first)
        if rec.sizes.twin is not None and graph_list.twin is None:
            raise LoopNotMergeable("the sizes of a list's elements are unknown")
        node = rec.operators.nodes.graph.call_function(operator.getitem, (graph_list.node, index))
        if graph_list.twin is not None:
            node.meta[TWIN] = graph_list.twin
        return self.any_like(context, first, node, first.requires_grad)

    def includes(self, value: Any) -> bool:
        """True for one of the placeholders."""
        return any(reference() is value for reference in self._references)

    def share_memory(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """True if two tensors, or the tensors that fake ones represent, share their memory."""
        storages = [
            (t if is_instance(t, FakeTensor) else self.fake_mode.from_tensor(t)).untyped_storage()
            for t in (one, other)
        ]
        return bool(storages[0]._cdata == storages[1]._cdata)

    def _register(self, context: Context, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        self._references.append(MonitorWeakRef(tensor))
        context.recording.operators.nodes.set_node(tensor, node)
        return tensor
