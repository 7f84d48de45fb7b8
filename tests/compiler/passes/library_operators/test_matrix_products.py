"""Large float32 products on a CPU use oneDNN if the BLAS is not optimised for the processor; their
results equal eager."""

import pytest
import torch
import torch.nn.functional as F

from magpy_like.compiler import kernel_build
from magpy_like.compiler.passes.library_operators import matrix_products
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compiler import programs
from tests.compiler.passes.pass_checks import operator_names, optimised_graph

N = 160  # 160 ** 3 multiplications exceed the limit
A, B, BIAS = torch.randn(N, N), torch.randn(N, N), torch.randn(N)
ONEDNN = "_linear_pointwise"


@pytest.fixture(autouse=True)
def foreign_processor(monkeypatch):
    """A processor for which the BLAS is not optimised."""
    monkeypatch.setattr(matrix_products, "is_vendor_blas", lambda: False)
    # The disk cache has graphs compiled for the actual processor.
    monkeypatch.setattr(kernel_build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: a @ b,
        lambda a, b, c: a @ b.t(),
        lambda a, b, c: a.t() @ b,
        lambda a, b, c: torch.addmm(c, a, b),
        lambda a, b, c: F.linear(a, b, c),
        lambda a, b, c: (F.linear(a, b, c) + 1).sum(),
        lambda a, b, c: a[:, :100] @ b[:100],
    ],
    ids=range(7),
)
def test_large_products_use_onednn(function):
    found = operator_names(optimised_graph(function, A, B, BIAS))
    assert ONEDNN in found
    assert not {"mm", "addmm"} & set(found)


def test_added_matrix_is_a_separate_addition():
    assert operator_names(optimised_graph(lambda a, b: torch.addmm(b, a, b), A, B)) == [
        "permute",
        ONEDNN,
        "add",
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: a[:8] @ b,  # small: the call costs more
        lambda a, b, c: (
            (a / N).view(1, -1) @ b.view(-1)[:, None].expand(-1, 99).contiguous()
        ),  # a vector
        lambda a, b, c: a.double() @ b.double(),
        lambda a, b, c: torch.addmm(c, a, b, beta=2),
        lambda a, b, c: a @ c[:, None].expand(N, N),  # not dense in memory
        lambda a, b, c: a[:, ::2] @ b[::2, ::2].repeat(1, 4)[:, ::2],
        lambda a, b, c: a.t() @ b[:, :96],  # the library would copy ``a`` for few columns
    ],
    ids=range(7),
)
def test_other_products_use_the_blas(function):
    assert ONEDNN not in operator_names(optimised_graph(function, A, B, BIAS))


def test_products_use_the_blas_without_onednn():
    with torch.backends.mkldnn.flags(enabled=False):
        assert ONEDNN not in operator_names(optimised_graph(lambda a, b: a @ b, A, B))


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_products_use_mkl_on_intel_processors(monkeypatch, vendor):
    monkeypatch.undo()
    monkeypatch.setattr(matrix_products, "processor", lambda: f"vendor_id\t: {vendor}")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    found = operator_names(optimised_graph(lambda a, b: a @ b, A, B))
    assert (ONEDNN in found) == (vendor == "AuthenticAMD")


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_products_of_special_values_equal_eager(special):
    a, b, c = A.clone(), B.clone(), BIAS.clone()
    a[3, 5] = b[7, 9] = c[11] = special
    a[20] = 0
    programs.same(lambda a, b, c: (a @ b, F.linear(a, b, c), F.linear(a, b, c).relu()), a, b, c,
                  rtol=1e-4, atol=1e-4)  # fmt: skip


def test_gradients_of_products_equal_eager():
    programs.same_gradients(lambda a, b, c: F.linear(a, b, c).tanh(), A, B, BIAS)


def test_products_of_varying_size_equal_eager():
    programs.same(lambda a, b: a @ b, A.repeat(3, 1), B, dynamic=True, rtol=1e-4, atol=1e-4)
