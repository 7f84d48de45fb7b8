"""Lists of varying length, which a split program collects in a loop and then joins."""

import contextlib
import warnings

import pytest
import torch

import magpy_like as magpy
from magpy_like.split_reasons import SplitReason
from tests.programs import Twins, check_results, one, tensor


def inputs_with_trip_counts(*counts):
    """Inputs for which the loops have these trip counts."""
    return [lambda n=n: (torch.full((3,), float(n)),) for n in counts]


def _collected(x):
    parts = []
    while x.sum().item() > 0:
        parts.append(x * 2)
        x = x - 1
    return torch.stack(parts) if parts else x


def _joined_with_others(x):
    parts = []
    while x.sum().item() > 0:
        parts.append(x.abs())
        x = x - 1
    return torch.cat([*parts, x]).sum() + len(parts), parts


def _changed_before(x):
    parts = [x]
    while x.sum().item() > 0:
        parts.append(x * 2)
        x = x - 1
    parts[0] = parts[-1] + 1
    parts.append(x)
    return torch.stack(parts), parts


def _nested(x):
    parts = [x], []
    while x.sum().item() > 0:
        parts[0].append(x)
        parts[1].append(x + 1)
        x = x - 1
    return torch.cat(parts[0]), torch.stack(parts[1])


def _extended(x):
    parts, more = [], [x]
    while x.sum().item() > 0:
        parts.append(x)
        x = x - 1
    more.extend(parts)
    return torch.cat(parts), torch.stack(more)


def _in_a_with_block(x):
    parts = []
    while x.sum().item() > 0:
        parts.append(x)
        x = x - 1
    with contextlib.suppress(ZeroDivisionError):
        x = torch.stack([*parts, x]) if parts else x
        y = torch.cat(parts)
    return x, y


def _raises(x):
    parts = []
    while x.sum().item() > 0:
        parts.append(x[: len(parts) + 1])
        x = x - 1
    try:
        return torch.stack(parts)
    except RuntimeError as error:
        return str(error)


PROGRAMS = [
    _collected,
    _joined_with_others,
    _changed_before,
    _nested,
    _extended,
    _in_a_with_block,
    _raises,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_lists_of_all_lengths_match_eager(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_results(lambda: program, *inputs_with_trip_counts(3, 1, 4, 2, 6, 3, 5, 2))


@pytest.mark.parametrize("program", [_collected, _nested], ids=lambda program: program.__name__)
def test_operator_on_a_varying_list_splits_and_shares_its_continuation(program):
    twins = Twins(lambda: program)
    for inputs in inputs_with_trip_counts(3, 2, 4, 3, 5):
        twins.call(inputs)
    for inputs in inputs_with_trip_counts(6, 2, 9, 7, 12):
        twins.call(inputs, hit=True)
    reasons = [p.reason for d in all_dispatchers(twins.compiled) for p in d.split_points]
    assert SplitReason.VARYING_LIST in reasons


def all_dispatchers(compiled):
    dispatcher = magpy.api._dispatcher(compiled)
    return [dispatcher, *dispatcher.continuations()]


def test_list_argument_does_not_split():
    def program(parts):
        return torch.stack(parts).sum(0)

    twins = Twins(lambda: program)
    for n in (2, 3, 4):
        twins.call(lambda n=n: ([torch.ones(2)] * n,), hit=False)
        twins.call(lambda n=n: ([torch.ones(2)] * n,), hit=True)
    assert not any(d.split_points for d in all_dispatchers(twins.compiled))


def test_dynamic_false_has_a_record_for_each_length():
    twins = Twins(lambda: _collected, dynamic=False)
    for inputs in inputs_with_trip_counts(3, 2, 4, 3):
        twins.call(inputs)
    reasons = [p.reason for d in all_dispatchers(twins.compiled) for p in d.split_points]
    assert SplitReason.VARYING_LIST not in reasons


HOLDERS = {
    "list": lambda n: [tensor(1.0)] * n,
    "tuple": lambda n: (tensor(1.0),) * n,
    "dict": lambda n: {i: tensor(1.0) for i in range(n)},
    "set": lambda n: {f"{i}" for i in range(n)},
}


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("form", ["if", "not", "bool", "and"])
def test_truth_of_a_container_does_not_guard_its_length(kind, form):
    program_of_form = {
        "if": lambda x, held: x + 1 if held else x - 1,
        "not": lambda x, held: x * (2 if not held else 3),
        "bool": lambda x, held: x * 2 if bool(held) else x,
        "and": lambda x, held: (held and x + 1) is x or x,
    }[form]
    make = HOLDERS[kind]
    twins = Twins(lambda: program_of_form)
    twins.call(lambda: (tensor(1.0, 2.0), make(2)), hit=False)
    hit = None if form == "bool" else True
    twins.call(lambda: (tensor(1.0, 2.0), make(3)), hit=hit)
    twins.call(lambda: (tensor(1.0, 2.0), make(0)), hit=False, why="it is empty")
    twins.call(lambda: (tensor(1.0, 2.0), make(0)), hit=True)
    twins.call(lambda: (tensor(1.0, 2.0), make(1)))


class _HoldsList(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        return x * 2 if self.seen else x


def test_truth_of_a_fixed_container_does_not_guard_its_length():
    twins = Twins(_HoldsList)
    twins.call(one(), hit=False)
    twins.change(lambda module: module.seen.append(1))
    twins.call(one(), hit=False)
    twins.change(lambda module: module.seen.append(2))
    twins.call(one(), hit=True)
    twins.change(lambda module: module.seen.clear())
    twins.call(one(), hit=True, why="the first record")


def test_length_read_after_the_truth_is_guarded():
    def program(x, held):
        if held:
            x = x + 1
        return x * len(held), held[0]

    twins = Twins(lambda: program)
    for n, hit in ((2, False), (2, True), (3, False), (1, True), (0, None)):
        twins.call(lambda n=n: (tensor(1.0), [5] * n), hit=hit)


def test_data_dependent_number_of_elements_is_speculated_on():
    def program(x):
        found = x[x > 0]
        return found * 2 if found.numel() > 1 else x, found.nelement() - 1

    twins = Twins(lambda: program)
    twins.call(one(1.0, 2.0, -3.0), hit=False)
    twins.call(one(1.0, 2.0, 3.0), hit=True)
    twins.call(one(1.0, 2.0, 3.0, 4.0, -1.0), hit=False, why="another size")
    twins.call(one(-1.0, 2.0, -3.0))
    twins.call(one(-1.0, 2.0, -3.0))
