"""Compiled models of the zoo equal eager: outputs, gradients, buffers, weights, peak memory."""

import copy

import pytest
import torch

import magpy_like as magpy
from tests.compiler.programs import tensors
from tests.memory import peak_bytes
from zoo import ZOO

pytestmark = pytest.mark.usefixtures("reset_magpy")

STATIC = [m for m in ZOO.values() if not m.dynamic]
# One model of each kind compiles in seconds; the others belong to the full run.
FAST = {"ResNet-18", "LSTM", "BERT", "GPT-2"}
STEPS = 3
# Before torch 2.13, incoming gradients live until the end of a backward pass.
KEEPS_INCOMING_GRADIENTS = torch.__version__ < "2.13"


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode prevents capture."""


def zoo(models, fast=FAST):
    return pytest.mark.parametrize(
        "entry",
        [
            pytest.param(m, id=m.name, marks=() if m.name in fast else pytest.mark.full)
            for m in models
        ],
    )


def compiled(model):
    return magpy.compile(model, fullgraph=True)


@zoo(STATIC)
@pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")
def test_inference_equals_eager(entry, device):
    model = entry.make(seed=0).to(device)
    fast = compiled(model)
    for seed in range(2):  # the second call runs the compiled graph
        args, kwargs = entry.inputs(model, seed, batch=2)
        with torch.no_grad():
            actual, expected = tensors(fast(*args, **kwargs)), tensors(model(*args, **kwargs))
        for a, b in zip(actual, expected, strict=True):
            assert a.stride() == b.stride()
            # Dozens of layers on random weights amplify rounding.
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * max(1.0, b.abs().max().item()))


@zoo([m for m in STATIC if m.trains])
@pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")
def test_training_equals_eager(entry, device):
    """In double precision: a ReLU at zero or a batch of two amplifies rounding of float32 to
    arbitrary differences of gradients, in eager as well. (Some models use float32 inside.)"""
    model = entry.make(seed=0).to(device).double().train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    seen = []
    for call, owner in ((fast, model), (eager, eager)):
        optimizer = torch.optim.SGD(owner.parameters(), lr=0.01, momentum=0.9)
        outputs, gradients = [], []
        for seed in range(STEPS):
            args, kwargs = entry.inputs(owner, seed, batch=2)
            optimizer.zero_grad()
            output = call(*args, **kwargs)
            entry.loss(output).backward()
            outputs.append([t.detach() for t in tensors(output)])
            gradients.append(
                {n: p.grad.clone() for n, p in owner.named_parameters()
                 if p.grad is not None and p.grad.any()}
            )  # fmt: skip
            optimizer.step()
        seen.append((outputs, gradients, owner.state_dict()))
    for actual, expected in zip(*seen, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert magpy.cache_info(fast).records == 1


@zoo(STATIC)
def test_inference_takes_no_more_memory_than_eager(entry, device):
    model = entry.make(seed=0).to(device)
    fast = compiled(model)
    args, kwargs = entry.inputs(model, seed=0, batch=16)
    with torch.no_grad():
        for call in (model, fast, fast):
            call(*args, **kwargs)  # one-time allocations
        eager_peak, fast_peak = (
            peak_bytes(lambda c=c: c(*args, **kwargs), device) for c in (model, fast)
        )
    assert fast_peak <= eager_peak


@zoo([m for m in STATIC if m.trains], fast={"BERT", "ResNet-18"})
def test_training_takes_no_more_memory_than_eager(entry, device):
    model = entry.make(seed=0).to(device).train()
    fast = compiled(model)
    args, kwargs = entry.inputs(model, seed=0, batch=16)

    def step(call):
        entry.loss(call(*args, **kwargs)).backward()
        model.zero_grad()

    for call in (model, fast, fast):
        step(call)  # one-time allocations
    eager_peak, fast_peak = (peak_bytes(lambda c=c: step(c), device) for c in (model, fast))
    outputs = tensors(model(*args, **kwargs)) if KEEPS_INCOMING_GRADIENTS else []
    assert fast_peak <= eager_peak + sum(t.nbytes for t in outputs if t.requires_grad)
