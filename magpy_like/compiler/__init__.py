"""The built-in compiler: FX graph in, fused C++ and Triton kernels out (PyTorch 2, section 4).

It knows nothing of capture: any captured graph will do, Dynamo's too. In the order of the flow:

``compile_fx``: from a captured graph to a callable, with all fallbacks to ATen
``graph_partition``: partitioning of graphs with control flow
``inferred_dynamic_sizes``: dynamic sizes of their parts
``runtime_scalars``, ``unbacked_symbols``: float and size arguments; data-dependent sizes
``float_arithmetic``: arithmetic on floats known at run time, step by step
``trailing_views``: results that are views and share memory, made after the graph
``version_counters``, ``writes_of_parts``: writes counted as in eager mode
``running_statistics``: what batch norms write without a new version
``decompositions/``: operators in terms of simpler ones (section 4.2)
``autograd/``: AOTAutograd, forward and backward graphs, saved tensors (section 3.9)
``passes/``: graph passes, before and after autograd
``lowering/``, ``ir/``: ATen operators as loop nests; the loop IR (section 4.3)
``scheduling/``: fusion, order, memory planning (section 4.4)
``codegen/``: C++ (section 4.6), Triton (section 4.5), and the Python launcher (section 4.7)
``kernel_build``: print, compile, load, or find compiled; ``runtime/``: caches, loaded kernels
``stage_trace``, ``ir_text``: every stage as a file
``compiler_errors``: errors and the fallback warning
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.compiler_errors import CompileError, MagpyWarning

__all__ = ["CompileError", "MagpyWarning", "compile_fx", "dynamo_backend"]


def dynamo_backend(gm: Any, example_inputs: Any, **kwargs: Any) -> Callable[..., Any]:
    """``torch.compile(model, backend="magpy")``; takes torch.compile's ``mode`` and ``options``."""
    return compile_fx(gm, example_inputs, **kwargs)
