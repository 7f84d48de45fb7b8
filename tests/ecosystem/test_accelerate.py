"""Accelerate's ``prepare`` and ``unwrap_model`` with compiled models, in a plain loop."""

import pytest
import torch
from torch import nn

from tests.ecosystem.side_by_side import assert_as_eager

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _new_state():
    """Accelerators share settings, which the first one decides."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2)
        )

    def forward(self, x, labels=None):
        scores = self.layers(x)
        return scores if labels is None else nn.functional.cross_entropy(scores, labels)


def train(accelerator, model, optimizer, loader):
    losses = []
    for x, labels in loader:
        with accelerator.accumulate(model):
            loss = model(x, labels=labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def loader():
    data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.arange(24) % 2)
    return torch.utils.data.DataLoader(data, batch_size=4)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_prepared_model_trains_as_in_eager_mode(precision, accumulation):
    def program(wrap):
        accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulation
        )
        model = Network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
        prepared = accelerator.prepare(wrap(model), optimizer, loader())
        losses = train(accelerator, *prepared)
        unwrapped = accelerator.unwrap_model(prepared[0])
        assert isinstance(unwrapped, Network)
        state = accelerator.get_state_dict(prepared[0])
        accelerator.free_memory()
        return losses, dict(state), unwrapped.state_dict()

    tolerances = {"rtol": 2e-2, "atol": 2e-2} if precision == "bf16" else {}
    assert_as_eager(program, hits=3, **tolerances)


def test_a_prepared_model_is_compiled_after_prepare():
    def program(wrap):
        accelerator = accelerate.Accelerator(cpu=True)
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
        losses = train(accelerator, wrap(model), optimizer, batches)
        return losses, model.state_dict()

    assert_as_eager(program, hits=3)


def test_the_switch_of_accelerate_refuses_the_backend():
    """So that the guide's table is right."""
    with pytest.raises(ValueError, match="(?i)magpy"):
        accelerate.Accelerator(cpu=True, dynamo_backend="magpy")


def test_a_saved_state_is_loaded(tmp_path):
    def program(wrap):
        accelerator = accelerate.Accelerator(cpu=True)
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        prepared = accelerator.prepare(wrap(model), optimizer, loader())
        losses = train(accelerator, *prepared)
        folder = str(tmp_path / wrap.__name__.strip("<>"))
        accelerator.save_state(folder)
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        losses += train(accelerator, *prepared)
        accelerator.load_state(folder)
        return losses, saved, model.state_dict()

    _, saved, loaded = assert_as_eager(program, hits=3)
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
