"""Models of transformers that are small enough to compile in seconds, and a tokenizer for them."""

from typing import Any

import torch
from torch import nn

WORDS = "[PAD] [UNK] the a cat dog sat ran on mat fast slow and then it was".split()
SENTENCES = (
    "the cat sat on the mat",
    "a dog ran",
    "the dog was fast and the cat was slow",
    "it sat then it ran",
    "a cat and a dog sat on a mat then it ran",
    "the mat was slow",
)


def llama(**settings: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.5,  # so that tokens differ
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def _bert_config(**settings: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        **settings,
    )


def bert(**settings: Any) -> nn.Module:
    from transformers import BertModel

    torch.manual_seed(0)
    return BertModel(_bert_config(**settings)).eval()


def classifier(**settings: Any) -> nn.Module:
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(_bert_config(num_labels=3, **settings)).eval()


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
