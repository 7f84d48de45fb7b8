"""``magpy_like.disable`` of modules and classes: accepted where the original is, never recorded."""

import copy
import pickle

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.split_reasons import SplitReason
from tests.compare import assert_same
from tests.programs import matrix, tensor


class Counting(nn.Module):
    def __init__(self):
        super(Counting, self).__init__()  # noqa: UP008 - names the class
        self.weight = nn.Parameter(torch.full((1,), 2.0))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.weight + self.calls


def test_a_disabled_module_is_a_module_with_the_state_of_the_original():
    original = Counting()
    disabled = magpy.disable(original)
    parent = nn.Sequential(disabled, nn.ReLU())
    assert isinstance(disabled, Counting) and disabled.__class__ is Counting
    assert [*parent.state_dict()] == ["0.weight"] and disabled.weight is original.weight
    parent.double().eval()
    assert original.weight.dtype is torch.float64 and not original.training
    disabled.extra = 3
    assert original.extra == 3
    assert_same(disabled(tensor(1).double()).detach(), torch.tensor([3.0], dtype=torch.float64))
    assert original.calls == 1


def test_calls_of_a_disabled_module_split_a_program():
    original = Counting()
    parent = nn.Sequential(nn.ReLU(), magpy.disable(original), nn.ReLU())
    fast = magpy.compile(parent, backend="eager")
    assert_same([fast(tensor(1)).detach() for _ in range(3)], [tensor(3), tensor(4), tensor(5)])
    assert original.calls == 3 and magpy.cache_info(fast)[:2] == (2, 1)
    (point,) = magpy.explain(parent, tensor(1)).split_points
    assert point.reason is SplitReason.DISABLED_FUNCTION and "Counting" in point.detail


def test_hooks_of_the_original_run_with_the_original():
    original, seen = Counting(), []
    original.register_forward_hook(lambda module, args, result: seen.append(module is original))
    magpy.disable(original)(tensor(1))
    assert seen == [True]


def test_the_original_of_a_disabled_module_is_compiled_as_before():
    original = nn.Linear(3, 3)
    disabled = magpy.disable(original)
    for module in (original, disabled, nn.Sequential(original)):
        fast = magpy.compile(module, backend="eager", fullgraph=True)
        for _ in range(2):
            assert_same(fast(matrix()), original(matrix()))
        assert magpy.cache_info(fast).hits == 1


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_a_disabled_module_are_disabled(duplicate):
    disabled = magpy.disable(Counting())
    twin = duplicate(nn.Sequential(disabled))
    fast = magpy.compile(twin, backend="eager")
    assert_same([fast(tensor(1)).detach() for _ in range(2)], [tensor(3), tensor(4)])
    assert disabled.calls == 0 and twin[0].calls == 2
    assert twin[0].weight is not disabled.weight
    assert magpy.explain(twin, tensor(1)).split_points


def test_instances_of_a_disabled_class_are_disabled():
    @magpy.disable
    class Local(nn.Module):
        def __init__(self):
            super(Local, self).__init__()  # noqa: UP008 - names the class
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    made = Local()
    assert isinstance(made, Local) and not isinstance(3, Local)
    fast = magpy.compile(lambda x: made(x * 2) * 3, backend="eager")
    assert_same([fast(tensor(1)) for _ in range(3)], [tensor(9), tensor(12), tensor(15)])
    assert magpy.cache_info(fast)[:2] == (2, 1)
    (point,) = magpy.explain(fast, tensor(1)).split_points
    assert point.reason is SplitReason.DISABLED_FUNCTION and "Local" in point.detail
