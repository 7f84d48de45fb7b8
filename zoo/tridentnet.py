"""TridentNet's backbone, after Li et al., "Scale-Aware Trident Networks for Object Detection"
(2019): in the fourth stage of a ResNet-101, branches with shared weights and their own dilation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.resnet import Bottleneck, ResNet, projection


class TridentConv(nn.Module):
    """One 3x3 kernel, applied to each branch with that branch's dilation."""

    def __init__(self, channels: int, stride: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels, 3, 3))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        self.bias = None
        self.stride = stride
        self.dilations = dilations
        self.test_branch = 1

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        branches = len(self.dilations) if self.training or self.test_branch == -1 else 1
        assert len(inputs) == branches
        if branches == 1:
            d = self.dilations[self.test_branch]
            return [F.conv2d(inputs[0], self.weight, self.bias, self.stride, d, d)]
        return [
            F.conv2d(x, self.weight, self.bias, self.stride, padding=d, dilation=d)
            for x, d in zip(inputs, self.dilations)
        ]

    def extra_repr(self) -> str:
        return f"dilations={self.dilations}, stride={self.stride}"


class TridentBottleneck(nn.Module):
    expansion = Bottleneck.expansion

    def __init__(self, inputs: int, width: int, stride: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.branches = len(dilations)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = TridentConv(width, stride, dilations)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = projection(inputs, outputs, stride)

    def forward(self, x: Tensor | list[Tensor]) -> list[Tensor]:
        branches = self.branches if self.training else 1
        if not isinstance(x, list):
            x = [x] * branches
        out = [F.relu_(self.bn1(self.conv1(b))) for b in x]
        out = [F.relu_(self.bn2(b)) for b in self.conv2(out)]
        out = [self.bn3(self.conv3(b)) for b in out]
        shortcut = x if self.shortcut is None else [self.shortcut(b) for b in x]
        return [F.relu_(b + s) for b, s in zip(out, shortcut)]


class TridentNet(nn.Module):
    """Images (N, 3, H, W) to the fourth stage's maps, one per branch; in eval one only."""

    def __init__(self, width: int = 64, dilations: tuple[int, ...] = (1, 2, 3)) -> None:
        super().__init__()
        self.backbone = ResNet(Bottleneck, (3, 4), width)
        del self.backbone.fc
        channels = width * 2 * Bottleneck.expansion
        blocks = []
        for i in range(23):
            blocks.append(TridentBottleneck(channels, width * 4, 2 if i == 0 else 1, dilations))
            channels = width * 4 * TridentBottleneck.expansion
        self.trident = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.trident(self.backbone.features(x)[-1])
