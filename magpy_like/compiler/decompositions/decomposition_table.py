"""The table of decompositions: torch's and own, without those of operators that are lowered."""

from __future__ import annotations

import functools
from typing import Any

import torch

from magpy_like.compiler.decompositions import (  # noqa: F401 (each registers its own)
    complex_parts,
    distances,
    eager_layouts,
    index_placement,
    losses,
    low_precision,
    random_draws,
)
from magpy_like.compiler.decompositions.registration import (
    OWN_DECOMPOSITIONS,
    Decomposition,
)
from magpy_like.compiler.lowering import LOWERINGS
from magpy_like.torch_compat.decompositions import core_aten_decompositions, get_decompositions

aten = torch.ops.aten

#: Operators decomposed in addition to torch's core set.
EXTRA_TORCH_DECOMPOSITIONS = [
    aten.native_layer_norm, aten.native_layer_norm_backward,
    aten.native_group_norm, aten.native_group_norm_backward,
    aten.native_batch_norm_backward, aten.batch_norm_backward,
    aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.nll_loss_forward, aten.nll_loss_backward, aten.addcmul, aten.addcdiv, aten.lerp,
    aten.select_backward, aten.slice_backward,
    aten.masked_fill, aten.hardtanh_backward, aten.hardswish_backward, aten.leaky_relu_backward,
    aten.elu_backward, aten.softplus_backward, aten.native_dropout_backward, aten.stack,
    aten.std_mean, aten.mse_loss_backward, aten.smooth_l1_loss_backward, aten.huber_loss_backward,
    aten.baddbmm, aten.diagonal_backward, aten.trace,
    aten.elu, aten.hardtanh, aten.leaky_relu,
    aten.dist, aten.tril_indices, aten.triu_indices, aten.rrelu_with_noise_backward,
    aten.as_strided_copy, aten.narrow_copy, aten.permute_copy, aten.unbind_copy, aten.view_copy,
]  # fmt: skip

#: Operators of torch's core set that are lowered, or called as they are.
KEPT_OPERATORS = [
    aten.gelu_backward, aten.silu, aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward,
    aten.threshold_backward, aten.native_dropout, aten.bernoulli, aten.rand_like, aten.randn_like,
    aten.randint_like, aten.baddbmm, aten.addmv, aten.uniform, aten.normal,
    aten._safe_softmax, aten.embedding_dense_backward,
    aten.rrelu_with_noise, aten.exponential,
    # The decomposition computes only the result, not the log-sum-exp that the backward reads.
    aten._scaled_dot_product_flash_attention_for_cpu,
    # No other arithmetic has equal results: eager counts from both ends, vector by vector.
    aten.linspace, aten.logspace,
]  # fmt: skip


@functools.cache
def decompositions() -> dict[Any, Decomposition]:
    """Operator overload -> decomposition; operators with a lowering have only own ones."""
    table = _core() | get_decompositions(EXTRA_TORCH_DECOMPOSITIONS) | OWN_DECOMPOSITIONS
    kept = {getattr(packet, name) for packet in KEPT_OPERATORS for name in packet.overloads()}
    return {
        operator: function
        for operator, function in table.items()
        if operator in OWN_DECOMPOSITIONS or (operator not in kept and operator not in LOWERINGS)
    }


@functools.cache
def _core() -> dict[Any, Decomposition]:
    """Torch's core set; cached, because torch takes long to assemble it."""
    return dict(core_aten_decompositions())
