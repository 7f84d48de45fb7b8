"""Global hooks of the program on modules: they see the program's modules, and no others."""

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules import module as hooks

import magpy_like as magpy

pytestmark = pytest.mark.usefixtures("reset_magpy")

GLOBAL_HOOKS = [
    hooks.register_module_module_registration_hook,
    hooks.register_module_parameter_registration_hook,
    hooks.register_module_buffer_registration_hook,
    hooks.register_module_forward_pre_hook,
    hooks.register_module_forward_hook,
    hooks.register_module_full_backward_pre_hook,
    hooks.register_module_full_backward_hook,
]


class WithHook(nn.Sequential):
    """Its graph is cut where the hook's nodes of autograd are."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.ReLU())
        self[0].register_full_backward_hook(lambda *args: None)


class WithBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            y = y * self.linear.weight.sum()
        return y.relu()


class WithLoop(WithBranch):
    def forward(self, x):
        while x.sum() < 100:
            x = self.linear(x).abs() + x.abs() + 1
        return x


class WithCheckpoint(WithBranch):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)


class WithConstant(WithBranch):
    def forward(self, x):
        return self.linear(x) + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Registering(WithBranch):
    def forward(self, x):
        self.last = nn.ReLU()
        self.register_buffer("sum", x.detach().sum())
        self.weight = nn.Parameter(x.detach())
        return self.last(self.linear(x))


def seen_by_hooks(model, call, first):
    """What global hooks of all kinds see of four training steps, from the step `first` on."""
    seen, handles = [], []

    def observer(kind):
        return lambda module, *args: seen.append((kind, type(module).__qualname__))

    try:
        for step in range(4):
            if step == first:
                handles = [register(observer(register.__name__)) for register in GLOBAL_HOOKS]
            x = torch.linspace(-1, 2, 12).view(3, 4) + step / 8
            call(x.requires_grad_()).sum().backward()
            seen.append(step)
    finally:
        for handle in handles:
            handle.remove()
    return seen


@pytest.mark.parametrize("first", [0, 2], ids=["recording", "hit"])
@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "make", [WithHook, WithBranch, WithLoop, WithCheckpoint, WithConstant, Registering]
)
def test_global_hooks_see_the_modules_of_the_program_only(make, backend, first):
    torch.manual_seed(0)
    model = make()
    expected = seen_by_hooks(model, model, first)
    assert seen_by_hooks(model, magpy.compile(model, backend=backend), first) == expected


def test_backend_may_hook_the_graph_that_it_receives():
    seen = []

    def backend(graph, inputs):
        graph.register_forward_hook(lambda module, args, result: seen.append(module))
        return graph

    fast = magpy.compile(lambda x: x + 1, backend=backend)
    for _ in range(2):
        assert fast(torch.ones(2)).tolist() == [2, 2]
    assert len(seen) >= 1
