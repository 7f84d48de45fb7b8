"""The program may write to arguments and results after a graph's forward pass, as in eager mode."""

import pytest
import torch
from torch.nn import functional as F

from tests.compiler.programs import compiled, seeded


def gradient(function, x, write):
    """The gradient of ``x``, with ``write`` between the forward and the backward pass."""
    leaf = x.clone().requires_grad_()
    argument = leaf * 1
    results = function(argument)
    with torch.no_grad():
        write(argument, results)
    (sum(result.sum() for result in results) + argument.sum()).backward()
    return leaf.grad


def write_to_argument(argument, results):
    argument.add_(1)


def write_to_result(argument, results):
    results[0].add_(1)


NO_FORMULA_READS_THE_ARGUMENT = {
    "pointwise": lambda x: [(x * 3).cos()],
    "reduction": lambda x: [(x[..., None] * torch.ones(3)).std()],
    "normalisation": lambda x: [F.layer_norm(x + 1, (4,)).relu()],
    "view": lambda x: [(x.t() * 2).sin()],
    "part": lambda x: [(part * 2).sin() for part in x.split(2)],
    "two uses": lambda x: [(x + 1).sin() * (x - 1).cos()],
}
NO_FORMULA_READS_THE_RESULT = {
    "pointwise": lambda x: [m := x + 1, (m * 3).cos()],
    "view": lambda x: [m := (x + 1).t(), (m[1:] * 2).sin()],
}


@pytest.mark.parametrize(
    ("function", "write"),
    [
        *(pytest.param(f, write_to_argument, id=f"argument-{name}")
          for name, f in NO_FORMULA_READS_THE_ARGUMENT.items()),
        *(pytest.param(f, write_to_result, id=f"result-{name}")
          for name, f in NO_FORMULA_READS_THE_RESULT.items()),
    ],
)  # fmt: skip
def test_what_no_formula_reads_may_be_written_to(function, write):
    x, call = seeded(4, 4), compiled(function)
    for _ in range(2):
        torch.testing.assert_close(gradient(call, x, write), gradient(function, x, write))


@pytest.mark.parametrize(
    ("function", "write"),
    [(lambda x: [x.sin()], write_to_argument), (lambda x: [m := x.exp(), m + 1], write_to_result),
     (lambda x: [m := x + 1, m.sin()], write_to_result)],
    ids=["argument", "own result", "result"],
)  # fmt: skip
def test_writes_to_what_a_formula_reads_are_refused(function, write):
    x, call = seeded(4, 4), compiled(function)
    for run in (function, call, call):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(run, x, write)
