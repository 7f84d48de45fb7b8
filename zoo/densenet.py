"""DenseNet, after Huang et al., "Densely Connected Convolutional Networks" (2016).

With the memory-efficient form of Pleiss et al. (2017): the concatenation and the bottleneck are
recomputed in the backward pass.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint


class DenseLayer(nn.Module):
    def __init__(
        self, inputs: int, growth: int, bottleneck: int, drop_rate: float, memory_efficient: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, bottleneck * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)
        self.drop_rate = float(drop_rate)
        self.memory_efficient = memory_efficient

    def squeeze(self, maps: list[Tensor]) -> Tensor:
        return self.conv1(self.relu1(self.norm1(torch.cat(maps, 1))))

    def needs_checkpoint(self, maps: list[Tensor]) -> bool:
        if not self.memory_efficient:
            return False
        for tensor in maps:
            if tensor.requires_grad:
                return True
        return False

    def squeeze_recomputed(self, maps: list[Tensor]) -> Tensor:
        def closure(*tensors: Tensor) -> Tensor:
            return self.squeeze(list(tensors))

        return checkpoint.checkpoint(closure, *maps, use_reentrant=False)

    def forward(self, x: Tensor | list[Tensor]) -> Tensor:
        maps = [x] if isinstance(x, Tensor) else x
        if self.needs_checkpoint(maps):
            if torch.jit.is_scripting():
                raise RuntimeError("the memory-efficient form cannot be scripted")
            squeezed = self.squeeze_recomputed(maps)
        else:
            squeezed = self.squeeze(maps)
        new = self.conv2(self.relu2(self.norm2(squeezed)))
        if self.drop_rate > 0:
            new = F.dropout(new, p=self.drop_rate, training=self.training)
        return new


class DenseBlock(nn.ModuleDict):
    def __init__(self, layers: int, inputs: int, growth: int, **options: Any) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(
                f"denselayer{i + 1}", DenseLayer(inputs + i * growth, growth, **options)
            )

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for _name, layer in self.items():
            maps.append(layer(maps))
        return torch.cat(maps, 1)


class Transition(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.pool = nn.AvgPool2d(2, stride=2)


class DenseNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes)."""

    def __init__(
        self,
        growth: int = 32,
        depths: tuple[int, ...] = (6, 12, 24, 16),
        stem: int = 64,
        bottleneck: int = 4,
        drop_rate: float = 0.0,
        classes: int = 1000,
        memory_efficient: bool = True,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv0=nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False),
                norm0=nn.BatchNorm2d(stem),
                relu0=nn.ReLU(inplace=True),
                pool0=nn.MaxPool2d(3, stride=2, padding=1),
            )
        )
        channels = stem
        for i, depth in enumerate(depths):
            block = DenseBlock(
                depth,
                channels,
                growth,
                bottleneck=bottleneck,
                drop_rate=drop_rate,
                memory_efficient=memory_efficient,
            )
            self.features.add_module(f"denseblock{i + 1}", block)
            channels += depth * growth
            if i != len(depths) - 1:
                self.features.add_module(f"transition{i + 1}", Transition(channels, channels // 2))
                channels //= 2
        self.features.add_module(f"norm{len(depths) + 1}", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.features(x), inplace=True)
        out = torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1)
        return self.classifier(out)
