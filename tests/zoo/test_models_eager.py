"""Preconditions on the models of the zoo: they run, are deterministic, and train."""

import copy

import pytest
import torch

from tests.compare import assert_same
from zoo import ZOO


@pytest.mark.parametrize("entry", ZOO.values(), ids=ZOO)
def test_model_is_deterministic(entry, device):
    with torch.no_grad():
        results = []
        for _ in range(2):
            model = entry.make(seed=3).to(device)
            args, kwargs = entry.inputs(model, seed=4, batch=2)
            results.append(model(*args, **kwargs))
    assert_same(*results)


@pytest.mark.parametrize("entry", ZOO.values(), ids=ZOO)
def test_results_depend_on_inputs(entry, device):
    model = entry.make(seed=3).to(device)
    leaves = []
    for seed in (4, 5):
        args, kwargs = entry.inputs(model, seed=seed, batch=2)
        with torch.no_grad():
            leaves.append(first_tensor(model(*args, **kwargs)))
    assert torch.isfinite(leaves[0]).all()
    assert not torch.equal(*leaves)


@pytest.mark.parametrize(
    "entry", [m for m in ZOO.values() if m.trains], ids=[m.name for m in ZOO.values() if m.trains]
)
def test_gradients_are_finite_and_deterministic(entry, device):
    model = entry.make(seed=3).to(device).train()
    gradients = []
    for clone in (copy.deepcopy(model), copy.deepcopy(model)):
        args, kwargs = entry.inputs(clone, seed=4, batch=2)
        entry.loss(clone(*args, **kwargs)).backward()
        gradients.append({n: p.grad for n, p in clone.named_parameters() if p.grad is not None})
    assert sum(bool(g.any()) for g in gradients[0].values()) > 0.9 * len(gradients[0])
    for name, gradient in gradients[0].items():
        assert torch.isfinite(gradient).all(), name
    assert_same(*gradients)


def first_tensor(output):
    leaves = torch.utils._pytree.tree_leaves(output)
    return next(t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point())


def test_blockdrop_skips_some_blocks(device):
    entry = ZOO["BlockDrop"]
    model = entry.make(seed=3).to(device)
    policies = []
    for seed in range(8):
        args, kwargs = entry.inputs(model, seed=seed, batch=1)
        policies.append(model(*args, **kwargs)[1])
    run = torch.cat(policies)
    assert 0 < run.mean() < 1
    assert len(set(map(tuple, run.tolist()))) > 1
