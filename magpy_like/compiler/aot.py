"""Forward and backward ATen graphs through torch's AOTAutograd (PyTorch 2, section 3.9)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensor

from magpy_like.compiler.lowering import LOWERINGS

aten = torch.ops.aten

#: Decomposed beyond torch's core set.
EXTRA_DECOMPOSITIONS = [
    aten.native_layer_norm, aten.native_layer_norm_backward,
    aten.native_group_norm, aten.native_group_norm_backward,
    aten.native_batch_norm, aten.native_batch_norm_backward,
    aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional,
    aten.batch_norm_backward,
    aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.nll_loss_forward, aten.nll_loss_backward, aten.addcmul, aten.addcdiv, aten.lerp,
    aten.select_backward, aten.slice_backward,
    aten.masked_fill, aten.hardtanh_backward, aten.hardswish_backward, aten.leaky_relu_backward,
    aten.elu_backward, aten.softplus_backward, aten.native_dropout_backward, aten.stack,
    aten.std_mean, aten.mse_loss_backward, aten.smooth_l1_loss_backward, aten.huber_loss_backward,
    aten.baddbmm, aten.diagonal_backward, aten.trace,
    aten.elu, aten.hardtanh, aten.leaky_relu, aten.ldexp,
    aten.dist,
    aten.as_strided_copy, aten.narrow_copy, aten.permute_copy, aten.unbind_copy, aten.view_copy,
]  # fmt: skip

#: In torch's core set, but lowered or called as they are.
KEEP = [
    aten.gelu_backward, aten.silu, aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward,
    aten.threshold_backward, aten.native_dropout, aten.bernoulli, aten.rand_like, aten.randn_like,
    aten.randint_like, aten.baddbmm, aten.addmv, aten.uniform, aten.normal,
    aten._safe_softmax, aten.embedding_dense_backward,
    aten.rrelu_with_noise, aten.exponential,
    # The decomposition computes the result only, not the log-sum-exp that its backward reads.
    aten._scaled_dot_product_flash_attention_for_cpu,
]  # fmt: skip

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator -> its meaning in simpler operators; what has a lowering is left alone."""
    table = dict(core_aten_decompositions()) | get_decompositions(EXTRA_DECOMPOSITIONS)
    kept = {getattr(packet, name) for packet in KEEP for name in packet.overloads()}
    return {
        operator: function
        for operator, function in table.items()
        if operator not in kept and operator not in LOWERINGS
    }


def aot_compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, forward: Compiler, backward: Compiler,
    inference: Compiler,
) -> Callable[..., Any]:  # fmt: skip
    """Trace ``gm`` to functional ATen graphs and compile each with the given compilers.

    ``example_inputs`` are tensors, fake tensors (symbolic sizes included) or numbers, one per
    placeholder. The result takes the same arguments; it applies input mutations, regenerates
    aliased outputs, and has a backward when an input or parameter requires grad.
    """
    direct: list[Callable[..., Any]] = []

    def compile_inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = inference(graph, inputs)
        if _needs_no_wrapper(gm, graph, example_inputs):
            direct.append(call)
        return call

    wrapped = aot_module_simplified(
        gm,
        list(example_inputs),
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=compile_inference,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    return _without_grad(*direct) if direct else wrapped


def _needs_no_wrapper(
    gm: fx.GraphModule, graph: fx.GraphModule, example_inputs: Sequence[Any]
) -> bool:
    """Does the ATen graph take and return exactly what ``gm`` does?

    AOTAutograd's runtime wrapper costs microseconds. It has work to do only when an output or a
    changed shape of an input must be made from the input itself, when inputs were merged, taken
    apart or lifted out of the module, and under autocast.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    values = [n.meta.get("val") for n in placeholders]
    results = graph.graph.output_node().args[0]
    if len(values) != len(example_inputs) or len(results) != len(gm.graph.output_node().args[0]):
        return False
    if torch._C._is_any_autocast_enabled():
        return False
    for value, example in zip(values, example_inputs, strict=True):
        if isinstance(example, torch.Tensor):
            plain = type(example) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
            if not plain or not isinstance(value, torch.Tensor):
                return False
            if (value.dim(), value.dtype) != (example.dim(), example.dtype):
                return False
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided]
    memory = {v.untyped_storage()._cdata for v in tensors}
    for node in results:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
        if value.untyped_storage()._cdata in memory:
            return False
    return True


def _without_grad(call: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """``call`` on its arguments, with gradients off: nothing in it is to be differentiated."""

    def run(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(list(args))
        torch._C._set_grad_enabled(False)
        try:
            return call(list(args))
        finally:
            torch._C._set_grad_enabled(True)

    return run
