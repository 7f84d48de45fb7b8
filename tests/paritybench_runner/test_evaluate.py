"""What evaluating a test keeps in memory between its calls, and holds results to."""

import weakref

import torch
from torch import nn

from paritybench_runner.compilers import Magpy
from paritybench_runner.corpus import Case
from paritybench_runner.evaluate import (
    Program,
    _LazySpreads,
    evaluate_compiler,
    evaluate_eager,
    run_call,
)
from paritybench_runner.rounding import PerturbedInputs


class SavesActivation(nn.Module):
    """Notes, at every call, how many activations of earlier calls are still there."""

    activations: list[weakref.ref] = []
    left: list[int] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        self.left.append(sum(ref() is not None for ref in self.activations))
        activation = self.layer(x).exp()
        self.activations.append(weakref.ref(activation))
        return activation.sin()


class DifferentiatesInside(nn.Module):
    def forward(self, x):
        point = x.clone().requires_grad_()
        return torch.autograd.grad(point.exp().sum(), point)[0]


class TakesNoHooks(nn.Module):
    def forward(self, x):
        return torch.func.grad(lambda x: x.sin().sum())(x)


def case_of(module):
    return Case(0, module.__name__, module, lambda: ([], {}), lambda: ([torch.ones(2, 3)], {}))


def evaluated(module):
    return evaluate_eager(case_of(module), "cpu", False)[1]


def test_no_more_than_one_graph_of_a_result_is_kept():
    SavesActivation.activations.clear()
    SavesActivation.left.clear()
    assert evaluated(SavesActivation)["class"] == "ok"
    assert SavesActivation.left == [0] * 7  # three calls in step, and one that watches for reads


def test_a_program_may_take_gradients_inside():
    assert evaluated(DifferentiatesInside)["class"] == "ok"
    assert evaluated(TakesNoHooks)["class"] == "ok"


class LooksForItsActivation(nn.Module):
    """Notes whether an activation is still there once it was used."""

    kept: list[bool] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        activation = self.layer(x).exp()
        there = weakref.ref(activation)
        result = activation.sin()
        del activation
        self.kept.append(there() is not None)
        return result


def rounded_otherwise(module):
    """What a test's first call leaves under some rounding."""
    program = Program(case_of(module))
    call, twin = program.draw_arguments(0), program.copy_module()
    outcome = run_call(twin, call, 0, program)
    return _LazySpreads(program, 1, lambda module: module, (outcome, call, twin))._rerun(
        PerturbedInputs(0)
    )


def test_runs_that_round_otherwise_keep_nothing_for_a_backward_pass():
    assert rounded_otherwise(LooksForItsActivation)
    assert LooksForItsActivation.kept == [True, False]
    assert rounded_otherwise(DifferentiatesInside)
    assert rounded_otherwise(TakesNoHooks)


class FindsItsWidth(nn.Module):
    """Makes its parameters in its first call, and never again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))

    def forward(self, x):
        return self.layers(x)


def test_a_lazy_module_is_judged_by_what_it_does_once_its_parameters_are_there():
    program, eager = evaluate_eager(case_of(FindsItsWidth), "cpu", False)
    result = evaluate_compiler(program, eager, Magpy("eager"))
    assert (result["class"], result["graphs"], result["hits"]) == ("one_graph", 1, 1)
