"""Models of the `transformers` library, with configurations instead of trained weights.

Dropout is off: compilers may draw random numbers in another order than eager mode, and could not be
compared with it in training.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 1000
LENGTH = {"small": 12, "real": 128}
# Hidden size, layers, heads, size of the feed-forward layer.
SHAPE = {"small": (32, 2, 4, 64), "real": (768, 12, 12, 3072)}

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def _bert_like(size: str) -> dict[str, Any]:
    hidden, layers, heads, inner = SHAPE[size]
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def bert(size: str) -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**_bert_like(size)))


def deberta(size: str) -> nn.Module:
    config = transformers.DebertaConfig(
        **_bert_like(size), relative_attention=True, pos_att_type=["c2p", "p2c"]
    )
    return transformers.DebertaModel(config)


def align(size: str) -> nn.Module:
    vision: dict[str, Any] = {"image_size": IMAGE[size], "drop_connect_rate": 0.0}
    if size == "small":
        vision |= {
            "width_coefficient": 0.5,
            "depth_coefficient": 1.0,
            "hidden_dim": 16,
            "kernel_sizes": [3, 3, 5],
            "in_channels": [32, 16, 24],
            "out_channels": [16, 24, 32],
            "strides": [1, 2, 2],
            "num_block_repeats": [1, 2, 2],
            "expand_ratios": [1, 6, 6],
        }
    config = transformers.AlignConfig(
        text_config=_bert_like(size),
        vision_config=vision,
        projection_dim=vision.get("hidden_dim", 640),
    )
    return transformers.AlignModel(config)


def gpt2(size: str) -> nn.Module:
    hidden, layers, heads, _inner = SHAPE[size]
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = transformers.GPT2LMHeadModel(config)
    # The library derives the loss from the class's name, fails for this one, and warns in forward.
    model.loss_type = "ForCausalLM"
    return model


def t5(size: str) -> nn.Module:
    hidden, layers, heads, inner = SHAPE[size]
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=inner,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def llama(size: str) -> nn.Module:
    hidden, layers, heads, inner = SHAPE[size]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config)


def vit(size: str) -> nn.Module:
    config = _bert_like(size)
    del config["vocab_size"]
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            **config,
            image_size=IMAGE[size],
            patch_size=IMAGE[size] // 14,
            num_labels=10,
            # Otherwise the first call with labels infers it and stores it in the configuration.
            problem_type="single_label_classification",
        )
    )


def mamba(size: str) -> nn.Module:
    hidden, layers, _heads, _inner = SHAPE[size]
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        state_size=4 if size == "small" else 16,
        num_hidden_layers=layers,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.MambaForCausalLM(config)


IMAGE = {"small": 56, "real": 224}


def _tokens(size: str, batch: int) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, LENGTH[size]))


def _padding_mask(size: str, batch: int) -> Tensor:
    """Ones for tokens, zeros after each sequence's end."""
    lengths = torch.randint(LENGTH[size] // 2, LENGTH[size], (batch, 1))
    return (torch.arange(LENGTH[size]) < lengths).long()


def encoder_inputs(size: str, batch: int) -> Inputs:
    return (), {
        "input_ids": _tokens(size, batch),
        "attention_mask": _padding_mask(size, batch),
    }


def language_model_inputs(size: str, batch: int) -> Inputs:
    tokens = _tokens(size, batch)
    return (), {"input_ids": tokens, "labels": tokens.clone()}


def translation_inputs(size: str, batch: int) -> Inputs:
    _args, kwargs = encoder_inputs(size, batch)
    return (), kwargs | {"labels": _tokens(size, batch)[:, : LENGTH[size] // 2].contiguous()}


def image_inputs(size: str, batch: int) -> Inputs:
    return (), {
        "pixel_values": torch.randn(batch, 3, IMAGE[size], IMAGE[size]),
        "labels": torch.randint(10, (batch,)),
    }


def image_and_text_inputs(size: str, batch: int) -> Inputs:
    _args, kwargs = encoder_inputs(size, batch)
    images = torch.randn(batch, 3, IMAGE[size], IMAGE[size])
    return (), kwargs | {"pixel_values": images, "return_loss": True}
