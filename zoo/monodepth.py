"""Depth from one image, after Godard et al., "Digging Into Self-Supervised Monocular Depth
Estimation" (2018): a residual encoder and a decoder with disparities at four scales."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.resnet import ResNet, resnet18


class PaddedConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.conv = nn.Conv2d(inputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pad(x))


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = PaddedConv(inputs, outputs)
        self.nonlinearity = nn.ELU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlinearity(self.conv(x))


class Encoder(nn.Module):
    def __init__(self, backbone: ResNet) -> None:
        super().__init__()
        self.backbone = backbone
        self.channels = [backbone.conv1.out_channels << max(0, i - 1) for i in range(5)]

    def forward(self, image: Tensor) -> list[Tensor]:
        # Kept on the module, as the published program does: a side effect of every call.
        self.maps = self.backbone.features((image - 0.45) / 0.225)
        return self.maps


class DisparityDecoder(nn.Module):
    def __init__(self, encoder_channels: list[int], width: int, scales: range = range(4)) -> None:
        super().__init__()
        self.scales = scales
        channels = [width << i for i in range(5)]
        self.convs: dict[tuple[str, int] | tuple[str, int, int], nn.Module] = {}
        for i in reversed(range(5)):
            inputs = encoder_channels[-1] if i == 4 else channels[i + 1]
            self.convs["upconv", i, 0] = ConvBlock(inputs, channels[i])
            skip = encoder_channels[i - 1] if i > 0 else 0
            self.convs["upconv", i, 1] = ConvBlock(channels[i] + skip, channels[i])
        for s in self.scales:
            self.convs["dispconv", s] = PaddedConv(channels[s], 1)
        self.decoder = nn.ModuleList(self.convs.values())
        self.sigmoid = nn.Sigmoid()

    def forward(self, maps: list[Tensor]) -> dict[tuple[str, int], Tensor]:
        outputs = {}
        x = maps[-1]
        for i in range(4, -1, -1):
            x = self.convs["upconv", i, 0](x)
            parts = [F.interpolate(x, scale_factor=2, mode="nearest")]
            if i > 0:
                parts += [maps[i - 1]]
            x = self.convs["upconv", i, 1](torch.cat(parts, 1))
            if i in self.scales:
                outputs["disp", i] = self.sigmoid(self.convs["dispconv", i](x))
        return outputs


class MonoDepth(nn.Module):
    """Images (N, 3, H, W), H and W multiples of 32, to `{("disp", s): (N, 1, H/2^s, W/2^s)}`."""

    def __init__(self, width: int = 64, decoder_width: int = 16) -> None:
        super().__init__()
        self.encoder = Encoder(resnet18(width))
        self.depth = DisparityDecoder(self.encoder.channels, decoder_width)

    def forward(self, image: Tensor) -> dict[tuple[str, int], Tensor]:
        return self.depth(self.encoder(image))
