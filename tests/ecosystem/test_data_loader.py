"""Compiled transforms and collate functions in the workers of a ``DataLoader``."""

import pytest
import torch
from torch.utils.data import DataLoader

import magpy_like as magpy
from tests.compare import assert_same
from tests.ecosystem import worker_functions
from tests.ecosystem.worker_functions import Crop, Images

TRANSFORMS = {
    "function": (worker_functions.plain_normalised, lambda: worker_functions.normalised),
    "module": (Crop(), lambda: magpy.compile(Crop())),
}


CALLED_BEFORE = pytest.param(True, marks=pytest.mark.full)


@pytest.mark.parametrize("called", [False, CALLED_BEFORE], ids=["new", "called-before"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_workers_run_a_compiled_transform(kind, method, called):
    eager, make = TRANSFORMS[kind]
    compiled = make()
    if called:
        compiled(torch.rand(3, 8, 8)), compiled(torch.rand(3, 8, 8))
    expected = [x for x, _ in DataLoader(Images(eager), batch_size=2)]
    loader = DataLoader(
        Images(compiled), batch_size=2, num_workers=1, multiprocessing_context=method
    )
    found = [*loader]
    assert_same([x for x, _ in found], expected)
    assert found[-1][1].max() > 0  # hits in the worker


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_run_a_compiled_collate_function(method):
    data = [(torch.full((2, 2), float(i)), i) for i in range(8)]
    loader = DataLoader(
        data,
        batch_size=2,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=worker_functions.stacked_with_hits,
    )
    found = [*loader]
    plain = worker_functions.stacked.__wrapped__
    expected = [plain(data[i : i + 2]) for i in range(0, 8, 2)]
    assert_same([(x, y) for x, y, _ in found], expected)
    assert found[-1][2] > 0


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_compiled_collate_function_is_handed_to_workers(method):
    data = [(torch.full((2, 2), float(i)), i) for i in range(4)]
    loader = DataLoader(
        data,
        batch_size=2,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=worker_functions.stacked,
    )
    plain = worker_functions.stacked.__wrapped__
    assert_same([*loader], [plain(data[:2]), plain(data[2:])])
