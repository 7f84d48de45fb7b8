"""NumPy functions of lifted numbers, and arrays read at varying indices."""

import warnings

import numpy as np
import pytest
import torch

from tests.programs import Twins, tensor

NUMBERS = [3.0, 1.5, 2.25, 9.0, 0.5, 7.0]

OF_AN_ARGUMENT = {
    "ufunc": lambda x, n: (x / np.sqrt(n), np.exp(-n / 10)),
    "function": lambda x, n: x * np.clip(n, 1.0, 5.0),
    "several": lambda x, n: (x * np.maximum(n, 2.0), np.hypot(n, 2), np.power(n, 2.0)),
    "of a list": lambda x, n: x - np.mean([n, 1.0, n * 2]),
    "keywords": lambda x, n: x * np.round(n, decimals=1),
    "question": lambda x, n: x if np.isnan(n) else x * n,
    "power": lambda x, n: x * np.power(np.float64(n), 3),
    "slice": lambda x, n: x[: np.clip(int(n), 1, 3)].sum(),
}
OF_A_TENSOR = {
    "logged": lambda x, log: log.append(np.sqrt(x.sum().item())),
    "mean": lambda x, log: log.append(np.mean([v.item() for v in x])),
    "question": lambda x, log: log.append(np.isfinite(x.sum().item())),
}


@pytest.mark.parametrize("name", OF_AN_ARGUMENT)
def test_one_record_serves_all_numbers(name):
    twins = Twins(lambda: OF_AN_ARGUMENT[name])
    for i, n in enumerate(NUMBERS):
        hit = (
            None if name == "slice" else i > 1
        )  # another slice length may need a record of its own
        twins.call(lambda n=n: (tensor(1.0, -2.0, 3.0), n), hit=hit)


@pytest.mark.parametrize("name", OF_A_TENSOR)
def test_functions_of_tensor_values_run_after_the_graph(name):
    program = OF_A_TENSOR[name]
    twins = Twins(lambda: lambda x, log: (program(x, log), x * 2, log))
    for i, n in enumerate(NUMBERS):
        twins.call(lambda n=n: (tensor(n, 2 * n, 1.0), []), hit=i > 0)


def test_function_of_a_tensor_value_as_operator_argument_matches_eager():
    twins = Twins(lambda: lambda x: x * np.sqrt(x.sum().item()))
    for i, n in enumerate(NUMBERS):
        twins.call(lambda n=n: (tensor(n, 2 * n, 1.0),), hit=i > 1 or None)


TABLE = np.linspace(0.1, 0.9, 6)


def test_array_is_read_at_a_varying_index():
    def program(x, t):
        return x * float(TABLE[t]) + TABLE[t - 1]

    twins = Twins(lambda: program)
    for i, t in enumerate([2, 4, 0, 5, 1, 3, -1]):
        twins.call(lambda t=t: (tensor(1.0, 2.0), t), hit=i > 1)
    twins.call(lambda: (tensor(1.0, 2.0), 6), hit=None, why="no such element")


def test_changed_array_misses():
    table = np.arange(4.0)
    twins = Twins(lambda: lambda x, t: x * float(table[t]))
    for i, t in enumerate([2, 3, 0, 1]):
        twins.call(lambda t=t: (tensor(1.0, 2.0), t), hit=i > 1)
    table[1] = 7.0
    twins.call(lambda: (tensor(1.0, 2.0), 1), hit=False)


def test_numpy_warnings_are_repeated():
    twins = Twins(lambda: lambda x, n: x * np.log(n))
    for n in (2.0, 3.0, 4.0):
        twins.call(lambda n=n: (tensor(1.0), n))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        twins.call(lambda: (tensor(1.0), 0.0))
    assert [(str(w.message), w.filename) for w in seen] == [
        ("divide by zero encountered in log", __file__)
    ] * 2  # eager, and compiled


@pytest.mark.parametrize("mode", ["raise", "ignore"])
def test_error_state_of_the_program_holds(mode):
    def program(x, n):
        with np.errstate(all=mode):
            try:
                return x * np.log(n)
            except FloatingPointError:
                return x

    twins = Twins(lambda: program)
    for n in (2.0, 3.0, 4.0, 0.0, 5.0, -1.0):
        twins.call(lambda n=n: (tensor(1.0), n))


def test_large_integers_match_eager():
    twins = Twins(lambda: lambda x, n: (x, np.add(n, 1), np.sqrt(n)))
    for n in (2, 3, 4, 2**62, 2**63 - 2, 2**63 + 5, 2**70, 0, 9):
        twins.call(lambda n=n: (tensor(1.0), n))


def test_one_record_serves_random_cutouts():
    def cutout(x):
        h, w = x.shape[-2:]
        y, z = np.random.randint(h), np.random.randint(w)
        top, bottom = np.clip(y - 2, 0, h), np.clip(y + 2, 0, h)
        left, right = np.clip(z - 2, 0, w), np.clip(z + 2, 0, w)
        mask = torch.ones(h, w)
        mask[top:bottom, left:right] = 0
        return x * mask

    def inputs(seed):
        np.random.seed(seed)  # equal draws in the compiled and the eager call
        return (torch.full((2, 8, 8), 1.0 + seed),)

    twins = Twins(lambda: cutout)
    for i in range(6):
        twins.call(lambda i=i: inputs(i), hit=i > 0)
