"""Pipelines of transformers, and sentences of varying lengths, with compiled models."""

import pytest
import torch

from tests.ecosystem import tiny_models
from tests.ecosystem.side_by_side import assert_as_eager

transformers = pytest.importorskip("transformers")


def test_a_pipeline_takes_a_compiled_model():
    def program(wrap):
        classify = transformers.pipeline(
            "text-classification",
            model=wrap(tiny_models.classifier()),
            tokenizer=tiny_models.tokenizer(),
            device="cpu",
        )
        one_by_one = [classify(sentence) for sentence in tiny_models.SENTENCES]
        return one_by_one, classify(list(tiny_models.SENTENCES), batch_size=2, top_k=None)

    assert_as_eager(program)


@pytest.mark.full
def test_a_pipeline_generates_text():
    def program(wrap):
        write = transformers.pipeline(
            "text-generation",
            model=wrap(tiny_models.llama()),
            tokenizer=tiny_models.tokenizer(),
            device="cpu",
        )
        return write("the cat sat", max_new_tokens=6, do_sample=False)

    assert_as_eager(program)


def embeddings(model, tokenizer, sentences):
    """Means over the words, of unit length, as sentence encoders compute them."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    means = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
    return torch.nn.functional.normalize(means, dim=-1)


def test_sentences_of_varying_lengths_are_encoded_under_inference_mode():
    def program(wrap):
        model, tokenizer = wrap(tiny_models.bert()), tiny_models.tokenizer()
        sentences = [*tiny_models.SENTENCES]
        with torch.inference_mode():
            found = [embeddings(model, tokenizer, [s]) for s in sentences]
            found += [embeddings(model, tokenizer, sentences[i : i + 3]) for i in range(4)]
        assert all(one.is_inference() for one in found)
        return [one.clone() for one in found]

    assert_as_eager(program, hits=5)
