"""Copies, pickles and checkpoints of compiled modules are compiled modules with the same state."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.ecosystem import worker_functions
from tests.ecosystem.worker_functions import Crop, Scale


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize("twin", COPIES)
@pytest.mark.parametrize("called", [False, True], ids=["new", "called-before"])
def test_a_copy_is_compiled_and_has_a_state_of_its_own(twin, called):
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    fast, x = magpy.compile(model), torch.randn(5, 4)
    if called:
        fast(x), fast(x)
    other = COPIES[twin](fast)
    assert_same(other.state_dict(), model.state_dict())
    expected = copy.deepcopy(model)
    assert_same([other(x) for _ in range(3)], [expected(x) for _ in range(3)])
    assert magpy.cache_info(other).hits == 2
    assert_same(other.state_dict(), expected.state_dict())
    assert not torch.equal(other[1].running_mean, model[1].running_mean)


@pytest.mark.parametrize("twin", COPIES)
def test_a_compiled_submodule_is_copied_with_its_parent(twin):
    parent = nn.Sequential(magpy.compile(nn.Linear(4, 4)), nn.ReLU())
    other, x = COPIES[twin](parent), torch.randn(3, 4)
    assert_same([other(x) for _ in range(3)], [parent(x) for _ in range(3)])
    assert magpy.cache_info(other[0]).hits == 2


def test_settings_survive_a_pickle():
    fast = magpy.compile(Crop(), backend="eager", fullgraph=True, dynamic=True)
    other = pickle.loads(pickle.dumps(fast))
    for name in ("backend", "fullgraph", "dynamic"):
        assert getattr(other._magpy, name) == getattr(fast._magpy, name)


def test_a_compiled_function_is_pickled_by_its_name():
    for function in (worker_functions.normalised, worker_functions.stacked):
        assert pickle.loads(pickle.dumps(function)) is function


def test_a_compiled_function_under_another_name_is_not_pickled():
    """So that the guide is right: ``pickle`` asks no function how, and no table of reducers."""
    other = magpy.compile(worker_functions.plain_normalised)
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(other)


def test_a_compiled_callable_object_is_pickled_under_any_name():
    scaled = magpy.compile(Scale(3), backend="eager", dynamic=True)
    other, x = pickle.loads(pickle.dumps(scaled)), torch.randn(4)
    assert_same([other(x) for _ in range(3)], [x * 3 for _ in range(3)])
    assert (magpy.cache_info(other).hits, other._magpy.backend) == (2, "eager")
    assert type(other._orig_mod) is Scale and other._magpy.dynamic is True


def test_an_averaged_model_of_a_compiled_one_follows_it():
    fast = magpy.compile(nn.Linear(3, 3))
    averaged = torch.optim.swa_utils.AveragedModel(fast)
    expected = fast.weight.detach().clone()
    averaged.update_parameters(fast)
    assert_same(averaged.module.weight.detach(), expected)
    x = torch.randn(2, 3)
    assert_same([averaged(x) for _ in range(3)], [fast(x) for _ in range(3)])
    assert magpy.cache_info(averaged.module).hits == 2
