"""Buffers are written over where nobody needs their old contents, and nowhere else."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy
from magpy_like.compiler.scheduling import scheduler
from tests.compiler.programs import compiled, kernels, same
from tests.memory import peak_bytes

SIZE = 64
BUFFER = SIZE * SIZE * 4  # bytes


def matrices(count):
    torch.manual_seed(0)
    return [torch.randn(SIZE, SIZE) for _ in range(count)]


def peak(function, *args):
    """Buffers of one matrix that a compiled call holds at one time."""
    fast = compiled(function)
    with torch.no_grad():
        fast(*args)
        return peak_bytes(lambda: fast(*args), torch.get_default_device()) / BUFFER


def test_an_activation_is_written_over_the_product_it_reads():
    assert peak(lambda a, b: (a @ b).relu(), *matrices(2)) == 1
    assert peak(lambda a, b: (a @ b) * 2 + (b @ a), *matrices(2)) == 2


def test_a_row_is_written_over_after_all_of_it_was_read():
    def function(a, b):
        return torch.softmax(a @ b, -1)

    assert peak(function, *matrices(2)) == 1
    same(function, *matrices(2))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (p := a @ b, p.relu()),
        lambda a, b: (p := a @ b).t() + p,
        lambda a, b: (a @ b).flip(0) + 1,
        lambda a, b: (p := a @ b) + p[:1],
        lambda a, b: (p := a @ b).roll(1, 0) * p,
        lambda a, b: (p := a @ b) - p.sum(1, keepdim=True) + p.mean(0),
        lambda a, b: torch.cat([(p := a @ b) + 1, p * 2]),
        lambda a, b: ((p := a @ b) + 1, p - 1, p * p),
        lambda a, b: ((p := a @ b).sigmoid() + p[torch.arange(SIZE).flip(0)]),
        lambda a, b: a.relu() + b,
        lambda a, b: (p := a @ b).cumsum(1) * p,
        lambda a, b: ((p := a @ b).view(-1)[: SIZE * SIZE].view(SIZE, SIZE) + 1, p.amax()),
    ],
    ids=["returned", "transposed", "flipped", "broadcast", "rolled", "reduced", "joined", "shared",
         "gathered", "arguments", "scanned", "seen twice"],
)  # fmt: skip
def test_what_is_read_elsewhere_or_later_stays(function):
    # Sums of a product's elements, far from zero, next to each other's difference.
    same(function, *matrices(2), rtol=1e-4, atol=1e-4)


def test_gradients_see_what_the_forward_pass_saved():
    def function(a, b):
        p = a @ b
        return (p.sigmoid() * p).tanh()

    actual, expected = ([m.requires_grad_() for m in matrices(2)] for _ in range(2))
    compiled(function)(*actual).sum().backward()
    function(*expected).sum().backward()
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_fused_work_runs_when_least_is_held():
    """What a loop computes early and a concatenation takes at the end need not wait for it."""

    def function(a):
        parts = []
        for _ in range(8):
            a = (a @ a).tanh()
            parts.append(a.sum(0))
        return torch.stack(parts)

    assert peak(function, *matrices(1)) < 3


def test_copies_for_late_concatenations_are_not_made_early():
    def function(a, w):
        first = y = a @ a
        for _ in range(5):
            y = torch.cat([first, y], 1) @ w
        return y

    (a,), w = matrices(1), torch.randn(2 * SIZE, SIZE)
    assert peak(function, a, w) == 4  # the first one, both together, and a product
    same(function, a, w, rtol=1e-3, atol=1e-3)


def test_a_dense_block_takes_few_kernels_and_no_more_memory_than_as_it_is_written():
    """Copies of one concatenation run together; those of later ones do not run with them."""

    def function(a, *weights):
        parts = [a @ a]
        for w in weights:
            parts.append(torch.cat(parts, 1).relu() @ w)
        return parts[-1]

    (a,) = matrices(1)
    weights = [torch.randn(SIZE * (k + 1), SIZE) / SIZE for k in range(6)]
    # Six matrices, and all of them side by side, which relu writes over.
    assert peak(function, a, *weights) <= 12
    assert len(kernels(function, a, *weights)) <= 11, "one per concatenation, one per relu"
    same(function, a, *weights)


def gradient_peaks(function, a, *args):
    """Buffers of one matrix that the gradient of the first takes in eager mode, and compiled."""
    fast = magpy.compile(function, fullgraph=True)
    a.requires_grad_()

    def step(call):
        call(a, *args).sum().backward()
        a.grad = None

    for call in (function, fast, fast):
        step(call)
    device = torch.get_default_device()
    return [peak_bytes(lambda c=c: step(c), device) / BUFFER for c in (function, fast)]


@pytest.mark.usefixtures("forget_everything")
def test_a_dense_block_that_is_computed_again_takes_less_memory_than_in_eager():
    """Gradients of what went into many concatenations are summed as they come, and no layer is
    computed again with another, long before it is needed."""

    def layer(weight, *maps):
        return torch.cat(maps, 1).sin() @ weight

    def function(a, *weights):
        maps = [a]
        for weight in weights:
            maps.append(checkpoint(layer, weight, *maps, use_reentrant=False).exp())
        return torch.cat(maps, 1)

    weights = [torch.randn(SIZE * (k + 1), SIZE) / SIZE for k in range(12)]
    eager, actual = gradient_peaks(function, *matrices(1), *weights)
    assert actual < 0.8 * eager


def test_what_is_returned_is_made_when_it_is_computed():
    """Rather than in the end, with all that it is made of held until then."""

    def function(a):
        first, q = (a @ a) * (a @ a.t()), a
        for _ in range(3):
            q = q @ a
        return first.t(), q

    assert peak(function, *matrices(1)) == 3  # the first result, and the last before and after

    def later(a):
        first, q = a.sum(0) * 2, a
        for _ in range(scheduler.MAX_DISTANCE + 1):
            q = q @ a
        return first.view(1, -1), q

    assert len(kernels(later, *matrices(1))) == 1


def test_zeros_that_something_is_added_to_are_made_when_it_is(monkeypatch):
    """What is fused runs as late as its last part: zeros wait for nothing, and were made before."""
    monkeypatch.setattr(scheduler, "_first_position", scheduler._last_position)

    def function(a, b, places):
        p = a @ b
        q = ((p.relu() @ b) @ b)[:2] * 2
        return torch.zeros(SIZE, SIZE).index_add(0, places, q).sum(), p.relu().sum()

    assert peak(function, *matrices(2), torch.tensor([3, 5])) < 2.1
