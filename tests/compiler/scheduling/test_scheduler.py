"""The scheduler: fused and separate kernels, and the recorded reasons."""

import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.cpp import cpp_printer
from magpy_like.compiler.codegen.cpp.cpp_column_reduction import Columns
from magpy_like.compiler.ir.loop_ir import Cost
from tests.compiler.programs import kernels, same, schedule

X = torch.randn(32, 64)


def test_elementwise_chain_is_one_kernel():
    assert len(kernels(lambda x: (x * 2 + 1).sin().exp() - x, X)) == 1


def test_softmax_is_one_kernel_without_intermediate_buffers():
    (kernel,) = kernels(lambda x: x.softmax(-1), X)
    assert len(kernel.phases) == 3
    assert kernel.outputs and len(kernel.removed) == 3


def test_expensive_input_of_softmax_is_computed_once():
    table, at = torch.randn(32, 64), torch.randint(64, (32, 64))
    for expensive in (lambda x, t, i: x + t.gather(1, i), lambda x, t, i: torch.sin(x)):
        (kernel,) = kernels(
            lambda x, t, i, expensive=expensive: expensive(x, t, i).softmax(-1), X, table, at
        )
        assert len(kernel.outputs) == 1 and len(kernel.removed) == 4, "the row is not stored"
    (kernel,) = kernels(lambda x: (x * 2).softmax(-1), X)
    assert len(kernel.removed) == 3, "recomputation is cheaper"


def test_layer_norm_with_elementwise_neighbours_is_one_kernel():
    w = torch.randn(64)
    (kernel,) = kernels(lambda x, w: F.gelu(F.layer_norm(x + 1, (64,), w)) * 2, X, w)
    assert len(kernel.outputs) == 1


def test_producers_are_fused_into_a_reduction_through_a_view():
    assert len(kernels(lambda x: (x.exp().view(32, 8, 8) * 2).sum((1, 2)), X)) == 1


def test_independent_readers_of_one_input_share_a_kernel():
    assert len(kernels(lambda x: (x.exp(), x.sin(), x.sum(1)), X)) == 1


def test_chunks_are_computed_in_their_reader():
    def gates(x, y, bias):
        i, f = (x + bias + y).chunk(2, 1)
        return torch.sigmoid(i) * torch.tanh(f)

    (kernel,) = kernels(gates, X, X + 1, X[0].clone())
    assert len(kernel.outputs) == 1 and not kernel.removed


def test_readers_of_other_elements_are_not_fused():
    plan_kernel = schedule(lambda x: (lambda y: y + y.flip(1))(x.exp()), X)
    assert len(plan_kernel.steps) == 2
    assert any("is accessed at" in str(d.reason) for d in plan_kernel.decisions if not d.fused)


def test_kernels_around_an_aten_call_are_not_fused():
    plan_kernel = schedule(lambda x: (x + 1) @ (x * 2).t() + 3, X)
    assert len(plan_kernel.steps) == 3


def test_concatenation_writes_into_the_result():
    plan_kernel = kernels(lambda x: torch.cat([x.exp(), x.sin()], 1), X)
    assert {b for k in plan_kernel for b in k.outputs} == set(plan_kernel[0].outputs)
    assert not any(k.removed for k in plan_kernel)


def test_fusion_decisions_state_the_saved_traffic():
    decisions = schedule(lambda x: x.softmax(-1), X).decisions
    assert any(d.fused and "bytes less traffic" in str(d.reason) for d in decisions)


def test_values_computed_from_positions_are_cheap_to_recompute():
    assert not Cost(10, False, frozenset()).is_expensive
    assert Cost(10, False, frozenset({"arg0"})).is_expensive
    assert Cost(10, True, frozenset()).is_expensive and Cost(40, False, frozenset()).is_expensive


def test_row_sums_and_column_sums_are_not_fused():
    """In one kernel, the loop order that suits the rows would stride through memory for columns."""
    square = torch.randn(64, 64)
    plan_kernel = schedule(lambda x: (x.sum(0), x.sum(1)), square)
    assert len(plan_kernel.steps) == 2
    assert any("across" in str(d.reason) for d in plan_kernel.decisions if not d.fused)
    same(lambda x: (x.sum(0), x.sum(1), (x * 2).amax(0), x.exp().sum(1)), square)


def normalised(x, mean, scale, g):
    n = (x - mean) * scale
    return (g * n).sum(0), (g * n).sum(1), g - n


def test_normalised_values_are_recomputed_in_each_reader():
    g, mean, scale = torch.randn(32, 64), torch.randn(32, 1), torch.randn(32, 1)
    written = {b for kernel in kernels(normalised, X, mean, scale, g) for b in kernel.outputs}
    assert len(written) == 3, "the results, without intermediate buffers"
    same(normalised, X, mean, scale, g)


def test_column_sum_with_row_statistics_iterates_over_columns():
    rows, mean, scale = torch.randn(64, 48), torch.randn(64, 1), torch.randn(64, 1)
    (kernel,) = kernels(lambda x, m, s: ((x - m) * s).sum(0), rows, mean, scale)
    assert isinstance(cpp_printer.printer_of(kernel, int), Columns)
