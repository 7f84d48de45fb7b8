"""Subscripts by a tensor with one index are compiled as tensor indexing."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.passes.mutations.tensor_subscripts import index_by_tensors
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


def by_boolean(boxes, scores):
    return boxes[scores.sum() > 0] + 1


def returned_view(boxes, scores):
    return boxes[scores.argmax()]


def mutated_later(boxes, scores):
    row = boxes[scores.argmax()]
    boxes.mul_(2)
    return row + 1


def size_only(boxes, scores):
    return boxes.sum(), scores[scores > 0].size(0)


def mutated_by_function(boxes, scores):
    F.relu(boxes[scores.argmax()], inplace=True)
    return boxes * 2


def mutated_by_function_later(boxes, scores):
    row = boxes[scores.argmax()]
    F.elu(boxes, 1.0, True)
    return row + 1


FUNCTIONS = [
    best_and_rest, narrow, negative, by_boolean, returned_view, mutated_later, size_only,
    mutated_by_function, mutated_by_function_later,
]  # fmt: skip


def inputs(grad=False):
    return seeded(5, 4).requires_grad_(grad), seeded(5, seed=1)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_results_equal_eager(function):
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
"""Turns the compiler's warnings, which appear once per process, into errors."""


@pytest.mark.parametrize("function", [best_and_rest, narrow, negative])
def test_graphs_compile_without_fallback(function):
    compile_fx(torch.fx.symbolic_trace(function), list(inputs()), options=STRICT)


def test_captured_sizes_compile_without_fallback():
    fast = magpy.compile(size_only, fullgraph=True, options=STRICT)
    for _ in range(3):
        results, expected = fast(*inputs()), size_only(*inputs())
        assert_same(list(results), list(expected))
    assert magpy.cache_info(fast).hits == 2


def test_gradients_equal_eager():
    def loss(boxes, scores):
        return best_and_rest(boxes, scores)[0].square().sum()

    gradients = []
    for run in (compile_fx(torch.fx.symbolic_trace(loss), list(inputs(True))), loss):
        boxes, scores = inputs(True)
        result = run(boxes, scores)
        (result[0] if isinstance(result, tuple | list) else result).backward()
        gradients.append(boxes.grad)
    assert_same(*gradients)


def test_subscript_before_a_module_call_is_not_converted():
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
def test_detection_model_equals_eager():
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
