"""Branches and loops on tensors whose sizes vary between calls."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed


def both_branches_keep_sizes(x):
    if x.sum() > 0:
        y, k = x * 2, 1
    else:
        y, k = x - 1, 3
    return y * k, y.shape[0] + k


def branches_of_a_computed_size(x):
    y = torch.cat([x, x])
    if x.mean() > 0:
        y = y.relu() + torch.arange(len(y)).unsqueeze(1)
    return y.sum(0), len(y)


def nested_branches(x):
    for _ in range(2):
        if x.sum() > 0:
            x = x - 1 if x.max() > 1 else x * 2
    return x, x.shape


def halves_until_small(x):
    n = 0
    while x.norm() > 1:
        x, n = x / 2, n + 1
    return x, n


def centres_until_small(x):
    y, n = torch.cat([x, x]), 1
    while y.abs().max() > 0.3:
        y = y * 0.5
        n += 1
        y = y - y.mean(0)
    return y, y.shape[0] * 2, n


PROGRAMS = [
    both_branches_keep_sizes, branches_of_a_computed_size, nested_branches, halves_until_small,
    centres_until_small,
]  # fmt: skip
ROWS = (5, 5, 6, 9, 3, 2, 7, 12, 5)


def inputs(i, rows, training=False):
    seed(i)
    x = torch.randn(rows, 4) + (0.5 if i % 2 else -0.5)
    return x.requires_grad_(training)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_serves_all_sizes_and_both_branches(program, training, dynamic):
    fast = magpy.compile(program, backend="eager", dynamic=dynamic, fullgraph=True)
    for i, rows in enumerate(ROWS):
        found = []
        for run in (fast, program):
            x = inputs(i, rows, training)
            result = run(x)
            if training:
                result[0].pow(2).sum().backward()
            found.append((result, x.grad))
        assert_same(*found)
    assert magpy.cache_info(fast).misses == (1 if dynamic else 2)
    assert magpy.cache_info(fast).graphs == 1
    fast(torch.randn(5, 6, requires_grad=training))
    assert magpy.cache_info(fast).misses == (1 if dynamic else 3)


def test_branches_are_compiled_for_all_sizes():
    fast = magpy.compile(both_branches_keep_sizes, dynamic=True, fullgraph=True)
    for i, rows in enumerate(ROWS):
        assert_same(fast(inputs(i, rows)), both_branches_keep_sizes(inputs(i, rows)))
    assert magpy.cache_info(fast).misses == 1


def branches_of_different_sizes(x):
    return x[:2] + 1 if x.sum() > 0 else x[1:] * 2


def branches_whose_sizes_coincide(x):
    return torch.cat([x, x]) if x.sum() > 0 else torch.zeros(8, 4) + x.mean()


def iterations_that_shrink(x):
    while x.sum() > 5:
        x = x[:-1]
    return x


def branches_of_different_strides(x):
    return x.t().contiguous().t() if x.sum() > 0 else x + 1


@pytest.mark.parametrize(
    "program",
    [
        branches_of_different_sizes, branches_whose_sizes_coincide, iterations_that_shrink,
        branches_of_different_strides,
    ],
)  # fmt: skip
def test_branches_of_different_sizes_are_no_operator_and_equal_eager(program):
    fast = magpy.compile(program, backend="eager", dynamic=True)
    for i, rows in enumerate((4, 4, 5, 6, 3, 4, 7)):
        assert_same(fast(inputs(i, rows)), program(inputs(i, rows)))


def test_iterations_with_branches_rely_on_no_property_of_fake_tensors():
    def program(x, weight):
        h = x[0]
        for t in range(x.shape[0]):
            h = h @ weight
            h = h - x[t] if x[t].sum() > 0 else h * 0.5
        return h

    fast, weight = magpy.compile(program, backend="eager"), torch.eye(4)
    for i, rows in enumerate((5, 7, 9)):
        x = inputs(i, rows)
        assert_same(fast(x, weight), program(x, weight))
    assert magpy.cache_info(fast).records == 1, (
        "the second record serves the first call's size, too"
    )
    report = str(magpy.explain(fast, inputs(0, 9), weight))
    assert "FakeTensor" not in report and "default argument" not in report


class Cache:
    """Holds a tensor; says by a method, a property and a subscript how long it is."""

    def __init__(self, length, is_filled=True):
        self.keys = torch.ones(2, length)
        self.is_filled = is_filled

    def length(self):
        return self.keys.shape[1]

    @property
    def size(self):
        return self.length()

    def __getitem__(self, i):
        return self.keys.shape[1] + i

    def filled_length(self):
        if not self.is_filled:
            return 0
        return self.keys.shape[1]


@pytest.mark.parametrize(
    "length",
    [Cache.length, lambda cache: cache.size, lambda cache: cache[1], lambda cache: cache.length()],
    ids=["method", "property", "subscript", "function"],
)
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_size_that_a_python_function_returns_in_a_branch_may_vary(length, backend):
    def program(x, mask, cache):
        if mask.all():
            return x + 1
        return x + torch.arange(length(cache)).sum()

    fast, x = magpy.compile(program, backend=backend), torch.ones(3)
    for n in (3, 4, 5, 9):
        for mask in (torch.tensor([True, False]), torch.tensor([True, True])):
            assert_same(fast(x, mask, Cache(n)), program(x, mask, Cache(n)))
    assert magpy.cache_info(fast).misses == 2


@pytest.mark.parametrize(
    "used",
    [
        lambda cache: sorted((7, 3, 11, 5), key=lambda i: i % cache.length())[0],
        lambda cache: len(range(cache.length())),
        lambda cache: [n for n in range(cache.length())][-1],
    ],
)
def test_size_that_native_code_receives_in_a_branch_is_guarded(used):
    def program(x, mask, cache):
        if mask.all():
            return x + 1
        return x + used(cache)

    fast, x = magpy.compile(program, backend="eager"), torch.ones(3)
    for n in (3, 4, 5, 9, 4):
        for mask in (torch.tensor([True, False]), torch.tensor([True, True])):
            assert_same(fast(x, mask, Cache(n)), program(x, mask, Cache(n)))


def test_flag_that_chooses_a_varying_size_is_guarded():
    """One symbol for both choices would be no size of the tensor that the chosen branch uses."""

    def program(x, cache):
        positions = torch.arange(cache.filled_length() + 1)
        if cache.is_filled:
            x = torch.cat([cache.keys, x], 1)
        return x[:, : positions.shape[0]] * positions

    fast, x = magpy.compile(program, backend="eager"), torch.ones(2, 1)
    cases = [(4, False), (4, True), (5, True), (6, True), (7, False), (8, True), (9, False)]
    for case in cases:
        assert_same(fast(x, Cache(*case)), program(x, Cache(*case)))
    assert magpy.cache_info(fast).hits >= 3


def size_of_both_sides(x, y):
    size = x.shape if x.sum() > 0 else x.shape
    return size[0], torch.zeros(size)


def size_in_a_tuple(x, y):
    return (x.shape, 1) if x.sum() > 0 else (x.shape, 2)


def size_of_an_exit(x, y):
    for i in range(3):
        if x.sum() > i:
            return torch.zeros(x.size())
    return torch.zeros(x.size())


def size_replaced_in_a_loop(x, y):
    size, i = x.shape, 0
    while x.sum() > i:
        size, i = y.shape, i + 1
    return x * size[0], size


def text_replaced_in_a_loop(x, y):
    text = "%d" % x.shape[0]
    for i in range(3):
        if x.sum() > i:
            text = "%d" % y.shape[0]
    return text, x


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "program",
    [
        size_of_both_sides, size_in_a_tuple, size_of_an_exit, size_replaced_in_a_loop,
        text_replaced_in_a_loop,
    ],
)  # fmt: skip
def test_sizes_that_branches_leave_are_those_of_the_call(program, backend):
    fast = magpy.compile(program, backend=backend)
    for n, more in ((4, 0), (4, 0), (3, 0), (5, 0), (2, 0), (6, 2), (1, 3), (0, 1), (4, 2)):
        for sign in (1, -1):
            x, y = torch.ones(n) * sign, torch.ones(n + more)
            assert_same(fast(x, y), program(x, y))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_size_in_two_places_is_one_object(backend):
    def program(x):
        size = x.shape
        return [size, size], x * 2

    fast = magpy.compile(program, backend=backend)
    for n in (3, 4, 5, 6):
        (one, other), _ = fast(torch.ones(n))
        assert one is other
        assert one == (n,)


def test_identity_of_a_number_is_that_of_the_call_on_both_sides():
    def program(x, n):
        return n is 1 if x.sum() > 0 else n is 1  # noqa: F632

    fast = magpy.compile(program, backend="eager")
    for n in (2, 3, 0, -1, 2, 7, 1, 0, 1):
        for sign in (1, -1):
            assert fast(torch.ones(3) * sign, n) == program(torch.ones(3) * sign, n)


def test_tuple_that_is_kept_and_returned_is_one_object():
    class Holder:
        kept = None

    def program(x, holder):
        found, size = 0, x.shape[0]
        if x.sum() > 0:
            found = size, x
        holder.kept = found, [found]
        return found

    fast = magpy.compile(program, backend="eager")
    for n, sign in ((4, 1), (4, 1), (3, -1), (5, -1), (2, 1), (6, 1), (7, 1)):
        holder, x = Holder(), torch.ones(n) * sign
        found = fast(x, holder)
        assert found == program(x, Holder()) if sign < 0 else found[0] == n
        assert holder.kept[0] is holder.kept[1][0] is found
