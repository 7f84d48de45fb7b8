"""Sizes that data decides: masks, ``nonzero``, ``unique``; none selected, one, several, all."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


def _mean(x):
    chosen = x[x > 0]
    return chosen.sum() / max(1, chosen.size(0)), chosen.numel() / x.numel()


def _counted(x):
    n = x[x > 0].size(0)
    return x * n, n + 1, 2 * n - 3, -n, n**2, abs(n - 3), min(n, 3), max(n, 1), x.sum() / (n + 1)


def _of_two(x):
    some, others = x[x > 0], x[x <= 0]
    return torch.cat([some, others]), some.size(0) + others.size(0), some.size(0) - len(others)


def _sized_like(x):
    n = (x > 0).nonzero().size(0)
    filled = torch.zeros_like(x)
    filled[:n] = 1
    return torch.zeros(n), torch.arange(n), torch.ones(n + 2), filled, x[: min(n, 3)]


def _reshaped(x):
    chosen = x[x > 0]
    return chosen.view(-1, 1), chosen.flip(0), chosen[1:], chosen[chosen.size(0) // 2 :], chosen[:2]


def _of_rows(x):
    rows = x.view(2, 3)
    kept = rows[rows.sum(1) > 0]
    return kept, kept.mean(0), kept.shape, kept.size(0) * kept.size(1)


def _unique(x):
    values, where, counts = x.sign().unique(return_inverse=True, return_counts=True)
    table = torch.zeros(values.size(0), 3)
    table[:, 1] = values
    return values, where, counts, values.size(0) + 1, table


def _pairs(x):
    rows, columns = (x.view(2, 3) > 0).nonzero(as_tuple=True)
    return x.view(2, 3)[rows, columns], rows.numel(), columns.size(0) * 2


def _places(x):
    (found,) = torch.where(x > 0)
    return found, found.size(0), x[found]


def _of_chosen(x):
    chosen = x[x > 0]
    again = chosen[chosen > 2]
    return again, again.size(0), chosen.size(0) - again.size(0)


def _in_text(x):
    n = x[x > 0].size(0)
    return f"{n} of {x.size(0)}", "%d" % n, x + 1


ONE_RECORD = {
    f.__name__[1:]: f
    for f in (
        *(_mean, _counted, _of_two, _sized_like, _reshaped, _of_rows, _unique, _pairs, _places),
        *(_of_chosen, _in_text),
    )
}


def _all_or_some(x):
    chosen = x[x > 0]
    return x + 1 if chosen.size(0) == x.size(0) else x - 1


def _none_or_some(x):
    chosen = x[x > 0]
    return (chosen.max(), "some") if len(chosen) else (x.min(), "none")


def _one(x):
    chosen = x[x > 0]
    return chosen.item() if chosen.numel() == 1 else chosen.numel()


def _even(x):
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


def _rounds(x):
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


STEERED = {
    f.__name__[1:]: f
    for f in (
        *(_all_or_some, _none_or_some, _one, _even, _same_size, _compared, _looked_up, _rounds),
        *(_rows, _listed, _tried),
    )
}
"""Programs that go another way at another size."""
ORDERS = [(3, 0, 1, 6, 2, 4, 0, 1, 5), (1, 0, 6, 2, 3, 1), (0, 4, 1, 6, 0)]


def holding(positive):
    x = torch.tensor([1.0, 2.5, 2.0, 3.0, 0.5, 4.0])
    x[positive:] *= -1
    return x[torch.tensor([3, 0, 5, 1, 4, 2])]


def _compare(program, compiled, order):
    for positive in order:
        found, expected = compiled(holding(positive)), program(holding(positive))
        assert_same(found, expected)
        assert repr(found) == repr(expected)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ONE_RECORD)
def test_one_record_serves_all_sizes_whichever_was_first(name, dynamic):
    for order in ORDERS:
        compiled = magpy.compile(ONE_RECORD[name], backend="eager", dynamic=dynamic, fullgraph=True)
        _compare(ONE_RECORD[name], compiled, order)
        assert magpy.cache_info(compiled).misses == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", STEERED)
@pytest.mark.filterwarnings("ignore:magpy_like. the operator graph")
def test_size_that_steers_the_program_is_looked_at_in_every_call(name, dynamic):
    for order in ORDERS:
        compiled = magpy.compile(STEERED[name], backend="eager", dynamic=dynamic)
        _compare(STEERED[name], compiled, order)


@pytest.mark.parametrize("name", ["all_or_some", "none_or_some", "one", "compared", "listed"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_steer_alike_need_no_further_run(name, dynamic):
    compiled = magpy.compile(STEERED[name], backend="eager", dynamic=dynamic)
    for _ in range(3):
        learnt = magpy.cache_info(compiled).misses
        _compare(STEERED[name], compiled, ORDERS[0])
    assert magpy.cache_info(compiled).misses == learnt


def _extremes(choose, least):
    def program(x):
        try:
            return choose(x[x > 0] * 2), choose(x[least:] * 2)
        except (RuntimeError, IndexError) as error:
            return type(error), str(error)

    return program


@pytest.mark.parametrize(
    "choose", [torch.max, lambda chosen: chosen.max(0).indices], ids=["max", "indices"]
)
@pytest.mark.filterwarnings("ignore:magpy_like. the operator graph")
def test_compiled_graph_chooses_nothing_from_no_elements(choose):
    for least in (0, 2):
        program = _extremes(choose, least)
        compiled = magpy.compile(program, backend="magpy", dynamic=True)
        for size, positive in ((6, 3), (6, 0), (3, 1), (2, 1), (6, 4), (5, 0)):
            x = torch.arange(1.0, 1 + size)
            x[positive:] *= -1
            assert_same(compiled(x), program(x))
