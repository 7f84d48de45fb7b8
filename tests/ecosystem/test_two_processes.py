"""Data-parallel training in two processes: as in eager mode, and equal in both processes."""

import re

import pytest
import torch
from torch import distributed, multiprocessing

from tests.compare import assert_same
from tests.ecosystem import ddp_worker

if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)


@pytest.mark.parametrize(
    ("order", "hits", "report"),
    [
        ("DDP(compile(m))", 8, None),
        ("compile(DDP(m))", 0, r"DistributedDataParallel\(magpy_like.compile\(module\)\)"),
    ],
)
def test_training_of_two_processes_is_that_of_eager_mode(order, hits, report, tmp_path):
    multiprocessing.spawn(ddp_worker.main, (order, str(tmp_path)), nprocs=ddp_worker.WORLD)
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(ddp_worker.WORLD))
    for found in (first, second):
        assert_same(found["compiled"], found["eager"], rtol=1e-5, atol=1e-6)
        assert found["hits"] >= hits
        assert len(found["reports"]) == (report is not None)
        assert report is None or re.search(report, found["reports"][0])
    assert_same(first["compiled"]["parameters"], second["compiled"]["parameters"])
    with pytest.raises(AssertionError):
        assert_same(first["compiled"]["losses"], second["compiled"]["losses"])
