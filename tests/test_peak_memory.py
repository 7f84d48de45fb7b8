"""Peak memory of a monitored run: no more than that of an eager call."""

import copy

import pytest
import torch

import magpy_like as magpy
from tests.memory import peak_bytes
from zoo import ZOO

VISION = [m for m in ZOO.values() if m.vision]
BATCH = 16
LIMIT = 1.1


def monitored_run_peaks(entry, size, train, device):
    """Peak bytes of an eager call and of the monitored run of an equal model."""
    eager = entry.make(seed=0, size=size).to(device).train(train)
    model = copy.deepcopy(eager)
    args, kwargs = entry.inputs(eager, seed=0, batch=BATCH)
    with torch.set_grad_enabled(train):
        copy.deepcopy(eager)(
            *args, **kwargs
        )  # libraries allocate their workspaces in the first call
        fast = magpy.compile(model, backend="eager")
        peaks = [peak_bytes(lambda c=c: c(*args, **kwargs), device) for c in (eager, fast)]
    assert magpy.cache_info(fast).misses == 1
    return peaks


@pytest.mark.parametrize("entry", VISION, ids=[m.name for m in VISION])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_monitored_run_needs_no_more_memory_than_eager(entry, train, device):
    eager, monitored = monitored_run_peaks(entry, "small", train, device)
    assert monitored <= LIMIT * eager


@pytest.mark.full
@pytest.mark.parametrize("entry", VISION, ids=[m.name for m in VISION])
def test_monitored_run_at_real_size_needs_no_more_memory_than_eager(entry, device):
    eager, monitored = monitored_run_peaks(entry, "real", False, device)
    assert monitored <= LIMIT * eager
