"""Lists of tensors whose length is a size: ``unbind`` and its like, and loops over such lists."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.graph_operators.control_operators import for_loop
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks


def keeps_unbound_rows(x):
    rows, h = x.unbind(), x[0] * 0
    for row in rows:
        h = torch.tanh(h + row)
    return h, len(rows)


def unbinds_columns(x):
    h, found = x[0, 0] * 0, []
    for column in torch.unbind((x * 2).t(), dim=1):
        h = h + column.sum()
        found.append(column * h)
    return torch.stack(found, 1)


def splits(x):
    h = x[:1] * 0
    rows = x.split(1)
    for i, row in enumerate(rows):
        h = torch.tanh(h + row * i)
    return h


def splits_columns(x):
    h, found = torch.zeros(3, 1), []
    for column in torch.split((x * 2).t(), 1, dim=1):
        h = torch.tanh(h * 0.5 + column.contiguous())
        found.append(h)
    return torch.cat(found, 1)


def takes_chunks(x):
    h = x[:1] * 0
    for row in x.chunk(x.size(0), 0):
        h = torch.tanh(h + row)
    return h


def iterates_over_the_list_of_a_loop(x):
    made, h, found = [], x[0] * 0, []
    for row in x:
        made.append(torch.tanh(row))
    for y in made:
        h = h * 0.5 + y
        found.append(h)
    return torch.stack(found), h


def iterates_over_a_comprehension(x):
    h = x[0] * 0
    for y in [torch.tanh(x[t]) * t for t in range(x.shape[0])]:
        h = h * 0.5 + y
    return h


def iterates_over_two_lists(x):
    h = x[0] * 0
    for a, b, c in zip(x.unbind(0), [row * 2 for row in x], x + 1):
        h = h * 0.5 + a - b * c
    return h


def iterates_backwards(x):
    h, found = x[0] * 0, []
    for row in reversed(x.unbind(0)):
        h = h * 0.5 + row
        found.append(h)
    return torch.stack(found[::-1]), found[::-1]


def reverses_twice(x):
    found = [row * i for i, row in enumerate(x)]
    return torch.cat(found[::-1][::-1]), torch.stack(x.unbind(0)[::-1])


def makes_lists_of_lists(x):
    layer = list(x.unbind(0))
    for _ in range(2):
        h, found = x[0] * 0, []
        for y in layer:
            h = torch.tanh(h + y)
            found.append(h)
        layer = found
    return torch.stack(layer), tuple(layer), list(tuple(x.unbind(0)))


def returns_the_rows(x):
    return x.unbind(0), (x * 2).split(1), [row * 2 for row in x.unbind()]


def reads_at_an_index(x):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(len(rows)):
        h = torch.tanh(h + rows[i])
    return h, rows[-1] * 2, rows[0] + 1


def reads_at_an_index_of_a_list(x):
    rows, h, found = list(x), x[0] * 0, []
    for i in range(len(rows)):
        h = torch.tanh(h * 0.5 + rows[i])
        found += [h]
    return torch.stack(found), tuple(x)


def reads_from_the_end(x):
    rows, h, n = torch.unbind(x * 2), x[0] * 0, x.size(0)
    for i in range(n):
        h = torch.tanh(h * 0.5 + rows[n - 1 - i] - rows[-i - 1] * i)
    return h


def reads_the_list_of_a_loop(x):
    made, h, back = [], x[0] * 0, []
    for i in range(x.shape[0]):
        h = torch.tanh(x[i] + h)
        made.append(h)
    for i in reversed(range(x.shape[0])):
        h = torch.tanh(made[i] * 2 - h)
        back.append(h)
    return torch.stack(back[::-1]), h


def reads_neighbours(x):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(1, len(rows) - 1):
        h = h + rows[i + 1] * rows[i - 1] - rows[-1] * rows[0]
    return h


def reads_in_a_branch(x):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(len(rows)):
        if i % 2 == 0:
            h = h + rows[i]
        else:
            h = h * rows[i - len(rows)]
        if h.sum() > 0:
            h = h - rows[i] * 2
    return h


def counts_to_the_last_row(x):
    rows, h, i = x.unbind(0), x[0] * 0, 0
    while i < len(rows):
        h = torch.tanh(h * 0.5 + rows[i])
        i += 1
    return h, i


OPERATORS = [
    reads_at_an_index, reads_at_an_index_of_a_list, reads_from_the_end, reads_the_list_of_a_loop,
    reads_in_a_branch, counts_to_the_last_row,
    keeps_unbound_rows, unbinds_columns, splits, splits_columns, takes_chunks,
    iterates_over_the_list_of_a_loop, iterates_over_a_comprehension, iterates_over_two_lists,
    iterates_backwards, reverses_twice, makes_lists_of_lists, returns_the_rows,
]  # fmt: skip


def splits_unevenly(x):
    return [part * 2 for part in x.split(2)], [part.sum() for part in x.chunk(3)]


def reads_before_the_first(x):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(len(rows)):
        h = torch.tanh(h * 0.5 + rows[i - 1])
    return h


def reads_beyond_the_last(x):
    rows, h = x[1:].unbind(0), x[0] * 0
    for i in range(x.shape[0] - 1 + x.shape[0] // 9):
        h = torch.tanh(h * 0.5 + rows[i])
    return h


def reads_every_other(x):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(len(rows) // 2):
        h = torch.tanh(h * 0.5 + rows[2 * i])
    return h


def changes_elements_in_place(x):
    rows, h = [y * 2 for y in x], x[0] * 0
    for i in range(len(rows)):
        rows[i].mul_(3)
        h = h + rows[i]
    return h, rows


def carries_elements(x):
    rows, found = [y * 2 for y in x], []
    last = rows[0]
    for i in range(len(rows)):
        found.append(last + rows[i])
        last = rows[i]
    return found, last, last is rows[-1]


def compares_elements_by_identity(x):
    rows, found = [y * 2 for y in x], 0
    kept = rows[1] if len(rows) > 1 else None
    for i in range(len(rows)):
        if rows[i] is kept:
            found += 1 + i
    return found


def collects_elements(x):
    rows, found = [y * 2 for y in x], []
    for i in range(len(rows)):
        found.append(rows[i])
    return found, [a is b for a, b in zip(found, rows, strict=True)]


def changes_rows_in_place(x):
    y = x * 2
    rows = y.split(1)
    for row in rows:
        row.mul_(3)
    return y, rows[0]


def changes_rows_after_the_loop(x):
    y = x * 2
    rows, h = y.unbind(0)[::-1], x[0] * 0
    for row in rows:
        h = h + row
    with torch.no_grad():
        y.add_(1)
    return h, y.sum()


def changes_the_unbound_tensor(x):
    y, h = x.detach() * 2, x[0] * 0
    rows = y.unbind(0)
    y.mul_(3)
    for row in rows:
        h = h + row
    y.add_(1)
    return h, torch.stack(rows)


def carries_rows(x):
    before, found = x[0], []
    for row in [y * 2 for y in x]:
        found.append(before + row)
        before = row
    return found, before


def carries_the_last_row(x):
    rows = [y * 2 for y in x]
    for row in rows:
        last = row
    return last, last is rows[-1], rows


def appends_during_the_loop(x):
    rows, h = [y * 2 for y in x], x[0] * 0
    for i, row in enumerate(rows):
        h = h + row
        if len(rows) < 9:
            rows.append(h)
    return h, len(rows)


def changes_the_list_before_the_loop(x):
    rows, h = [y * 2 for y in x], x[0] * 0
    rows[0] = x[0]
    rows.append(x[1])
    for row in rows:
        h = h * 0.5 + row
    back = rows[::-1]
    back.pop()
    return h, back, rows


def has_rows_of_different_dtypes(x):
    rows, h = [x[0] * 2, (x[0] > 0)], x[0] * 0
    for row in x:
        rows.append(row * 2)
    for row in rows:
        h = h + row
    return h


def unpacks(x):
    first, *rest = x.unbind(0)
    return first, rest


def compares_rows_by_identity(x):
    rows, found = [y * 2 for y in x], 0
    kept = rows[0]
    for i, row in enumerate(rows):
        if row is kept:
            found += 1 + i
    return found, rows


def keeps_an_iterator(x):
    rows = iter(x.unbind(0))
    h = next(rows)
    for row in rows:
        h = torch.tanh(h + row)
    return h


def zips_strictly(x):
    h = x[0] * 0
    for a, b in zip(x.unbind(0), [row * 2 for row in x], strict=True):
        h = h * 0.5 + a - b
    return h


def reads_rows_on_a_branch(x):
    rows, h = [y * 2 for y in x], x[0]
    if h.sum() > 0:
        h = h + rows[1] + rows[-1]
    return h, rows[1], rows[-1]


OTHERS = [
    splits_unevenly, reads_before_the_first, reads_beyond_the_last, reads_every_other,
    changes_elements_in_place, carries_elements, compares_elements_by_identity, collects_elements,
    reads_neighbours, changes_rows_in_place, changes_rows_after_the_loop,
    changes_the_unbound_tensor, carries_rows, carries_the_last_row, appends_during_the_loop,
    changes_the_list_before_the_loop, has_rows_of_different_dtypes, unpacks,
    compares_rows_by_identity, keeps_an_iterator, zips_strictly, reads_rows_on_a_branch,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_numbers_of_rows(program):
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for size in (5, 7, 9, 4, 2):
        x = torch.randn(size, 3)
        assert_same(fast(x), program(x))
    assert magpy.cache_info(fast)[:4] == (3, 2, 1, 1)
    (graph,) = magpy.explain(fast, torch.ones(8, 3)).graphs
    loop = any(node.target is for_loop for node in graph.graph.nodes)
    assert loop and not magpy.explain(fast, torch.ones(8, 3)).split_points


def reads_pairs(x):
    rows = x.unbind(0)
    return torch.stack([rows[i] * rows[i - 1] for i in range(1, len(rows))])


def reads_up_to_a_break(x):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(len(rows)):
        h = torch.tanh(h * 0.5 + rows[i])
        if h.sum() > 1.5:
            break
    return h


@pytest.mark.parametrize("program", [reads_neighbours, reads_pairs, reads_up_to_a_break])
def test_one_record_reads_rows_at_an_offset_from_the_index(program):
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for size in (9, 12, 30, 11, 8):
        x = torch.randn(size, 3)
        assert_same(fast(x), program(x))
    assert magpy.cache_info(fast)[:4] == (3, 2, 1, 1)


def reads_as_many_as_another_has(x, y):
    rows, h = x.unbind(0), x[0] * 0
    for i in range(y.size(0)):
        h = torch.tanh(h * 0.5 + rows[i] + y[i])
    return h


def test_missing_rows_must_miss():
    program = reads_as_many_as_another_has
    fast = magpy.compile(program, backend="eager")
    for more, fewer in ((9, 5), (12, 7), (8, 8)):
        x, y = torch.randn(more, 3), torch.randn(fewer, 3)
        assert_same(fast(x, y), program(x, y))
    assert magpy.cache_info(fast)[:4] == (1, 2, 1, 1)
    with pytest.raises(IndexError, match="tuple index out of range"):
        fast(torch.randn(4, 3), torch.randn(5, 3))


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loop_checks.case_id)
def test_rows_equal_eagers(program):
    loop_checks.check(program, (5, 7, 9, 2, 1), training=True)


@pytest.mark.parametrize(
    "program", [returns_the_rows, iterates_backwards, carries_rows, makes_lists_of_lists]
)
def test_rows_alias_and_share_memory_as_in_eager(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for size in (3, 5, 2, 7):
        found = []
        x = torch.randn(size, 3)
        for run in (fast, program):
            argument = x.clone()
            tensors = torch.utils._pytree.tree_leaves((run(argument), argument))
            storages = [t.untyped_storage().data_ptr() for t in tensors]
            objects = {id(t): i for i, t in enumerate(tensors)}
            memory = {storage: i for i, storage in enumerate(storages)}
            found.append(
                [
                    (objects[id(t)], memory[storage], t.stride(), t._is_view())
                    for t, storage in zip(tensors, storages, strict=True)
                ]
            )
        assert_same(*found)


def test_compiled_rows_equal_eagers():
    fast = magpy.compile(iterates_backwards)
    for i, size in enumerate([5, 7, 12, 2]):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(i))
        assert_same(fast(x), iterates_backwards(x), rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (2, 2)
