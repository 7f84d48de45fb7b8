"""A ResNet trained in 8 bits, after Banner et al., "Scalable Methods for 8-bit Training of Neural
Networks" (2018): activations, weights and gradients are quantised on the way."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.resnet import ResNet, resnet18


class UniformQuantize(torch.autograd.Function):
    """Rounds to one of 2^bits levels between two numbers; the gradient passes straight through."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bits: int, min_value: Tensor | float, max_value: Tensor | float
    ) -> Tensor:
        min_value = float(min_value)
        max_value = float(max_value)
        levels = 2.0**bits - 1.0
        scale = max((max_value - min_value) / levels, 1e-8)
        out = x.clone()
        out.add_(-min_value).div_(scale)
        out.clamp_(0.0, levels).round_()
        out.mul_(scale).add_(min_value)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None, None, None


class QuantizeGradient(torch.autograd.Function):
    """The identity, whose gradient is quantised."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        ctx.bits = bits
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return UniformQuantize.apply(grad, ctx.bits, grad.min(), grad.max()), None


class QuantizeInput(nn.Module):
    """Quantises between the mean extremes of the samples, and keeps their running average."""

    def __init__(self, bits: int = 8, momentum: float = 0.1) -> None:
        super().__init__()
        self.bits = bits
        self.momentum = momentum
        self.register_buffer("running_min", torch.zeros(1))
        self.register_buffer("running_max", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            samples = x.detach().reshape(x.size(0), -1)
            min_value = samples.min(-1)[0].mean()
            max_value = samples.max(-1)[0].mean()
            self.running_min.mul_(1 - self.momentum).add_(min_value * self.momentum)
            self.running_max.mul_(1 - self.momentum).add_(max_value * self.momentum)
        else:
            min_value, max_value = self.running_min, self.running_max
        return UniformQuantize.apply(x, self.bits, min_value, max_value)


class QConv2d(nn.Conv2d):
    def __init__(self, *args: Any, bits: int = 8, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bits = bits
        self.quantize_input = QuantizeInput(bits)

    def forward(self, x: Tensor) -> Tensor:
        x = self.quantize_input(x)
        weight = UniformQuantize.apply(self.weight, self.bits, self.weight.min(), self.weight.max())
        out = F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return QuantizeGradient.apply(out, self.bits)


def quantize(model: nn.Module, bits: int = 8) -> nn.Module:
    """Replaces every convolution inside `model` by a quantising one with the same weights."""
    for name, child in list(model.named_children()):
        if type(child) is nn.Conv2d:
            new = QConv2d(
                child.in_channels,
                child.out_channels,
                child.kernel_size,
                child.stride,
                child.padding,
                bias=child.bias is not None,
                bits=bits,
            )
            new.load_state_dict(child.state_dict(), strict=False)
            setattr(model, name, new)
        else:
            quantize(child, bits)
    return model


def quantized_resnet18(width: int = 64, classes: int = 1000) -> ResNet:
    return quantize(resnet18(width, classes))
