"""Programs with features of `torch.nn` and autograd beyond sequences of layers."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Round(torch.autograd.Function):
    """Rounds, with an identity gradient."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.levels = levels
        return (x * levels).round() / levels

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class CustomGradient(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = levels
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x):
        return Round.apply(x * self.weight, self.levels)


class ModuleContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])

    def forward(self, x):
        for index, block in enumerate(self.blocks[:-1]):
            x = block(x) * self.scales[index % 2]
        x = self.blocks[-1](x)
        return {name: head(x) for name, head in self.heads.items() if name in self.heads}


class NamedModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        for name, module in self.named_children():
            if name != "second":
                x = module(x)
        penalty = sum(p.pow(2).sum() for p in self.parameters())
        return self._modules["second"](x) + penalty


class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.decoder = nn.Linear(4, 10, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        return self.decoder(self.embedding(tokens))


class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = parametrizations.weight_norm(nn.Conv1d(2, 4, 3, padding=1))

    def forward(self, x):
        return self.conv(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(16, 4, batch_first=True)

    def forward(self, x):
        hidden, (h, c) = self.lstm(x)
        out, last = self.gru(hidden)
        return out[:, -1], last, h + c


class CellLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x):
        state = (x.new_zeros(x.shape[1], 4), x.new_zeros(x.shape[1], 4))
        outputs = []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0])
        return torch.stack(outputs), state


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        out, weights = self.attention(x, x, x, attn_mask=mask)
        return self.norm(x + out), weights


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def body(self, x):
        return self.second(F.relu(self.first(x)))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.lateral = nn.ModuleList([nn.Conv2d(2, 3, 1) for _ in range(3)])

    def forward(self, *maps):
        out = [layer(m) for layer, m in zip(self.lateral, maps)]
        for index in range(len(out) - 1, 0, -1):
            size = out[index - 1].shape[2:]
            out[index - 1] += F.interpolate(out[index], size=size, mode="nearest")
        return tuple(out)


class CopiesLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        twin = copy.deepcopy(self.layer)
        return twin(x) - self.layer(x) + x


class ForwardReplaced(nn.Module):
    """An instance attribute instead of the class's method."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.forward = self.forward_fast

    def forward_fast(self, x):
        return self.linear(x).relu()


class CallOverridden(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def __getattr__(self, name):
        if name == "gain":
            return 3.0
        return super().__getattr__(name)

    def __call__(self, x, *args):
        return super().__call__(x, *args) * self.gain

    def forward(self, x):
        return self.linear(x)


class GradientInForward(nn.Module):
    def forward(self, x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            energy = (x**3).sum()
            (gradient,) = torch.autograd.grad(energy, x)
        return gradient


TESTCASES = [
    # (module class, init arguments, forward arguments, TorchScript is known to support it)
    (CustomGradient, lambda: ([8], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ModuleContainers, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (NamedModules, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (TiedWeights, lambda: ([], {}), lambda: ([torch.randint(10, (2, 3))], {}), False),
    (WeightNorm, lambda: ([], {}), lambda: ([torch.rand(1, 2, 5)], {}), False),
    (Recurrent, lambda: ([], {}), lambda: ([torch.rand(2, 3, 4)], {}), False),
    (CellLoop, lambda: ([], {}), lambda: ([torch.rand(3, 2, 4)], {}), False),
    (Attention, lambda: ([], {}), lambda: ([torch.rand(2, 3, 8)], {}), False),
    (Checkpointed, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        Pyramid,
        lambda: ([], {}),
        lambda: ([torch.rand(1, 2, 8, 8), torch.rand(1, 2, 4, 4), torch.rand(1, 2, 2, 2)], {}),
        False,
    ),
    (CopiesLayer, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ForwardReplaced, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (CallOverridden, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (GradientInForward, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
]
