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
from magpy_like.torch_compat.fake_tensors import FakeTensor, FakeTensorMode


class PlaceholderTensors:
    """The placeholders of one monitor run, and their fake tensor mode."""

    def __init__(self) -> None:
        self._made: list[MonitorWeakRef] = []

    @functools.cached_property
    def fake_mode(self) -> FakeTensorMode:
        """Created on first use: most programs need none, and torch keeps the whole call stack of
        each mode."""
        return FakeTensorMode(allow_non_fake_inputs=True)

    def any_like(
        self, context: Context, like: torch.Tensor, symbol: fx.Node, requires_grad: bool
    ) -> torch.Tensor:
        """A placeholder of the shape, strides, dtype and device of ``like``, for any tensor that
        iterations carry; its node is ``symbol``."""
        # The program may be inside an isolated path, whose allocations this is none of.
        with disable_current_modes(), self.fake_mode:
            made = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device,
                requires_grad=requires_grad,
            )  # fmt: skip
        return self._known(context, made, symbol)

    def row(self, context: Context, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """A placeholder for a row ``tensor[i]``, whose node is ``node``."""
        with self.fake_mode:
            made = torch.select(self.fake_mode.from_tensor(tensor), 0, 0)
        return self._known(context, made, node)

    def list_element(self, context: Context, gathered: GraphList, at: Any) -> torch.Tensor:
        """See ``Branching.list_element``."""
        rec, (first, *others) = context.recording, gathered.value
        for item in gathered.value:
            if type(item) is not torch.Tensor:
                raise LoopNotMergeable("a list has elements that are not plain tensors")
        for other in others:
            check_like(other, first)
        if rec.sizes.twin is not None and gathered.twin is None:
            raise LoopNotMergeable("the sizes of a list's elements are unknown")
        node = rec.operators.nodes.graph.call_function(operator.getitem, (gathered.node, at))
        if gathered.twin is not None:
            node.meta[TWIN] = gathered.twin
        return self.any_like(context, first, node, first.requires_grad)

    def includes(self, value: Any) -> bool:
        """True for one of the placeholders."""
        return any(reference() is value for reference in self._made)

    def share_memory(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """True if two tensors, or the tensors that fake ones represent, share their memory."""
        storages = [
            (t if is_instance(t, FakeTensor) else self.fake_mode.from_tensor(t)).untyped_storage()
            for t in (one, other)
        ]
        return bool(storages[0]._cdata == storages[1]._cdata)

    def _known(self, context: Context, made: torch.Tensor, node: fx.Node) -> torch.Tensor:
        self._made.append(MonitorWeakRef(made))
        context.recording.operators.nodes.set_node(made, node)
        return made
