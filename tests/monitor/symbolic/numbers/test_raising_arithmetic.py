"""Arithmetic on lifted numbers that raises for some values, caught or not."""

import math
import random

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

CAUGHT = (ValueError, ArithmeticError, TypeError)


def catching_program(compute, uses):
    """A program that calls ``compute`` and catches; it returns the result only if ``uses``."""

    def program(x, n):
        try:
            result = compute(x, n)
        except CAUGHT:
            return "raised"
        return result if uses else x + 1

    return program


def _root_of_a_draw(x, n):
    return math.sqrt((random.random() - 0.5) * n)


def _reciprocal_of_a_draw(x, n):
    return 7 // random.randint(0, 2)


def _shift_by_a_draw(x, n):
    return 1 << random.randint(-1, 1)


def _character_of_a_draw(x, n):
    return f"{random.randint(-1, 3):c}"


def _power_of_a_draw(x, n):
    return 0.0 ** random.randint(-1, 1)


def _root_of_an_arrays_draw(x, n):
    return math.sqrt(np.random.rand() - 0.5)


def _logarithm_of_an_element(x, n):
    return math.log(x[0].item())


def _integer_of_an_element(x, n):
    return int(x[0] / x[0])


def _rounded_element(x, n):
    return round((x[1] / x[0]).item())


def _reciprocal_of_an_element(x, n):
    return x * (1 / x[0].item())


def _root_of_an_element(x, n):
    return x * math.sqrt(x[0].item())


def _large_power_of_an_element(x, n):
    return x + (1 + x[0].item() ** 2) ** 400.0


def _exponential_of_an_argument(x, n):
    return math.exp(n * 300)


def _root_of_an_argument(x, n):
    return x * math.sqrt(n)


def _shift_by_an_argument(x, n):
    return 1 << n


def _large_argument(x, n):
    return float(10 ** (abs(n) * 150))


OF_PYTHON = [
    _root_of_a_draw, _reciprocal_of_a_draw, _shift_by_a_draw, _character_of_a_draw,
    _power_of_a_draw, _root_of_an_arrays_draw, _exponential_of_an_argument, _root_of_an_argument,
    _shift_by_an_argument, _large_argument,
]  # fmt: skip
OF_TENSORS = [
    _logarithm_of_an_element, _integer_of_an_element, _rounded_element, _reciprocal_of_an_element,
    _root_of_an_element, _large_power_of_an_element,
]  # fmt: skip


def outcome(program, seed, n):
    random.seed(seed)
    np.random.seed(seed)
    x = torch.arange(3.0) + n
    return program(x, n), x, random.getstate(), list(np.random.get_state()[1])


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("uses", [True, False], ids=["used", "for its exception"])
@pytest.mark.parametrize(
    ("compute", "backend"),
    [(compute, "eager") for compute in OF_PYTHON + OF_TENSORS]
    + [(compute, "magpy") for compute in OF_TENSORS],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_exceptions_of_arithmetic_are_caught(compute, uses, backend):
    program = catching_program(compute, uses)
    fast, answers = magpy.compile(program, backend=backend), set()
    for seed, n in enumerate((2, 1, 0, 3, -1, 1, 2, 0, 3, -2)):
        random.seed(seed)
        expected = outcome(program, seed, n)
        assert_same(outcome(fast, seed, n), expected)
        answers.add(isinstance(expected[0], str) and expected[0] == "raised")
    assert len(answers) == 2, "some numbers raise, others do not"
    assert magpy.cache_info(fast).hits >= 3


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
def test_arithmetic_raises_between_the_effects_of_the_program():
    def program(x, log):
        log.append("begun")
        root = math.sqrt(random.random() - 0.5)
        log.append(root)
        x.add_(root)
        log.append(math.log(x[0].item()))
        return x * 2

    fast = magpy.compile(program, backend="eager")
    for seed in range(12):
        found = []
        for run in (fast, program):
            random.seed(seed)
            log, x, raised = [], torch.full((3,), 0.5 - seed % 3), None
            try:
                run(x, log)
            except ValueError as error:
                raised = str(error), error.__traceback__.tb_next is not None
            found.append((log, x, raised and raised[0], random.getstate()))
        assert_same(*found)
    assert magpy.cache_info(fast).hits > 5


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_change_before_an_exception_is_rolled_back(backend):
    def program(x):
        x.mul_(2)
        try:
            1 / x.sum().item()
        except ZeroDivisionError:
            x.add_(5)
        return x * 3

    fast = magpy.compile(program, backend=backend)
    for total in (1.0, 2.0, 0.0, 4.0, 0.0):
        found, expected = (torch.full((2,), total) for _ in range(2))
        assert_same((fast(found), found), (program(expected), expected))
    assert magpy.cache_info(fast).hits == 4


def test_shared_subexpressions_are_computed_once():
    def program(x, n):
        a, b = random.random(), n
        for _ in range(40):
            a, b = b, a + b
        return a, b, x * b

    fast = magpy.compile(program, backend="eager")
    for seed in range(4):
        random.seed(seed)
        found = fast(torch.ones(2), seed)
        random.seed(seed)
        assert_same(found, program(torch.ones(2), seed))
    record = magpy.api._dispatcher(fast).records[0]
    assert record.mock_source.count(" + ") == 40
    assert magpy.cache_info(fast).hits == 2


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
def test_branch_that_may_raise_is_not_merged():
    def program(x):
        if x.sum() > 0:
            x = x * (1 / x[0].item())
        return x + 1

    fast = magpy.compile(program, backend="eager")
    for first, second in ((1.0, 1.0), (-1.0, 0.0), (2.0, 3.0), (0.0, -1.0), (0.0, 1.0), (4.0, 1.0)):
        found = []
        for run in (fast, program):
            try:
                found.append(run(torch.tensor([first, second])))
            except ZeroDivisionError as error:
                found.append(str(error))
        assert_same(*found)
