"""Tensors where torch wants a number: what follows from their value is another at the next call."""

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


def count(x):
    return (x > 0).sum()


def _parity(x):
    return count(x) % 2


BOUNDS = {
    "slice": lambda x: (x[: count(x)], x[: count(x)].size(0) * x),
    "slice of a dimension": lambda x: x.view(2, 3)[:, count(x) // 2 :].shape,
    "slice by one element": lambda x: x[: count(x).view(1)].shape,
    "slice by a bool": lambda x: x[(x > 0).all() :].shape,
    "slice by bytes": lambda x: x[count(x).to(torch.uint8) :].numel(),
    "constructors": lambda x: (
        torch.zeros(count(x)).shape,
        torch.ones(2, count(x)).numel(),
        torch.full((count(x),), 2.0).size(0),
        torch.eye(count(x)).shape,
        torch.zeros([count(x), 2]).shape,
        torch.zeros(size=(count(x),)).shape,
    ),
    "ranges": lambda x: (
        torch.arange(count(x)).shape,
        torch.arange(0, 6, count(x)).shape,
        torch.linspace(0, 1, count(x)).shape,
        torch.randperm(count(x)).shape,
    ),
    "like another": lambda x: (x.new_zeros(count(x)).shape, x.new_ones((count(x), 3)).shape),
    "repeated": lambda x: (x.repeat(count(x)).shape, x[:1].expand(2, count(x)).shape),
    "viewed": lambda x: (x[: count(x)].view(count(x), 1).shape, x.narrow(0, 0, count(x)).shape),
    "padded": lambda x: (F.pad(x, (0, count(x))).shape, F.one_hot(x.relu().long(), 9 + count(x))),
    "chosen": lambda x: (x.topk(count(x)).indices.shape, torch.bincount(x.abs().long()).shape),
    "resized": lambda x: F.interpolate(x.view(1, 1, 6), size=count(x)).shape,
    "in torch.ops": lambda x: torch.ops.aten.slice(x, 0, 0, count(x)).shape,
    "sections": lambda x: [part.shape for part in x.split([count(x), 6 - count(x)])],
}
SIZES_OF_DATA = {
    "classes": lambda x: F.one_hot(x.relu().long()).shape,
    "keywords": lambda x: torch.repeat_interleave(x, repeats=x.relu().long()).shape,
    "repetitions": lambda x: torch.repeat_interleave(repeats=x.relu().long()).shape,
    "bytes as a mask": lambda x: x[(x > 0).to(torch.uint8)].shape,
    "sparse": lambda x: x.relu().to_sparse().values().shape,
    "packed": lambda x: (
        torch.nn.utils.rnn.pack_padded_sequence(
            x.view(1, 6, 1), count(x).view(1), batch_first=True
        ).data.shape
    ),
    "torch.ops": lambda x: (
        torch.ops.aten.nonzero(x > 0).shape,
        torch.ops.aten.index.Tensor(x, [x > 0]).shape,
    ),
}
COUNTS = {
    "split": lambda x: [part.shape for part in x.split(int(count(x)))],
    "chunk": lambda x: [part.shape for part in x.chunk(count(x))],
    "tensor_split": lambda x: [part.shape for part in x.tensor_split(count(x))],
}
"""Programs that make as many tensors as a number says."""
DIMENSIONS = {
    "squeeze": lambda x: x.view(1, 2, 3).squeeze(_parity(x)).shape,
    "flatten": lambda x: x.view(1, 2, 3).flatten(int(_parity(x))).shape,
    "sum": lambda x: x.view(2, 3).sum(dim=_parity(x)).shape,
    "size": lambda x: (x.view(2, 3).size(_parity(x)), x + 1),
}
TEXTS = {
    "text": lambda x: ("ab" * count(x), x + 1),
    "list": lambda x: ([1] * count(x), x + 1),
    "range": lambda x: (range(count(x)), x + 1),
    "characters": lambda x: ("abcdefgh"[count(x)], [*range(8)][count(x)], x + 1),
}
PROGRAMS = {**BOUNDS, **SIZES_OF_DATA, **COUNTS, **DIMENSIONS, **TEXTS}
ORDER = (2, 3, 5, 1, 6, 4, 2)


def holding(positive):
    x = torch.arange(1.0, 7.0)
    x[positive:] *= -1
    return x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_number_that_a_tensor_holds_is_read_at_every_call(name, dynamic):
    program = PROGRAMS[name]
    compiled = magpy.compile(program, backend="eager", dynamic=dynamic)
    for positive in ORDER:
        torch.manual_seed(0)
        found = compiled(holding(positive))
        torch.manual_seed(0)
        assert_same(found, program(holding(positive)))


@pytest.mark.parametrize("name", [*BOUNDS, "classes", "keywords", "packed"])
def test_one_record_serves_all_numbers_that_only_sizes_follow_from(name):
    compiled = magpy.compile(PROGRAMS[name], backend="eager", fullgraph=True)
    for positive in ORDER:
        compiled(holding(positive))
    assert magpy.cache_info(compiled).misses == 1


@pytest.mark.parametrize("backend", ["aot_eager", "magpy"])
@pytest.mark.filterwarnings("error")
def test_backends_take_slices_by_a_tensor(backend):
    def program(x):
        n = count(x)
        return x[:n] * 2, x.view(2, 3)[:, : n // 2 + 1] + 1

    compiled = magpy.compile(program, backend=backend)
    for positive in ORDER:
        assert_same(compiled(holding(positive)), program(holding(positive)))
    assert magpy.cache_info(compiled).misses == 1


def test_gradients_flow_through_a_slice_by_a_tensor():
    def program(x):
        return (x[: count(x)] ** 2).sum()

    compiled = magpy.compile(program, backend="eager")
    for positive in ORDER:
        given = [holding(positive).requires_grad_() for _ in range(2)]
        grads = [
            torch.autograd.grad(f(x), x) for f, x in zip((compiled, program), given, strict=True)
        ]
        assert_same(*grads)


def test_bound_that_the_assignment_overwrites_is_what_it_was():
    def program(x):
        y = x.abs().long()
        y[: y[0]] = 5
        return y

    compiled = magpy.compile(program, backend="eager")
    for first in (3.0, 2.0, 4.0):
        x = torch.full((6,), first)
        assert_same(compiled(x), program(x))


def test_lists_take_tensors_of_one_value_as_they_are():
    """TorchScript has an operator for what a list does, which would take a number there."""

    def program(x):
        found = []
        found.extend([x.sum(), x.max()])
        found.insert(0, x.min())
        found.append(x.mean())
        return torch.stack(found)

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for value in (1.0, 2.0, 3.0):
        x = torch.tensor([value, 4.0])
        assert torch.equal(fast(x), program(x))
    info = magpy.cache_info(fast)
    assert (info.hits, info.records) == (2, 1)
    assert not fast_numbers(fast)


def fast_numbers(fast):
    """The names of what the graph reads from tensors."""
    report = magpy.explain(fast, torch.tensor([1.0, 4.0]))
    return [node for graph in report.graphs for node in graph.graph.nodes if node.target == "item"]


CHOICES = {
    "the larger of two types": lambda number: max(1, number),
    "the smallest of three": lambda number: min(9, number - 1, 8),
    "the largest of a list": lambda number: max([2, number]),
    "a root of what has a sign": lambda number: (number - 3) ** 0.5,
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_by_a_tensor_s_value_behind_a_change_splits_before_it(name):
    """It was found when the number was there, and no segment ended: every call ran natively."""

    def program(x, step):
        x.mul_(0.5)
        chosen = CHOICES[name](step.item())
        return x * abs(chosen) if type(chosen) is complex else x * chosen, type(chosen)

    fast = magpy.compile(program, backend="eager")
    values = (1.0, 2.0, 3.0, 0.5, 12.0, 10.0, 2.5, 1.5)
    for value in values:
        mine, theirs = torch.ones(2), torch.ones(2)
        step = torch.tensor(value)
        assert_same((fast(mine, step), mine), (program(theirs, step), theirs))
    assert magpy.cache_info(fast).hits >= 2
