"""Conditions of a guard, as data of its record."""

import torch

import magpy_like as magpy
from magpy_like.synthesis.guard.conditions import Kind


class Scale:
    def __init__(self) -> None:
        self.factor = 2


scale = Scale()


def program(x, n):
    return x * n * scale.factor


def _record():
    fast = magpy.compile(program, backend="eager")
    fast(torch.ones(2), 3)
    (record,) = magpy.api._dispatcher(fast).records
    return record


def test_record_lists_the_conditions_of_its_guard():
    kinds = [condition.kinds[0] for condition in _record().conditions if condition.kinds]
    assert kinds[:2] == [Kind.TORCH_MODES, Kind.POSITIONAL_ARGUMENTS]
    assert {Kind.TENSOR, Kind.VALUE, Kind.STORED_ATTRIBUTE} <= set(kinds)


def test_python_condition_has_source_and_description():
    (tensor,) = [c for c in _record().conditions if Kind.TENSOR in c.kinds]
    assert tensor.description == "args[0]: float32[2] on cpu"
    assert tensor.source in _record().guard_source


def test_guard_returns_the_number_of_the_failed_condition():
    record = _record()
    number = record.guard((torch.ones(2), 4), {})
    assert Kind.VALUE in record.numbered[number].kinds
    assert record.why_not(number) == "not args[1] == 3"


def test_native_watch_checks_fixed_objects():
    record = _record()
    (stored,) = [c for c in record.conditions if Kind.STORED_ATTRIBUTE in c.kinds]
    assert stored.kinds == (Kind.STORED_ATTRIBUTE, Kind.FIXED_VALUE) and not stored.source
    scale.factor = 3
    try:
        assert record.guard((torch.ones(2), 3), {}) == record.watch_number
        assert "factor" in record.why_not(record.watch_number)
    finally:
        scale.factor = 2
