"""Counters in tensors with one element, incremented and read as optimizers do with their steps."""

import operator

import pytest
import torch

import magpy_like as magpy
from tests.programs import tensor

BEYOND = float(2**24)
"""From here on, ``float32`` has not all integers."""


def by_operator(step):
    step += 1


def by_method(step):
    step.add_(2.5)


def by_several(step):
    torch._foreach_add_([step], 1)


def by_a_constant(step):
    torch._foreach_add_([step], torch.tensor(1.0), alpha=1.0)


def twice(step):
    step += 1
    step += 0.1


COUNTS = [by_operator, by_method, by_several, by_a_constant, twice]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", COUNTS)
def test_arithmetic_on_a_counter_matches_eager(count, dtype):
    def program(x, step):
        count(step)
        number = step.item()
        return x * (1 - 0.9**number) ** 0.5, number

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for start in (0.0, 1.0, 1.25, BEYOND - 2, BEYOND, 3.0):
        found, expected = (torch.tensor(start, dtype=dtype) for _ in range(2))
        for _ in range(3):
            actual, wanted = fast(tensor(1, 2), found), program(tensor(1, 2), expected)
            assert torch.equal(actual[0], wanted[0]) and actual[1] == wanted[1]
            assert torch.equal(found, expected)
    info = magpy.cache_info(fast)
    assert (info.misses, info.graphs) == (1, 1)


def test_guard_checks_values_for_which_arithmetic_raises():
    def program(x, step):
        step += 1
        return x / 2 + 3 / step.item()

    fast = magpy.compile(program, backend="eager")
    for start in (0.0, 1.0, -1.0, 2.0):
        steps = torch.tensor(start), torch.tensor(start)
        if start == -1:
            for call, step in zip((fast, program), steps, strict=True):
                with pytest.raises(ZeroDivisionError):
                    call(tensor(1), step)
        else:
            assert torch.equal(fast(tensor(1), steps[0]), program(tensor(1), steps[1]))
        assert torch.equal(*steps)
    assert magpy.cache_info(fast).hits == 2


def test_two_branches_on_a_counter_have_two_records():
    def program(x, step):
        step += 1
        return x * 2 if step.item() % 3 == 0 else x

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    found, expected = torch.tensor(0.0), torch.tensor(0.0)
    for _ in range(9):
        assert torch.equal(fast(tensor(1), found), program(tensor(1), expected))
    assert magpy.cache_info(fast).misses == 2


def added_to_itself(x, step):
    step += step
    return x * step.item()


def incremented_by_an_argument(x, step):
    step += x.sum()
    return x * step.item()


def incremented_by_a_varying_number(x, step, amount=[0]):
    amount[0] += 1
    step += amount[0]
    return x * step.item()


def multiplied(x, step):
    step += 1
    step *= 2
    return x * step.item()


def changed_by_a_view(x, step):
    step += 1
    step.view(-1).add_(x.sum())
    return x * step.item()


def changed_by_its_data(x, step):
    step += 1
    step.data.add_(x.sum())
    return x * step.item()


def changed_by_its_data_among_others(x, step):
    step += 1
    torch._foreach_add_([step.data], [x.sum().item()])
    return x * step.item()


def data_replaced(x, step):
    step += 1
    step.data = x.sum()
    return x * step.item()


def filled_before(x, step):
    step.fill_(x.sum())
    step += 1
    return x * step.item()


def in_a_larger_tensor(x, step):
    part = step.view(1)[0]
    part += 1
    x = x + step
    return x * part.item() * step.item()


def read_before_and_after(x, step):
    before = step.item()
    step += 1
    return x * before, x * step.item()


def as_a_bound(x, step):
    step += 1
    return [x * i for i in range(int(step.item()))]


def as_text(x, step):
    step += 1
    return x, f"step {step.item():.0f}"


def returned(x, step):
    step += 1
    number = step.item()
    step += 1
    return x, number, step.item()


def kept(x, step):
    step += 1
    x.__dict__.setdefault("seen", []).append(step.item())
    return x * 2


OTHER_USES = [
    added_to_itself, incremented_by_an_argument, incremented_by_a_varying_number, multiplied,
    changed_by_a_view, changed_by_its_data, changed_by_its_data_among_others, data_replaced,
    filled_before, in_a_larger_tensor, read_before_and_after, as_a_bound, as_text, returned, kept,
]  # fmt: skip


@pytest.mark.parametrize("program", OTHER_USES)
def test_other_uses_of_a_counter_match_eager(program):
    fast = magpy.compile(program, backend="eager")
    for start in (1.0, 1.0, 3.0, 2.0):
        outcomes = []
        for call in (fast, program):
            if program.__defaults__:
                program.__defaults__[0][0] = int(start)
            x, step = tensor(1, 2), torch.tensor(start)
            result = call(x, step)
            outcomes.append(repr((result, step, x.__dict__)))
        assert operator.eq(*outcomes)


def test_aliasing_of_counters_is_guarded():
    def program(x, one, other):
        one += 1
        first = one.item()
        other += 1
        return x * first, x * other.item()

    fast = magpy.compile(program, backend="eager")
    for same in (False, False, True, False):
        outcomes = []
        for call in (fast, program):
            a, b = torch.tensor(1.0), torch.tensor(5.0)
            outcomes.append(repr((call(tensor(1), a, a if same else b), a, b)))
        assert operator.eq(*outcomes)
    assert magpy.cache_info(fast).hits >= 2


def test_memory_shared_with_a_counter_is_guarded():
    def program(x, step):
        x.mul_(2)
        step += 1
        return x + step.item()

    fast = magpy.compile(program, backend="eager")
    for shares in (False, False, True, False):
        outcomes = []
        for call in (fast, program):
            x = tensor(1, 2)
            step = x[0] if shares else torch.tensor(3.0)
            outcomes.append(repr((call(x, step), x, step)))
        assert operator.eq(*outcomes)


def test_counter_of_a_module_is_incremented():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("step", torch.tensor(0.0))

        def forward(self, x):
            self.step += 1
            return x * 0.5 ** self.step.item()

    found, expected = Model(), Model()
    fast = magpy.compile(found, backend="eager", fullgraph=True)
    for i in range(5):
        assert torch.equal(fast(tensor(1)), expected(tensor(1)))
        if i == 2:
            for model in (found, expected):
                model.load_state_dict({"step": torch.tensor(7.0)})
    assert torch.equal(found.step, expected.step)
    assert magpy.cache_info(fast).hits == 4
