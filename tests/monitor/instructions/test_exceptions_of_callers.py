"""Programs that depend on the exception that their caller is handling."""

import pytest
import torch

import magpy_like as magpy


def context_of_a_new_exception(x):
    try:
        raise KeyError(1)
    except KeyError as error:
        return type(error.__context__).__name__


def raise_what_is_handled(x):
    try:
        raise
    except RuntimeError:
        return "nothing"
    except ZeroDivisionError:
        return "division"


KEPT = KeyError("kept")


def raise_an_external_exception(x):
    try:
        raise KEPT
    except KeyError:
        return x * 2


def outcome(call):
    KEPT.__context__ = ValueError()
    found = call(torch.ones(1))
    return found if isinstance(found, str) else type(KEPT.__context__)


def outcomes(call):
    """Those of calls without an exception that is being handled, with one, and without again."""
    found = [outcome(call) for _ in range(3)]
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        found += [outcome(call) for _ in range(3)]
    return found + [outcome(call)]


@pytest.mark.parametrize(
    "program", [context_of_a_new_exception, raise_what_is_handled, raise_an_external_exception]
)
def test_exception_that_the_caller_handles_is_that_of_each_call(program):
    run = magpy.compile(program, backend="eager")
    assert outcomes(run) == outcomes(program)
    assert len(set(outcomes(program))) == 2
    assert magpy.cache_info(run).hits
