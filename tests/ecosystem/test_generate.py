"""``generate`` of a compiled language model: each step of its loops is a compiled call."""

import pytest
import torch

from tests.ecosystem import tiny_models
from tests.ecosystem.side_by_side import assert_as_eager

pytest.importorskip("transformers")
SEARCHES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.9, "top_k": 8, "top_p": 0.95},
    "beams": {"num_beams": 3, "do_sample": False},
}
PROMPTS = torch.tensor([[5, 6, 7, 8], [3, 4, 9, 10]])
PADDED = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])


def generation(prompts, search, cache):
    def program(wrap):
        model = wrap(tiny_models.llama())
        torch.manual_seed(3)
        return model.generate(
            prompts,
            attention_mask=(prompts != 0).long(),
            max_new_tokens=8,
            cache_implementation=cache,
            **SEARCHES[search],
        )

    return program


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    "search",
    ["greedy", *(pytest.param(s, marks=pytest.mark.full) for s in SEARCHES if s != "greedy")],
)
def test_generated_tokens_are_those_of_eager_mode(search, cache):
    tokens = assert_as_eager(generation(PROMPTS, search, cache), hits=3)
    assert tokens.shape[1] > PROMPTS.shape[1] + 2


def test_padded_prompts_with_a_static_cache_have_the_tokens_of_eager_mode():
    assert_as_eager(generation(PADDED, "greedy", "static"), hits=3)


@pytest.mark.full
def test_padded_prompts_with_a_dynamic_cache_hit():
    assert_as_eager(generation(PADDED, "greedy", "dynamic"), hits=3)


@pytest.mark.full
def test_scores_and_attentions_of_a_generation_are_those_of_eager_mode():
    def program(wrap):
        model = wrap(tiny_models.llama(attn_implementation="eager"))
        found = model.generate(
            PROMPTS[:1],
            attention_mask=torch.ones(1, 4, dtype=torch.long),
            max_new_tokens=5,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            output_attentions=True,
        )
        return found.sequences, found.scores, found.attentions

    assert_as_eager(program)


@pytest.mark.full
def test_a_streamer_receives_the_tokens():
    class Streamer:
        def __init__(self):
            self.seen = []

        def put(self, value):
            self.seen.append(value.tolist())

        def end(self):
            self.seen.append("end")

    def program(wrap):
        streamer = Streamer()
        wrap(tiny_models.llama()).generate(
            PROMPTS[:1],
            attention_mask=torch.ones(1, 4, dtype=torch.long),
            max_new_tokens=6,
            do_sample=False,
            streamer=streamer,
        )
        return streamer.seen

    assert assert_as_eager(program)[-1] == "end"
