"""Graph passes: from a graph to a graph that computes the same with less.

Two pipelines, both tables below in the order in which their passes run:

- ``CAPTURED_PASSES``, by :func:`run_captured`: on the captured graph, before autograd, where a
  rewrite changes the backward pass too;
- ``ATEN_PASSES``, by :func:`run`: on ATen graphs (forward, backward, inference) after autograd
  (PyTorch 2, sections 3.9 and 4.2).

No pass depends on another having run before; the order decides how much they find.

``graph_queries``: a node's metadata, replacing a node by another
``alias_analysis``: nodes whose results may share memory
``checked_quantiles``: ranks of quantiles in [0, 1]
``inner_gradients``: ``torch.autograd.grad`` calls inside a captured graph
``cleanup/``: no-ops, common subexpressions, constants, pattern rewrites
``attention/``: attention as library operators
``library_operators/``: recurrent layers, matrix products, convolutions
``images/``: resized images, pixel for pixel as eager's kernels
``layout/``: memory layout: channels-last, contiguous results, written tensors
``mutations/``: writes that functionalisation would get wrong: metadata, overlapping views
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.fx import GraphModule

from magpy_like.compiler.passes.attention.attention_masks import drop_constant_masks
from magpy_like.compiler.passes.attention.attention_rewrite import rewrite_attention
from magpy_like.compiler.passes.attention.grouped_queries import fold_groups_into_queries
from magpy_like.compiler.passes.checked_quantiles import check_quantiles
from magpy_like.compiler.passes.cleanup.boolean_shifts import shift_booleans
from magpy_like.compiler.passes.cleanup.constant_folding import fold_constants
from magpy_like.compiler.passes.cleanup.dead_code import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
)
from magpy_like.compiler.passes.cleanup.noops import remove_noops
from magpy_like.compiler.passes.cleanup.pattern_rewrites import rewrite_patterns
from magpy_like.compiler.passes.cleanup.slice_sums import merge_slice_sums
from magpy_like.compiler.passes.images.image_resizing import (
    check_pixel_counts,
    match_eager_resizing,
)
from magpy_like.compiler.passes.inner_gradients import retain_inner_graphs
from magpy_like.compiler.passes.layout.channels_last import use_channels_last
from magpy_like.compiler.passes.layout.contiguous_results import make_results_contiguous
from magpy_like.compiler.passes.layout.layouts_of_writes import (
    keep_layouts_of_writes,
    reject_writes_between_gaps,
)
from magpy_like.compiler.passes.library_operators.gpu_biases import split_biases
from magpy_like.compiler.passes.library_operators.matrix_products import choose_product_kernels
from magpy_like.compiler.passes.library_operators.recurrent_layers import keep_recurrent_layers
from magpy_like.compiler.passes.mutations.detached_writes import (
    disable_gradients_of_detached_writes,
)
from magpy_like.compiler.passes.mutations.early_writes import write_inputs_early
from magpy_like.compiler.passes.mutations.metadata_mutations import (
    find_returned_object,
    leave_detached_views_to_eager,
    replace_metadata_mutations,
)
from magpy_like.compiler.passes.mutations.overlapping_writes import reject_overlapping_writes
from magpy_like.compiler.passes.mutations.tensor_subscripts import index_by_tensors
from magpy_like.interruption import check_interruption

__all__ = [
    "ATEN_PASSES", "CAPTURED_PASSES", "find_returned_object",
    "leave_detached_views_to_eager", "run", "run_captured",
]  # fmt: skip

# Each iteration can open opportunities for the next; real graphs converge in two or three.
MAX_ITERATIONS = 4


class CapturedPass(NamedTuple):
    """A pass over a captured graph, in place: ``run(gm)``, or ``run(gm, example_inputs)``."""

    name: str
    run: Callable[..., Any]
    needs_examples: bool = False


CAPTURED_PASSES = (
    # Before calls with `out=` are replaced: quantiles are known by name.
    CapturedPass("ranks of quantiles", check_quantiles),
    # Leaves to eager: resized arguments that are written to, results of another size in ``out=``.
    CapturedPass("metadata mutations", replace_metadata_mutations, needs_examples=True),
    # Made traceable: calls that torch would decompose, specialize or refuse in AOTAutograd.
    CapturedPass("recurrent layers", keep_recurrent_layers),
    CapturedPass("inner gradients", retain_inner_graphs),
    CapturedPass("tensor indices", index_by_tensors),
    CapturedPass("boolean shifts", shift_booleans),
    # As eager's kernels compute and lay out, where torch's decompositions do otherwise.
    CapturedPass("contiguous results", make_results_contiguous),
    CapturedPass("pixel counts", check_pixel_counts),
    CapturedPass("image resizing", match_eager_resizing),
    # Optimisations whose backward pass is the library's.
    CapturedPass("attention", rewrite_attention, needs_examples=True),
    CapturedPass("grouped queries", fold_groups_into_queries, needs_examples=True),
    CapturedPass("constant attention masks", drop_constant_masks, needs_examples=True),
    # As eager lays out tensors that are written to.
    CapturedPass("layouts of writes", keep_layouts_of_writes, needs_examples=True),
    # Leaves to eager: writes to new tensors with gaps, to expanded views and to windows.
    CapturedPass("writes between gaps", reject_writes_between_gaps),
    CapturedPass("overlapping writes", reject_overlapping_writes),
    # Hides from AOTAutograd what autograd does not record; other passes know these calls by name.
    CapturedPass("detached writes", disable_gradients_of_detached_writes),
)


class Phase(enum.Enum):
    """When a pass over an ATen graph runs."""

    BEFORE = enum.auto()
    REPEATED = enum.auto()  # until no pass changes anything, at most MAX_ITERATIONS times
    KERNELS = enum.auto()  # which library kernel computes an operator; then dead code goes
    LAYOUT = enum.auto()


ALWAYS = frozenset({"training", "inference"})
TRAINING = frozenset({"training"})
INFERENCE = frozenset({"inference"})


class AtenPass(NamedTuple):
    """A pass over an ATen graph, in place: ``run(gm)`` returns True if it changed the graph."""

    name: str
    run: Callable[[GraphModule], bool]
    phase: Phase
    applies: frozenset[str] = ALWAYS
    repeats: bool = True
    """True if a change is a reason for another iteration."""


ATEN_PASSES = (
    AtenPass("sums of slices", merge_slice_sums, Phase.BEFORE),
    AtenPass("no-ops", remove_noops, Phase.REPEATED),
    AtenPass("common subexpressions", eliminate_common_subexpressions, Phase.REPEATED),
    AtenPass("constant folding", fold_constants, Phase.REPEATED),
    AtenPass("dead code", eliminate_dead_code, Phase.REPEATED, repeats=False),
    AtenPass(
        "pattern rewrites", functools.partial(rewrite_patterns, inference=False), Phase.REPEATED,
        TRAINING,
    ),
    AtenPass(
        "pattern rewrites", functools.partial(rewrite_patterns, inference=True), Phase.REPEATED,
        INFERENCE,
    ),
    AtenPass("dead code", eliminate_dead_code, Phase.REPEATED, repeats=False),
    AtenPass("matrix product kernels", choose_product_kernels, Phase.KERNELS),
    AtenPass("biases on a GPU", split_biases, Phase.KERNELS),
    AtenPass("writes to inputs", write_inputs_early, Phase.KERNELS),
    # With gradients, the joint graph is laid out before it is partitioned (``autograd.aot``).
    AtenPass("channels-last", use_channels_last, Phase.LAYOUT, INFERENCE),
)  # fmt: skip


def run_captured(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """Run ``CAPTURED_PASSES`` on a captured graph, in place, and return it.

    Args:
        example_inputs: one tensor (real or fake) or number per placeholder.

    Raises:
        Unsupported: the functional form of the graph would differ from eager.
    """
    for captured_pass in CAPTURED_PASSES:
        check_interruption()
        captured_pass.run(gm, *((example_inputs,) if captured_pass.needs_examples else ()))
    return gm


def run(gm: GraphModule, *, inference: bool) -> GraphModule:
    """Run ``ATEN_PASSES`` on an ATen graph, in place, and return it.

    Args:
        gm: every tensor node carries its fake tensor in ``meta["val"]``, as AOTAutograd leaves it.
        inference: no gradient will be taken through the graph.
    """
    _run_phase(gm, Phase.BEFORE, inference)
    for _ in range(MAX_ITERATIONS):
        if not _run_phase(gm, Phase.REPEATED, inference):
            break
    if _run_phase(gm, Phase.KERNELS, inference):
        eliminate_dead_code(gm)
    _run_phase(gm, Phase.LAYOUT, inference)
    gm.graph.lint()
    gm.recompile()
    return gm


def _run_phase(gm: GraphModule, phase: Phase, inference: bool) -> bool:
    """Run the passes of a phase in order; True if one changed the graph and counts."""
    graph_kind = "inference" if inference else "training"
    changed = False
    for aten_pass in ATEN_PASSES:
        check_interruption()
        if aten_pass.phase is phase and graph_kind in aten_pass.applies:
            changed |= aten_pass.run(gm) and aten_pass.repeats
    return changed
