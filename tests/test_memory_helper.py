"""The memory tests measure what they say they measure."""

import torch

from tests.memory import count_objects, leaked_bytes, peak_bytes

MEGA = 1 << 20


def block(megabytes):
    return torch.empty(megabytes * MEGA, dtype=torch.uint8)


def test_peak_counts_what_lives_at_the_same_time():
    def together():
        a, b = block(3), block(2)
        del a, b

    def one_after_the_other():
        a = block(3)
        del a
        b = block(2)
        del b

    assert peak_bytes(together) == 5 * MEGA
    assert peak_bytes(one_after_the_other) == 3 * MEGA


def test_peak_leaves_out_what_was_there_before():
    x = block(4)
    assert peak_bytes(lambda: x.add_(1)) < MEGA
    assert 4 * MEGA <= peak_bytes(lambda: x + 1) < 4 * MEGA + 64  # and the number 1


def test_leaked_bytes_are_those_that_outlive_the_call():
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
