"""Conversions of modules that swap the contents of parameters: torch refuses them for parameters
with weak references."""

import gc
import weakref

import pytest
import torch
from torch import nn

import magpy_like as magpy

pytestmark = pytest.mark.usefixtures("reset_magpy")

BACKENDS = ["eager", "magpy"]


@pytest.fixture(autouse=True)
def swapping():
    gc.collect()
    gc.disable()  # no collection may be what frees the references
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)
    gc.enable()


class Branching(nn.Module):
    """Control flow, a loop and a size that depends on data."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            y = y * self.linear.weight.sum()
        for _ in range(3):
            y = self.linear(y).tanh()
        return y[x[:, 0] > 0]


class Normalising(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(self.linear(x))
        y.add_(1)
        return y.view(-1)


class Frozen(nn.Sequential):
    """One of its layers is not trained."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self[0].requires_grad_(False)


MODELS = [lambda: nn.Linear(4, 4), Branching, Normalising, Frozen]


def inputs(size=3, dtype=torch.float32):
    return torch.linspace(-1, 2, 4 * size, dtype=dtype).view(size, 4)


def train(model, call, dtype, optimizer):
    """The loss of each step."""
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(inputs(dtype=dtype)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses


def reference_counts(model):
    return [len(weakref.getweakrefs(parameter)) for parameter in model.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", MODELS)
def test_parameters_are_swapped_between_training_steps(make, backend):
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = make()
        call = magpy.compile(model, backend=backend) if compiles else model
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5)
        losses = train(model, call, torch.float32, optimizer)
        before = [*model.parameters()]
        model.double()
        assert [*map(id, model.parameters())] == [*map(id, before)]
        optimizer.state.clear()  # momentum of the old type
        losses += train(model, call, torch.float64, optimizer)
        results.append(([*losses], [*model.parameters()]))
    # Rounding of the steps in float32.
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", MODELS)
def test_parameters_are_swapped_between_calls_of_varying_sizes(make, backend):
    model = make()
    fast = magpy.compile(model, backend=backend)
    with torch.no_grad():
        for size in (3, 5, 7, 9):
            fast(inputs(size))
        model.double()
        for size in (3, 5, 7):
            x = inputs(size, torch.float64)
            torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", MODELS)
def test_living_results_leave_no_weak_references_to_parameters(make, backend):
    model = make()
    fast = magpy.compile(model, backend=backend)
    results = [fast(inputs()) for _ in range(3)]
    assert reference_counts(model) == [0] * len(reference_counts(model))
    results[-1].sum().backward()


def test_second_derivative_is_by_the_parameters_of_the_call():
    torch.manual_seed(0)
    model = Frozen()
    fast = magpy.compile(model)
    expected, found = [], []
    for call, gradients in ((model, expected), (fast, found), (fast, found)):
        x = inputs().requires_grad_()
        loss = call(x).square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        gradients.append(torch.autograd.grad(first.square().sum(), [x, model[2].weight]))
    torch.testing.assert_close(found, expected * 2)


def swap_bias(model):
    torch.utils.swap_tensors(model[0].bias, nn.Parameter(torch.ones(4), requires_grad=False))


@pytest.mark.parametrize(
    "change",
    [lambda model: model[0].bias.zero_(), swap_bias],
    ids=["modified", "swapped"],
)
def test_second_derivative_by_a_changed_frozen_parameter_is_refused(change):
    model = Frozen()
    fast = magpy.compile(model)
    for _ in range(2):
        x = inputs().requires_grad_()
        loss = fast(x).square().sum()
    change(model)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="no double backward"):
        first.square().sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_model_dies_with_its_results(backend):
    model = Frozen()
    fast = magpy.compile(model, backend=backend)
    results = [fast(inputs()) for _ in range(3)]
    memory = [weakref.ref(parameter) for parameter in model.parameters()]
    del model, fast, results
    gc.collect()
    assert [reference() for reference in memory] == [None] * 4
