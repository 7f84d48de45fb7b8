"""Subscripts by a tensor that holds one position are part of a compiled graph."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.passes.layout.tensor_indices import index_by_tensors
from tests.compare import assert_same
from tests.compiler.programs import seeded
from tests.splitting.test_value_dependent_models import PROGRAMS


def best_and_rest(boxes, scores):
    order = scores.argsort(descending=True)
    best, rest = order[0], order[1:]
    return boxes[best] * 2 - boxes[rest], boxes[rest[-1]][:2].sum()


def narrow(boxes, scores):
    return boxes[scores.argmax().to(torch.int32)] + 1


def negative(boxes, scores):
    return boxes[-1 - scores.argmax()].exp()


def by_a_truth(boxes, scores):
    return boxes[scores.sum() > 0] + 1


def handed_on(boxes, scores):
    return boxes[scores.argmax()]


def changed_later(boxes, scores):
    row = boxes[scores.argmax()]
    boxes.mul_(2)
    return row + 1


def only_the_size(boxes, scores):
    return boxes.sum(), scores[scores > 0].size(0)


def changed_by_a_function(boxes, scores):
    F.relu(boxes[scores.argmax()], inplace=True)
    return boxes * 2


def changed_by_a_function_later(boxes, scores):
    row = boxes[scores.argmax()]
    F.elu(boxes, 1.0, True)
    return row + 1


FUNCTIONS = [
    best_and_rest, narrow, negative, by_a_truth, handed_on, changed_later, only_the_size,
    changed_by_a_function, changed_by_a_function_later,
]  # fmt: skip


def inputs(grad=False):
    return seeded(5, 4).requires_grad_(grad), seeded(5, seed=1)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_gives_what_eager_mode_gives(function):
    graph = torch.fx.symbolic_trace(function)
    fast = compile_fx(graph, list(inputs()))
    for seed in range(3):
        compiled_inputs, eager_inputs = inputs(), inputs()
        shift = torch.arange(5.0).roll(seed)
        results = [
            fast(compiled_inputs[0], compiled_inputs[1] + shift),
            function(eager_inputs[0], eager_inputs[1] + shift),
        ]
        results = [r if isinstance(r, tuple | list) else (r,) for r in results]
        assert_same(list(results[0]), list(results[1]))
        assert_same(compiled_inputs[0], eager_inputs[0])


STRICT = {"strict": True}
"""The compiler's warnings, which come once in a process, are errors."""


@pytest.mark.parametrize("function", [best_and_rest, narrow, negative])
def test_nothing_runs_through_aten_as_a_whole(function):
    compile_fx(torch.fx.symbolic_trace(function), list(inputs()), options=STRICT)


def test_neither_does_what_is_wanted_for_its_size_behind_capture():
    fast = magpy.compile(only_the_size, fullgraph=True, options=STRICT)
    for _ in range(3):
        results, expected = fast(*inputs()), only_the_size(*inputs())
        assert_same(list(results), list(expected))
    assert magpy.cache_info(fast).hits == 2


def test_gradients_are_eager_modes():
    def loss(boxes, scores):
        return best_and_rest(boxes, scores)[0].square().sum()

    gradients = []
    for run in (compile_fx(torch.fx.symbolic_trace(loss), list(inputs(True))), loss):
        boxes, scores = inputs(True)
        result = run(boxes, scores)
        (result[0] if isinstance(result, tuple | list) else result).backward()
        gradients.append(boxes.grad)
    assert_same(*gradients)


def test_a_module_may_change_what_a_subscript_gives():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = torch.nn.ReLU(inplace=True)

        def forward(self, boxes, scores):
            row = boxes[scores.argmax()]
            self.relu(boxes)
            return row + 1

    assert not index_by_tensors(torch.fx.symbolic_trace(Layers()))


@pytest.mark.full
def test_detection_is_compiled_and_equal_to_eager_mode():
    torch.manual_seed(0)
    model, images = PROGRAMS["detection"]()
    eager_model = copy.deepcopy(model)
    fast = magpy.compile(model, options=STRICT)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for image in images[:8]:
            for actual, expected in zip(fast(*image), eager_model(*image), strict=True):
                torch.testing.assert_close(actual, expected)
    assert magpy.cache_info(fast).hits >= 4
