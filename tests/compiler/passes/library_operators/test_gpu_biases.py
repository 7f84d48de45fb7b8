"""Biases on a GPU become additions, which fuse with the operators that follow."""

import torch
import torch.nn.functional as F

from magpy_like.compiler import passes
from magpy_like.compiler.passes.library_operators import gpu_biases
from tests.compiler.codegen.triton.fake_gpu import traced
from tests.compiler.passes.pass_checks import operator_names
from tests.compiler.programs import same, same_gradients, seeded

SIZES = (2, 4, 6, 6), (5, 4, 3, 3), (5,)


def convolutions(function, *sizes):
    gm = passes.run(traced(function, *sizes), inference=False)
    return [n for n in gm.graph.nodes if "convolution" in str(n.target)], operator_names(gm)


def test_bias_becomes_a_separate_addition():
    (found,), operators = convolutions(lambda x, w, b: F.conv2d(x, w, b).relu(), *SIZES)
    assert found.args[2] is None
    assert "add" in operators

    def transposed(x, w, b):
        return F.conv_transpose2d(x, w, b, stride=2)

    (found,), operators = convolutions(transposed, (2, 5, 6, 6), *SIZES[1:2], (4,))
    assert found.args[2] is None and "add" in operators


def test_grouped_convolutions_keep_their_bias():
    def grouped(x, w, b):
        return F.conv2d(x, w, b, groups=4)

    (found,), _ = convolutions(grouped, SIZES[0], (4, 1, 3, 3), (4,))
    assert found.args[2] is not None


def test_convolutions_with_bias_equal_eager():
    def function(x, w, b, v):
        y = F.conv2d(x, w, b, padding=1).relu()
        return F.conv_transpose1d(F.conv1d(y.flatten(2), v, b[:3]), v, b[:5]).tanh()

    args = seeded(2, 4, 6, 6), seeded(5, 4, 3, 3), seeded(5), seeded(3, 5, 3)
    same(function, *args, rtol=1e-2, atol=1e-2)  # on a GPU, convolutions use TF32
    same(function, *(a.bfloat16() for a in args), rtol=5e-2, atol=5e-2)
    same_gradients(lambda x, w, b: F.conv2d(x, w, b).relu(), *args[:3])


def products(rows, dtype=torch.float32):
    gm = passes.run(
        traced(lambda x, w, b: F.linear(x, w, b), (rows, 8), (6, 8), (6,), dtype=dtype),
        inference=True,
    )
    return operator_names(gm)


def test_bias_of_a_small_float32_product_becomes_an_addition():
    names = products(128)
    assert "mm" in names and "add" in names and "addmm" not in names


def test_other_products_keep_their_bias(monkeypatch):
    assert "addmm" in products(128, torch.float16)
    assert "addmm" in products(4096)
    monkeypatch.setattr(gpu_biases, "gpu_products_use_tf32", lambda: True)
    assert "addmm" in products(128)


def test_products_with_bias_equal_eager():
    same(lambda x, w, b: F.linear(x, w, b).relu(), seeded(9, 8), seeded(6, 8), seeded(6))
