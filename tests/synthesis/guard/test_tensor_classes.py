"""Methods of tensor classes, which a program may replace between two calls."""

import copy

import pytest
import torch

import magpy_like as magpy
from tests.programs import tensor

PROGRAMS = {
    "relu": lambda x: x.relu(),
    "__add__": lambda x: x + 1,
    "__rsub__": lambda x: 1 - x,
    "__getitem__": lambda x: x[1:],
    "__setitem__": lambda x: _set(x.clone()),
    "__iadd__": lambda x: _add(x.clone()),
    "__invert__": lambda x: ~(x > 0),
    "__len__": lambda x: x + len(x),
    "__iter__": lambda x: list(x),
    "__float__": lambda x: x + float(x.sum()),
    "__format__": lambda x: f"{x.sum()}",
    "size": lambda x: x.view(x.size(0), 1),
    "clamp_min": lambda x: torch.nn.functional.normalize(x, dim=0),
}


def _set(x):
    x[0] = 3
    return x


def _add(x):
    x += 1
    return x


def _replacement(*args, **kwargs):
    return 1


def _plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else repr(value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_replaced_method_of_tensors_is_called(name, monkeypatch):
    program, x = PROGRAMS[name], tensor(1, -2, 3)
    compiled = magpy.compile(program, backend="aot_eager")
    for _ in range(2):
        compiled(x)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, name, _replacement, raising=False)
        # Torch or the program may raise where it receives a number instead of a tensor.
        expected = _answer(program, x)
        found = _answer(compiled, x)
    assert found == expected
    hits = magpy.cache_info(compiled).hits
    assert _answer(compiled, x) == _answer(program, x)
    assert magpy.cache_info(compiled).hits == hits + 1


def _answer(program, x):
    try:
        return _plain(program(x))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", ["relu", "__len__", "size"])
def test_record_with_a_replaced_method_misses_without_it(name, monkeypatch):
    program, x = PROGRAMS[name], tensor(1, -2, 3)
    compiled = magpy.compile(program, backend="aot_eager")
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, name, _replacement, raising=False)
        for _ in range(2):
            assert _answer(compiled, x) == _answer(program, x)
    assert _answer(compiled, x) == _answer(program, x)


def test_added_method_of_parameters_is_called(monkeypatch):
    weight = torch.nn.Parameter(tensor(1, -2, 3))
    compiled = magpy.compile(lambda: weight.relu(), backend="aot_eager")
    for _ in range(2):
        compiled()
    monkeypatch.setattr(torch.nn.Parameter, "relu", _replacement, raising=False)
    assert compiled() == 1


def test_program_that_replaces_a_method_of_tensors_runs_natively(monkeypatch):
    before = torch.Tensor.__len__

    def program(x):
        y = len(x)
        torch.Tensor.__len__ = _replacement
        return y

    compiled = magpy.compile(program, backend="aot_eager")
    for _ in range(3):
        monkeypatch.setattr(torch.Tensor, "__len__", before)
        assert compiled(tensor(1, -2, 3)) == 3
        assert torch.Tensor.__len__ is _replacement


def test_copying_a_tensor_does_not_change_its_class():
    class Marked(torch.Tensor):
        pass

    weight = torch.ones(2).as_subclass(Marked)
    compiled = magpy.compile(lambda: torch.relu(weight), backend="aot_eager")
    for _ in range(2):
        compiled()
    hits = magpy.cache_info(compiled).hits
    copy.copy(weight)
    compiled()
    assert magpy.cache_info(compiled).hits == hits + 1


OPERATORS = {
    "__add__": lambda x: x + 1,
    "__radd__": lambda x: 1 + x,
    "__iadd__": lambda x: _add(x.clone()),
    "__rsub__": lambda x: 1 - x,
    "__matmul__": lambda x: x @ x,
    "__neg__": lambda x: -x,
    "__invert__": lambda x: ~(x > 0),
    "__abs__": lambda x: abs(x),
    "__getitem__": lambda x: x[1:],
    "__eq__": lambda x: x == 1,
    "__lt__": lambda x: x < 1,
    "__gt__": lambda x: 1 < x,
    "__bool__": lambda x: x * 2 if x.sum() > 1 else x,
    "__float__": lambda x: x + float(x.sum()),
    "__int__": lambda x: x + int(x.sum()),
}
CURRENT = {"factor": 2}


def _varying(x, *others):
    return torch.mul(x, CURRENT["factor"])


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded before", "new"])
def test_replaced_operator_of_tensors_is_called_each_time(name, backend, recorded, monkeypatch):
    program, x = OPERATORS[name], tensor(1, -2, 3)
    compiled = magpy.compile(program, backend=backend)
    calls = 2 if recorded else 0
    assert all(_answer(compiled, x) == _answer(program, x) for _ in range(calls))
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, name, _varying, raising=False)
        for factor in (2, 3, 3):
            patch.setitem(CURRENT, "factor", factor)
            assert _answer(compiled, x) == _answer(program, x)
    assert all(_answer(compiled, x) == _answer(program, x) for _ in range(2))
