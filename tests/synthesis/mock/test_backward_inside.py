"""Training steps that inspect gradients in hooks, or take gradients of gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed


class Step:
    """A small network, its optimizer, and the values that hooks have received."""

    def __init__(self, program):
        seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)
        self.received, self.program = [], program

    def __call__(self, x):
        return self.program(self, x)

    def observed(self):
        parameters = [*self.net.parameters()]
        return [p.detach().clone() for p in parameters], [p.grad for p in parameters], self.received


def hook_and_kept_gradient(step, x):
    h = step.net[0](x)
    h.retain_grad()
    h.register_hook(lambda g: g * 2)
    step.net[2](h).pow(2).sum().backward()
    return h.grad


def hook_that_is_removed_afterwards(step, x):
    h = step.net[0](x)
    handle = h.register_hook(lambda g: step.received.append(g.norm()))
    h.pow(2).sum().backward()
    handle.remove()
    return h.detach()


def hook_of_a_parameter(step, x):
    handle = step.net[0].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    step.optimizer.zero_grad()
    step.net(x).pow(2).sum().backward()
    handle.remove()
    step.optimizer.step()
    return step.net(x).detach()


def backward_with_a_graph(step, x):
    x = x.clone().requires_grad_()
    step.net(x).sum().backward(create_graph=True)
    penalty = x.grad.pow(2).sum()
    step.optimizer.zero_grad()
    penalty.backward()
    step.optimizer.step()
    return penalty.detach()


def penalty_on_gradients(step, x):
    step.optimizer.zero_grad()
    loss = F.mse_loss(step.net(x), x[:, :2])
    loss.backward(create_graph=True)
    penalty = sum(p.grad.pow(2).sum() for p in step.net.parameters())
    (0.1 * penalty).backward()
    step.optimizer.step()
    return loss.detach()


def gradients_of_gradients(step, x):
    x = x.clone().requires_grad_()
    energy = step.net(x).sum()
    force = torch.autograd.grad(energy, x, create_graph=True)[0]
    loss = force.pow(2).sum() + energy**2
    step.optimizer.zero_grad()
    loss.backward()
    step.optimizer.step()
    return loss.item()


def backward_twice(step, x):
    step.optimizer.zero_grad()
    y = step.net(x)
    y.sum().backward(retain_graph=True)
    y.pow(2).sum().backward()
    step.optimizer.step()
    return step.net[0].weight.grad.clone()


STEPS = [
    hook_and_kept_gradient, hook_that_is_removed_afterwards, hook_of_a_parameter,
    backward_with_a_graph, penalty_on_gradients, gradients_of_gradients, backward_twice,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("program", STEPS, ids=lambda program: program.__name__)
def test_training_step_hits_and_equals_eager(program, backend="eager"):
    eager, step = Step(program), Step(program)
    fast, hits = magpy.compile(step, backend=backend), []
    for i in range(5):
        x = torch.full((3, 4), 0.1 * i) + torch.eye(3, 4)
        assert_same((fast(x), step.observed()), (eager(x), eager.observed()), what=f"call {i}")
        hits.append(magpy.cache_info(fast).hits)
    assert hits[-1] >= 3, hits


@pytest.mark.filterwarnings("ignore:Using backward")
def test_double_backward_uses_eager_modes_autograd_graph():
    test_training_step_hits_and_equals_eager(penalty_on_gradients, "magpy")
