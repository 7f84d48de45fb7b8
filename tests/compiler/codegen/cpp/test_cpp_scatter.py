"""C++ kernels that write at computed indices: their parallel loops and order of accumulation."""

import itertools

import pytest
import sympy
import torch
import torch.nn.functional as F

from magpy_like.compiler.codegen.cpp import cpp_printer
from magpy_like.compiler.ir import index_arithmetic
from tests.compiler.programs import compiled, kernels, same

A, B, J = sympy.symbols("a b j", integer=True, nonnegative=True)


@pytest.mark.parametrize(
    ("index", "ranges", "injective"),
    [
        (5 * J + A, {A: 5, J: 3}, {A, J}),
        (4 * J + A, {A: 5, J: 3}, set()),  # a row is longer than its stride
        (15 * A + 5 * J + B, {A: 2, B: 5, J: 3}, {A, B, J}),
        (12 * A + 5 * J + B, {A: 2, B: 5, J: 3}, set()),  # rows of one plane overlap the next
        (
            10 * B + J,
            {A: 4, B: 3, J: 10},
            {B, J},
        ),  # `a` is absent: all its iterations write one element
        (A + B, {A: 4, B: 4}, set()),
        (-A + 9, {A: 4}, set()),  # injective, but the analysis rejects negative steps
    ],
)
def test_loop_is_injective_only_if_its_iterations_write_distinct_elements(index, ranges, injective):
    sizes = {v: sympy.Integer(n) for v, n in ranges.items()}
    assert {v for v in ranges if index_arithmetic.is_injective(index, v, sizes)} == injective
    for v in injective:
        seen = {}
        for values in itertools.product(*map(range, ranges.values())):
            at = dict(zip(ranges, values, strict=True))
            assert seen.setdefault(index.subs(at), at[v]) == at[v]


def kernel_text(function, *inputs):
    """The C++ source of the last kernel of ``function``."""
    return cpp_printer.print_function(kernels(function, *inputs)[-1], int)


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def index_add_along(dim):
    return lambda x, i, s: x.index_add(dim, i, s)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("size", [(7, 300), (300, 7), (1, 999), (3, 40, 50)], ids=str)
def test_colliding_rows_accumulate_in_order_for_any_number_of_threads(threads, size, dtype):
    x = torch.randn(size).mul(99).to(dtype)
    for dim in range(len(size)):
        i = torch.randint(0, size[dim], (70,))
        s = torch.randn(*size[:dim], 70, *size[dim + 1 :]).mul(99).to(dtype)
        expected, exact = x.clone(), [slice(None)] * dim
        for k, place in enumerate(i):
            expected[(*exact, place)] += s[(*exact, k)]
        actual = compiled(index_add_along(dim))(x, i, s)
        assert torch.equal(actual, expected)


def test_colliding_elements_accumulate_in_order_for_any_number_of_threads(threads):
    x, s = torch.randn(60, 400), torch.randn(60, 400)
    rows, columns = torch.randint(0, 60, (60, 400)), torch.randint(0, 400, (60, 400))
    for dim, i in ((0, rows), (1, columns)):
        same(lambda x, i, s, d=dim: x.scatter_add(d, i, s), x, i, s, rtol=0, atol=0)
        same(lambda x, i, s, d=dim: x.scatter(d, i, s), x, i, s, rtol=0, atol=0)


def test_possible_collisions_run_on_one_thread_without_vectors():
    x, i, s = torch.randn(40000), torch.randint(0, 9, (40000,)), torch.randn(40000)
    assert "#pragma" not in kernel_text(index_add_along(0), x, i, s)
    same(index_add_along(0), x, i, s, rtol=0, atol=0)


def test_rows_are_vectorized_and_columns_are_parallel():
    x, i, s = torch.randn(50, 600), torch.randint(0, 50, (90,)), torch.randn(90, 600)
    source = kernel_text(index_add_along(0), x, i, s)
    assert "#pragma omp parallel" in source and "#pragma omp simd" in source
    assert "#pragma omp for" not in source  # each thread iterates over all rows
    other = kernel_text(
        lambda x, i, s: x.scatter_add(1, i, s), x, torch.randint(0, 600, (50, 90)), s.t()
    )
    assert "#pragma omp for" in other and "#pragma omp simd" not in other


def test_rows_of_varying_size_are_accumulated():
    for n in (3, 20, 65):
        s = torch.randn(n, 2 * n)
        same(index_add_along(0), torch.randn(n, 2 * n), torch.randint(0, n, (n,)), s, dynamic=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pooling_gradient_equals_eager(layout, dtype):
    x = torch.randn(2, 20, 19, 23).to(dtype).contiguous(memory_format=layout)
    x[0, 0, 3, 4] = float("nan")
    for window in ((2,), (5, 1, 2)):
        y, i = F.max_pool2d(x, *window, return_indices=True)
        rest = [(p[0], p[0]) for p in (window, window[1:] or window, window[2:] or (0,))]
        same(
            lambda g, x, i, r=rest: torch.ops.aten.max_pool2d_with_indices_backward(
                g, x, *r, (1, 1), False, i
            ),
            torch.ones_like(y) * 3, x, i, rtol=0, atol=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(1, i[:, None]),
        lambda x, i: x.index_select(0, i),
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.scatter(1, i[:, None], 1.0),
        lambda x, i: x.scatter_add(0, i[:, None], x[:2]),
    ],
)
@pytest.mark.parametrize("index", [-1, 5])
def test_indices_out_of_range_raise_as_in_eager(function, index):
    x = torch.randn(5, 5)
    fast = compiled(function)
    torch.testing.assert_close(fast(x, torch.tensor([0, 4])), function(x, torch.tensor([0, 4])))
    with pytest.raises((IndexError, RuntimeError)):
        fast(x, torch.tensor([0, index]))
