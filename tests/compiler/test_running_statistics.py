"""Compiled batch norms write running statistics without a new version, as those of eager mode."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def versions_by_call(model, call, *, compiled, gradients=True, calls=3):
    """How much each call advances the versions of the model's buffers."""
    model = copy.deepcopy(model)
    program = magpy.compile(lambda x: call(model, x)) if compiled else lambda x: call(model, x)
    found = []
    for _ in range(calls):
        before = [(buffer, buffer._version) for buffer in model.buffers()]
        with torch.set_grad_enabled(gradients):
            result = program(X)
        if result.requires_grad:
            result.sum().backward()
        found.append([buffer._version > version for buffer, version in before])
    return found


def layers(model, x):
    return model(x).relu()


def written_by_the_program(model, x):
    with torch.no_grad():
        y = model(x)
        model[1].running_mean.mul_(0.5)
    return y


def written_through_a_view(model, x):
    with torch.no_grad():
        y = model(x)
        model[1].running_mean[1:].mul_(0.5)
    return y


def read(model, x):
    y = model(x)
    return y + model[1].running_mean.sum() + model[1].running_var[1:].clone().sum()


def on_both_sides_of_a_branch(model, x):
    if x.sum() > -100:
        return model(x) * 2
    return x.clone()


def checkpointed(model, x):
    return checkpoint(model, x.clone().requires_grad_(), use_reentrant=False).relu()


PROGRAMS = [
    layers, written_by_the_program, written_through_a_view, read, on_both_sides_of_a_branch,
    checkpointed,
]  # fmt: skip


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_versions_advance_as_in_eager_mode(program, gradients):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    expected = versions_by_call(model, program, compiled=False, gradients=gradients)
    for _ in range(2):  # the second time, the compiled graph is found in the cache
        assert versions_by_call(model, program, compiled=True, gradients=gradients) == expected
        magpy.reset()


def test_training_call_leaves_an_earlier_evaluation_differentiable():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    fast = magpy.compile(model)
    for _ in range(3):
        evaluated = model.eval()(X)
        fast.train()(X)
        evaluated.sum().backward()


def test_statistics_of_inference_tensors_are_updated():
    with torch.inference_mode():
        model = nn.BatchNorm1d(3)
        fast = magpy.compile(model)
        for _ in range(3):
            fast(X)
    assert model.num_batches_tracked == 3
    assert model.running_var.ne(1).all()


def test_gradients_of_evaluation_before_a_training_pass(device):
    """On a CPU, eager mode's backward pass reads the new statistics; on a GPU, the old ones."""

    def both(model, x):
        model.eval()
        first = model(x)
        model.train()
        return first, model(x)

    models = [nn.BatchNorm1d(3).to(device) for _ in range(2)]
    fast = magpy.compile(both)
    for k in range(3):
        gradients = []
        for call, model in zip((both, fast), models, strict=True):
            x = (X.to(device) + k).requires_grad_()
            first, second = call(model, x)
            (first.square().sum() + second.pow(3).sum()).backward()
            gradients.append((x.grad, model.weight.grad, model.running_mean))
            model.zero_grad()
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


ALIASES = {
    "detached": lambda mean: mean.detach(),
    "view": lambda mean: mean.view(-1),
    "item": lambda mean: mean.unsqueeze(0)[0],
    "data": lambda mean: mean.data,
    "copy or alias": lambda mean: mean.contiguous(),
    "copy": lambda mean: mean.clone(),
    "restored": lambda mean: mean.detach().unsqueeze_(0).squeeze_(0),
    "written to": lambda mean: mean.detach().mul_(2),
}


@pytest.mark.parametrize("place", ["alone", "before a branch", "after a branch", "in a branch"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("alias", ALIASES)
def test_statistics_that_share_an_arguments_memory_count_as_in_eager_mode(
    alias, changes, training, place
):
    """``changes``: the program also changes the dimensions of another view of the argument."""

    def normalized(x, mean):
        return nn.functional.batch_norm(x, ALIASES[alias](mean), torch.ones(3), training=training)

    def program(x, mean, flag):
        if changes:
            mean.detach().unsqueeze_(0)
        if place in ("alone", "before a branch"):
            x = normalized(x, mean)
        if place != "alone":
            flag = flag * 2 if flag.sum() > 0 else flag * 3
        if place == "after a branch" or (place == "in a branch" and flag.sum() > 0):
            x = normalized(x, mean)
        return x * 2, mean.sin(), flag

    fast = magpy.compile(program)
    for sign in (1.0, 1.0, -1.0):
        found = []
        for run in (program, fast):
            leaf, mean = X.clone().requires_grad_(), torch.zeros(3)
            results = run(leaf, mean, torch.full((2,), sign))
            results[0].exp().sum().backward()
            found.append((mean._version, mean, leaf.grad, *results))
        torch.testing.assert_close(found[1], found[0])
