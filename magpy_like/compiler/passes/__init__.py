"""Graph passes: from a graph to a graph that computes the same with less.

:func:`run` works on ATen graphs after autograd (PyTorch 2, section 3.9 and 4.2);
:func:`run_captured` on the graph as it was captured, where a rewrite also changes the backward.
Every pass takes a graph and says whether it changed it. None needs another to have run before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from magpy_like.compiler.passes.attention.attention_masks import drop_idle_masks
from magpy_like.compiler.passes.attention.attention_rewrite import (
    rewrite_attention,
)
from magpy_like.compiler.passes.attention.recurrent_layers import (
    keep_recurrent_layers,
)
from magpy_like.compiler.passes.cleanup.boolean_shifts import shift_truths
from magpy_like.compiler.passes.cleanup.constant_folding import fold
from magpy_like.compiler.passes.cleanup.convolution_bias import add_biases
from magpy_like.compiler.passes.cleanup.dead_code import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
)
from magpy_like.compiler.passes.cleanup.matrix_products import place_products
from magpy_like.compiler.passes.cleanup.noops import remove_noops
from magpy_like.compiler.passes.cleanup.pattern_rewrites import rewrite
from magpy_like.compiler.passes.cleanup.sums_of_parts import join_sums
from magpy_like.compiler.passes.images.image_resizing import (
    compute_as_eager,
    look_for_pixels,
)
from magpy_like.compiler.passes.inner_gradients import keep_saved
from magpy_like.compiler.passes.layout.argument_forms import (
    leave_new_forms,
    object_of,
)
from magpy_like.compiler.passes.layout.channels_last import use_channels_last
from magpy_like.compiler.passes.layout.overlapping_writes import leave_overlaps
from magpy_like.compiler.passes.layout.position_tensors import keep_positions
from magpy_like.compiler.passes.layout.row_layout import lay_rows

__all__ = ["object_of", "run", "run_captured"]

# Each round can open opportunities for the next; real graphs settle in two or three.
_ROUNDS = 4


def run_captured(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """Rewrite a graph as it was captured, before autograd sees it, in place; returns it."""
    leave_new_forms(gm)
    keep_recurrent_layers(gm)
    keep_saved(gm)
    keep_positions(gm)
    shift_truths(gm)
    lay_rows(gm)
    look_for_pixels(gm)
    compute_as_eager(gm)
    gm = rewrite_attention(gm, example_inputs)
    drop_idle_masks(gm, example_inputs)
    leave_overlaps(gm)
    return gm


def run(gm: GraphModule, *, inference: bool) -> GraphModule:
    """Optimise an ATen graph in place, and return it.

    Args:
        gm: every tensor node carries its fake tensor in ``meta["val"]``, as AOTAutograd leaves it.
        inference: no gradient will be taken through the graph.
    """
    join_sums(gm)
    for _ in range(_ROUNDS):
        changed = remove_noops(gm)
        changed |= eliminate_common_subexpressions(gm)
        changed |= fold(gm)
        eliminate_dead_code(gm)
        changed |= rewrite(gm, inference=inference)
        eliminate_dead_code(gm)
        if not changed:
            break
    if place_products(gm) | add_biases(gm):
        eliminate_dead_code(gm)
    if inference:
        use_channels_last(gm)
    gm.graph.lint()
    gm.recompile()
    return gm
