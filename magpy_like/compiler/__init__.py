"""The built-in compiler: FX graph in, fused C++ and Triton kernels out (PyTorch 2, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.compiler_errors import CompileError, MagpyWarning

__all__ = ["CompileError", "MagpyWarning", "compile_fx", "dynamo_backend"]


def dynamo_backend(gm: Any, example_inputs: Any, **kwargs: Any) -> Callable[..., Any]:
    """``torch.compile(model, backend="magpy")``; takes torch.compile's ``mode`` and ``options``."""
    return compile_fx(gm, example_inputs, **kwargs)
