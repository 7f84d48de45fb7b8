"""The sources of generated graph modules, which torch keeps for tracebacks."""

from __future__ import annotations

from torch.fx.graph_module import _exec_with_source as exec_graph_source
from torch.fx.graph_module import _loader

__all__ = ["GRAPH_SOURCES", "exec_graph_source"]

# `exec_graph_source(source, globals, co_fields)` defines `forward` of a graph module in `globals`.

GRAPH_SOURCES: dict[str, str] = _loader.eval_cache
"""Sources by the name of the file that their code states."""
