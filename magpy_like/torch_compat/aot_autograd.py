"""AOTAutograd; importing this module imports Dynamo (1 s)."""

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

__all__ = [
    "InputMutationAOTOutput",
    "IntermediateBaseAOTOutput",
    "MemoryFormatMeta",
    "PlainAOTOutput",
    "SavedForBackwardsAOTOutput",
    "ViewAndMutationMeta",
    "aot_module_simplified",
    "functorch_config",
    "min_cut_rematerialization_partition",
]

# Descriptors state the purpose of an output of the forward graph.
# `MemoryFormatMeta.from_tensor` chooses the layout of a result's gradient, as traced and as given.
