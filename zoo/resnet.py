"""Residual networks, after He et al., "Deep Residual Learning for Image Recognition" (2015)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """The shortcut's 1x1 convolution where shapes differ (option B of the paper)."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


def stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """`depth` blocks in a row, the first of which changes the shape."""
    outputs = width * block.expansion
    blocks = [block(inputs, width, stride)]
    blocks += [block(outputs, width) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


class ResNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes)."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        width: int = 64,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for i, depth in enumerate(depths):
            layer = stage(block, channels, width << i, depth, stride=1 if i == 0 else 2)
            setattr(self, f"layer{i + 1}", layer)
            channels = (width << i) * block.expansion
        self.depths = depths
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> list[Tensor]:
        """The stem's output and each stage's, from fine to coarse."""
        x = self.relu(self.bn1(self.conv1(x)))
        maps = [x]
        x = self.maxpool(x)
        for i in range(len(self.depths)):
            x = getattr(self, f"layer{i + 1}")(x)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)[-1]
        x = F.adaptive_avg_pool2d(x, 1)
        return self.fc(torch.flatten(x, 1))


def resnet18(width: int = 64, classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), width, classes)


def resnet101(width: int = 64, classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 23, 3), width, classes)
