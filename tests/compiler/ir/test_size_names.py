"""Sizes that are computed from others have names in the compiler, and mean what they meant."""

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, FloorDiv, Max, ToFloat, TruncToInt

from magpy_like.compiler.ir.size_names import SizeNames
from magpy_like.compiler.lowering.graph_lowering import Graph
from tests.compiler.passes.pass_checks import aten_graph
from tests.compiler.programs import compiled

A, B = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
UNKNOWN = sympy.Symbol("u0", integer=True)
HALF, THIRD = FloorDiv(A - 1, 2), FloorDiv(B, 3)


def knowing(*relations):
    return SizeNames(lambda relation: relation == sympy.true or relation in relations)


def pooled(x, w):
    y = F.max_pool2d(F.conv2d(x, w, stride=2, padding=1).relu(), 3, 2, 1)
    return torch.cat([y, F.avg_pool2d(y.exp(), 2, 2).repeat_interleave(3, 2)[:, :, :1, :1] + y], 1)


def test_no_size_or_address_of_a_graph_has_a_quotient():
    given = torch.randn(2, 3, 65, 67), torch.randn(4, 3, 3, 3)
    graph = Graph(aten_graph(lambda x, w: (pooled(x, w),), *given, sizes="symbolic")).run()
    sizes = [e for b in graph.buffers.values() for e in (*b.size, *b.stride)]
    assert graph.size_names.definitions
    assert not any(e.has(FloorDiv) for e in sizes)
    for name, meaning in graph.size_names.definitions.items():
        assert graph.hint(name) == graph.hint(meaning)


@pytest.mark.parametrize("shape", [(2, 3, 65, 67), (3, 3, 9, 12), (1, 3, 16, 8), (2, 3, 8, 70)])
def test_images_of_any_size_give_eagers_result(shape, fast=[]):
    weight = torch.nn.Parameter(torch.ones(4, 3, 3, 3) / 9)
    if not fast:
        fast.append(compiled(lambda x: pooled(x, weight), dynamic=True))
    image = torch.linspace(-1, 1, 3 * shape[0] * shape[2] * shape[3]).reshape(shape)
    with torch.no_grad():
        actual, expected = fast[0](image), pooled(image, weight)
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected)


def test_a_size_and_what_is_made_of_it_share_a_name():
    names = knowing(HALF + 1 >= 1)
    size = names.abbreviate(HALF + 1)
    assert size.is_Symbol and size.is_positive
    assert names.abbreviate(4 * B * (HALF + 1) ** 2) == 4 * B * size**2
    assert names.abbreviate(sympy.expand((HALF + 1) ** 2)) == size**2
    assert names.abbreviate(HALF - 3) == size - 4
    assert names.expand(size**2 + B) == (HALF + 1) ** 2 + B


def test_a_name_is_positive_only_where_that_is_known():
    names = knowing(THIRD >= 0)
    assert names.abbreviate(FloorDiv(A - B, 2) + 1).is_nonnegative is None
    assert names.abbreviate(THIRD).is_nonnegative and names.abbreviate(THIRD).is_positive is None


def test_a_size_that_guards_say_is_one_is_one():
    names = knowing(sympy.Eq(HALF + 1, 1))
    assert names.abbreviate(HALF + 1) == 1
    assert names.abbreviate(B * (HALF + 1) + HALF) == B


def test_what_only_a_run_tells_keeps_its_form():
    names = knowing()
    assert names.abbreviate(FloorDiv(UNKNOWN, 2) + A) == FloorDiv(UNKNOWN, 2) + A
    assert not names.definitions


def test_gradients_at_any_size_are_eagers():
    weight = torch.nn.Parameter(torch.ones(4, 3, 3, 3) / 9)
    fast = compiled(lambda x: pooled(x, weight).square().sum(), dynamic=True)
    for shape in [(2, 3, 33, 35), (3, 3, 9, 12)]:
        image = torch.linspace(-1, 1, 3 * shape[0] * shape[2] * shape[3]).reshape(shape)
        actual, expected = (
            torch.autograd.grad(loss(image), weight)
            for loss in (fast, lambda x: pooled(x, weight).square().sum())
        )
        torch.testing.assert_close(actual, expected)


GROWN = TruncToInt(1.3 * ToFloat(A))


def test_a_rounded_float_has_a_name_wherever_it_is_part_of_a_size():
    names = knowing(GROWN >= 1)
    size = names.abbreviate(GROWN)
    assert size.is_Symbol and size.is_positive
    assert names.abbreviate(B * Max(1, GROWN)) == B * size
    assert names.expand(size) == GROWN
    steps = CeilToInt(FloatTrueDiv(ToFloat(A), sympy.Float(0.3)))
    assert names.abbreviate(steps).is_Symbol and not names.abbreviate(steps).is_positive


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.interpolate(x[None, None], scale_factor=1.3) + 1,
        lambda x: torch.ones(round(x.shape[0] * 0.7)) * x[0],
        lambda x: torch.full_like(torch.arange(0, x.shape[0], 0.3, device=x.device), 2.0) + x[0],
        lambda x: x.new_zeros(int(x.shape[0] / 0.7), x.shape[0]) + x,
    ],
)
def test_kernels_take_sizes_that_are_rounded_floats(program):
    fast = compiled(program, dynamic=True)
    for n in (10, 23, 99, 100):  # 100 / 0.7 and 10 * 0.7 are whole but for rounding
        x = torch.arange(1.0, n + 1)
        torch.testing.assert_close(fast(x), program(x))
