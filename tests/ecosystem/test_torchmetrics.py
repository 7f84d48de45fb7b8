"""torchmetrics: metrics that compiled outputs update, and metrics inside compiled programs."""

import pytest
import torch
from torch import nn

from tests.ecosystem.side_by_side import assert_as_eager

torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.full


def metrics():
    return torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=3),
            "f1": torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro"),
            "auroc": torchmetrics.AUROC(task="multiclass", num_classes=3),
            "confusion": torchmetrics.ConfusionMatrix(task="multiclass", num_classes=3),
        }
    )


def test_metrics_of_compiled_outputs_are_those_of_eager_mode():
    def program(wrap):
        model, metric = wrap(nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1))), metrics()
        found = []
        with torch.inference_mode():
            for _ in range(4):
                found.append(metric(model(torch.randn(9, 5)), torch.randint(0, 3, (9,))))
        return found, metric.compute()

    assert_as_eager(program, hits=3)


class Evaluated(nn.Module):
    """Updates metrics itself."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 3)
        self.mean = torchmetrics.MeanMetric()
        self.error = torchmetrics.MeanSquaredError()

    def forward(self, x, y):
        predicted = self.net(x)
        self.mean.update(predicted.detach())
        self.error.update(predicted.detach(), y)
        return predicted


def test_a_compiled_module_updates_its_metrics():
    def program(wrap):
        model = Evaluated()
        compiled = wrap(model)
        results = [compiled(torch.randn(4, 5), torch.randn(4, 3)).detach() for _ in range(5)]
        values = model.mean.compute(), model.error.compute()
        model.mean.reset(), model.error.reset()
        results += [compiled(torch.randn(4, 5), torch.randn(4, 3)).detach() for _ in range(2)]
        return results, values, model.mean.compute(), model.error.compute()

    assert_as_eager(program, hits=1)
