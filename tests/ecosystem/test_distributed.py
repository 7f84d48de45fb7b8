"""Wrappers of ``torch.distributed`` around compiled modules, and compiled wrappers: no order raises
or has other results than eager mode."""

import warnings

import pytest
import torch
from torch import distributed, nn

import magpy_like as magpy
from tests.ecosystem.side_by_side import assert_as_eager

if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _group():
    """A group of one process."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x).relu()


def shard(module):
    return fully_shard(module, mesh=init_device_mesh("cpu", (1,)))


def with_compiled_forward(wrap):
    def make(module):
        module.forward = wrap(module.forward)
        return shard(module)

    return make


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def training(model):
    """Losses, gradients and final parameters of some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, gradients = [], []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).pow(2).sum()
        loss.backward()
        losses.append(loss.detach())
        gradients.append([whole(p.grad) for p in model.parameters()])
        optimizer.step()
    return losses, gradients, [whole(p.detach()) for p in model.parameters()]


ORDERS = {
    "DDP(compile(m))": (lambda wrap, m: DistributedDataParallel(wrap(m)), 4),
    "compile(DDP(m))": (lambda wrap, m: wrap(DistributedDataParallel(m)), 1),
    "fully_shard(m), m.forward compiled": (lambda wrap, m: with_compiled_forward(wrap)(m), 4),
    "fully_shard(m) of a compiled part": (lambda wrap, m: _with_compiled_net(wrap, m), 4),
}


def _with_compiled_net(wrap, module):
    module.net = wrap(module.net)
    return shard(module)


@pytest.mark.parametrize("order", ORDERS)
def test_training_in_a_wrapper_is_that_of_eager_mode(order):
    make, hits = ORDERS[order]
    assert_as_eager(lambda wrap: training(make(wrap, Model())), hits=hits)


SHARDED = {
    "compile(fully_shard(m))": lambda wrap, m: wrap(shard(m)),
    "fully_shard(compile(m))": lambda wrap, m: shard(wrap(m)),
}


@pytest.mark.parametrize("order", SHARDED)
def test_a_sharded_module_runs_natively_and_says_once_what_to_compile_instead(order):
    def train(wrap):
        torch.manual_seed(0)
        return training(SHARDED[order](wrap, Model()))

    expected = train(lambda module: module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = train(magpy.compile)
    torch.testing.assert_close(actual, expected)
    (report,) = [str(w.message) for w in caught if issubclass(w.category, magpy.MagpyWarning)]
    assert "FSDPModel runs eagerly from now on: hooks of torch.distributed.fsdp" in report
    assert "module.forward = magpy_like.compile(module.forward)" in report
