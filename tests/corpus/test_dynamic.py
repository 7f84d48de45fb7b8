"""Dynamic programs: a tensor's value decides control flow or is read by native code.

`StaticNeighbours` reads shapes and scalars, indexes by tensors and selects by masks, and is static.
"""

import torch
from torch import nn


class BranchesOnTensor(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1


class ItemAsScale(nn.Module):
    def forward(self, x):
        peak = x.abs().max().item()
        return x / peak


class TensorToList(nn.Module):
    def forward(self, lengths, x):
        return [row[:length] for row, length in zip(x, lengths.tolist())]


class ThroughNumpy(nn.Module):
    def forward(self, x):
        order = x.detach().cpu().numpy().argsort()
        return x[torch.from_numpy(order)]


class LoopsUntilSmall(nn.Module):
    def forward(self, x):
        steps = 0
        while x.norm() > 1:
            x = x / 2
            steps += 1
        return x, steps


class SizeFromTensor(nn.Module):
    def forward(self, lengths):
        positions = torch.arange(lengths.max())
        return positions[None, :] < lengths[:, None]


class StaticNeighbours(nn.Module):
    def forward(self, x, index):
        row = x[index]
        masked = torch.where(x > 0.5, x, x.new_zeros(()))
        return row, masked.sum(), x[x > 2].sum(), float(x.shape[0]) / x.dim()


# The dynamic modules.
DYNAMIC = (
    BranchesOnTensor,
    ItemAsScale,
    TensorToList,
    ThroughNumpy,
    LoopsUntilSmall,
    SizeFromTensor,
)

TESTCASES = [
    # (module class, init arguments, forward arguments, TorchScript is known to support it)
    (BranchesOnTensor, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ItemAsScale, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        TensorToList,
        lambda: ([], {}),
        lambda: ([torch.tensor([1, 3]), torch.rand(2, 4)], {}),
        False,
    ),
    (ThroughNumpy, lambda: ([], {}), lambda: ([torch.rand(5)], {}), False),
    (LoopsUntilSmall, lambda: ([], {}), lambda: ([torch.rand(9) + 1], {}), False),
    (SizeFromTensor, lambda: ([], {}), lambda: ([torch.tensor([1, 3])], {}), False),
    (
        StaticNeighbours,
        lambda: ([], {}),
        lambda: ([torch.rand(3, 4), torch.tensor(1)], {}),
        False,
    ),
]
