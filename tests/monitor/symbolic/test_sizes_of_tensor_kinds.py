"""Tensors of several kinds, inference tensors among them, whose sizes vary between calls."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


def _reduced(x):
    return x.relu().mean(1) * x.size(1)


def _written(x):
    x.mul_(2)
    x[0].add_(1)
    return x.sum()


def _viewed(x):
    return x[:, 1:], x.transpose(0, 1), x


def _nonzero(x):
    return x * 2 if x.size(1) > 5 else x + 1


class _Cache:
    def __init__(self, x):
        self.x = x


def _appended(x):
    cache = _Cache(x)
    cache.x = torch.cat([cache.x, cache.x[:, -1:]], 1)
    return cache.x


PROGRAMS = (_reduced, _written, _viewed, _nonzero, _appended)


@pytest.mark.parametrize("inside", [True, False], ids=["in inference mode", "outside"])
@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_sizes_of_inference_tensors_may_vary(program, backend, inside, device):
    if not inside and program is _written:
        pytest.skip("an inference tensor is not written to outside inference mode")
    compiled = magpy.compile(program, backend=backend)
    for size in (3, 4, 5, 6, 7, 8):
        with torch.inference_mode():
            x = torch.randn(2, size, 4, device=device)
            y = x.clone()
        with torch.inference_mode(inside), torch.no_grad():
            results, expected = compiled(x), program(y)
        assert_same((results, x), (expected, y))
        _assert_same_kind(results, expected)
    assert magpy.cache_info(compiled).hits >= 2


def _assert_same_kind(results, expected):
    pairs = zip(*map(torch.utils._pytree.tree_leaves, (results, expected)), strict=True)
    assert all(one.is_inference() == other.is_inference() for one, other in pairs)


def _inference_tensor(*size):
    with torch.inference_mode():
        return torch.randn(*size)


KINDS = {
    "inference": (_inference_tensor, torch.randn),
    "dtype": (torch.randn, lambda *size: torch.randn(*size, dtype=torch.float64)),
    "requires grad": (torch.randn, lambda *size: torch.randn(*size, requires_grad=True)),
}


@pytest.mark.parametrize("name", KINDS)
def test_tensors_of_two_kinds_have_two_records_for_all_sizes(name):
    compiled = magpy.compile(_reduced, backend="eager")
    for size in (3, 4, 5, 6, 7):
        for make in KINDS[name]:
            x = make(2, size, 4)
            assert_same(compiled(x), _reduced(x))
    info = magpy.cache_info(compiled)
    assert (info.records, info.hits) == (2, 6)


def test_a_tensor_with_other_strides_has_a_record_of_its_own_for_all_sizes_of_another():
    compiled = magpy.compile(lambda x, y: x.sum() + y, backend="eager")
    for size in (3, 4, 5, 6, 7):
        for y in (torch.randn(2, 3), torch.randn(3, 2).t()):
            compiled(torch.randn(size), y)
    info = magpy.cache_info(compiled)
    assert (info.records, info.hits) == (2, 6)


def test_the_reason_of_a_miss_names_strides(caplog):
    compiled = magpy.compile(lambda x: x + 1, backend="eager")
    with caplog.at_level("DEBUG", "magpy_like.records"):
        compiled(torch.randn(3, 2).t()), compiled(torch.randn(2, 3))
    assert "float32[2, 3] with strides (1, 2) on cpu" in caplog.text
