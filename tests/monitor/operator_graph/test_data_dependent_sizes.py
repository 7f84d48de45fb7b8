"""Data-dependent sizes: masks, ``nonzero`` and ``unique`` that select none, one, some or all."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


def _mean(x):
    chosen = x[x > 0]
    return chosen.sum() / max(1, chosen.size(0)), chosen.numel() / x.numel()


def _size_arithmetic(x):
    n = x[x > 0].size(0)
    return x * n, n + 1, 2 * n - 3, -n, n**2, abs(n - 3), min(n, 3), max(n, 1), x.sum() / (n + 1)


def _two_masks(x):
    some, others = x[x > 0], x[x <= 0]
    return torch.cat([some, others]), some.size(0) + others.size(0), some.size(0) - len(others)


def _constructors(x):
    n = (x > 0).nonzero().size(0)
    filled = torch.zeros_like(x)
    filled[:n] = 1
    return torch.zeros(n), torch.arange(n), torch.ones(n + 2), filled, x[: min(n, 3)]


def _reshaped(x):
    chosen = x[x > 0]
    return chosen.view(-1, 1), chosen.flip(0), chosen[1:], chosen[chosen.size(0) // 2 :], chosen[:2]


def _row_mask(x):
    rows = x.view(2, 3)
    kept = rows[rows.sum(1) > 0]
    return kept, kept.mean(0), kept.shape, kept.size(0) * kept.size(1)


def _unique(x):
    values, where, counts = x.sign().unique(return_inverse=True, return_counts=True)
    table = torch.zeros(values.size(0), 3)
    table[:, 1] = values
    return values, where, counts, values.size(0) + 1, table


def _nonzero_pairs(x):
    rows, columns = (x.view(2, 3) > 0).nonzero(as_tuple=True)
    return x.view(2, 3)[rows, columns], rows.numel(), columns.size(0) * 2


def _where(x):
    (found,) = torch.where(x > 0)
    return found, found.size(0), x[found]


def _nested_masks(x):
    chosen = x[x > 0]
    again = chosen[chosen > 2]
    return again, again.size(0), chosen.size(0) - again.size(0)


def _in_text(x):
    n = x[x > 0].size(0)
    return f"{n} of {x.size(0)}", "%d" % n, x + 1


ONE_RECORD = {
    f.__name__[1:]: f
    for f in (
        *(
            _mean,
            _size_arithmetic,
            _two_masks,
            _constructors,
            _reshaped,
            _row_mask,
            _unique,
            _nonzero_pairs,
            _where,
        ),
        *(_nested_masks, _in_text),
    )
}


def _all_or_some(x):
    chosen = x[x > 0]
    return x + 1 if chosen.size(0) == x.size(0) else x - 1


def _none_or_some(x):
    chosen = x[x > 0]
    return (chosen.max(), "some") if len(chosen) else (x.min(), "none")


def _single(x):
    chosen = x[x > 0]
    return chosen.item() if chosen.numel() == 1 else chosen.numel()


def _even_part(x):
    chosen = x[x > 0]
    if chosen.numel() % 2:
        chosen = chosen[1:]
    return chosen.view(-1, 2).sum(1)


def _same_size(x):
    up, down = x[x > 0], x[x < 0]
    return up + down if up.size(0) == down.size(0) else (up, down)


def _compared(x):
    chosen = x[x > 0]
    return chosen.shape == torch.Size([2]), chosen.shape == x.shape, tuple(chosen.shape)


def _looked_up(x):
    n = x[x > 0].size(0)
    return {0: x, 1: x + 1}.get(n, x - 1), [*"abcdefg"][n]


def _range(x):
    for i in range((x > 0).nonzero().size(0)):
        x = x + i
    return x


def _rows(x):
    return [row * 2 for row in x[x > 0]]


def _listed(x):
    for i in (x > 0).nonzero().flatten().tolist():
        x = x + i
    return x


def _tried(x):
    try:
        return x[x > 0][1] + 1
    except IndexError:
        return x - 1


BRANCHING = {
    f.__name__[1:]: f
    for f in (
        *(
            _all_or_some,
            _none_or_some,
            _single,
            _even_part,
            _same_size,
            _compared,
            _looked_up,
            _range,
        ),
        *(_rows, _listed, _tried),
    )
}
"""Programs whose control flow depends on the size."""
ORDERS = [(3, 0, 1, 6, 2, 4, 0, 1, 5), (1, 0, 6, 2, 3, 1), (0, 4, 1, 6, 0)]


def tensor_with_positives(positive):
    x = torch.tensor([1.0, 2.5, 2.0, 3.0, 0.5, 4.0])
    x[positive:] *= -1
    return x[torch.tensor([3, 0, 5, 1, 4, 2])]


def _compare(program, compiled, order):
    for positive in order:
        found, expected = (
            compiled(tensor_with_positives(positive)),
            program(tensor_with_positives(positive)),
        )
        assert_same(found, expected)
        assert repr(found) == repr(expected)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ONE_RECORD)
def test_one_record_serves_all_sizes_in_any_order(name, dynamic):
    for order in ORDERS:
        compiled = magpy.compile(ONE_RECORD[name], backend="eager", dynamic=dynamic, fullgraph=True)
        _compare(ONE_RECORD[name], compiled, order)
        assert magpy.cache_info(compiled).misses == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", BRANCHING)
@pytest.mark.filterwarnings("ignore:magpy_like. the operator graph")
def test_branches_on_data_dependent_sizes_match_eager(name, dynamic):
    for order in ORDERS:
        compiled = magpy.compile(BRANCHING[name], backend="eager", dynamic=dynamic)
        _compare(BRANCHING[name], compiled, order)


@pytest.mark.parametrize("name", ["all_or_some", "none_or_some", "single", "compared", "listed"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_known_branches_on_sizes_need_no_further_run(name, dynamic):
    compiled = magpy.compile(BRANCHING[name], backend="eager", dynamic=dynamic)
    for _ in range(3):
        misses = magpy.cache_info(compiled).misses
        _compare(BRANCHING[name], compiled, ORDERS[0])
    assert magpy.cache_info(compiled).misses == misses


def _reductions(reduce, start):
    def program(x):
        try:
            return reduce(x[x > 0] * 2), reduce(x[start:] * 2)
        except (RuntimeError, IndexError) as error:
            return type(error), str(error)

    return program


@pytest.mark.parametrize(
    "reduce", [torch.max, lambda chosen: chosen.max(0).indices], ids=["max", "indices"]
)
@pytest.mark.filterwarnings("ignore:magpy_like. the operator graph")
def test_compiled_reduction_of_no_elements_raises_as_in_eager(reduce):
    for start in (0, 2):
        program = _reductions(reduce, start)
        compiled = magpy.compile(program, backend="magpy", dynamic=True)
        for size, positive in ((6, 3), (6, 0), (3, 1), (2, 1), (6, 4), (5, 0)):
            x = torch.arange(1.0, 1 + size)
            x[positive:] *= -1
            assert_same(compiled(x), program(x))
