"""Detection of dynamic programs: a tensor's value decides control flow or is read natively."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paritybench_runner.dynamism import ValueReads

X = torch.arange(6.0).reshape(2, 3)

DYNAMIC = {
    "branch": lambda: 1 if X.sum() > 0 else 0,
    "item": lambda: X[0, 0].item(),
    "int": lambda: int(X[0, 1]),
    "math function": lambda: math.sqrt(X[0, 1]),
    "list": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "numpy function": lambda: np.asarray(X),
    "membership": lambda: 1.0 in X,
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "text": lambda: f"{X}",
    "formatted number": lambda: f"{X[0, 0]:.2f}",
    "range": lambda: list(range(torch.tensor(2))),
    "size of a new tensor": lambda: torch.arange(torch.tensor(3)),
    "value check in a library": lambda: torch.distributions.Normal(X, X + 1, validate_args=True),
}
STATIC = {
    "operators": lambda: F.softmax(X @ X.t(), -1),
    "shapes": lambda: X.shape[0] * X.numel() if X.dim() == len(X.shape) else None,
    "index by a tensor": lambda: X[torch.tensor(1)],
    "item assignment by a tensor": lambda: X.clone().__setitem__(torch.tensor(1), 0.0),
    "mask": lambda: X[X > 2].sum(),
    "where": lambda: torch.where(X > 2, X, 0.0),
    "identity": lambda: X is X,
    "dropout": lambda: F.dropout(X, 0.5),
    "recurrent layer": lambda: nn.LSTM(3, 3)(X),
}


def sites(program):
    reads = ValueReads()
    with reads.watch():
        program()
    return reads.sites


@pytest.mark.parametrize("name", DYNAMIC)
def test_value_reads_are_located(name):
    assert any(site.startswith("test_dynamism.py:") for site in sites(DYNAMIC[name]))


@pytest.mark.parametrize("name", STATIC)
def test_operators_and_metadata_are_not_value_reads(name):
    assert sites(STATIC[name]) == []
