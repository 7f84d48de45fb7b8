"""Windows on storages: ``as_strided`` with arguments at other places of their storages."""

import pytest
import torch

import magpy_like as magpy


def sliding(x):
    rows, columns = x.shape
    return x.as_strided((rows - 1, 2, columns), (columns, columns, 1)).sum(1)


def written_in_its_rows(x):
    x.as_strided((2,), (1,)).add_(100)
    return x * 2


def written_at_an_offset(x):
    x.as_strided((1,), (1,), 0).add_(100)
    return x + 1


def written_through_a_view(x):
    x[1:].as_strided((1,), (1,), 0).add_(100)
    return x + 1


def changed_in_place(x):
    x.as_strided_(x.shape, x.stride())
    return x * 1


def scattered_into_a_result(x):
    y = x * 2
    return y.as_strided_scatter(x[0, :2], (2,), (1,), 1), y[1:].as_strided_scatter(
        x[0, :2], (2,), (1,)
    )


PROGRAMS = {
    "at an offset": lambda x: x.as_strided((2, 2), (2, 1), 0) * 1,
    "at the argument's offset": lambda x: x.as_strided((2, 2), (1, 2), x.storage_offset()) * 1,
    "of the argument's sizes": lambda x: x.as_strided(x.shape, (x.shape[1], 1), 0) * 1,
    "of a view": lambda x: x[1:].as_strided((2,), (1,), 0) * 1,
    "of an expanded view": lambda x: x.expand(2, *x.shape).as_strided((4,), (1,), 3) + 0,
    "returned": lambda x: x.as_strided((2, 2), (1, 2), 0),
    "larger than some arguments": lambda x: x.as_strided((12,), (1,)) + 1,
    "larger than some results": lambda x: (x * 2).as_strided((12,), (1,)) + 1,
    "copied": lambda x: torch.as_strided_copy(x, (2,), (1,), 1),
    "scattered": lambda x: x.as_strided_scatter(x[0, :2] - 1, (2,), (1,), 1) * 2,
    "scattered into a result": scattered_into_a_result,
    "sliding": sliding,
    "written": written_in_its_rows,
    "written at an offset": written_at_an_offset,
    "written through a view": written_through_a_view,
    "changed in place": changed_in_place,
}


def matrix(rows, columns=4):
    return torch.arange(rows * columns).float().view(rows, columns)


ARGUMENTS = {
    "whole": lambda n: matrix(n),
    "rows": lambda n: matrix(n + 2)[1 : n + 1],
    "later rows": lambda n: matrix(n + 2)[2:],
    "columns": lambda n: matrix(n, 9)[:, 2:6],
    "other columns": lambda n: matrix(n, 7)[:, 2:6],
    "behind a gap": lambda n: torch.arange(n * 4.0 + 5)[5:].view(n, 4),
}
WHOLE, ROWS, LATER, COLUMNS, OTHER_COLUMNS, BEHIND = ARGUMENTS.values()
SEQUENCES = {
    "whole first": [(WHOLE, 3), (WHOLE, 3), (ROWS, 3), (LATER, 3), (BEHIND, 3), (WHOLE, 5),
                    (WHOLE, 4), (ROWS, 5), (WHOLE, 2)],
    "rows first": [(ROWS, 3), (ROWS, 3), (WHOLE, 3), (ROWS, 4), (WHOLE, 5), (WHOLE, 2)],
    "columns first": [(COLUMNS, 3), (WHOLE, 3), (OTHER_COLUMNS, 4), (WHOLE, 4), (COLUMNS, 5)],
}  # fmt: skip


def outcome(function, x):
    """The result, and the memory of the argument's base afterwards."""
    try:
        found = function(x)
    except RuntimeError as error:
        return type(error), str(error)
    results = found if isinstance(found, tuple) else (found,)
    base = x if x._base is None else x._base
    return [(t.tolist(), t.stride()) for t in results], x._version, base.tolist()


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=list(SEQUENCES))
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_window_on_an_argument_at_any_place_of_its_storage(program, sequence):
    compiled = magpy.compile(program)
    for k, (make, rows) in enumerate(sequence):
        assert outcome(compiled, make(rows)) == outcome(program, make(rows)), k


def test_sliding_window_serves_slices_and_other_sizes():
    compiled = magpy.compile(sliding)
    for make, rows in [(WHOLE, 3), (WHOLE, 3), (WHOLE, 4), (WHOLE, 5), (ROWS, 6)]:
        torch.testing.assert_close(compiled(make(rows)), sliding(make(rows)))
    info = magpy.cache_info(compiled)
    assert (info.records, info.hits, info.uncompiled) == (1, 3, 0)
