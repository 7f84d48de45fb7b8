"""Arrays that share a tensor's memory: NumPy's results after the split."""

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


def _total(x):
    a = (x * 2).numpy()
    return x + float(a.sum())


def _element(x):
    a = (x * 2).numpy()
    return x * float(a[0]), a[-1] * 2


def _mean_in_python(x):
    a = (x * 2).numpy()
    return x + 1, float(a.mean()), a.std()


def _no_dimensions(x):
    a = x.sum().numpy()
    return x * float(a), a.item()


def _functions(x):
    a = x.detach().cpu().numpy()
    return x + float(np.tanh(a + 1).max()), int(a.argmax())


RECOMPUTED = {
    function.__name__.lstrip("_"): function
    for function in (_total, _element, _mean_in_python, _no_dimensions, _functions)
}


def _tensor_changed_before(x):
    y = x * 2
    a = y.numpy()
    y.add_(1)
    return x + float(a.sum())


def _tensor_changed_after(x):
    y = x * 2
    a = y.numpy()
    total = float(a.sum())
    y.mul_(total)
    return y, a


def _array_changed(x):
    a = (x * 2).numpy()
    total = float(a.max())
    a[0] = 7
    return x * total, float(a.max())


def _changed_in_place(x):
    a = (x * 2).numpy()
    a += 1
    a.sort()
    return float(a[0]), float(a.sum())


def _view(x):
    a = (x * 2).numpy()
    b = a.reshape(2, 2)
    b[0, 0] = 3
    return x + float(a.sum()), b


def _returned(x):
    a = (x * 2).numpy()
    return a, a + 1, torch.from_numpy(a), torch.as_tensor(a)


def _decides_a_branch(x):
    a = (x * 2).numpy()
    return x + 1 if a.sum() > 0 else x - 1


def _other_reads(x):
    a = (x * 2).numpy()
    return sorted(a.tolist()), len(a), a.shape, [v + 1 for v in a], a[1:], 3.0 in a


INSPECTED = {
    function.__name__.lstrip("_"): function
    for function in (
        *(_tensor_changed_before, _tensor_changed_after, _array_changed, _changed_in_place),
        *(_view, _returned, _decides_a_branch, _other_reads),
    )
}


def _inputs(count):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("name", RECOMPUTED)
def test_numbers_from_an_array_are_recomputed_at_each_call(name):
    program = RECOMPUTED[name]
    compiled = magpy.compile(program, backend="eager")
    for x in _inputs(5):
        assert_same(compiled(x), program(x))
    assert magpy.cache_info(compiled).misses == 1


@pytest.mark.parametrize("name", RECOMPUTED)
def test_array_of_another_dtype_must_miss(name):
    program = RECOMPUTED[name]
    compiled = magpy.compile(program, backend="eager")
    for x in _inputs(2):
        compiled(x)
    for x in _inputs(2):
        assert_same(compiled(x.double()), program(x.double()))
    assert magpy.cache_info(compiled).misses == 2


@pytest.mark.parametrize("name", INSPECTED)
def test_array_that_is_inspected_or_changed_equals_eagers(name):
    program = INSPECTED[name]
    compiled = magpy.compile(program, backend="eager")
    for x in _inputs(6):
        assert_same(compiled(x.clone()), program(x.clone()))


def test_array_changed_through_its_tensor_is_read_afterwards():
    def program(x, a):
        x.add_(1)
        return x + float(a.sum())

    compiled = magpy.compile(program, backend="eager")
    for i in range(5):  # each array begins with the values with which the previous one ended
        tensors = [torch.arange(3.0) + i for _ in range(2)]
        results = [f(x, x.numpy()) for f, x in zip((compiled, program), tensors, strict=True)]
        assert_same((results[0], tensors[0]), (results[1], tensors[1]))


def test_program_catches_exceptions_from_numbers_of_an_array():
    def program(x):
        try:
            return int(x.numpy()[0]) + 1
        except (ValueError, OverflowError):
            return "none"

    compiled = magpy.compile(program, backend="eager")
    for value in (float("nan"), 1.0, 2.0, 3.0, float("inf"), float("nan"), 4.0):
        x = torch.full((3,), value)
        assert_same(compiled(x), program(x))
