"""Values of tensors that are computed from constants alone: constants of the record."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from tests.programs import check, check_results, matrix, one

READS = {
    "list": lambda x: x.sum(torch.arange(0, x.dim()).tolist()),
    "item": lambda x: x * torch.tensor([2, 3]).max().item(),
    "number": lambda x: x * float(torch.ones(2).sum()) + int(torch.tensor(3)),
    "branch": lambda x: x + 1 if torch.eye(2).sum() > 1 else x,
    "comparison": lambda x: x + 1 if torch.equal(torch.ones(2), torch.full((2,), 1.0)) else x,
    "index": lambda x: x[torch.tensor(1) :],
    "dtype of an array": lambda x: (
        x * float(np.finfo(torch.tensor(0, dtype=x.dtype).numpy().dtype).eps)
    ),
    "array": lambda x: x * float(np.arange(3)[torch.tensor([1, 2]).numpy()].sum()),
    "changed in place": lambda x: x * _changed_in_place().max().item(),
    "shape": lambda x: x * torch.tensor([1, 0, 2]).nonzero().shape[0],
}


def _changed_in_place():
    values = torch.zeros(3)
    values[1] = 2
    values += 1
    return values.mul_(2)


@pytest.mark.parametrize("name", READS)
def test_reads_of_constant_tensors_do_not_split(name):
    check(READS[name], one(), other=[matrix_of(3)])
    magpy.compile(READS[name], backend="eager", fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: F.rrelu(torch.full((3,), -1.0), training=True),
        lambda: F.dropout(torch.ones(3)),
        lambda: F.scaled_dot_product_attention(*[torch.ones(1, 3, 3)] * 3, dropout_p=0.5),
    ],
    ids=["rrelu", "dropout", "attention"],
)
def test_random_results_are_not_constant(draw):
    """Regression: the verification of operator facts found that rrelu and attention draw."""

    def program(x):
        return x * draw().sum().item()

    fast = magpy.compile(program, backend="eager")
    torch.manual_seed(0)
    expected = [program(torch.ones(2)) for _ in range(5)]
    torch.manual_seed(0)
    assert all(torch.equal(fast(torch.ones(2)), each) for each in expected)


def matrix_of(rows):
    return lambda: (matrix(rows),)


def _view(x):
    values = torch.zeros(3)
    values[1:2].copy_(x[:1])
    return values


def _data(x):
    values = torch.zeros(3)
    values.data.add_(x)
    return values


def _added(x):
    values = torch.zeros(3)
    values += x
    return values


def _filled(x):
    values = torch.zeros(3)
    values[:] = x
    return values


def _data_before(x):
    values = torch.zeros(3)
    alias = values.data
    alias += x
    return values


def _random(x):
    return torch.zeros(3).uniform_(x.dim() - 2.0, x.dim() + 1.0)


def _out_argument(x):
    values = torch.zeros(3)
    torch.add(x, 1, out=values)
    return values


def _statistics(x):
    """Batch norm does not declare in its schema that it writes to these tensors."""
    mean = torch.zeros(2)
    F.batch_norm(x.view(-1, 1).expand(3, 2), mean[:], torch.ones(2), training=True)
    return mean


WRITTEN = [_view, _data, _added, _filled, _data_before, _random, _out_argument, _statistics]


@pytest.mark.parametrize("make", WRITTEN)
@pytest.mark.parametrize("read", [lambda t: t.sum().item(), lambda t: 1.0 if t.sum() > 0 else 2.0])
def test_tensors_with_written_inputs_are_not_constant(make, read):
    check_results(lambda: lambda x: x * read(make(x)), one(), one(-5.0, -6.0, -7.0))


def _tensor_after(x):
    values = torch.ones(3)
    array = values.numpy()
    values += x
    return x * float(array.sum())


def _array_after(x):
    values = torch.ones(3)
    array = values.numpy()
    array += 1
    return x * values.sum()


def _through_data(x):
    values = torch.ones(3)
    array = values.numpy()
    values.data.add_(x)
    return x * float(array.sum())


@pytest.mark.parametrize("program", [_tensor_after, _array_after, _through_data])
def test_memory_shared_with_numpy_matches_eager(program):
    check_results(lambda: program, one(), one(-5.0, -6.0, -7.0))
