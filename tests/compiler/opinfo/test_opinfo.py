"""Every operator of torch's OpInfo database, compiled, gives what eager gives."""

import json
import zlib

import pytest
import torch

from magpy_like.compiler import compile_fx
from tests.compiler.opinfo import coverage, harness

NAMES = sorted(harness.operators())
# A part of the sweep that any change is tried on: the same operators every time.
SOME = [name for name in NAMES if zlib.crc32(name.encode()) % 9 == 0]
SOME_SAMPLES = 3


def check(name, dtypes, *, gradient=False, limit=None):
    op = harness.operators()[name]
    _, problems = harness.sweep(op, dtypes, compile_fx, gradient=gradient, limit=limit)
    if problems:
        shown = "\n".join(map(str, problems[:10]))
        pytest.fail(f"{len(problems)} samples differ from eager's:\n{shown}", pytrace=False)


@pytest.mark.parametrize("name", SOME)
def test_some_operators_in_some_dtypes(name):
    # One more dtype, another one for each operator.
    others = [d for d in harness.FORWARD_DTYPES[1:] if d in harness.operators()[name].dtypes]
    if others:
        others = [others[zlib.crc32(name.encode()) // 9 % len(others)]]
    check(name, [torch.float32, *others], limit=SOME_SAMPLES)
    check(name, [torch.float32], gradient=True, limit=SOME_SAMPLES)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_forward(name):
    check(name, harness.FORWARD_DTYPES)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_gradients(name):
    check(name, [torch.float32], gradient=True)


# --- the list of operators ---------------------------------------------------------------------


# The list is torch 2.13's. Torch before it takes it for known how many elements `unique` gives in
# the gradient of `index_fill`, and has samples of `histc` first whose limits the elements decide.
LISTED_OTHERWISE = {"index_fill", "histc"} if torch.__version__ < "2.13" else set()


def regressions(name):
    """What an operator goes through ATen for, and did not when the committed list was made."""
    listed = coverage.committed().get(name)
    if listed is None or name in LISTED_OTHERWISE:
        return []
    row = coverage.survey([name])[name]
    found = []
    for column in ("forward", "gradient"):
        if column in row and row[column]["status"] == "fallback":
            before = set(listed.get(column, {}).get("through ATen", ()))
            if new := set(row[column]["through ATen"]) - before:
                found.append(f"{column}: {sorted(new)}")
    return found


@pytest.mark.cpu  # of which the list is
@pytest.mark.parametrize("name", SOME[::6])
def test_some_operators_run_as_the_list_says(name):
    assert regressions(name) == []


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_runs_as_the_list_says(name):
    assert regressions(name) == []


def test_the_figures_are_those_of_the_list():
    text = json.loads(coverage.LIST.read_text())
    assert text["figures"] == coverage.figures(text["operators"])


def test_at_least_85_percent_run_without_fallback():
    assert coverage.figures(coverage.committed())["forward"]["without fallback"] >= 0.85


# --- the harness itself ------------------------------------------------------------------------


def broken(change):
    """A compiler whose graphs give wrong results."""

    def compiler(gm, inputs):
        return lambda *args: [change(out) for out in gm(*args)]

    return compiler


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda out: out + 1e-3, "not close"),
        (lambda out: out.double(), "dtype"),
        (lambda out: out.flatten()[: out.numel() // 2], "shape"),
        (lambda out: torch.stack([out, out], -1)[..., 0], "stride"),
        (lambda out: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["value", "dtype", "shape", "stride", "error"],
)
def test_the_harness_sees_what_is_wrong(change, what):
    op = harness.operators()["exp"]
    ran, problems = harness.sweep(op, [torch.float32], broken(change), limit=6)
    assert ran == 3
    assert problems
    assert all(what in problem.what for problem in problems), problems


def test_the_harness_sees_a_wrong_gradient():
    def compiler(gm, inputs):
        # Values as they should be, gradients doubled.
        return lambda *args: [2 * out - out.detach() for out in gm(*args)]

    _, problems = harness.sweep(
        harness.operators()["exp"], [torch.float32], compiler, gradient=True, limit=2
    )
    assert problems
    assert all(problem.gradient for problem in problems)


def test_the_harness_passes_eager_itself():
    for name in ("softmax", "nn.functional.max_pool2d", "nn.functional.dropout", "index_put"):
        op = harness.operators()[name]
        for gradient in (False, True):
            ran, problems = harness.sweep(
                op, [torch.float32], lambda gm, inputs: gm, gradient=gradient, limit=4
            )
            assert ran == 4
            assert not problems
