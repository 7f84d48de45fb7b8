"""Resources do not grow over many calls, and the judgement of that."""

import dataclasses

import pytest

from magpy_like.disk_cache.user_settings import cache_root
from tests.soak.activities import Activities
from tests.soak.resources import Resources, growing

FLAT = Resources(100.0, 1000, 10, 1, 5.0, 0.0, 0.0)


def test_flat_resources_do_not_grow():
    assert growing([FLAT] * 9) == []


def test_growth_during_warm_up_does_not_count():
    small = dataclasses.replace(FLAT, resident=10.0, objects=10)
    assert growing([small] * 3 + [FLAT] * 6) == []


@pytest.mark.parametrize("name", Resources.__dataclass_fields__)
def test_growth_after_warm_up_is_named(name):
    samples = [
        dataclasses.replace(FLAT, **{name: (getattr(FLAT, name) + 10) * (1 + k / 4)})
        for k in range(9)
    ]
    [found] = growing(samples)
    assert found.startswith(f"{name} grows from")


def test_amounts_that_rise_and_fall_do_not_grow():
    allocated = (33.0, 98.0, 65.0, 33.0, 65.0, 65.0, 131.0, 33.0, 164.0)
    assert growing([dataclasses.replace(FLAT, gpu_allocated=a) for a in allocated]) == []
    once_free = (33.0, 98.0, 65.0, 65.0, 0.0, 131.0, 33.0, 65.0, 164.0)
    assert growing([dataclasses.replace(FLAT, gpu_allocated=a) for a in once_free]) == []


def test_disk_cache_may_grow_up_to_its_bound():
    fuller = [dataclasses.replace(FLAT, disk=size) for size in (4.0, 5.0, 8.0)]
    samples = [sample for sample in fuller for _ in range(3)]
    assert growing(samples, disk_bound=8.0) == []
    assert growing(samples, disk_bound=7.0) == ["disk grows from 5.0 to 8.0"]


def test_many_random_calls_equal_eager_and_leave_no_descriptor_or_thread():
    activities = Activities(0, "cpu", "eager")
    samples = []
    for _ in range(6):
        for _ in range(12):
            activities.once()
        samples.append(Resources.now(cache_root(), "cpu"))
    assert len({sample.descriptors for sample in samples[2:]}) == 1
    assert len({sample.threads for sample in samples[2:]}) == 1
