"""The model zoo: published architectures, written for this project, with random weights.

    model = ZOO["ResNet-101"].make(seed=0)
    args, kwargs = ZOO["ResNet-101"].inputs(model, seed=1, batch=2)
    ZOO["ResNet-101"].loss(model(*args, **kwargs)).backward()

`small` keeps each program whole (all layers of a ResNet-101) and shrinks its tensors; `real` is the
published size, for benchmarks.

``resnet``: ResNet-18 and ResNet-101
``densenet``: DenseNet-121, with checkpoints
``unet``: U-Net
``monodepth``: depth from one image, an encoder and a decoder
``tridentnet``: branches with shared weights and different dilations
``quantized``: a ResNet in 8 bits, by custom autograd functions
``blockdrop``: a policy network that decides which residual blocks run
``lstm``: a deep LSTM written with cells
``language_models``: models of `transformers`
``value_dependent``: programs whose control flow depends on tensors' values
``seeding``: seeds of random numbers
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from magpy_like.torch_compat import pytree
from zoo import language_models, seeding
from zoo.blockdrop import BlockDrop
from zoo.densenet import DenseNet
from zoo.lstm import LSTM
from zoo.monodepth import MonoDepth
from zoo.quantized import quantized_resnet18
from zoo.resnet import resnet18, resnet101
from zoo.tridentnet import TridentNet
from zoo.unet import UNet

Size = Literal["small", "real"]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def projection_loss(output: Any) -> Tensor:
    """The output, projected onto a fixed direction: every element has a gradient."""
    parts = [
        t.flatten().float()
        for t in pytree.tree_leaves(output)
        if isinstance(t, Tensor) and t.requires_grad
    ]
    values = torch.cat(parts)
    direction = torch.linspace(-1, 1, values.numel(), device=values.device)
    return (values * direction).sum() / values.numel() ** 0.5


def labelled_loss(output: Any) -> Tensor:
    """The loss that models of `transformers` compute from labels."""
    return output.loss


@dataclasses.dataclass(frozen=True)
class ZooModel:
    name: str
    build: Callable[[Size], nn.Module]
    example: Callable[[Size, int], Inputs]
    trains: bool = True  # has a loss worth differentiating
    dynamic: bool = False  # reads tensors into Python, so it is no single static graph
    vision: bool = False
    loss: Callable[[Any], Tensor] = projection_loss

    def make(self, seed: int, size: Size = "small") -> nn.Module:
        """The model in eval mode on the CPU; equal seeds give equal weights."""
        with torch.random.fork_rng(devices=[]):
            seeding.seed(seed)
            model = self.build(size)
            model.zoo_size = size
            _calibrate(model, *self.example(size, 4))
        return model.eval()

    def inputs(self, model: nn.Module, seed: int, batch: int) -> Inputs:
        """Random arguments of the model's size, device and precision, `batch` samples."""
        like = next(model.parameters())
        with torch.random.fork_rng(devices=[]):
            seeding.seed(seed)
            example = self.example(model.zoo_size, batch)
        return pytree.tree_map_only(
            Tensor, lambda t: t.to(like) if t.is_floating_point() else t.to(like.device), example
        )


def _calibrate(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Set running statistics to the values that the random weights produce.

    With their initial ones, activations would double from block to block.
    """
    kept = {m: m.momentum for m in model.modules() if isinstance(getattr(m, "momentum", 0), float)}
    if not kept:
        return
    for module in kept:
        module.momentum = 1.0
    with torch.no_grad():
        model.train()(*args, **kwargs)
    for module, momentum in kept.items():
        module.momentum = momentum


def _images(**heights: tuple[int, int]) -> Callable[[Size, int], Inputs]:
    return lambda size, batch: ((torch.randn(batch, 3, *heights[size]),), {})


def _sequences(size: Size, batch: int) -> Inputs:
    steps, features = (4, 8) if size == "small" else (64, 256)
    return (torch.randn(steps, batch, features),), {}


def _width(size: Size, small: int, real: int) -> int:
    return small if size == "small" else real


_IMAGENET = _images(small=(64, 64), real=(224, 224))
_CIFAR = _images(small=(16, 16), real=(32, 32))
_BLOCKS = {"small": (3, 3, 3), "real": (18, 18, 18)}

_MODELS = [
    ZooModel("ResNet-18", lambda s: resnet18(_width(s, 8, 64)), _IMAGENET, vision=True),
    ZooModel("ResNet-101", lambda s: resnet101(_width(s, 4, 64)), _IMAGENET, vision=True),
    ZooModel(
        "DenseNet-121",
        lambda s: DenseNet(growth=_width(s, 4, 32), stem=_width(s, 8, 64)),
        _IMAGENET,
        vision=True,
    ),
    ZooModel(
        "U-Net",
        lambda s: UNet(_width(s, 4, 64)),
        _images(small=(35, 45), real=(256, 256)),
        vision=True,
    ),
    ZooModel(
        "MonoDepth",
        lambda s: MonoDepth(_width(s, 8, 64), _width(s, 4, 16)),
        _images(small=(64, 96), real=(192, 640)),
        vision=True,
    ),
    ZooModel("TridentNet", lambda s: TridentNet(_width(s, 4, 64)), _IMAGENET, vision=True),
    ZooModel(
        "Quantized-ResNet-18",
        lambda s: quantized_resnet18(_width(s, 8, 64)),
        _IMAGENET,
        dynamic=True,
        vision=True,
    ),
    ZooModel(
        "BlockDrop",
        lambda s: BlockDrop(_width(s, 4, 16), _BLOCKS[s]),
        _CIFAR,
        trains=False,
        dynamic=True,
        vision=True,
    ),
    ZooModel("LSTM", lambda s: LSTM(*(8, 16) if s == "small" else (256, 256)), _sequences),
    ZooModel("BERT", language_models.bert, language_models.encoder_inputs),
    ZooModel("DeBERTa", language_models.deberta, language_models.encoder_inputs),
    ZooModel(
        "ALIGN", language_models.align, language_models.image_and_text_inputs, loss=labelled_loss
    ),
    ZooModel(
        "GPT-2", language_models.gpt2, language_models.language_model_inputs, loss=labelled_loss
    ),
    ZooModel("T5", language_models.t5, language_models.translation_inputs, loss=labelled_loss),
    ZooModel(
        "Llama", language_models.llama, language_models.language_model_inputs, loss=labelled_loss
    ),
    ZooModel("ViT", language_models.vit, language_models.image_inputs, loss=labelled_loss),
    ZooModel(
        "Mamba", language_models.mamba, language_models.language_model_inputs, loss=labelled_loss
    ),
]
ZOO: dict[str, ZooModel] = {model.name: model for model in _MODELS}
