"""U-Net, after Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image
Segmentation" (2015), with padded convolutions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)


class Up(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        # Odd sizes lose a row in the pooling on the way down.
        missing_y = skip.size(2) - x.size(2)
        missing_x = skip.size(3) - x.size(3)
        left, top = missing_x // 2, missing_y // 2
        x = F.pad(x, [left, missing_x - left, top, missing_y - top])
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    """Images (N, 3, H, W) to class scores per pixel (N, classes, H, W)."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        self.stem = DoubleConv(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(width << i, width << i + 1))
            for i in range(depth)
        )
        self.up = nn.ModuleList(Up(width << i + 1, width << i) for i in reversed(range(depth)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.stem(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.up:
            x = up(x, skips.pop())
        return self.head(x)
