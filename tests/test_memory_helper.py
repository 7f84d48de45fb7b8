"""The helpers that measure memory: peaks, leaks and counts of objects."""

import torch

from tests.memory import count_objects, leaked_bytes, peak_bytes

MEGA = 1 << 20


def block(megabytes):
    return torch.empty(megabytes * MEGA, dtype=torch.uint8)


def test_peak_counts_simultaneously_live_memory():
    def simultaneously():
        a, b = block(3), block(2)
        del a, b

    def sequentially():
        a = block(3)
        del a
        b = block(2)
        del b

    assert peak_bytes(simultaneously) == 5 * MEGA
    assert peak_bytes(sequentially) == 3 * MEGA


def test_peak_excludes_memory_allocated_before():
    x = block(4)
    assert peak_bytes(lambda: x.add_(1)) < MEGA
    assert 4 * MEGA <= peak_bytes(lambda: x + 1) < 4 * MEGA + 64  # plus the scalar 1


def test_leaked_bytes_count_memory_that_outlives_the_call():
    kept = []
    assert leaked_bytes(lambda: block(3)) == 0
    assert leaked_bytes(lambda: kept.append(block(3))) == 3 * MEGA


def test_count_objects_includes_tensors_held_by_frames():
    def generator():
        kept = torch.ones(3)
        yield kept

    before = count_objects()
    suspended = generator()
    next(suspended)
    assert (count_objects() - before)["tensors"] == 1
    del suspended
    assert count_objects() == before
