"""Tensors as arguments where torch or Python expects a number."""

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


SIZES = {
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
DATA_DEPENDENT_SIZES = {
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
"""Programs whose number of results depends on the number."""
DIMENSIONS = {
    "squeeze": lambda x: x.view(1, 2, 3).squeeze(_parity(x)).shape,
    "flatten": lambda x: x.view(1, 2, 3).flatten(int(_parity(x))).shape,
    "sum": lambda x: x.view(2, 3).sum(dim=_parity(x)).shape,
    "size": lambda x: (x.view(2, 3).size(_parity(x)), x + 1),
}
SEQUENCES = {
    "text": lambda x: ("ab" * count(x), x + 1),
    "list": lambda x: ([1] * count(x), x + 1),
    "range": lambda x: (range(count(x)), x + 1),
    "characters": lambda x: ("abcdefgh"[count(x)], [*range(8)][count(x)], x + 1),
}
PROGRAMS = {**SIZES, **DATA_DEPENDENT_SIZES, **COUNTS, **DIMENSIONS, **SEQUENCES}
ORDER = (2, 3, 5, 1, 6, 4, 2)


def tensor_with_positives(positive):
    x = torch.arange(1.0, 7.0)
    x[positive:] *= -1
    return x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_number_in_a_tensor_is_read_at_every_call(name, dynamic):
    program = PROGRAMS[name]
    compiled = magpy.compile(program, backend="eager", dynamic=dynamic)
    for positive in ORDER:
        torch.manual_seed(0)
        found = compiled(tensor_with_positives(positive))
        torch.manual_seed(0)
        assert_same(found, program(tensor_with_positives(positive)))


@pytest.mark.parametrize("name", [*SIZES, "classes", "keywords", "packed"])
def test_one_record_serves_all_numbers_that_decide_sizes_only(name):
    compiled = magpy.compile(PROGRAMS[name], backend="eager", fullgraph=True)
    for positive in ORDER:
        compiled(tensor_with_positives(positive))
    assert magpy.cache_info(compiled).misses == 1


@pytest.mark.parametrize("backend", ["aot_eager", "magpy"])
@pytest.mark.filterwarnings("error")
def test_backends_compile_slices_by_a_tensor(backend):
    def program(x):
        n = count(x)
        return x[:n] * 2, x.view(2, 3)[:, : n // 2 + 1] + 1

    compiled = magpy.compile(program, backend=backend)
    for positive in ORDER:
        assert_same(
            compiled(tensor_with_positives(positive)), program(tensor_with_positives(positive))
        )
    assert magpy.cache_info(compiled).misses == 1


def test_gradients_flow_through_a_slice_by_a_tensor():
    def program(x):
        return (x[: count(x)] ** 2).sum()

    compiled = magpy.compile(program, backend="eager")
    for positive in ORDER:
        inputs = [tensor_with_positives(positive).requires_grad_() for _ in range(2)]
        grads = [
            torch.autograd.grad(f(x), x) for f, x in zip((compiled, program), inputs, strict=True)
        ]
        assert_same(*grads)


def test_bound_overwritten_by_the_assignment_keeps_its_value():
    def program(x):
        y = x.abs().long()
        y[: y[0]] = 5
        return y

    compiled = magpy.compile(program, backend="eager")
    for first in (3.0, 2.0, 4.0):
        x = torch.full((6,), first)
        assert_same(compiled(x), program(x))


def test_list_methods_take_tensors_without_conversion():
    """TorchScript's operators for list methods would convert the tensor to a number."""

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
    assert not item_nodes(fast)


def item_nodes(fast):
    """The graph's nodes that read numbers from tensors."""
    report = magpy.explain(fast, torch.tensor([1.0, 4.0]))
    return [node for graph in report.graphs for node in graph.graph.nodes if node.target == "item"]


CHOICES = {
    "the larger of two types": lambda number: max(1, number),
    "the smallest of three": lambda number: min(9, number - 1, 8),
    "the largest of a list": lambda number: max([2, number]),
    "a root of a signed number": lambda number: (number - 3) ** 0.5,
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice_by_a_tensor_value_after_a_write_splits_before_it(name):
    """Regression: the choice was found once the number was known; no segment ended before it, and
    every call ran natively.
    """

    def program(x, step):
        x.mul_(0.5)
        chosen = CHOICES[name](step.item())
        return x * abs(chosen) if type(chosen) is complex else x * chosen, type(chosen)

    fast = magpy.compile(program, backend="eager")
    values = (1.0, 2.0, 3.0, 0.5, 12.0, 10.0, 2.5, 1.5)
    for value in values:
        found, expected = torch.ones(2), torch.ones(2)
        step = torch.tensor(value)
        assert_same((fast(found, step), found), (program(expected, step), expected))
    assert magpy.cache_info(fast).hits >= 2
