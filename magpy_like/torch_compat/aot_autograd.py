"""AOTAutograd and the context of tracing; importing this module imports Dynamo (1 s)."""

from __future__ import annotations

from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import (
    InputMutationAOTOutput,
    PlainAOTOutput,
    SavedForBackwardsAOTOutput,
)
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import GuardSource, Source, TracingContext, compile_context, tracing
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module as use_lazy_graph_module

__all__ = [
    "GuardSource",
    "InputMutationAOTOutput",
    "LazyGraphModule",
    "PlainAOTOutput",
    "SavedForBackwardsAOTOutput",
    "Source",
    "TracingContext",
    "aot_module_simplified",
    "compile_context",
    "functorch_config",
    "min_cut_rematerialization_partition",
    "tracing",
    "use_lazy_graph_module",
]

# Descriptors state the purpose of an output of the forward graph. `Source` and `GuardSource` name
# where a symbolic size comes from. Under `use_lazy_graph_module`, graphs are `LazyGraphModule`,
# whose Python source is written when it is first called.
