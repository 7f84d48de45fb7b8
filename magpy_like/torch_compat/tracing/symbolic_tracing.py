"""Symbolic tracing by ``torch.fx``, which calls modules with proxies."""

from __future__ import annotations

from torch.fx import _symbolic_trace as _tracing

__all__ = ["is_symbolically_traced"]


if hasattr(_tracing, "_get_is_fx_tracing"):  # from torch 2.14 on
    is_symbolically_traced = _tracing._get_is_fx_tracing
    """True while ``torch.fx`` traces a module or function in this thread."""
else:

    def is_symbolically_traced() -> bool:
        """True while ``torch.fx`` traces a module or function, in any thread."""
        return _tracing._is_fx_tracing_flag
