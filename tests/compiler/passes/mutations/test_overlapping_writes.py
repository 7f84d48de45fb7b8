"""Writes to views that contain one element several times equal eager."""

import copy

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from tests.compare import assert_same
from tests.compiler.programs import same


def fill(view):
    view.fill_(3)


def fill_first(view):
    view[0] = 3


@pytest.mark.parametrize(
    ("make_view", "write"),
    [
        (lambda y: y.broadcast_to(2, *y.shape), lambda v: v.masked_fill_(v < 0, 1)),
        (lambda y: y.expand(2, 5, 4), fill),
        (lambda y: y.expand(2, 5, 4), fill_first),
        (lambda y: torch.broadcast_tensors(y, torch.ones(2, 5, 4))[0], fill_first),
        (lambda y: y.expand(2, 5, 4).permute(1, 0, 2), lambda v: F.relu(v[:, 1], True)),
        (lambda y: y.unfold(0, 2, 3), fill),
        (lambda y: y.unfold(0, 3, 1), fill_first),
        (lambda y: y.as_strided((3, 3, 4), (4, 4, 1)), lambda v: v[0].mul_(3)),
        (lambda y: y.expand(2, 5, 4), lambda v: torch.mul(v[0], 2, out=v[1])),
    ],
    ids=["masked", "expanded", "element", "together", "moved", "windows", "window", "strides",
         "out"],
)  # fmt: skip
def test_writes_through_overlapping_views_equal_eager(make_view, write):
    def function(x):
        y = x * 1
        v = make_view(y)
        write(v)
        return y, v

    x = (
        torch.tensor([1.0, -2.0, float("inf"), -float("inf")]).repeat(5, 1)
        * torch.arange(1, 6)[:, None]
    )
    fast = magpy.compile(function)
    for _ in range(2):
        actual, expected = copy.deepcopy((x, x))
        assert_same((fast(actual), actual), (function(expected), expected))


@pytest.mark.parametrize("write", [fill_first, lambda v: v[0].mul_(2)])
def test_writes_to_overlapping_arguments_equal_eager(write):
    def function(x):
        write(x)
        return x + 1

    fast = magpy.compile(function)
    for _ in range(2):
        actual, expected = torch.ones(3).expand(2, 3), torch.ones(3).expand(2, 3)
        assert_same((fast(actual), actual), (function(expected), expected))


def test_writes_to_copies_of_overlapping_views_are_compiled():
    def function(x):
        y = x.clone()
        v = y.expand(2, 5, 4)
        copied, laid = v.clone(), v.reshape(10, 4)
        copied[0] = 3
        laid.mul_(2)
        y.add_(1)
        y.unfold(0, 2, 3).sum()
        return y, v + 0, copied, laid, y.unsqueeze(1).expand(5, 1, 4).mul_(2)

    same(function, torch.randn(5, 4))
    same(function, torch.randn(5, 4), dynamic=True)


def test_writes_within_vmap_are_compiled():
    def row(r):
        s = r.clone()
        s[1:].mul_(2)
        return s.sum()

    same(lambda x: (torch.func.vmap(row)(x), torch.func.grad(row)(x[0])), torch.randn(3, 4))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: torch._foreach_add_([x, x], 1.0),
        lambda x, y: torch._foreach_add_(self=[x, x.view(-1)], scalar=1.0),
        lambda x, y: torch.ops.aten._foreach_add_.Scalar([x, x.detach()], 1.0),
        lambda x, y: torch._foreach_mul_([x, x.data], 3.0),
        lambda x, y: torch._foreach_add_([x, y], [y, x]),
        lambda x, y: torch._foreach_copy_([x, y], [y, x]),
        lambda x, y: torch._foreach_mul_([x[:2], x[1:]], [y[:2], y[1:]]),
        lambda x, y: torch._foreach_mul_([x[0], y], x[0]),
        lambda x, y: torch._foreach_sub_(x.unfold(0, 2, 1).unbind(), 2.0),
    ],
    ids=["same", "view", "detached", "data", "exchanged", "copied", "parts", "factor", "windows"],
)
@pytest.mark.parametrize("is_argument", [True, False])
def test_writes_to_lists_with_shared_memory_equal_eager(write, is_argument):
    def function(x, y):
        x, y = (x, y) if is_argument else (x * 2, y * 2)
        write(x, y)
        return x, y

    fast = magpy.compile(function)
    for _ in range(3):
        actual, expected = copy.deepcopy(([torch.arange(1.0, 4), torch.arange(3.0, 6)],) * 2)
        assert_same((fast(*actual), actual), (function(*expected), expected))


def test_writes_to_lists_in_separate_memory_are_compiled():
    def function(x, y):
        torch._foreach_add_([x, y], [x, y])
        torch._foreach_mul_([x[:1], x[1:]], [y[0], y[0]])
        torch._foreach_sub_(y.unbind(), 2.0)
        return x, y, torch.cat([x, x], out=torch.empty(6))

    same(function, torch.arange(1.0, 4), torch.arange(3.0, 6))


@pytest.mark.filterwarnings("ignore:.*conjugate or negative view:magpy_like.MagpyWarning")
@pytest.mark.parametrize("is_argument", [True, False])
@pytest.mark.parametrize(
    "view",
    [torch.conj, torch._neg_view, lambda x: x.mH, lambda x: x.conj().imag],
    ids=["conjugate", "negative", "adjoint", "imaginary"],
)
def test_writes_to_conjugate_and_negative_views_leave_their_base_plain(view, is_argument):
    def function(x):
        x = x if is_argument else x * 1
        seen = view(x)
        seen.mul_(2)
        return x, seen

    fast = magpy.compile(function)
    for _ in range(3):
        actual, expected = (torch.arange(4.0).view(2, 2) * (1 + 2j) for _ in range(2))
        for found, eager in zip((*fast(actual), actual), (*function(expected), expected)):
            assert torch.equal(found, eager)
            assert (found.is_conj(), found.is_neg()) == (eager.is_conj(), eager.is_neg())
