"""Memory planning: buffers are overwritten after their last read, and kernels are ordered to hold
little memory."""

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
    """The peak memory of a compiled call, in matrices."""
    fast = compiled(function)
    with torch.no_grad():
        fast(*args)
        return peak_bytes(lambda: fast(*args), torch.get_default_device()) / BUFFER


def test_activation_overwrites_the_product_it_reads():
    assert peak(lambda a, b: (a @ b).relu(), *matrices(2)) == 1
    assert peak(lambda a, b: (a @ b) * 2 + (b @ a), *matrices(2)) == 2


def test_softmax_overwrites_its_input_after_the_last_read():
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
    ids=["returned", "transposed", "flipped", "broadcast", "rolled", "reduced", "concatenated",
         "shared", "gathered", "arguments", "scanned", "viewed twice"],
)  # fmt: skip
def test_buffers_with_other_readers_are_not_overwritten(function):
    # Differences of large sums lose accuracy.
    same(function, *matrices(2), rtol=1e-4, atol=1e-4)


def test_saved_tensors_are_not_overwritten():
    def function(a, b):
        p = a @ b
        return (p.sigmoid() * p).tanh()

    actual, expected = ([m.requires_grad_() for m in matrices(2)] for _ in range(2))
    compiled(function)(*actual).sum().backward()
    function(*expected).sum().backward()
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_fused_kernels_run_at_the_point_of_least_memory():
    """Values for a final concatenation are computed early, when they are available."""

    def function(a):
        parts = []
        for _ in range(8):
            a = (a @ a).tanh()
            parts.append(a.sum(0))
        return torch.stack(parts)

    assert peak(function, *matrices(1)) < 3


def test_copies_for_late_concatenations_are_late():
    def function(a, w):
        first = y = a @ a
        for _ in range(5):
            y = torch.cat([first, y], 1) @ w
        return y

    (a,), w = matrices(1), torch.randn(2 * SIZE, SIZE)
    assert peak(function, a, w) == 4  # the first product, the concatenation, and the next product
    same(function, a, w, rtol=1e-3, atol=1e-3)


def test_dense_block_takes_few_kernels_and_no_extra_memory():
    """Copies of one concatenation are fused; copies of later ones are not fused with them."""

    def function(a, *weights):
        parts = [a @ a]
        for w in weights:
            parts.append(torch.cat(parts, 1).relu() @ w)
        return parts[-1]

    (a,) = matrices(1)
    weights = [torch.randn(SIZE * (k + 1), SIZE) / SIZE for k in range(6)]
    # Six matrices, and their concatenation, which relu overwrites.
    assert peak(function, a, *weights) <= 12
    assert len(kernels(function, a, *weights)) <= 11, "one per concatenation, one per relu"
    same(function, a, *weights)


def gradient_peaks(function, a, *args):
    """The peak memory, in matrices, of a gradient with respect to ``a``: eager and compiled."""
    fast = magpy.compile(function, fullgraph=True)
    a.requires_grad_()

    def step(call):
        call(a, *args).sum().backward()
        a.grad = None

    for call in (function, fast, fast):
        step(call)
    device = torch.get_default_device()
    return [peak_bytes(lambda c=c: step(c), device) / BUFFER for c in (function, fast)]


@pytest.mark.usefixtures("reset_magpy")
def test_checkpointed_dense_block_takes_less_memory_than_eager():
    """Gradients of inputs of many concatenations are accumulated early, and each layer is
    recomputed separately, shortly before its use."""

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


def test_results_are_computed_early():
    """Not at the end, which would keep their inputs alive until then."""

    def function(a):
        first, q = (a @ a) * (a @ a.t()), a
        for _ in range(3):
            q = q @ a
        return first.t(), q

    assert peak(function, *matrices(1)) == 3  # the first result, and q before and after a product

    def later(a):
        first, q = a.sum(0) * 2, a
        for _ in range(scheduler.MAX_DISTANCE + 1):
            q = q @ a
        return first.view(1, -1), q

    assert len(kernels(later, *matrices(1))) == 1


def test_zeros_are_created_at_their_accumulation(monkeypatch):
    """A fused kernel runs at the position of its last part; zeros alone would run early."""
    monkeypatch.setattr(scheduler, "_first_position", scheduler._last_position)

    def function(a, b, indices):
        p = a @ b
        q = ((p.relu() @ b) @ b)[:2] * 2
        return torch.zeros(SIZE, SIZE).index_add(0, indices, q).sum(), p.relu().sum()

    assert peak(function, *matrices(2), torch.tensor([3, 5])) < 2.1
