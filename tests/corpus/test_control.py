"""Programs with Python control flow that is decided by shapes, options and attributes."""

import contextlib
import enum
import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


@contextlib.contextmanager
def evaluating(module):
    was_training = module.training
    module.eval()
    try:
        yield module
    finally:
        module.train(was_training)


class WhileOverSizes(nn.Module):
    def forward(self, x):
        steps = 0
        while x.shape[-1] > 2:
            x = F.avg_pool1d(x, 2)
            steps += 1
        return x, steps


class BreakAndElse(nn.Module):
    def forward(self, x):
        for size in (7, 5, 4, 3):
            if x.size(-1) % size == 0:
                x = x.unflatten(-1, (size, -1))
                break
        else:
            x = x.unsqueeze(-1)
        return x


class TryExceptFinally(nn.Module):
    def forward(self, x):
        notes = []
        try:
            if x.dim() != 4:
                raise ValueError(f"expected 4 dimensions, got {x.dim()}")
        except ValueError as error:
            notes.append(str(error))
            x = x.unsqueeze(0)
        finally:
            notes.append("done")
        return x * len(notes), notes


class CatchesIndexError(nn.Module):
    def forward(self, x):
        sizes = []
        try:
            for dim in range(10):
                sizes.append(x.shape[dim])
        except IndexError:
            pass
        return x.reshape(-1)[: sum(sizes)]


class ContextManagers(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            target = self.linear(x).detach()
        with evaluating(self.dropout), torch.enable_grad():
            return (self.dropout(self.linear(x)) - target).abs().mean() + target


class MatchStatement(nn.Module):
    def forward(self, x, option):
        match option:
            case {"pad": int(amount)}:
                x = F.pad(x, (amount, amount))
            case ("crop", start, stop):
                x = x[..., start:stop]
            case _:
                x = -x
        return x


class EnumOption(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = Mode(mode)

    def forward(self, x):
        if self.mode is Mode.SUM:
            return x.sum(-1)
        return x.mean(-1)


class StringsAndFormatting(nn.Module):
    def __init__(self):
        super().__init__()
        for index in range(3):
            setattr(self, f"conv{index}", nn.Conv1d(2, 2, 1))

    def forward(self, x):
        names = ["conv%d" % index for index in range(3)]
        for name in names:
            x = getattr(self, name)(x)
        return x, "-".join(names).upper()


class TypeTests(nn.Module):
    def forward(self, x):
        if isinstance(x, (list, tuple)):
            x = torch.cat(list(x), -1)
        if not hasattr(self, "missing") and callable(getattr(x, "mean", None)):
            x = x - x.mean()
        return x if type(x) is torch.Tensor else None


class OptionalArguments(nn.Module):
    def forward(self, x, mask=None, return_weights: bool = False):
        weights = x @ x.transpose(-1, -2)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, float("-inf"))
        weights = weights.softmax(-1)
        out = weights @ x
        return (out, weights) if return_weights else out


class ScalarMath(nn.Module):
    def forward(self, x):
        depth = math.ceil(math.log2(x.shape[-1])) + x.numel() // 3
        scale = 1 / math.sqrt(x.size(-1)) if depth & 1 else float(depth) ** 0.5
        return x * scale * min(max(depth, 1), 8) + round(scale, 2) + divmod(depth, 3)[1]


class NumpyConstants(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = np.linspace(0.0, 1.0, 4)

    def forward(self, x):
        angle = float(np.prod(np.array(x.shape[1:]))) * np.pi
        return x * np.cos(angle) + torch.from_numpy(self.steps).to(x)


class AssertsAndWarns(nn.Module):
    def forward(self, x):
        assert x.dim() == 2, "expected a matrix"
        if x.shape[0] != x.shape[1]:
            warnings.warn("not square", stacklevel=2)
        return x @ x.t()


class ComprehensionsAndWalrus(nn.Module):
    def forward(self, x):
        sizes = {dim: size for dim in range(x.dim()) if (size := x.shape[dim]) > 1}
        rows = [[row[i] * size for i, size in enumerate(sizes.values())] for row in x]
        return torch.stack([value for row in rows for value in row])


class ConditionalImport(nn.Module):
    def forward(self, x):
        from math import pi as turn

        import torch.nn.functional as functional

        return functional.softplus(x, beta=turn)


class EarlyReturns(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x, y):
        if self.kind == "none" or x.shape != y.shape:
            return None
        if not self.kind:
            return x, y
        return (x - y).norm(), {"kind": self.kind, "close": True}


TESTCASES = [
    # (module class, init arguments, forward arguments, TorchScript is known to support it)
    (WhileOverSizes, lambda: ([], {}), lambda: ([torch.rand(2, 3, 9)], {}), False),
    (BreakAndElse, lambda: ([], {}), lambda: ([torch.rand(2, 8)], {}), False),
    (TryExceptFinally, lambda: ([], {}), lambda: ([torch.rand(2, 3, 4)], {}), False),
    (CatchesIndexError, lambda: ([], {}), lambda: ([torch.rand(2, 3, 4)], {}), False),
    (ContextManagers, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (MatchStatement, lambda: ([], {}), lambda: ([torch.rand(2, 6), ("crop", 1, 4)], {}), False),
    (EnumOption, lambda: (["mean"], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (StringsAndFormatting, lambda: ([], {}), lambda: ([torch.rand(1, 2, 4)], {}), False),
    (
        TypeTests,
        lambda: ([], {}),
        lambda: ([[torch.rand(2, 2), torch.rand(2, 3)]], {}),
        False,
    ),
    (
        OptionalArguments,
        lambda: ([], {}),
        lambda: ([torch.rand(2, 3, 4)], {"mask": torch.eye(3), "return_weights": True}),
        False,
    ),
    (ScalarMath, lambda: ([], {}), lambda: ([torch.rand(2, 6)], {}), False),
    (NumpyConstants, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (AssertsAndWarns, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ComprehensionsAndWalrus, lambda: ([], {}), lambda: ([torch.rand(2, 3)], {}), False),
    (ConditionalImport, lambda: ([], {}), lambda: ([torch.rand(2, 3)], {}), False),
    (EarlyReturns, lambda: (["l2"], {}), lambda: ([torch.rand(3), torch.rand(3)], {}), False),
]
