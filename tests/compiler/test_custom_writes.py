"""Tensors that custom functions write to have the functions' gradients, as in eager mode."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.graph_operators.custom_functions import SHARED_REASON, WRITES_REASON
from magpy_like.graph_operators.node_metadata import AS_IS
from magpy_like.torch_compat import pytree
from tests.compiler.programs import Grown, attempt


class GrownWithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 3


class GrownAndNew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2), x * 5

    @staticmethod
    def backward(ctx, g, h):
        return g * 3 + h * 7


class GrownAndView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.mul_(2), y.view_as(y)

    @staticmethod
    def backward(ctx, g, h):
        return g * 3, h * 5


FUNCTIONS = (Grown, GrownWithSetup, GrownAndNew, GrownAndView)


def all_results(function, x):
    return function.apply(x, x * 2) if function is GrownAndView else function.apply(x)


def first(function, x):
    results = all_results(function, x)
    return results[0] if type(results) is tuple else results


def of_an_argument_in_a_branch(function, x):
    return first(function, x) if x.sum() > 0 else x * 2


def after_a_branch(function, x):
    base = x * 3 if x.sum() > 0 else x * 2
    return first(function, base), x * 2


def repeated_for_new_tensors(function, x):
    for _ in range(3):
        x = first(function, x * 2)
    return x


def repeated_for_an_argument(function, x):
    for _ in range(3):
        first(function, x)
    return x


def without_gradients(function, x):
    with torch.no_grad():
        first(function, x)
    return x * 2


def of_a_row_of_an_intermediate(function, x):
    base = x * 2
    first(function, base[0])
    return base


def of_a_tensor_from_another_part(function, x):
    base = x * 2
    first(function, x)
    base.add_(1)
    return first(function, base), base * 2


PROGRAMS = {
    "of an argument": all_results,
    "result dropped": lambda function, x: (first(function, x), None)[1],
    "new value used": lambda function, x: (first(function, x), x * 2)[1],
    "result used": lambda function, x: (first(function, x) * x).sum(),
    "of a row": lambda function, x: first(function, x[0]),
    "row written, argument used": lambda function, x: (first(function, x[0]), x * 2)[1],
    "of an intermediate": lambda function, x: first(function, x * 2),
    "of a used intermediate": lambda function, x: (lambda b: (first(function, b), b * 2))(x * 2),
    "twice": lambda function, x: first(function, first(function, x)),
    "twice of an intermediate": lambda function, x: first(function, first(function, x * 2)),
    "after a write": lambda function, x: first(function, x.add_(1)),
    "before a write": lambda function, x: first(function, x).add_(1),
    "of a detached tensor": lambda function, x: (first(function, x.detach()), x * 2),
    "view of the result": lambda function, x: first(function, x)[0],
    **{
        f.__name__: f
        for f in (
            of_an_argument_in_a_branch, after_a_branch, repeated_for_new_tensors,
            repeated_for_an_argument, without_gradients, of_a_row_of_an_intermediate,
            of_a_tensor_from_another_part,
        )
    },
}  # fmt: skip


def observe(function, columns, grad):
    """What a caller sees of the argument, the results and of gradients."""
    x = torch.arange(1.0, 1 + 2 * columns).reshape(2, columns).requires_grad_(grad)
    argument = x * 1
    results = []

    def call():
        results.extend(r for r in pytree.tree_leaves(function(argument)) if r is not None)

    seen = [attempt(call)]
    for each in (argument, *results):
        seen.append((each.tolist(), each._version, each.requires_grad, each is argument))

        def gradient(each=each):
            (found,) = torch.autograd.grad((each * each).sum(), x, retain_graph=True)
            return found.tolist()

        seen += [attempt(gradient)] if each.requires_grad else []
    return seen


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_written_tensors_have_the_gradients_of_custom_functions(program, grad):
    for function in FUNCTIONS:
        call = lambda x, function=function: program(function, x)
        fast = magpy.compile(call)
        for columns in (3, 3, 3, 4, 5):
            assert observe(fast, columns, grad) == observe(call, columns, grad)


class Plain(Grown):
    """For the tests below alone: a function may split programs after others have used it."""


def reasons(program, grad=True):
    (graph,) = magpy.explain(program, torch.ones(2, 3, requires_grad=grad) * 1).graphs
    return {node.meta[AS_IS] for node in graph.graph.nodes if AS_IS in node.meta}


@pytest.mark.cpu  # under a default device, custom functions run as they are
def test_function_that_writes_to_an_intermediate_is_compiled_with_its_graph():
    def after_a_write(x):
        base = x * 2
        base.add_(1)
        return Plain.apply(base) * 2

    assert reasons(lambda x: Plain.apply(Plain.apply(x * 2))) == set()
    assert reasons(after_a_write) == set()


@pytest.mark.cpu  # under a default device, custom functions run as they are
def test_function_that_writes_to_an_argument_runs_uncompiled_only_with_gradients():
    def without_recording(x):
        with torch.no_grad():
            Plain.apply(x)
        return x * 2

    assert reasons(lambda x: Plain.apply(x) * 2) == {WRITES_REASON}
    assert reasons(lambda x: Plain.apply(x) * 2, grad=False) == set()
    assert reasons(without_recording) == set()


@pytest.mark.cpu  # under a default device, custom functions run as they are
def test_function_that_writes_to_a_view_runs_uncompiled():
    assert reasons(lambda x: Plain.apply(x[0]) * 2) == {SHARED_REASON}
    assert reasons(lambda x: (lambda b: (Plain.apply(b[0]), b))(x * 2)) == {SHARED_REASON}
