"""Products of a matrix and a vector on a GPU are reductions; other products stay the library's."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from tests.compiler.codegen.triton.fake_gpu import lowered, run, sources

PRODUCTS = {
    "row": (lambda a, b: a @ b.t(), (1, 300), (70, 300)),
    "column": (lambda a, b: a @ b, (70, 300), (300, 1)),
    "number": (lambda a, b: a @ b.t(), (1, 300), (1, 300)),
    "layer": (lambda a, b, c: F.linear(a, b, c), (1, 1, 300), (70, 300), (70,)),
    "bias of one number": (lambda a, b, c: torch.addmm(c, a, b), (70, 300), (300, 1), (1,)),
    "one number each": (lambda a, b: a @ b.t(), (1, 1), (70, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_product_is_one_kernel_no_less_exact_than_the_library(name, dtype):
    function, *shapes = PRODUCTS[name]
    generator = torch.Generator("cpu").manual_seed(0)
    tensors = [torch.randn(s, generator=generator, device="cpu").to(dtype) for s in shapes]
    (source,) = sources(function, *shapes, dtype=dtype)
    exact = function(*(t.double() for t in tensors))
    result = torch.empty_like(exact, dtype=dtype)
    run(source, *_in_order_of_reads(*tensors), result)
    error = (result.double() - exact).abs().max()
    assert error <= torch.finfo(dtype).eps * exact.abs().max()


def _in_order_of_reads(a, b, *bias):
    """The kernel reads the matrix, then the vector, then the bias."""
    matrix, vector = (a, b) if a.numel() > b.numel() else (b, a)
    return matrix, vector, *bias


MATRICES = {
    "two rows": (lambda a, b: a @ b.t(), (2, 64), (32, 64)),
    "columns in memory": (lambda a, b: a @ b, (1, 64), (64, 32)),
    "no columns": (lambda a, b: a @ b.t(), (1, 0), (32, 0)),
    "factors": (lambda a, b, c: torch.addmm(c, a, b.t(), beta=2), (1, 64), (32, 64), (1, 32)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_other_products_are_the_librarys(name):
    function, *shapes = MATRICES[name]
    assert set(lowered(function, *shapes).fallbacks) <= {"aten.mm.default", "aten.addmm.default"}
    assert lowered(function, *shapes).fallbacks


def test_products_on_a_cpu_are_the_librarys():
    x, w = torch.randn(1, 64, device="cpu"), torch.randn(32, 64, device="cpu")
    fast = magpy.compile(lambda x, w: x @ w.t())
    for _ in range(2):
        torch.testing.assert_close(fast(x, w), x @ w.t())


def test_layers_of_one_row_fuse_with_what_surrounds_them():
    def gated(x, gate, up, down):
        return x + (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t()

    shapes = (1, 128), (256, 128), (256, 128), (128, 256)
    assert len(sources(gated, *shapes, dtype=torch.bfloat16)) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_network_of_one_row_equals_eager(dtype, device):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Linear(96, 48)]
    model = torch.nn.Sequential(*layers).to(device, dtype)
    fast = magpy.compile(model)
    for _ in range(3):
        x = torch.randn(1, 48, device=device, dtype=dtype, requires_grad=True)
        found, expected = fast(x), model(x)
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(y.sum(), (x, *model.parameters())) for y in (found, expected)]
        torch.testing.assert_close(*grads)
