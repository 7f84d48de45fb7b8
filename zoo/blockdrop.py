"""BlockDrop, after Wu et al., "BlockDrop: Dynamic Inference Paths in Residual Networks" (2017): a
small policy network decides which residual blocks of a large one run."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.resnet import BasicBlock, conv3x3


class Residual(nn.Sequential):
    """The residual that a basic block adds to its shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(
            conv3x3(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )


class Shortcut(nn.Module):
    """Option A of the ResNet paper: subsampling, and zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.new_channels = outputs - inputs
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(x, self.stride) if self.stride > 1 else x
        return F.pad(x, (0, 0, 0, 0, 0, self.new_channels))


class Policy(nn.Module):
    """Images (N, 3, H, W) to the probability (N, blocks) that each block is worth running."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(3, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(
            BasicBlock(width, width),
            BasicBlock(width, 2 * width, 2),
            BasicBlock(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.stem(x)).mean((2, 3))
        return torch.sigmoid(self.head(x))


class BlockDrop(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes) and the policy (N, blocks) that was followed."""

    def __init__(
        self, width: int = 16, depths: tuple[int, ...] = (18, 18, 18), classes: int = 10
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(3, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.segments = nn.ModuleList()
        self.shortcuts = nn.ModuleList()
        inputs = width
        for i, depth in enumerate(depths):
            outputs, stride = width << i, 1 if i == 0 else 2
            self.shortcuts.append(Shortcut(inputs, outputs, stride))
            self.segments.append(
                nn.ModuleList(
                    Residual(inputs if b == 0 else outputs, outputs, stride if b == 0 else 1)
                    for b in range(depth)
                )
            )
            inputs = outputs
        self.policy = Policy(width, sum(depths))
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        policy = (self.policy(images) > 0.5).float()
        x = self.stem(images)
        t = 0
        for segment, shortcut in zip(self.segments, self.shortcuts):
            for b, block in enumerate(segment):
                residual = shortcut(x) if b == 0 else x
                action = policy[:, t]
                t += 1
                # When no image of the batch wants the block, it does not run at all.
                if action.sum() == 0:
                    x = residual
                    continue
                mask = action.view(-1, 1, 1, 1)
                x = F.relu(residual + block(x)) * mask + residual * (1 - mask)
        return self.head(x.mean((2, 3))), policy
