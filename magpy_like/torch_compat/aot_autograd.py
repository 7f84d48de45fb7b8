"""AOTAutograd and lazy graph modules; importing this module imports Dynamo (1 s)."""

from __future__ import annotations

from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import (
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    PlainAOTOutput,
    SavedForBackwardsAOTOutput,
)
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, ViewAndMutationMeta
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module as use_lazy_graph_module

__all__ = [
    "InputMutationAOTOutput",
    "IntermediateBaseAOTOutput",
    "LazyGraphModule",
    "MemoryFormatMeta",
    "PlainAOTOutput",
    "SavedForBackwardsAOTOutput",
    "ViewAndMutationMeta",
    "aot_module_simplified",
    "functorch_config",
    "min_cut_rematerialization_partition",
    "use_lazy_graph_module",
]

# Descriptors state the purpose of an output of the forward graph. Under `use_lazy_graph_module`,
# graphs are `LazyGraphModule`, whose Python source is written when it is first called.
# `MemoryFormatMeta.from_tensor` chooses the layout of a result's gradient, as traced and as given.
