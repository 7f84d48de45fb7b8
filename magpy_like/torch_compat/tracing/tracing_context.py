"""Context of tracing, and the sources of symbolic sizes (``torch._guards``)."""

from __future__ import annotations

from torch._guards import GuardSource, Source, TracingContext, compile_context, tracing

__all__ = ["GuardSource", "Source", "TracingContext", "compile_context", "tracing"]

# `TracingContext.try_get()` is not None while Dynamo or AOTAutograd traces. `tracing` and
# `compile_context` enter a context again, for a pass that is compiled later. `Source` and
# `GuardSource` state where a symbolic size comes from.
