"""Float32 products of a few rows and a large matrix on a CPU, without copies of the operands;
results equal eager in any layout."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.compiler import compiler_errors, kernel_build
from magpy_like.compiler.passes.library_operators import matrix_products
from magpy_like.compiler.runtime import captured_graph_cache, narrow_products
from magpy_like.disk_cache import cpp_compiler
from tests.compiler import programs
from tests.compiler.passes.pass_checks import operator_names, optimised_graph

WIDE, DEEP = 1024, 256
ROWS = torch.randn(4, DEEP)
WEIGHTS, BIAS = torch.randn(WIDE, DEEP) / 32, torch.randn(WIDE)


@pytest.fixture(autouse=True)
def foreign_processor(monkeypatch):
    """A processor for which the BLAS is not optimised."""
    monkeypatch.setattr(matrix_products, "is_vendor_blas", lambda: False)
    monkeypatch.setattr(kernel_build, "key", lambda *args: None)
    monkeypatch.setattr(captured_graph_cache, "key", lambda *args: None)


@pytest.fixture
def used_kernels(monkeypatch):
    """The names of the kernels that computed products, in order; small products included."""
    found = []
    functions = narrow_products._functions()

    def seen(name):
        def run(*args):
            found.append(name)
            return functions[name](*args)

        return run

    monkeypatch.setattr(
        narrow_products, "_functions", lambda: {name: seen(name) for name in functions}
    )
    monkeypatch.setattr(narrow_products, "MIN_PRODUCT_ELEMENTS", 1)
    monkeypatch.setattr(narrow_products, "MIN_UNCACHED_ELEMENTS", 1)
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: F.linear(a, b, c),
        lambda a, b, c: F.linear(a, b),
        lambda a, b, c: torch.addmm(c, a, b.t()),
        lambda a, b, c: a[:1] @ b.t(),
        lambda a, b, c: F.linear(a, b, c).t()[:, :4] @ a,  # the gradient of weights
        lambda a, b, c: c.expand(8, -1) @ b,  # the gradient of rows
    ],
    ids=range(6),
)
def test_products_of_few_rows_use_narrow_kernels(function):
    found = operator_names(optimised_graph(function, ROWS, WEIGHTS, BIAS))
    assert "product" in found
    assert not {"mm", "addmm", "add"} & set(found)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: F.linear(a[:, :16], b[:, :16]),  # small: the operands are in the cache
        lambda a, b, c: F.linear(a.double(), b.double()),
        lambda a, b, c: torch.addmm(c, a, b.t(), alpha=2),
        lambda a, b, c: a.repeat(3, 1) @ b.t(),  # enough rows for a library
        lambda a, b, c: F.linear(a, b.repeat(1, 2)[:, ::2]),  # elements that are not adjacent
    ],
    ids=range(5),
)
def test_other_products_use_libraries(function):
    assert "product" not in operator_names(optimised_graph(function, ROWS, WEIGHTS, BIAS))


def test_products_of_few_rows_use_the_blas_of_the_processors_vendor(monkeypatch):
    monkeypatch.setattr(matrix_products, "is_vendor_blas", lambda: True)
    assert operator_names(optimised_graph(lambda a, b: F.linear(a, b), ROWS, WEIGHTS)) == [
        "t",
        "mm",
    ]


LAYOUTS = {
    "contiguous": lambda m, n: torch.randn(m, n),
    "transposed": lambda m, n: torch.randn(n, m).t(),
    "a window": lambda m, n: torch.randn(m + 2, n + 5)[1 : m + 1, 3 : n + 3],
    "a transposed window": lambda m, n: torch.randn(n + 2, m + 5)[1 : n + 1, 3 : m + 3].t(),
    "expanded": lambda m, n: torch.randn(n).expand(m, n),
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_products_of_any_size_and_layout_are_correct(used_kernels, left, right):
    """Covers remainders of vectors and panels, and all kinds of strides."""
    for m in range(1, 10):
        for n, k in ((9, 16), (70, 35), (33, 130)):
            for m_, k_ in ((m, k), (k, m)):  # few rows, or columns times rows
                a, b = LAYOUTS[left](m_, k_), LAYOUTS[right](k_, n)
                for bias in (None, torch.randn(n)):
                    exact = a.double() @ b.double() + (0 if bias is None else bias)
                    found = narrow_products.product(a, b, bias, False)
                    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-4)
                    assert found.is_contiguous()


def test_operand_shapes_select_the_kernel(used_kernels):
    a, tall = torch.randn(4, 32), torch.randn(64, 4)
    narrow_products.product(a, torch.randn(64, 32).t(), None, False)
    narrow_products.product(a, torch.randn(32, 64), None, False)
    narrow_products.product(tall, torch.randn(4, 32), None, False)
    narrow_products.product(torch.randn(4, 0), torch.randn(0, 64), None, False)
    assert used_kernels == ["by_columns_of", "by_rows_of", "outer"]


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_special_values_propagate_as_in_eager(used_kernels, special):
    for a, b in ((ROWS, WEIGHTS.t()), (ROWS, WEIGHTS.view(DEEP, WIDE)), (WEIGHTS[:, :4], ROWS)):
        a, b = a.clone(), b.clone(memory_format=torch.preserve_format)
        a[2, 1] = special
        b[3, 5] = special
        found, expected = narrow_products.product(a, b, None, False), a @ b
        assert torch.equal(found.isfinite(), expected.isfinite())
        assert torch.equal(found.isnan(), expected.isnan())
    assert len(used_kernels) == 3


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_long_sums_of_equal_numbers_are_accurate(used_kernels, layout):
    long = 60_000
    a, b = torch.full((3, long), 0.1), LAYOUTS[layout](long, 20)
    b.fill_(0.3)
    found = narrow_products.product(a, b, None, False)
    exact = a[0].double() @ b[:, 0].double()
    torch.testing.assert_close(found, exact.float().expand(3, 20), rtol=2e-5, atol=0)
    assert len(used_kernels) == 1


def test_number_of_threads_does_not_change_the_product(used_kernels):
    pairs = ((ROWS, WEIGHTS.t()), (ROWS, WEIGHTS.view(DEEP, WIDE)), (WEIGHTS[:, :4], ROWS))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append([narrow_products.product(a, b, None, False) for a, b in pairs])
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def test_gradients_of_products_of_few_rows_equal_eager(used_kernels):
    programs.same_gradients(lambda a, b, c: F.linear(a, b, c).tanh(), ROWS, WEIGHTS, BIAS)
    assert set(used_kernels) == {"by_columns_of", "by_rows_of", "outer"}


def test_varying_row_counts_switch_to_the_library(used_kernels):
    layer = torch.nn.Linear(DEEP, WIDE)
    fast = magpy.compile(layer, dynamic=True)
    with torch.no_grad():
        for rows in (4, 3, 300, 9, 8, 2):
            x = torch.randn(rows, DEEP)
            torch.testing.assert_close(fast(x), layer(x), rtol=1e-4, atol=1e-5)
    assert magpy.cache_info(fast).records == 1
    assert len(used_kernels) == 3  # the first call ran natively


def test_weights_mutated_between_calls_are_used(used_kernels):
    layer = torch.nn.Linear(DEEP, WIDE)
    fast = magpy.compile(layer)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: layer.weight.mul_(2),
            lambda: layer.weight.data.numpy().fill(0.5),
            lambda: setattr(layer, "weight", torch.nn.Parameter(torch.randn(WIDE, DEEP))),
        ):
            change()
            for _ in range(2):
                torch.testing.assert_close(fast(ROWS), layer(ROWS), rtol=1e-4, atol=1e-4)
    assert len(used_kernels) == 6  # the first calls with a parameter ran natively


@pytest.mark.parametrize("is_refused", [False, True])
def test_products_use_the_blas_without_a_compiler(monkeypatch, recwarn, is_refused):
    refused = cpp_compiler.CppCompileError("some products", ["g++"], "no such instruction", "")

    def none(*args, **kwargs):
        raise refused if is_refused else cpp_compiler.NoCompilerError("none")

    monkeypatch.setattr(narrow_products.cpp_compiler, "compile_cpp", none)
    monkeypatch.setattr(compiler_errors, "_warned", set())
    narrow_products._functions.cache_clear()
    try:
        found = narrow_products.product(ROWS, WEIGHTS.t(), BIAS, False)
    finally:
        narrow_products._functions.cache_clear()
    warnings = [str(w.message) for w in recwarn if w.category is compiler_errors.MagpyWarning]
    assert ["no such instruction" in text for text in warnings] == [True] * is_refused
    assert torch.equal(found, torch.addmm(BIAS, ROWS, WEIGHTS.t()))
