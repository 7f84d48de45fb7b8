"""Tensors and NumPy arrays that a program leaves are in the memory where eager mode leaves them."""

import numpy as np
import pytest
import torch

import magpy_like as magpy

A = np.arange(4.0)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "program",
    [
        lambda a: torch.from_numpy(a),
        lambda a: torch.as_tensor(a),
        lambda a: torch.asarray(a)[1:],
        lambda a: torch.from_numpy(a[1:]),
        lambda a: torch.from_numpy(a.reshape(2, 2)).t(),
        lambda a: [torch.from_numpy(a), torch.from_numpy(a) * 2][0],
        lambda a: torch.from_numpy(np.asarray(a)),
        lambda a: torch.from_numpy(A),
    ],
)
def test_tensor_of_an_array_stays_in_its_memory(program, backend):
    fast = magpy.compile(program, backend=backend)
    for _ in range(4):
        array = np.arange(4.0)
        found, before = fast(array), A.copy()
        for written in (array, A):
            written += 1
        assert torch.equal(found, program(array))
        A[:] = before


def array_and_part(array):
    return array, array[1:]


def array_and_tensor(array):
    return array, torch.from_numpy(array)


def part_and_tensor(array):
    return array[:3], torch.from_numpy(array)


def parts(array):
    return array[:3], array[1:]


@pytest.mark.parametrize("make", [array_and_part, array_and_tensor, part_and_tensor, parts])
def test_arrays_and_tensors_of_a_program_share_their_memory(make):
    fast = magpy.compile(lambda: make(np.arange(4.0)), backend="eager")
    for _ in range(4):
        first, second = fast()
        first += 1
        expected, other = make(np.arange(4.0))
        expected += 1
        assert (first.tolist(), second.tolist()) == (expected.tolist(), other.tolist())


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2], lambda a: a.reshape(2, 2).T])
def test_view_of_an_array_stays_in_its_memory(view):
    fast = magpy.compile(view, backend="eager")
    for _ in range(4):
        array = np.arange(4.0)
        found = fast(array)
        array += 1
        assert np.array_equal(found, view(array))


def test_array_that_cannot_be_written_to_stays_so():
    fast = magpy.compile(lambda: np.broadcast_to(np.arange(3.0), (2, 3)), backend="eager")
    assert [fast().flags.writeable for _ in range(4)] == [False] * 4


def test_copies_of_arrays_are_compiled():
    programs = [
        lambda a: torch.from_numpy(a) + 1,
        lambda a: torch.tensor(a),
        lambda a: torch.from_numpy(a.copy()),
        lambda a: torch.from_numpy(np.arange(4.0)),
    ]
    for program in programs:
        fast = magpy.compile(program, backend="eager")
        for _ in range(3):
            assert torch.equal(fast(np.arange(4.0)), program(np.arange(4.0)))
        assert magpy.cache_info(fast).hits == 2
