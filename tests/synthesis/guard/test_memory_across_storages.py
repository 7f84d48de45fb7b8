"""Writes to tensors whose storages lie in the memory of other tensors: of NumPy, of DLPack."""

import pytest
import torch

import magpy_like as magpy


def by_numpy(x):
    return torch.from_numpy(x.numpy())


def by_part_of_an_array(x):
    return torch.from_numpy(x.numpy()[1:])


def by_dlpack(x):
    return torch.from_dlpack(x)


def apart(x):
    return x.clone()


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("shared", [by_numpy, by_part_of_an_array, by_dlpack])
@pytest.mark.parametrize("first", ["shared", "apart"])
def test_write_reaches_a_tensor_with_another_storage_in_the_same_memory(shared, first, backend):
    def program(x, y):
        y.add_(1)
        return x * 2, y - 1

    fast = magpy.compile(program, backend=backend)
    for make in [shared, apart] * 3 if first == "shared" else [apart, shared] * 3:
        seen = []
        for run in (program, fast):
            x = torch.arange(4.0)
            seen.append([*run(x, make(x)), x])
        torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("shared", [by_numpy, by_dlpack])
def test_write_reaches_a_buffer_with_another_storage_in_the_same_memory(shared, backend):
    model = torch.nn.Module()
    model.register_buffer("buffer", torch.arange(4.0))

    def program(x):
        x.add_(1)
        x.mul_(model.buffer.flip(0).sum())
        return model.buffer.flip(0) * 2

    fast = magpy.compile(program, backend=backend)
    for make in (apart, apart, shared, apart, shared):
        seen, kept = [], model.buffer.clone()
        for run in (program, fast):
            model.buffer.copy_(kept)
            seen.append((run(make(model.buffer)), model.buffer.clone()))
        torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0)
