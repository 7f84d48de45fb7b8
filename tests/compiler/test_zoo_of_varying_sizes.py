"""Models of the zoo with varying sizes: one record, one compilation, and eager's results."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import magpy_like as magpy
from tests.compiler.programs import tensors
from zoo import ZOO

STATIC = [m for m in ZOO.values() if not m.dynamic]
pytestmark = pytest.mark.full
SIZES = [(2, 11, (0, 0)), (3, 16, (1, 2)), (5, 7, (3, 1))]  # batch, tokens, steps in an image
ONE_LENGTH = {"Mamba"}  # its scan is a different program for every length
# Growth of images in pixels. Before torch 2.13, pooling guards the remainder of sizes.
PIXELS_PER_STEP = 1 if torch.__version__ >= "2.13" else 32
DIVISIBLE = {"MonoDepth"}  # halves its images five times, without remainder


def zoo(models):
    return pytest.mark.parametrize("entry", models, ids=lambda m: m.name)


def compiled(model):
    """Compiles in strict mode, without fallback."""
    return magpy.compile(model, dynamic=True, fullgraph=True, options={"strict": True})


def was_compiled_once(fast):
    info = magpy.cache_info(fast)
    return (info.misses, info.records, info.graphs) == (1, 1, 1)


def inputs(entry, model, seed, batch, length, steps):
    """Arguments of the given sizes: token sequences are cut (the steps of an LSTM are the first
    dimension), images are padded."""
    length = 16 if entry.name in ONE_LENGTH else length

    def cut(t):
        if entry.vision:
            down, right = (n * (32 if entry.name in DIVISIBLE else PIXELS_PER_STEP) for n in steps)
            return F.pad(t, (0, right, 0, down), mode="replicate")
        if entry.name == "LSTM":
            return t[:length].clone()
        return t[:, :length].contiguous() if t.dim() == 2 and not t.is_floating_point() else t

    return pytree.tree_map_only(torch.Tensor, cut, entry.inputs(model, seed, batch=batch))


@zoo(STATIC)
def test_inference_at_several_sizes_is_one_compilation(entry):
    model = entry.make(seed=0)
    fast = compiled(model)
    for seed, size in enumerate(SIZES):
        args, kwargs = inputs(entry, model, seed, *size)
        with torch.no_grad():
            actual, expected = tensors(fast(*args, **kwargs)), tensors(model(*args, **kwargs))
        for a, b in zip(actual, expected, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * max(1.0, b.abs().max().item()))
    assert was_compiled_once(fast)


@zoo([m for m in STATIC if m.trains])
def test_training_at_several_sizes_is_one_compilation(entry):
    """In double precision, since rounding may be amplified to arbitrary gradient differences."""
    model = entry.make(seed=0).double().train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    for seed, size in enumerate(SIZES):
        results = []
        for call, owner in ((fast, model), (eager, eager)):
            args, kwargs = inputs(entry, owner, seed, *size)
            owner.zero_grad()
            loss = entry.loss(call(*args, **kwargs))
            loss.backward()
            gradients = {n: p.grad for n, p in owner.named_parameters() if p.grad is not None}
            results.append((loss, {n: g for n, g in gradients.items() if g.any()}))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    assert was_compiled_once(fast)
