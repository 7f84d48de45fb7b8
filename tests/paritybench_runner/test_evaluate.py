"""Evaluation of one test: memory between calls, perturbed runs, and comparison with eager."""

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


class CountsActivations(nn.Module):
    """Records, at every call, how many activations of earlier calls are alive."""

    activations: list[weakref.ref] = []
    alive: list[int] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        self.alive.append(sum(ref() is not None for ref in self.activations))
        activation = self.layer(x).exp()
        self.activations.append(weakref.ref(activation))
        return activation.sin()


class ComputesInnerGradient(nn.Module):
    def forward(self, x):
        point = x.clone().requires_grad_()
        return torch.autograd.grad(point.exp().sum(), point)[0]


class UsesFunctorch(nn.Module):
    def forward(self, x):
        return torch.func.grad(lambda x: x.sin().sum())(x)


def case_of(module):
    return Case(0, module.__name__, module, lambda: ([], {}), lambda: ([torch.ones(2, 3)], {}))


def evaluate(module):
    return evaluate_eager(case_of(module), "cpu", False)[1]


def test_autograd_graphs_of_earlier_calls_are_freed():
    CountsActivations.activations.clear()
    CountsActivations.alive.clear()
    assert evaluate(CountsActivations)["class"] == "ok"
    assert (
        CountsActivations.alive == [0] * 7
    )  # three pairs of calls, and one that detects value reads


def test_program_may_compute_inner_gradients():
    assert evaluate(ComputesInnerGradient)["class"] == "ok"
    assert evaluate(UsesFunctorch)["class"] == "ok"


class ChecksItsActivation(nn.Module):
    """Records whether an activation is alive after its use."""

    is_alive: list[bool] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        activation = self.layer(x).exp()
        reference = weakref.ref(activation)
        result = activation.sin()
        del activation
        self.is_alive.append(reference() is not None)
        return result


def run_perturbed(module):
    """The outcome of a test's first call with perturbed inputs."""
    program = Program(case_of(module))
    call, twin = program.draw_arguments(0), program.copy_module()
    outcome = run_call(twin, call, 0, program)
    return _LazySpreads(program, 1, lambda module: module, (outcome, call, twin))._rerun(
        PerturbedInputs(0)
    )


def test_perturbed_runs_save_nothing_for_backward():
    assert run_perturbed(ChecksItsActivation)
    assert ChecksItsActivation.is_alive == [True, False]
    assert run_perturbed(ComputesInnerGradient)
    assert run_perturbed(UsesFunctorch)


class LazyModule(nn.Module):
    """Creates its parameters in its first call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))

    def forward(self, x):
        return self.layers(x)


def test_lazy_module_is_evaluated_after_initialisation():
    program, eager = evaluate_eager(case_of(LazyModule), "cpu", False)
    result = evaluate_compiler(program, eager, Magpy("eager"))
    assert (result["class"], result["graphs"], result["hits"]) == ("one_graph", 1, 1)
