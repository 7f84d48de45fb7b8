"""Sizes and strides of tensors that vary between calls: the symbolic twins of the program's
tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.native import TensorCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass


class TensorSizes:
    """The symbolic sizes of the program's tensors."""

    def __init__(self, variables: Variables, operators: OperatorGraph) -> None:
        self._variables, self._operators = variables, operators
        self.twin: SymbolicTwin | None = None
        """The symbolic twin of the run, while there are dynamic dimensions."""
        self._dynamic_dims: Callable[[Path, torch.Tensor], Collection[int]] = _none_dynamic
        """Returns the dimensions that may vary of a tensor at an external location."""
        self._dynamic_strides: Mapping[Path, Collection[int]] = {}

    def begin_twin(
        self,
        dynamic_dims: Callable[[Path, torch.Tensor], Collection[int]],
        dynamic_strides: Mapping[Path, Collection[int]],
        account: Callable[[], None],
        locate: Callable[[], str],
    ) -> None:
        """Run every operator on symbolic sizes as well.

        Args:
            dynamic_dims: Returns the dimensions that may vary of a tensor at an external location.
            dynamic_strides: The dimensions whose strides may vary, by the tensor's location.
            account: Called after each operator that the twin runs.
            locate: Returns the program's present source line.
        """
        self._dynamic_dims, self._dynamic_strides = dynamic_dims, dynamic_strides
        self.twin = self._operators.nodes.twin = SymbolicTwin(
            self._operators.numbers.add_size, account, locate
        )

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The symbolic twin of a tensor; None if it has none."""
        if self.twin is None:
            return None
        node = self._variables.node(tensor)
        if node is not None and node.node_id in self.twin.inputs:
            return self.twin.inputs[node.node_id]
        return self._operators.nodes.twin_of(tensor)

    def varying_dims(self, tensor: torch.Tensor) -> list[int]:
        """The dimensions of a tensor whose sizes vary between calls or depend on data.

        Where the dimension is unknown, it is most likely the first one: operators that select
        elements put them there.
        """
        twin = self.twin_of(tensor)
        if twin is None or self.twin is None:
            if not self._operators.has_data_dependent_shape(tensor):
                return []
            with DisableTorchFunctionSubclass():  # a class of it would hear of this
                return [0] if tensor.dim() else []
        return [dim for dim, size in enumerate(twin.shape) if self.twin.is_dynamic(size)]

    def check(self, node: ShadowNode, tensor: torch.Tensor) -> TensorCheck | None:
        """The guard's check of a tensor whose sizes or strides may vary; None for any other."""
        if self.twin is None or is_instance(tensor, torch.nn.Parameter):
            return None
        path = self._variables.path(node)
        if not path or (len(path) > 1 and path[-2].key in ("_parameters", "_buffers")):
            return None
        steps = self._dynamic_strides.get(path, ())
        return self.twin.add_tensor(node, tensor, self._dynamic_dims(path, tensor), steps)


def _none_dynamic(path: Path, tensor: torch.Tensor) -> Collection[int]:
    return ()
