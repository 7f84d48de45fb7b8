"""Capture of the zoo's models: one graph, eager's results, and hits in later calls."""

import copy
from types import SimpleNamespace

import pytest
import torch

import magpy_like as magpy
from tests import seeding
from tests.compare import assert_same
from zoo import ZOO

pytestmark = pytest.mark.usefixtures("reset_magpy")

STATIC = [m for m in ZOO.values() if not m.dynamic]
DYNAMIC = [m for m in ZOO.values() if m.dynamic]
# Models that take AOTAutograd 5 to 20 seconds each.
DEEP = {"ResNet-101", "DenseNet-121", "TridentNet", "T5", "Mamba"}


def by_name(models, full=frozenset()):
    marks = {True: pytest.mark.full, False: ()}
    return pytest.mark.parametrize(
        "entry", [pytest.param(m, id=m.name, marks=marks[m.name in full]) for m in models]
    )


def twin_models(entry, train, device):
    """Two equal models: one to compile, one for eager."""
    model = entry.make(seed=0).to(device).train(train)
    return model, copy.deepcopy(model)


def state(model):
    """The state that a call may mutate: buffers and plain attributes of the modules."""
    attributes = {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_")
    }
    return dict(model.named_buffers()), attributes


def gradients(model):
    """All nonzero gradients.

    If the loss uses some of a graph's outputs only, AOTAutograd computes zeros for the parameters
    of the others, where eager has None.
    """
    found = {name: p.grad for name, p in model.named_parameters()}
    return {name: grad for name, grad in found.items() if grad is not None and grad.any()}


def assert_calls_equal_eager(entry, fast, model, eager, *, batch=2, calls=3):
    """Compares calls with fresh inputs; with backward passes if the models train."""
    train = model.training and entry.trains
    for seed in range(calls):
        outcomes = []
        for call, owner in ((fast, model), (eager, eager)):
            args, kwargs = entry.inputs(owner, seed, batch)
            seeding.seed(seed)
            with torch.set_grad_enabled(train):
                output = call(*args, **kwargs)
            outcome = SimpleNamespace(
                output=output, inputs=(args, kwargs), state=state(owner), rng=torch.get_rng_state()
            )
            if train:
                owner.zero_grad()
                entry.loss(output).backward()
                outcome.gradients = gradients(owner)
            outcomes.append(outcome)
        assert_same(*outcomes, what=f"call {seed}")


@by_name(STATIC)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_static_model_is_one_graph_and_hits(entry, train, device):
    model, eager = twin_models(entry, train, device)
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    assert_calls_equal_eager(entry, fast, model, eager)
    assert magpy.cache_info(fast)[:4] == (2, 1, 1, 1)  # hits, misses, records, graphs


@by_name([m for m in STATIC if m.trains], full=DEEP)
def test_static_model_trains_through_aot_autograd(entry, device):
    """In double precision: on a GPU, AOTAutograd's batch norm rounds differently from cuDNN's."""
    model, eager = (m.double() for m in twin_models(entry, True, device))
    fast = magpy.compile(model, backend="aot_eager", fullgraph=True)
    assert_calls_equal_eager(entry, fast, model, eager, calls=2)
    assert magpy.cache_info(fast)[:4] == (1, 1, 1, 1)


@pytest.mark.full
@by_name(STATIC)
def test_static_model_infers_through_aot_autograd(entry, device):
    model, eager = twin_models(entry, False, device)
    fast = magpy.compile(model, backend="aot_eager", fullgraph=True)
    assert_calls_equal_eager(entry, fast, model, eager)
    assert magpy.cache_info(fast)[:4] == (2, 1, 1, 1)


@by_name(DYNAMIC)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_dynamic_model_equals_eager(entry, train, device):
    model, eager = twin_models(entry, train, device)
    fast = magpy.compile(model, backend="eager")
    assert_calls_equal_eager(entry, fast, model, eager, calls=5)


@by_name([ZOO["ResNet-18"], ZOO["BERT"], ZOO["LSTM"]])
def test_explain_reports_one_graph_without_splits(entry, device):
    model = entry.make(seed=0).to(device)
    args, kwargs = entry.inputs(model, seed=0, batch=2)
    with torch.no_grad():
        report = magpy.explain(model, *args, **kwargs)
    assert report.graph_count == len(report.graphs) == 1
    assert report.split_points == []
    assert report.guards
    assert str(report)


@by_name([ZOO["ResNet-18"], ZOO["BERT"]])
@pytest.mark.parametrize("change", ["mode", "shape", "dtype", "grad mode"])
def test_changes_of_mode_shape_and_dtype_miss(entry, change, device):
    model, eager = twin_models(entry, False, device)
    fast = magpy.compile(model, backend="eager")
    assert_calls_equal_eager(entry, fast, model, eager, calls=2)
    misses = magpy.cache_info(fast).misses
    if change == "mode":
        model.train(), eager.train()
    if change == "dtype":
        model.double(), eager.double()
    args, kwargs = entry.inputs(model, seed=9, batch=3 if change == "shape" else 2)
    with torch.set_grad_enabled(change == "grad mode"):
        assert_same(fast(*args, **kwargs), eager(*args, **kwargs))
    assert magpy.cache_info(fast).misses > misses


def test_new_weights_hit(device):
    entry = ZOO["ResNet-18"]
    model, eager = twin_models(entry, False, device)
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    assert_calls_equal_eager(entry, fast, model, eager, calls=1)
    other = entry.make(seed=1).state_dict()
    model.load_state_dict(other), eager.load_state_dict(other)
    assert_calls_equal_eager(entry, fast, model, eager, calls=1)
    assert magpy.cache_info(fast).misses == 1


def test_optimizer_steps_equal_eager(device):
    entry = ZOO["ResNet-18"]
    model, eager = twin_models(entry, True, device)
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    for call, owner in ((fast, model), (eager, eager)):
        optimizer = torch.optim.SGD(owner.parameters(), lr=0.1, momentum=0.9)
        for seed in range(3):
            args, kwargs = entry.inputs(owner, seed, batch=2)
            optimizer.zero_grad()
            entry.loss(call(*args, **kwargs)).backward()
            optimizer.step()
    assert_same(model.state_dict(), eager.state_dict())
    assert magpy.cache_info(fast).misses == 1
