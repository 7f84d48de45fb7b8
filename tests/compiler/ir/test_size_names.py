"""Size symbols: sizes computed from other sizes are named, and keep their meaning."""

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
UNBACKED = sympy.Symbol("u0", integer=True)
HALF, THIRD = FloorDiv(A - 1, 2), FloorDiv(B, 3)


def size_names_with(*relations):
    return SizeNames(lambda relation: relation == sympy.true or relation in relations)


def pooled_and_concatenated(x, w):
    y = F.max_pool2d(F.conv2d(x, w, stride=2, padding=1).relu(), 3, 2, 1)
    return torch.cat([y, F.avg_pool2d(y.exp(), 2, 2).repeat_interleave(3, 2)[:, :, :1, :1] + y], 1)


def test_sizes_and_strides_of_a_graph_have_no_quotients():
    inputs = torch.randn(2, 3, 65, 67), torch.randn(4, 3, 3, 3)
    graph = Graph(
        aten_graph(lambda x, w: (pooled_and_concatenated(x, w),), *inputs, sizes="symbolic")
    ).run()
    sizes = [e for b in graph.buffers.values() for e in (*b.size, *b.stride)]
    assert graph.size_names.definitions
    assert not any(e.has(FloorDiv) for e in sizes)
    for name, meaning in graph.size_names.definitions.items():
        assert graph.hint(name) == graph.hint(meaning)


@pytest.mark.parametrize("shape", [(2, 3, 65, 67), (3, 3, 9, 12), (1, 3, 16, 8), (2, 3, 8, 70)])
def test_images_of_any_size_equal_eager(shape, fast=[]):
    weight = torch.nn.Parameter(torch.ones(4, 3, 3, 3) / 9)
    if not fast:
        fast.append(compiled(lambda x: pooled_and_concatenated(x, weight), dynamic=True))
    image = torch.linspace(-1, 1, 3 * shape[0] * shape[2] * shape[3]).reshape(shape)
    with torch.no_grad():
        actual, expected = fast[0](image), pooled_and_concatenated(image, weight)
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected)


def test_expressions_of_a_size_share_its_name():
    names = size_names_with(HALF + 1 >= 1)
    size = names.abbreviate(HALF + 1)
    assert size.is_Symbol and size.is_positive
    assert names.abbreviate(4 * B * (HALF + 1) ** 2) == 4 * B * size**2
    assert names.abbreviate(sympy.expand((HALF + 1) ** 2)) == size**2
    assert names.abbreviate(HALF - 3) == size - 4
    assert names.expand(size**2 + B) == (HALF + 1) ** 2 + B


def test_name_is_positive_only_if_that_is_known():
    names = size_names_with(THIRD >= 0)
    assert names.abbreviate(FloorDiv(A - B, 2) + 1).is_nonnegative is None
    assert names.abbreviate(THIRD).is_nonnegative and names.abbreviate(THIRD).is_positive is None


def test_size_guarded_as_one_is_one():
    names = size_names_with(sympy.Eq(HALF + 1, 1))
    assert names.abbreviate(HALF + 1) == 1
    assert names.abbreviate(B * (HALF + 1) + HALF) == B


def test_unbacked_sizes_are_not_named():
    names = size_names_with()
    assert names.abbreviate(FloorDiv(UNBACKED, 2) + A) == FloorDiv(UNBACKED, 2) + A
    assert not names.definitions


def test_gradients_of_any_size_equal_eager():
    weight = torch.nn.Parameter(torch.ones(4, 3, 3, 3) / 9)
    fast = compiled(lambda x: pooled_and_concatenated(x, weight).square().sum(), dynamic=True)
    for shape in [(2, 3, 33, 35), (3, 3, 9, 12)]:
        image = torch.linspace(-1, 1, 3 * shape[0] * shape[2] * shape[3]).reshape(shape)
        actual, expected = (
            torch.autograd.grad(loss(image), weight)
            for loss in (fast, lambda x: pooled_and_concatenated(x, weight).square().sum())
        )
        torch.testing.assert_close(actual, expected)


SCALED = TruncToInt(1.3 * ToFloat(A))


def test_rounded_float_within_a_size_has_a_name():
    names = size_names_with(SCALED >= 1)
    size = names.abbreviate(SCALED)
    assert size.is_Symbol and size.is_positive
    assert names.abbreviate(B * Max(1, SCALED)) == B * size
    assert names.expand(size) == SCALED
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
def test_rounded_float_sizes_equal_eager(program):
    fast = compiled(program, dynamic=True)
    for n in (10, 23, 99, 100):  # 100 / 0.7 and 10 * 0.7 are integers up to rounding
        x = torch.arange(1.0, n + 1)
        torch.testing.assert_close(fast(x), program(x))
