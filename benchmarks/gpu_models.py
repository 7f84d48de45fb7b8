"""Models for a GPU, by name: published architectures with random weights.

They come from `torchvision`, `timm` and `transformers`, which the benchmark needs installed, and
from the zoo.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Model:
    """``make()`` returns the model, ``inputs(batch)`` its arguments by position or name."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    trains: bool = False


def image(size: int, name: str = "x") -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {name: torch.randn(batch, 3, size, size)}


def tokens(length: int, vocabulary: int = 1000) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"input_ids": torch.randint(0, vocabulary, (batch, length))}


def vision(name: str, *, trains: bool = False, size: int = 224) -> Model:
    """A model of `torchvision`."""
    return Model(
        lambda: importlib.import_module("torchvision.models").get_model(name, weights=None),
        image(size),
        trains,
    )


def timm(name: str, *, trains: bool = False, size: int = 224) -> Model:
    """A model of `timm`."""
    return Model(
        lambda: importlib.import_module("timm").create_model(name, pretrained=False),
        image(size),
        trains,
    )


def language(model: str, length: int = 128, *, trains: bool = False, **settings: Any) -> Model:
    """A model of `transformers`, by the name of its class: ``BertModel``."""

    def make() -> nn.Module:
        transformers = importlib.import_module("transformers")
        kind = getattr(transformers, model)
        made: nn.Module = kind(kind.config_class(**settings))
        return made

    return Model(make, tokens(length), trains)


MODELS = {
    "resnet101": vision("resnet101", trains=True),
    "mobilenet_v3": vision("mobilenet_v3_large", trains=True),
    "efficientnet_b0": vision("efficientnet_b0"),
    "densenet121": vision("densenet121"),
    "convnext": vision("convnext_tiny", trains=True),
    "vit": vision("vit_b_16", trains=True),
    "swin": vision("swin_t"),
    "regnet": vision("regnet_y_3_2gf"),
    "shufflenet": vision("shufflenet_v2_x1_0"),
    "mixer": timm("mixer_b16_224"),
    "deit": timm("deit_small_patch16_224", trains=True),
    "bert": language("BertModel", trains=True),
    "distilbert": language("DistilBertModel"),
    "roberta": language("RobertaModel"),
    "gpt2": language("GPT2Model", trains=True, use_cache=False),
    "deberta": language("DebertaV2Model", hidden_size=768, num_hidden_layers=12,
                        num_attention_heads=12, intermediate_size=3072),
    "llama": language("LlamaModel", trains=True, hidden_size=1024, num_hidden_layers=12,
                      num_attention_heads=16, intermediate_size=2816, vocab_size=32000,
                      use_cache=False),
    "mamba": language("MambaModel", hidden_size=768, num_hidden_layers=24, use_cache=False),
}  # fmt: skip
