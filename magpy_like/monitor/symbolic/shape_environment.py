"""Shape environment without guards on the choice of a convolution algorithm.

To know the memory format of a convolution's result, torch chooses the algorithm: oneDNN, or ATen's
own for small filters and less than 16 images. On the CPU both return the same format, by the same
rule. A guard there would split one record's calls in two.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import SymNode

from magpy_like.torch_compat.tracing.fake_tensors import META_KERNELS_MODULE
from magpy_like.torch_interop.onednn import has_onednn
from magpy_like.torch_interop.symbols import ShapeEnvironment

_MANY_IMAGES = 16
"""From this batch size on, torch chooses oneDNN for filters of any size and any thread count."""


class Sizes(ShapeEnvironment):
    """``ShapeEnv`` without guards that choose between two equivalent convolution algorithms."""

    def evaluate_sym_node(self, sym_node: SymNode, *args: Any, **kwargs: Any) -> sympy.Basic:
        if _only_chooses_an_algorithm(sym_node.expr):
            with self.suppress_guards():
                return super().evaluate_sym_node(sym_node, *args, **kwargs)
        return super().evaluate_sym_node(sym_node, *args, **kwargs)


def _only_chooses_an_algorithm(expression: Any) -> bool:
    """True if torch evaluates a relation to choose a convolution algorithm on the CPU."""
    if not isinstance(expression, sympy.core.relational.Relational):
        return False
    if _MANY_IMAGES not in expression.args:
        return False
    if not has_onednn():  # perhaps NNPACK then, whose results have another layout
        return False
    caller = _caller()
    if caller.f_globals["__name__"] != META_KERNELS_MODULE:
        return False
    image = caller.f_locals.get("new_kwargs", {}).get("input")
    if caller.f_code.co_name != "conv" or image is None or image.dim() > 4:
        return False
    if caller.f_locals["device"].type != "cpu":
        return False
    images, *others = image.shape
    asked = expression.free_symbols
    return asked == _symbols(images) and not any(asked & _symbols(size) for size in others)


def _caller() -> types.FrameType:
    """The frame that evaluates the relation, outside of torch's symbolic numbers."""
    frame: Any = sys._getframe(2)
    while frame.f_globals.get("__name__", "").startswith(("torch.fx.experimental.", __name__)):
        frame = frame.f_back
    return frame


def _symbols(size: Any) -> set[Any]:
    return size.node.expr.free_symbols if isinstance(size, torch.SymInt) else set()
