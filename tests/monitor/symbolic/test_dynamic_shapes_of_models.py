"""Models whose batch size varies between calls, and for language models the sequence length too."""

import copy
import random

import pytest
import torch
from torch.utils import _pytree as pytree

import magpy_like as magpy
from zoo import ZOO, language_models

QUICK = ["ResNet-18", "BERT"]
MODELS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.full)
    for name in (*QUICK, "DenseNet-121", "DeBERTa", "GPT-2", "ViT")
]
LANGUAGE = ("BERT", "DeBERTa", "GPT-2")


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_models_have_at_most_one_record_for_varying_sizes(name, training, monkeypatch):
    zoo = ZOO[name]
    model = zoo.make(0).train(training)
    reference = copy.deepcopy(model)
    compiled = magpy.compile(model, backend="eager", fullgraph=True)
    generator = random.Random(0)
    for i in range(20):
        if name in LANGUAGE:
            monkeypatch.setitem(language_models.LENGTH, "small", generator.randint(5, 40))
        args, kwargs = zoo.inputs(model, i, generator.randint(2, 12))
        with torch.set_grad_enabled(training):
            actual, expected = compiled(*args, **kwargs), reference(*args, **kwargs)
        torch.testing.assert_close(*map(_tensors, (actual, expected)), rtol=1e-4, atol=1e-4)
        if training:
            for output in (actual, expected):
                zoo.loss(output).backward()
            torch.testing.assert_close(*map(_gradients, (model, reference)), rtol=1e-3, atol=1e-4)
    info = magpy.cache_info(compiled)
    assert info.misses <= 3 and info.graphs <= 2, "at most two recompilations for sizes"


def _tensors(output):
    return [t for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]


def _gradients(model):
    found = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found
