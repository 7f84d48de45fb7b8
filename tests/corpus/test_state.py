"""Programs with side effects: on attributes, buffers, logs, arguments, random state."""

import random

import torch
import torch.nn.functional as F
from torch import nn

CALLS = {"count": 0}


class CountsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * 2


class KeepsLog(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = []

    def forward(self, x):
        self.log.append(tuple(x.shape))
        return x.relu()


class KeepsLastOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.features = {}

    def forward(self, x):
        self.last = self.linear(x)
        self.features["input"] = x
        return self.last.tanh()


class LazyAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None or self.mask.shape != x.shape[-2:]:
            self.mask = torch.ones(x.shape[-2:]).triu(1).bool()
        return x.masked_fill(self.mask, 0.0)


class BufferInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.average


class BufferReplaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.average = self.average * 0.9 + x.detach().mean(0) * 0.1
        return x - self.average


class ChangesArgument(nn.Module):
    def forward(self, x):
        x[:, 0] = 0
        x.mul_(2)
        return x.sum()


class ChangesListArgument(nn.Module):
    def forward(self, xs):
        xs.append(xs[0] + xs[1])
        return torch.stack(xs)


class ReturnsViewOfArgument(nn.Module):
    def forward(self, x):
        return x.view(-1), x.t(), x


class ReturnsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(self, x):
        return x * self.weight, self.weight


class ChangesGlobal(nn.Module):
    def forward(self, x):
        CALLS["kind"] = "forward"
        CALLS.setdefault("shapes", set()).add(tuple(x.shape))
        return x + 1


class ForwardHooks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = {}
        self.layer.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.seen[type(module).__name__] = output
        return output * 2

    def forward(self, x):
        return self.layer(x).sum() + self.seen["Linear"].mean()


class BackwardHooks(nn.Module):
    """Records and scales the gradients of the later backward pass."""

    def __init__(self):
        super().__init__()
        self.before, self.act, self.behind = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        self.seen = 0
        self.act.register_backward_hook(self._see)
        self.behind.register_full_backward_hook(lambda module, before, behind: None)

    def _see(self, module, before, behind):
        self.seen = self.seen + behind[0].detach().square().mean()

    def forward(self, x):
        x = self.act(self.before(x))
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.5)
        return self.behind(x)


class ChangesHyperparameters(nn.Module):
    """A schedule: the value changes with every call until it reaches its end."""

    def __init__(self):
        super().__init__()
        self.temperature = 1.0

    def forward(self, x):
        self.temperature = max(0.5, self.temperature * 0.5)
        return (x / self.temperature).softmax(-1)


class TorchRandomNumbers(nn.Module):
    def forward(self, x):
        noise = torch.randn_like(x) * 0.1
        return F.dropout(x + noise, 0.5, training=True) + torch.rand(x.shape)


class PythonRandomNumber(nn.Module):
    def forward(self, x):
        return x * random.uniform(0.5, 1.5)


class Momentum(nn.Module):
    """Two networks, one following the other, as in self-supervised learning."""

    def __init__(self):
        super().__init__()
        self.online = nn.Linear(4, 4)
        self.target = nn.Linear(4, 4)

    @torch.no_grad()
    def follow(self):
        for one, other in zip(self.online.parameters(), self.target.parameters()):
            other.data = other.data * 0.9 + one.data * 0.1

    def forward(self, x):
        self.follow()
        with torch.no_grad():
            goal = self.target(x)
        return F.mse_loss(self.online(x), goal)


class Queue(nn.Module):
    """A ring buffer with a pointer kept as a Python number."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.pointer = 0
        self.register_buffer("queue", torch.zeros(size, 4))

    def forward(self, x):
        end = self.pointer + x.shape[0]
        self.queue[self.pointer : end] = x.detach()
        self.pointer = end % self.size
        return x @ self.queue.clone().t()


TESTCASES = [
    # (module class, init arguments, forward arguments, TorchScript is known to support it)
    (CountsCalls, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (KeepsLog, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (KeepsLastOutput, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (LazyAttribute, lambda: ([], {}), lambda: ([torch.rand(2, 3, 3)], {}), False),
    (BufferInPlace, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (BufferReplaced, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ChangesArgument, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        ChangesListArgument,
        lambda: ([], {}),
        lambda: ([[torch.rand(2), torch.rand(2)]], {}),
        False,
    ),
    (ReturnsViewOfArgument, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ReturnsParameter, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ChangesGlobal, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ForwardHooks, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (BackwardHooks, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ChangesHyperparameters, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (TorchRandomNumbers, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (PythonRandomNumber, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (Momentum, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (Queue, lambda: ([8], {}), lambda: ([torch.rand(2, 4)], {}), False),
]
